"""Regression values: every check and every picture of every packaged figure, on Rows that `made_rows` makes without a run.

The numbers say nothing about a system: they hold what metrics, reductions and pictures make of a Row. `python tests/figures/test_every_figure.py`
writes `every_figure.csv` anew.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dysharp.figures import Figure, judge, list_figures, load_figure
from dysharp.figures.figure import Variant
from dysharp.figures.series import series_of
from tests.figures.made_rows import made_rows
from tests.reports.held import digest

FILE = Path(__file__).with_name("every_figure.csv")
DEAR = ("cais-fig18", "fig14", "fig15", "fig28", "fig29", "fig31", "hub-steps", "hub-range", "hub-ablations", "fig27")
"""Figures of whole steps, which make a step for each point, and of measurements."""
KEPT = 1
"""Variants of a figure that are judged."""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _small(figure: Figure) -> Figure:
    """The figure with its first variants: those of training steps cost no run of a layer."""
    kept: tuple[Variant, ...] = figure.variants[:: max(1, len(figure.variants) // KEPT)][:KEPT]
    return replace(figure, variants=kept)


def lines_of(name: str) -> Iterator[tuple[str, str, str]]:
    """(figure, check or series, its numbers)."""
    figure = _small(load_figure(name))
    rows = made_rows(figure.points)
    found: dict[str, list[str]] = {}
    for result in judge(figure, rows)[0]:
        found.setdefault(f"{result.claim}{'; '.join(['', *result.point.split('; ')[1:]])}", []).append(_number(result.ours))
    series = series_of(figure, rows)
    if series is not None:
        found[f"picture: {series.kind} by {series.x}, {series.unit}"] = list(series.places)
        found |= {f"picture: {key}": list(map(_number, values)) for key, values in series.values.items()}
        found |= {f"published: {key}": [_number(value)] for key, value in series.published.items()}
    for what, numbers in found.items():
        whole = " ".join(numbers)
        yield name, what, whole if len(whole) <= 60 else f"{whole[:40]} ~{digest(whole)}"


def stored() -> dict[str, dict[str, str]]:
    """{figure: {check or series: its numbers}}."""
    out: dict[str, dict[str, str]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for name, what, numbers in csv.reader(file):
            out.setdefault(name, {})[what] = numbers
    return out


STORED = stored() if FILE.exists() else {}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in list_figures()])
def test_what_a_figure_makes_of_its_rows(name: str) -> None:
    assert {what: numbers for _, what, numbers in lines_of(name)} == STORED[name]


def _write() -> None:
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for name in list_figures():
            writer.writerows(lines_of(name))


if __name__ == "__main__":
    _write()
