"""Unions of time intervals, vectorised."""

import numpy as np

from dysharp.arrays import I64


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


def merged(start: I64, end: I64) -> tuple[I64, I64]:
    """The union as intervals that do not touch, in order."""
    if not len(start):
        return start, end
    # Sorted apart: where the i-th start lies above the i-th end before it, all earlier intervals have ended.
    begin, reach = np.sort(start), np.sort(end)
    first = np.flatnonzero(np.append(True, begin[1:] > reach[:-1]))
    return begin[first], reach[np.append(first[1:], len(begin)) - 1]
