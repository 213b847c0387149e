"""Results print as a short table: `print(result)`; `repr` is one line."""

from __future__ import annotations

import pytest

import dysharp as ds

SMALL = {"gpus": 4, "tokens": 16}


def _lines(result: object) -> list[str]:
    assert "\n" not in repr(result)
    assert len(repr(result)) <= 100
    lines = str(result).splitlines()
    assert max(map(len, lines)) <= 100
    return lines


def test_a_row() -> None:
    row = ds.run("deepep", **SMALL)
    lines = _lines(row)
    assert [line.split("  ")[0] for line in lines] == ["system", "workload", "layer time", "lower bound", "critical path", "warnings"]
    assert lines[2] == f"layer time     {row.time_us:.2f} us"


def test_a_comparison() -> None:
    done = ds.compare(["deepep", "ideal"], **SMALL)
    lines = _lines(done)
    assert [line.split()[0] for line in lines[:3]] == ["system", "deepep", "ideal"]
    assert lines[1].split()[1:] == ["paper", f"{done.rows[0].time_us:.2f}", "1.00"]
    assert lines[3].startswith("Fastest is ")


def test_advice() -> None:
    lines = _lines(ds.advise("deepseek-v2-lite", systems=["deepep-ll"], gpus=4, tokens=16))
    assert lines[0].startswith("Run deepep-ll: ")
    heading = next(at for at, line in enumerate(lines) if line.split() == ["system", "layer", "us", "90", "%", "within", "us"])
    assert lines[heading + 1].startswith("deepep-ll  ")
    assert len(lines) < 16


@pytest.mark.parametrize("load", ["0.1,0.2"])
def test_a_network_curve(load: str) -> None:
    lines = _lines(ds.network(load, k=2, period=200))
    assert [line.split()[0] for line in lines] == ["load", "0.1", "0.2"]


def test_results_show_themselves_in_a_notebook() -> None:
    """The numbers of `print`, with all warnings and the header; text is escaped."""
    from dataclasses import replace

    done = ds.compare(["deepep", "ideal"], **SMALL)
    page = done._repr_html_()
    for row in done.rows:
        assert f">{row.time_us:.2f}<" in page
    assert done.sentence in page
    evil = replace(done.rows[0], warnings=("<script>",), model="<b>")._repr_html_()
    assert "<script>" not in evil
    assert "&lt;script&gt;" in evil
    assert "&lt;b&gt;" in evil
