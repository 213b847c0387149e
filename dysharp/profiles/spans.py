"""Times of events of a GPU: when it is busy, what runs beside what, why it is idle, and who waits for whom among ranks."""

from typing import NamedTuple

import numpy as np

from dysharp.base import F64, Bools, Ints

LATE_US = 1.0
"""A launch that ends so much later than the event before it does made the GPU wait: one kernel follows another in about a microsecond."""


def union(start: F64, end: F64) -> F64:
    """Disjoint spans `[n, 2]` that cover the spans from `start` to `end`."""
    if not len(start):
        return np.empty((0, 2))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.r_[True, start[1:] > end[:-1]])
    spans: F64 = np.column_stack((start[first], end[np.r_[first[1:] - 1, len(end) - 1]]))
    return spans


def covered(spans: F64, start: F64, end: F64) -> F64:
    """How much of each span from `start` to `end` lies in disjoint `spans`."""
    if not len(spans):
        return np.zeros(len(start))
    done = np.r_[0.0, np.cumsum(spans[:, 1] - spans[:, 0])]

    def upto(time: F64) -> F64:
        at: Ints = np.searchsorted(spans[:, 0], time)
        left: F64 = np.where(at > 0, np.maximum(0.0, spans[np.maximum(at - 1, 0), 1] - time), 0.0)
        time_before: F64 = done[at] - left
        return time_before

    return upto(end) - upto(start)


def shares(start: F64, end: F64) -> F64:
    """How much of each span from `start` to `end` is its own, where those that run at once have equal parts."""
    times = np.unique(np.r_[start, end])
    first, last = np.searchsorted(times, start), np.searchsorted(times, end)
    running = np.cumsum(np.bincount(first, minlength=len(times)) - np.bincount(last, minlength=len(times)))
    done = np.r_[0.0, np.cumsum(np.diff(times) / np.maximum(running[:-1], 1))]
    own: F64 = done[last] - done[first]
    return own


class _Gaps(NamedTuple):
    """Times in which nothing ran on a GPU: microseconds, their number, length and start of the longest, thread of the launch behind it."""

    us: float = 0.0
    n: int = 0
    largest: float = 0.0
    at: float = 0.0
    by: float = -1.0


class Idle(NamedTuple):
    """Why nothing ran. `host`: the launch of the next event came late, and in `stood` its thread stood in long calls for more than half of the gap.

    `unknown`: the launch of the next event is not known.
    """

    us: float
    host: _Gaps
    stood: _Gaps
    unknown: _Gaps


def idle(start: F64, us: F64, launched: F64, by: F64, stands: F64) -> Idle:
    """Why a GPU was idle between its first and its last event. `by`, `stands`: as in `Profile`. Other threads may stand, as they launch nothing."""
    end = np.maximum.accumulate(start + us)
    before = np.r_[end[0], end[:-1]]
    gap = np.maximum(0.0, start - before)
    late: Bools = (launched > before + LATE_US) & (gap > LATE_US)
    each = [(by == one) & (2 * covered(union(*stands[stands[:, 2] == one, :2].T), before, before + gap) > gap) for one in np.unique(stands[:, 2])]
    stood: Bools = np.any([gap < 0, *each], axis=0)

    def of(some: Bools) -> _Gaps:
        worst = int(np.argmax(gap * some))
        return _Gaps(float(gap[some].sum()), int(some.sum()), float(gap[worst]), float(before[worst]), float(by[worst])) if some.any() else _Gaps()

    return Idle(float(gap.sum()), of(late & ~stood), of(late & stood), of(np.isnan(launched) & (gap > LATE_US)))


def causes(start: F64, us: F64, stream: Ints) -> tuple[Ints, Ints]:
    """Numbers of the events that each event begins behind, -1 for none: the one before it on its stream, and the last one that had ended anywhere."""
    some = np.flatnonzero(start + us > start)  # others are shorter than what a float of their start tells
    some = some[np.argsort((start + us)[some], kind="stable")]
    ended = np.searchsorted((start + us)[some], start, "right") - 1
    before: Ints = np.full(len(start), -1)
    for one in np.unique(stream):
        own = np.flatnonzero(stream == one)
        before[own[1:]] = own[:-1]
    return before, np.where(ended >= 0, np.r_[some, -1][ended], -1)


def replay(start: F64, us: F64, stream: Ints, new: F64) -> float:
    """End of the last event where events take `new` microseconds.

    An event begins behind the one before it on its stream, and as long as before behind the last one that had ended anywhere: what it waited for.
    Other dependencies are not seen, so a gain is the largest possible.
    """
    ends, done = (start + us).tolist(), list[float]()
    for at, before, last, took in zip(start.tolist(), *(one.tolist() for one in causes(start, us, stream)), new.tolist(), strict=True):
        behind = [done[before] + min(0.0, at - ends[before])] if before >= 0 else []
        behind += [done[last] + at - ends[last]] if last >= 0 else []
        done.append(max(behind, default=at) + took)
    return max(done)


def waits(us: F64) -> F64:
    """Of calls `[ranks, calls]` that end together: how long each rank waited for the last one to come. The last one waits for nobody."""
    waited: F64 = us - us.min(axis=0)
    return waited
