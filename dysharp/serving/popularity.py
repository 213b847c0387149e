"""How popular experts are where no routing is given: log-normal, as in the packaged models (`lognormal:0.65`); the busiest of several GPUs."""

from functools import lru_cache
from math import exp
from statistics import NormalDist

import numpy as np

SPREAD = 0.65
"""Standard deviation of the logarithm of an expert's popularity."""
_DRAWN = [exp(NormalDist(0.0, SPREAD).inv_cdf((i + 0.5) / 16)) for i in range(16)]
LEVELS = tuple(16 * one / sum(_DRAWN) for one in _DRAWN)
"""Popularity of sixteen equal groups of experts over the mean."""


@lru_cache(maxsize=1 << 10)
def largest_of(n: int) -> float:
    """Mean of the largest of `n` standard normal values (Blom's form)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


@lru_cache(maxsize=1 << 8)
def levels_of(loads: tuple[float, ...]) -> tuple[float, ...]:
    """As `LEVELS`, of experts with these loads; (): `LEVELS`."""
    if not loads:
        return LEVELS
    parts = np.array_split(np.sort(loads), min(len(loads), len(LEVELS)))
    return tuple(float(part.mean()) / float(np.mean(loads)) for part in parts)
