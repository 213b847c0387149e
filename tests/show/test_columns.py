"""A column is stated once: a stranger's column of one line stands wherever its table does."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import dysharp as ds
from dysharp.api.comparison import COMPARED
from dysharp.api.serving_answer import POINTS, Serving
from dysharp.api.training import COLUMNS
from dysharp.base import columns
from dysharp.base.columns import KEPT, SHOWN, Column, Columns
from dysharp.cli.reproduce import _json
from dysharp.cli.texts.comparison_text import print_comparison
from dysharp.figures.figure import Figure
from dysharp.figures.verdict import Result
from dysharp.planning.plan import LAYOUTS
from dysharp.show.figure_tables import RESULTS, figure_markdown, print_figure
from dysharp.show.html_report import render, report_of_comparison
from dysharp.show.markdown import table
from dysharp.show.paper_page import results_csv
from tests.show.held import printed

ROWS = [{"layout": "tp=8", "part": 0.1234, "us": 1234567.0, "low_high": [1.2, 3.9], "n": 5}]
TABLES = (COMPARED, RESULTS, COLUMNS, LAYOUTS, POINTS)


@pytest.fixture(autouse=True)
def nothing_added() -> Iterator[None]:
    """What a test adds to a table is gone after it."""
    yield
    for one in TABLES:
        one.added.clear()
    columns._load.cache_clear()


def test_columns_are_declared_once() -> None:
    found = Columns("layout\nname=layout", "part\n%=part:.1%", "step\nms=us/1e3:,.1f", "range=low_high:.0f", "n:")
    assert found.headings == ["layout\nname", "part\n%", "step\nms", "range", "n"]
    assert found.text == ["layout\nname"]
    assert found.cells([*ROWS, dict.fromkeys(ROWS[0])]) == [("tp=8", "12.3", "1,234.6", "1 to 4", "5"), ("-",) * 5]
    assert found.values(ROWS) == [{"layout": "tp=8", "part": 0.1234, "us": 1234567.0, "low_high": [1.2, 3.9], "n": 5}]
    assert found.without("us", "low_high").csv(ROWS) == "layout,part,n\ntp=8,0.1234,5\n"


def test_a_column_may_stand_on_screens_or_in_files_alone() -> None:
    double = Column("double", "2 n", "d", lambda row: 2 * row["n"], place=SHOWN)
    found = Columns("n:", double, Column("part", place=KEPT), Column("us", "time", unit="us"))
    assert found.headings == ["n", "2 n", "time\nus"]
    assert found.cells(ROWS)[0][1] == "10"
    assert list(found.values(ROWS)[0]) == ["n", "part", "us"]


def test_a_strangers_column_of_a_figure_is_on_screen_in_markdown_csv_and_json() -> None:
    RESULTS.add(Column("doubled", "twice ours", ".2f", lambda result: 2 * result.ours))
    figure, results = Figure("fig9", "a title", "a source", (), ()), [Result("a point", "a metric", None, 1.25)]
    out = Console(file=io.StringIO(), width=100)
    with out.capture() as captured:
        print_figure(figure, results, out)
    screen, page = captured.get().splitlines(), figure_markdown(figure, results).splitlines()
    assert [line.split()[-1] for line in screen if line.startswith(("point", "a point"))] == ["ours", "2.50"]
    assert [line.split("|")[-2].strip() for line in page if line.startswith("|")] == ["twice ours", "---", "2.50"]
    assert [row["doubled"] for row in csv.DictReader(io.StringIO(results_csv(results)))] == ["2.500"]
    assert json.loads(json.dumps(_json("fig9", results, True)))["rows"][0]["doubled"] == 2.5


def test_a_strangers_column_of_compare_is_on_screen_in_a_notebook_the_report_markdown_csv_and_json() -> None:
    COMPARED.add(Column("events_per_op", "events\nper op", ".3f", lambda row: row.n_events / row.n_ops))
    done = ds.compare(["deepep", "ideal"], gpus=4, tokens=16, model="S-8")
    shown = [f"{row.n_events / row.n_ops:.3f}" for row in done.rows]
    texts = str(done), "\n".join(printed(print_comparison, done)), done._repr_html_(), render(report_of_comparison(done, "compare"))
    for text in (*texts, table(done.columns.headings, done.columns.cells(done.rows))):
        assert "per op" in text
        assert all(value in text for value in shown)
    assert [row["events_per_op"] for row in done.to_dict()["rows"]] == [row.n_events / row.n_ops for row in done.rows]
    kept = list(csv.DictReader(io.StringIO(done.columns.csv(done.rows))))
    assert [float(row["events_per_op"]) for row in kept] == [row.n_events / row.n_ops for row in done.rows]


def test_the_line_of_the_page_adds_a_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "writing-a-system.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(from dysharp.api.comparison.*?)```", page, flags=re.DOTALL)[0], {})
    (row,) = ds.compare(["deepep"], gpus=4, tokens=16, model="S-8").to_dict()["rows"]
    assert row["up_share"] == row["utilization"]["up"]


def _of_step() -> tuple[str, Any]:
    done = ds.step("deepseek-v2-lite", cluster="hw-dgx-h100", layout="ep=8,dp=8,mbs=1,m=2", systems=["deepep"], quick=True)
    return str(done), done.to_dict()["steps"]


def _of_plan() -> tuple[str, Any]:
    done = ds.plan("qwen3-30b", gpus=8, cluster="hw-dgx-h100", quick=True, n_best=1)
    return str(done), done.to_dict()["shapes"][0]["best"]


def _of_serve() -> tuple[str, Any]:
    done: Serving = ds.serve("qwen3-30b", gpus=8, layouts=["tp=8"])
    return POINTS.screen(done.points_of(done.best)), done.to_dict()["best"]


@pytest.mark.parametrize(("into", "asked"), [(COLUMNS, _of_step), (LAYOUTS, _of_plan), (POINTS, _of_serve)])
def test_a_strangers_column_of_a_plain_row(into: Columns, asked: Callable[[], tuple[str, Any]]) -> None:
    into.add(Column("per_million", "per million", ".4f", lambda row: 1e6 / row["tokens_per_s_gpu"]))
    screen, rows = asked()
    assert "per million" in " ".join(screen.split())
    assert all(f"{1e6 / row['tokens_per_s_gpu']:.4f}" in screen and row["per_million"] == 1e6 / row["tokens_per_s_gpu"] for row in rows)
    assert rows


def test_an_entry_point_adds_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(load=lambda: RESULTS.add(Column("claim")))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == "dysharp.columns" else [])
    columns._load.cache_clear()
    assert RESULTS.headings[-1] == "claim"
    assert RESULTS.headings[-2] != "claim"
