"""Statistics of relative errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of `n` predictions, in percent.

    | field | statistic of predicted / measured - 1 |
    |---|---|
    | `mape` | mean of the absolute values |
    | `median_ape`, `p90_ape` | median and 90th percentile of the absolute values |
    | `bias` | median of the signed values |
    """

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


def errors_of(predicted: F64, measured: F64) -> Errors:
    """Errors of `[n]` predictions against `[n]` measurements in the same units; n at least 1."""
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    p90 = float(np.percentile(size, 90))
    return Errors(len(size), float(size.mean()), float(np.median(size)), p90, float(np.median(signed)))
