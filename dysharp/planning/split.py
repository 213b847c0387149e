"""Layers over the chunks of a pipeline: the split whose `pace` is least, exact by dynamic programming.

Ranks run chunks in rounds: chunks 0 to p - 1, then p to 2p - 1. A further micro-batch takes about the sum over rounds of the largest chunk, and
more where a long round follows a short one, since ranks then wait for each other.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from dysharp.base import F64, Numbers

EPSILON, TINY = 1e-9, 1e-300
NARROW = 64


def pace(chunks: F64) -> float:
    """Time of a further micro-batch from the times of chunks [rounds, ranks]. Within 6 % of replays of interleaved schedules (a test)."""
    means = chunks.mean(axis=1)
    return float(chunks.max(axis=1).sum() + _wait(means.max() - means.min(), chunks.shape[1], chunks.mean()))


def _wait(apart: Any, ranks: int, chunk: float) -> Any:
    """Wait of ranks where the mean chunks of rounds are `apart` and `chunk` is the mean of all: little at first, later the whole difference."""
    most = (ranks - 1) / ranks * apart
    return most * most / (most + chunk / 2 + TINY)


@lru_cache(maxsize=1 << 13)
def best_split(weights: tuple[float, ...], ranks: int, rounds: int = 1, ranges: int = NARROW) -> Numbers:
    """Ends of `ranks` x `rounds` non-empty runs of `weights` (>= 0) with the least `pace`; rounds are as even as can be.

    Beyond two rounds it looks at the `ranges` narrowest ranges that the totals of rounds may have; with all of them it is exact. Needs as many
    weights as runs.
    """
    n = len(weights)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    best = _even(sums, 0, n, ranks * rounds)
    if rounds == 1:
        return best
    least, total = _pace_of(sums, best, ranks), float(sums[n])
    chunk = total / ranks / rounds
    largest, totals = _largest(weights, ranks), sums[None, :] - sums[:, None]
    if rounds == 2:  # one cut between rounds
        ways = largest[0] + largest[:, n] + _wait(np.abs(2 * sums - total) / ranks, ranks, chunk)
        return (*_even(sums, 0, int(np.argmin(ways)), ranks), *_even(sums, int(np.argmin(ways)), n, ranks))
    bound, _ = _rounds(largest, rounds)
    for low, high in _ranges(totals[largest < np.inf], total / rounds)[:ranges]:
        if bound + _wait((high - low) / ranks, ranks, chunk) >= least * (1 - EPSILON):
            break
        inside = (totals >= low - total * EPSILON) & (totals <= high + total * EPSILON)
        found, cuts = _rounds(np.where(inside, largest, np.inf), rounds)
        if found < least:
            ends = tuple(end for a, b in pairwise(cuts) for end in _even(sums, a, b, ranks))
            if (other := _pace_of(sums, ends, ranks)) < least * (1 - EPSILON):
                best, least = ends, other
    return best


def _pace_of(sums: F64, ends: Numbers, ranks: int) -> float:
    return pace(np.diff(sums[[0, *ends]]).reshape(-1, ranks))


def _ranges(totals: F64, mean: float) -> list[tuple[float, float]]:
    """(least, largest) total of a round around the mean, the narrowest first."""
    values = np.unique(np.round(totals / mean, 9)) * mean
    lows, highs = values[values <= mean * (1 + EPSILON)], values[values >= mean * (1 - EPSILON)]
    return sorted(((float(a), float(b)) for a in lows for b in highs), key=lambda one: one[1] - one[0])


def _rounds(largest: F64, rounds: int) -> tuple[float, list[int]]:
    """(least sum of largest runs, cuts between rounds); infinite and without cuts where no rounds fit."""
    total, cuts = _cheapest(largest, rounds)
    return (total, cuts) if total < np.inf else (total, [])


def _cheapest(cost: F64, runs: int) -> tuple[float, list[int]]:
    """(least sum, cuts) of `runs` runs behind each other, of which the one from a to b costs `cost[a, b]`."""
    n = len(cost) - 1
    total = np.full(n + 1, np.inf)
    total[0] = 0.0
    came = np.zeros((runs, n + 1), np.int64)
    for one in range(runs):
        ways = total[:, None] + cost
        came[one] = np.argmin(ways, axis=0)
        total = np.min(ways, axis=0)
    cuts = [n]
    for one in range(runs - 1, -1, -1):
        cuts.append(int(came[one][cuts[-1]]))
    return float(total[n]), cuts[::-1]


def _largest(weights: tuple[float, ...], ranks: int) -> F64:
    """[n + 1, n + 1]: the least largest run of weights a to b in `ranks` non-empty runs; infinite where there are too few.

    Inside the longest stretch of equal weights the result is a whole number of weights; only rows before it and columns behind it need a search.
    """
    n = len(weights)
    first, last = _alike(weights)
    size = np.arange(n + 1)[None, :] - np.arange(n + 1)[:, None]
    least = np.where(size >= ranks, -(-size // ranks) * weights[first], np.inf)
    for a in range(first):
        least[a] = _from(weights[a:], ranks, n + 1)
    back = weights[::-1]
    for b in range(last + 1, n + 1):
        least[: b + 1, b] = _from(back[n - b :], ranks, b + 1)[::-1]
    return least


def _alike(weights: tuple[float, ...]) -> tuple[int, int]:
    """Begin and end of the longest stretch of equal weights."""
    at = best = length = 0
    for n in (len([*same]) for _, same in groupby(weights)):
        best, length = (at, n) if n > length else (best, length)
        at += n
    return best, best + length


def _from(weights: tuple[float, ...], ranks: int, size: int) -> F64:
    """The least largest of `ranks` runs of the first b weights, in the last of `size` places; infinite in the places before."""
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    run = sums[None, :] - sums[:, None]
    run[np.tril_indices(len(sums))] = np.inf
    least = run[0]
    for _ in range(ranks - 1):
        least = np.min(np.maximum(least[:, None], run), axis=0)
    return np.concatenate([np.full(size - len(least), np.inf), least])


def _even(sums: F64, first: int, last: int, chunks: int, slots_of: int = 0) -> Numbers:
    """Ends of the runs of weights `first` to `last`: least largest sum, then least sum of squares.

    `slots_of`: layers that a run has at most beside E and L; a run without E and L may then be empty.
    """
    own = sums[first : last + 1] - sums[first]
    n = len(own) - 1
    run = own[None, :] - own[:, None]
    run[np.tril_indices(n + 1, -1 if slots_of else 0)] = np.inf
    if slots_of:
        at = np.arange(n + 1)
        layers = np.minimum(at, n - 1)[None, :] - (np.maximum(at, 1) if first == 0 else at)[:, None]
        run[layers > slots_of] = np.inf
        run[n, n] = np.inf
        run[0, 0] = np.inf if first == 0 else 0.0
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    for _ in range(chunks):
        least = np.min(np.maximum(least[:, None], run), axis=0)
    square = np.where(run <= least[n] * (1 + 1e-12), run * run, np.inf)
    return tuple(first + end for end in _cheapest(square, chunks)[1][1:])


@lru_cache(maxsize=1 << 12)
def v_split(weights: tuple[float, ...], ranks: int) -> Numbers:
    """Ends of 2 x `ranks` non-empty runs of `weights`, of which rank r has the r-th from both ends: least largest rank, then run.

    Bisection over what a rank and a run may have. For each bound, and for every number of weights from the front, the most weights that ranks 0 to r
    can take from the back.
    """
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    total = float(sums[-1])
    rank = _least(lambda most: _taken(sums, ranks, most, total), total / ranks, total)
    run = _least(lambda most: _taken(sums, ranks, rank, most), rank / 2, rank)
    found = _taken(sums, ranks, rank, run)
    assert found is not None
    return found


def _least(found: Callable[[float], Any], low: float, high: float) -> float:
    """The least value between `low` and `high` that finds something; `high` does."""
    high *= 1 + EPSILON
    if found(low * (1 + EPSILON)):
        return low * (1 + EPSILON)
    step = 1e-6 * high
    while high - low > step:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def _taken(sums: F64, ranks: int, most: float, longest: float) -> Numbers | None:
    """Ends of runs with at most `most` on every rank and `longest` in a run; None: there are none."""
    n = len(sums) - 1
    back = sums[-1] - sums[::-1]
    front = sums[None, :] - sums[:, None]  # [a, b]: weights a to b
    size = np.arange(n + 1)
    taken = np.where(size == 0, 0, -1)
    came = []
    for rank in range(ranks - 1):
        room = np.minimum(most - front, longest) + back[np.maximum(taken, 0)][:, None]
        reach = np.searchsorted(back, room + EPSILON * most, side="right") - 1
        reach = np.minimum(reach, (n - size - 2 * (ranks - rank - 1))[None, :])
        fits = (size[None, :] > size[:, None]) & (front <= longest * (1 + EPSILON)) & (taken >= 0)[:, None] & (reach > taken[:, None])
        reach = np.where(fits, reach, -1)
        came.append((np.argmax(reach, axis=0), taken))
        taken = reach.max(axis=0)
    whole = most * (1 + EPSILON)
    for a in np.flatnonzero((taken >= 0) & (n - size - taken >= 2)):
        first, end = int(a), n - int(taken[a])
        middle = first + int(np.argmin(np.maximum(sums[first + 1 : end] - sums[first], sums[end] - sums[first + 1 : end]))) + 1
        if sums[end] - sums[first] <= whole and max(sums[middle] - sums[first], sums[end] - sums[middle]) <= longest * (1 + EPSILON):
            return _ends_of(n, first, int(taken[a]), middle, came)
    return None


def _ends_of(n: int, a: int, b: int, middle: int, came: list[tuple[Any, Any]]) -> Numbers:
    """Ends of runs from what the ranks before the last took: `a` weights from the front, `b` from the back, and the way there."""
    fronts, backs = [a], [b]
    for before, old in reversed(came):
        fronts.insert(0, int(before[fronts[0]]))
        backs.insert(0, int(old[fronts[0]]))
    return (*fronts[1:], middle, *(n - one for one in reversed(backs)))


@lru_cache(maxsize=1 << 12)
def slots(weights: tuple[float, ...], ranks: int, rounds: int = 1) -> Numbers:
    """Ends of chunks with equal numbers of slots for the layers between E and L; the last round has the no-op layers, wherever they even it most."""
    layers = len(weights) - 2
    each = -(-layers // (ranks * rounds))
    full = tuple(1 + min(each * (chunk + 1), layers) for chunk in range(ranks * (rounds - 1)))
    return (*full, *_even(np.concatenate([[0.0], np.cumsum(weights)]), full[-1] if full else 0, len(weights), ranks, each))


def stage_text(letters: str, ends: Numbers) -> str:
    """The layout string of Megatron: runs of `letters` that end at `ends`, repeats written short."""
    pieces = [_short(letters[first:last]) for first, last in zip((0, *ends[:-1]), ends, strict=True)]
    runs = ((piece, len([*same])) for piece, same in groupby(pieces))
    return "".join(f"({piece}|)*{n}" if n > 1 else f"{piece}|" for piece, n in runs).removesuffix("|")


def _short(piece: str) -> str:
    layers = piece.count("t")
    return piece.replace("t" * layers, f"t*{layers}") if layers > 3 else piece
