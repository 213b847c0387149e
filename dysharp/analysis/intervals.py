"""Unions of time intervals, vectorised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def union_ps(start: I64, end: I64) -> int:
    """Length (ps) of the union of the intervals `[start[i], end[i])`. Arrays: `[n]` int64 in any order; n may be 0."""
    if len(start) == 0:
        return 0
    order = np.argsort(start, kind="stable")
    begin = start[order]
    reach = np.maximum.accumulate(end[order])
    covered = np.empty_like(reach)  # the end of the time that earlier intervals cover
    covered[0] = begin[0]
    covered[1:] = reach[:-1]
    return int(np.maximum(reach - np.maximum(begin, covered), 0).sum())
