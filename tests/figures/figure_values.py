"""Regression values: every check and every picture of every packaged figure, on Rows that `made_rows` makes without a run.

The numbers say nothing about a system: they hold what metrics, reductions and pictures make of a Row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from dysharp.figures import Figure, judge, list_figures, load_figure
from dysharp.figures.figure import Variant
from dysharp.figures.series import series_of
from tests.figures.made_rows import made_rows
from tests.show.held import digest
from tests.stored_values import Cases, Table

STORED = Table(__file__)
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


def numbers_of(name: str) -> Iterator[tuple[str, str]]:
    """(check or series, its numbers)."""
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
        yield what, whole if len(whole) <= 60 else f"{whole[:40]} ~{digest(whole)}"


CASES: Cases = {name: partial(numbers_of, name) for name in list_figures()}
SLOW = DEAR
