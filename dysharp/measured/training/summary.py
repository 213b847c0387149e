"""A family of training runs in one line."""

from collections.abc import Iterable
from statistics import median
from typing import Any, Protocol


class Judged(Protocol):
    """A row of a family."""

    @property
    def judged(self) -> bool:
        """Whether its error counts."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1, in percent."""


def summarise(family: str, cases: Iterable[Judged], bar: float) -> dict[str, Any]:
    """Rows, judged rows, and in percent: median, 90th percentile and largest of absolute errors, median of errors (bias), and the median's bar."""
    every = list(cases)
    errors = [case.error for case in every if case.judged and case.error is not None]
    sizes = sorted(map(abs, errors))
    names = ("median_ape", "p90_ape", "max_ape", "bias")
    values = (median(sizes), sizes[round(0.9 * (len(sizes) - 1))], sizes[-1], median(errors)) if sizes else (None,) * len(names)
    return {
        "family": family, "n_rows": len(every), "n": len(sizes), **dict(zip(names, values, strict=True)), "bar": bar,
        "holds": bool(sizes) and median(sizes) <= bar,
    }  # fmt: skip
