"""Every free choice at the ends of its range."""

from pathlib import Path

import pytest

from dysharp.cli import reproduce
from dysharp.figures import Store
from dysharp.figures.origin import origin_of
from dysharp.figures.tornado import Tornado, _values_of
from dysharp.runs.point import Point
from dysharp.specs import choice, list_choices


def test_values_are_the_ends_that_differ() -> None:
    assert _values_of(choice("machine.responder_ns")) == [300, 1000]
    assert _values_of(choice("machine.train_bytes")) == [4096]
    assert _values_of(choice("gemm.weight_reuse")) == ["tile"]
    assert _values_of(choice("dysharp.combine_window")) == [16, 256]


def test_an_option_goes_to_its_system_and_other_choices_to_all() -> None:
    points = Tornado("S-8").points({"dysharp.combine_window": 16})
    assert points["dysharp"].options == (("combine_window", 16),)
    assert points["deepep"] == Tornado("S-8").points({})["deepep"], "systems that an option does not touch are not run again"
    assert not points["dysharp"].choices
    points = Tornado("S-8").points({"gemm.tile_rows": 64})
    assert all(p.choices == (("gemm.tile_rows", 64),) for p in points.values())


@pytest.mark.slow
def test_bars_come_largest_first() -> None:
    points = Tornado("S-8").all_points()
    assert len(points) == len(set(points))
    rows = {p: {"time_us": 100.0} for p in points}
    for p in points:
        if p.system == "dysharp" and dict(p.choices).get("gemm.tile_rows") == 256:
            rows[p] = {"time_us": 50.0}
    bars = Tornado("S-8").bars(rows)
    assert {b.choice.name for b in bars} == {c.name for c in list_choices()}
    assert bars[0].choice.name == "gemm.tile_rows"
    assert bars[1].change == {"deepep": 1.0, "comet": 1.0, "nvls": 1.0}
    results = Tornado("S-8").results(rows, bars)
    assert results[0].ours == 1.0
    assert any(r.bound == "+100.00 %" and r.point == "gemm.tile_rows: 128 -> 256 rows" for r in results)
    columns, lines = Tornado("S-8").table(rows, bars)
    assert len(columns) == 4
    assert lines[0] == ["packaged choices", "1.000", "1.000", "1.000"]
    assert ["gemm.tile_rows: 128 -> 256 rows", *["2.000 (+100.00 %)"] * 3] in lines[1:3]


@pytest.mark.slow
def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(reproduce, "_run", lambda points, *_: ({p: {"time_us": 100.0} for p in points}, {}))
    _, _, page, finished = reproduce._tornado(reproduce.Wanted(True, "dysharp", "S-8", None, finite=False), Store(tmp_path), 1, quiet=False)
    assert finished
    title, head, first = capsys.readouterr().out.splitlines()[:3]
    assert title.startswith("tornado")
    assert head.split()[0] == page.split("| ")[1].split()[0]
    assert first.split() == ["packaged", "choices", "1.000", "1.000", "1.000"]


def test_closed_form_rows() -> None:
    row = origin_of("closed-form").row(Point("closed-form", "deepseek-v3", "paper-gh200-nvl32", "", options=(("topk", 8),)))
    assert (round(row["redundant_share"], 3), round(row["ideal_speedup"], 3)) == (0.429, 1.751)
