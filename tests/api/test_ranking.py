"""A system that drops rows does less work: it is never the fastest, and its row says how much it drops."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dysharp as ds
from dysharp.api.comparison import limits_sentence, place_of_fastest
from dysharp.cli.texts.comparison_text import print_comparison
from dysharp.planning.advice.advise import _answer_lines
from dysharp.show.html_report import render, report_of_advice, report_of_comparison, report_of_rows
from dysharp.show.plots import plot_compare


@pytest.fixture(scope="module")
def done() -> ds.api.Comparison:
    """Tutel is the fastest of these and drops rows."""
    found = ds.compare(["tutel", "deepep", "ideal"], baseline="deepep", gpus=4, tokens=32, routing="uniform")
    rows = tuple(replace(row, time_us=1.0) if row.system == "tutel" else row for row in found.rows)
    assert rows[0].dropped_rows
    return replace(found, rows=rows, sentence=limits_sentence(rows, found.baselines))


def test_the_sentence_leaves_it_out_and_says_why(done: ds.api.Comparison) -> None:
    share = f"{done.rows[0].dropped_rows / (4 * 32 * done.rows[0].topk):.1%}".replace("%", " %")
    assert done.sentence.startswith("Fastest is deepep (")
    assert done.sentence.endswith(f"Out of the ranking: tutel drops {share} of the (token, expert) rows.")
    assert done.to_dict()["out_of_ranking"] == {"tutel": f"drops {share} of the (token, expert) rows"}
    assert "tutel*" in str(done)


def test_where_all_drop_rows_the_sentence_says_so(done: ds.api.Comparison) -> None:
    alone = limits_sentence(done.rows[:1], {"paper": "tutel"})
    assert alone.startswith("Every system drops rows. Shortest is tutel (1.0 us)")


def test_the_screen_marks_the_row(done: ds.api.Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(done)
    text = capsys.readouterr().out
    assert "\ntutel* " in text
    assert "\n* tutel drops " in text


def test_pages_and_pictures_follow_the_sentence(done: ds.api.Comparison) -> None:
    for report in (report_of_comparison(done, "x"), report_of_rows([row.to_dict() for row in done.rows], "x")):
        assert report.panels[0].best == 1
        assert render(report).count('class="n best"') == 1
    labels = [label.get_text() for label in plot_compare(done.rows).get_yticklabels()]
    assert labels[0].startswith("tutel\n(drops ")
    assert labels[1:] == ["deepep", "ideal"]


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ([("tutel", "real", 5, 1.0), ("deepep", "real", 0, 2.0)], 1),
        ([("ideal", "paper", 0, 1.0), ("dysharp", "paper", 0, 2.0), ("deepep", "real", 0, 3.0)], 2),
        ([("ideal", "paper", 0, 1.0), ("dysharp", "paper", 0, 2.0), ("comet", "paper", 0, 1.5)], 2),
        ([("tutel", "real", 5, 2.0), ("tutel", "real", 9, 1.0)], 1),
    ],
)
def test_the_fastest(found: list[tuple[str, str, int, float]], place: int) -> None:
    assert place_of_fastest(found) == place


def test_the_first_system_without_drops_is_the_baseline() -> None:
    assert ds.compare(["tutel", "comet"], gpus=4, tokens=32, routing="uniform").baseline == "comet"


def test_advice_never_runs_it() -> None:
    done = ds.advise("deepseek-v2-lite", systems=["tutel", "deepep-ll"], gpus=4, tokens=16)
    assert done.best.system == "deepep-ll"
    assert [entry.system for entry in done.unjudged] == ["tutel"]
    assert "Faster in this simulation" not in done.answer[0]
    assert "compute fewer (token, expert) rows: tutel drops " in done.answer[0]
    assert report_of_advice(done, "x").panels[0].best == 0
    slow = replace(done.unjudged[0], row=replace(done.unjudged[0].row, dropped_rows=0, time_us=1.0))
    assert "Faster in this simulation, but without an error bar: tutel" in _answer_lines(done.best, (), (), [slow])[0]
