"""Pipeline schedules of a plan: which chunks a rank holds, how much a rank holds in flight, and the time beyond its work.

Loop schedules (1F1B, interleaved, ZB-H1) and DualPipe have formulas. The V shapes are replayed once for equal stages: the fullest rank then sets
the pace of unequal ones.
"""

from functools import lru_cache

import numpy as np

from dysharp.base import F64, Numbers, frozen
from dysharp.model import Layout
from dysharp.training import equal_times, make_schedule, replay_schedule
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD

SCHEDULES = ("1f1b", "zb-h1", "zbv", "v-half", "v-min", "dualpipe", "dualpipev")
"""1F1B with more chunks per rank is interleaved."""
V_SHAPED = ("zbv", "v-half", "v-min", "dualpipev")
"""Two chunks of a rank in a V; the first and the last stage share rank 0."""
PAIRED = ("dualpipe", "dualpipev")
"""A forward and a backward pass are one slot; at least two micro-batches per rank."""
REPLAYED = ("zbv", "v-half", "v-min")
STEADY, GRAIN = 4, 32
"""Micro-batches per rank after which a rank holds no more; parts of a stage's time in which equal stages count."""


@frozen
class _Pace:
    """Time of a further micro-batch over the work of the fullest rank, and the time of a step beyond its micro-batches."""

    slope: float
    ramp: float


def ranks_of(schedule: str, layout: Layout) -> tuple[Numbers, ...]:
    """Chunks of every pipeline rank."""
    p = layout.pp
    if schedule in V_SHAPED:
        return tuple((rank, 2 * p - 1 - rank) for rank in range(p))
    if schedule == "dualpipe":
        return tuple((rank, p - 1 - rank) for rank in range(p))
    return tuple(tuple(range(rank, layout.chunks, p)) for rank in range(p))


def ramp_of(schedule: str, p: int, v: int, cell: tuple[float, float, float, float], m: int) -> _Pace:
    """`cell`: (forward, backward, weights, steady) of the mean rank, in microseconds of a micro-batch."""
    f, b, w, steady = cell
    if schedule == "zb-h1":
        return _Pace(1.0, (p - 1) * max(f + b - w, 0.0))
    if schedule in PAIRED:
        return _Pace(1.0, max((p / 2 - 1 if schedule == "dualpipe" else (p - 1) / 2) * (steady + b - 2 * w), 0.0))
    if schedule in REPLAYED:
        total = f + b + w
        slope, ramp = _equal(schedule, p, min(m, STEADY * p), *(round(GRAIN * part / total) for part in (f, w)))
        return _Pace(slope, ramp * total)
    return _Pace(1.0, (p - 1) * (f + b + w) / v)


@lru_cache(maxsize=1 << 10)
def _equal(schedule: str, p: int, m: int, forward: int, weights: int) -> tuple[float, float]:
    """(time of a further micro-batch, time beyond the micro-batches) of equal stages over the work of a rank: two replays."""
    times = equal_times(2 * p, float(forward), float(GRAIN - forward - weights), float(weights))
    few = max(1, m - p)
    ends = [replay_schedule(make_schedule(schedule, p, n), times)[1].makespan / (2 * GRAIN) for n in dict.fromkeys((few, m))]
    slope = max(1.0, (ends[-1] - ends[0]) / (m - few)) if m > few else 1.0
    return slope, max(0.0, ends[-1] - m * slope)


def work_of(schedule: str, layout: Layout, steady: F64) -> F64:
    """Work of every rank for a micro-batch, from the times of chunks in the order of the model."""
    share = 2 if schedule == "dualpipe" else 1
    return np.asarray([sum(steady[chunk] for chunk in own) / share for own in ranks_of(schedule, layout)])


def _in_flight(layout: Layout, rank: int, overlap: bool = False) -> int:
    """Chunks of micro-batches that a rank holds at most: 1F1B p - r, interleaved 2(p - r - 1) + (v - 1)p + 1; one more with overlap."""
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    n = p - rank if v == 1 else 2 * (p - rank - 1) + (v - 1) * p + 1
    return min(n + overlap, m * v)


def _held_by_chunk(layout: Layout, rank: int, overlap: bool = False) -> list[int]:
    """The same by chunk of the rank: forward passes run p micro-batches of a chunk, then p of the next."""
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    held = [0] * v
    for at in range(_in_flight(layout, rank, overlap)):
        held[at // min(p, m) % v] += 1
    return held


def peaks(schedule: str, layout: Layout, rank: int, overlap: bool) -> F64:
    """[n, 2 x chunks of the rank]: what a rank may hold at once, by chunk: micro-batches in flight, then those that wait for weight gradients."""
    if schedule == "1f1b":
        held = _held_by_chunk(layout, rank, overlap)
        return np.asarray([[*held, *[0] * len(held)]], float)
    m = min(layout.micro_batches, STEADY * layout.pp)
    return _counted(schedule, layout.pp, m + m % 2 * (schedule == "dualpipe"))[rank]


@lru_cache(maxsize=1 << 8)
def _counted(schedule: str, p: int, m: int) -> tuple[F64, ...]:
    """`peaks` of every rank, from the order of the schedule; only moments that no other moment exceeds in all counts."""
    one = make_schedule(schedule, p, m)
    places = ranks_of(schedule, Layout(pp=p, vpp=2 if schedule in V_SHAPED else 1, micro_batches=m))
    out = []
    for own, slots in zip(places, one.slots, strict=True):
        at, n = {chunk: place for place, chunk in enumerate(own)}, len(own)
        counts, seen = [0] * (2 * n), set[Numbers]()
        for slot in slots:
            for cell in slot:
                place = at[cell.stage]
                counts[place] += 1 if cell.kind == FORWARD else -1 if cell.kind in (BACKWARD, DGRAD) else 0
                counts[n + place] += 0 if cell.kind in (FORWARD, BACKWARD) else 1 if cell.kind == DGRAD else -1
            seen.add(tuple(counts))
        rows = np.asarray(sorted(seen), float)
        beaten = [((rows >= row).all(axis=1) & (rows > row).any(axis=1)).any() for row in rows]
        out.append(rows[~np.asarray(beaten)])
    return tuple(out)
