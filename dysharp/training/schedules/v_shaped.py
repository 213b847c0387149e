"""V-half and V-min: two chunks of a rank in a V with a half and a third of the activations of 1F1B.

The building blocks of arXiv 2405.15362 repeat every six slots of unit time. A greedy pass then moves the cells of the ends into earlier free
slots, as far as activations allow. The order does not depend on times.
"""

from bisect import insort
from collections.abc import Callable, Iterator

from dysharp.base import Numbers
from dysharp.training.schedules.cells import DGRAD, FORWARD, WGRAD, Cell, ScheduleShape
from dysharp.training.schedules.registry import schedule

_SOURCE = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362; sail-sg/zero-bubble-pipeline-parallelism"
_PERIOD = 6
Lists = list[list[int]]
"""Slots of a rank: by type (forward down the V, forward up, gradient down, gradient up, and then weight gradients) and micro-batch."""


@schedule("v-half", _SOURCE, chunks=2, splits=True)
def _v_half(shape: ScheduleShape) -> list[list[Cell]]:
    """Two chunks in a V with half the activations of 1F1B."""
    p, gap = shape.ranks, 0 if shape.ranks % 2 else 3
    return _rows(shape, lambda r: (2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2))


@schedule("v-min", _SOURCE, chunks=2, splits=True)
def _v_min(shape: ScheduleShape) -> list[list[Cell]]:
    """Two chunks in a V with a third of the activations of 1F1B."""
    p, gap = shape.ranks, 0 if shape.ranks % 3 else 2
    return _rows(shape, lambda r: (r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1))


def _rows(shape: ScheduleShape, block: Callable[[int], Numbers]) -> list[list[Cell]]:
    """The orders from the first slots of every rank."""
    ends = _PERIOD * shape.microbatches
    start = [[list(range(first, first + ends, _PERIOD)) for first in block(rank)] for rank in range(shape.ranks)]
    once = [lists[:4] for lists in _moved(start, with_weights=True)]
    twice = [lists[:4] for lists in _moved(once, with_weights=False)]
    return [_cells(rank, shape.ranks, lists + _weights(lists, 2)) for rank, lists in enumerate(twice)]


def _cells(rank: int, p: int, lists: Lists) -> list[Cell]:
    """The cells of a rank in the order of their slots. Gradients pass the V backwards: their first chunk is the model's last."""
    stages = (rank, 2 * p - 1 - rank)
    kinds = ((FORWARD, 0), (FORWARD, 1), (DGRAD, 1), (DGRAD, 0), (WGRAD, 1), (WGRAD, 0))
    order = sorted((slot, kind, i) for kind, slots in enumerate(lists) for i, slot in enumerate(slots))
    return [Cell(kinds[t][0], stages[kinds[t][1]], i, kinds[t][1]) for _, t, i in order]


def _weights(lists: Lists, n: int) -> Lists:
    """Slots of weight gradients: the free ones after each gradient. `n` lists: 1 for all chunks, 2 for one each (first chunk first)."""
    taken = {slot: kind for kind, slots in enumerate(lists) for slot in slots}
    owed, placed = [0] * n, [[] for _ in range(n)]  # type: list[int], Lists
    slot, last = 0, max(taken)
    while slot <= last or any(owed):
        kind = taken.get(slot)
        if kind is None:
            chunk = next((c for c in range(n) if owed[c]), None)
            if chunk is not None:
                owed[chunk] -= 1
                placed[chunk].append(slot)
        elif kind >= 2:
            owed[(kind - 2) % n] += 1
        slot += 1
    return placed


def _peak(lists: Lists) -> int:
    """Most chunks of activations at once. Weight gradients without slots run in the free slots up to the last cell."""
    taken = {slot: kind for kind, slots in enumerate(lists) for slot in slots}
    held = most = owed = 0
    for slot in range(max(taken) + 1):
        kind = taken.get(slot)
        if kind is None:
            held -= 1 if owed and len(lists) == 4 else 0
            owed -= 1 if owed else 0
        else:
            held += (1, 1, 0, 0, -1)[kind]
            owed += 1 if kind in (2, 3) else 0
        most = max(most, held)
    return most


def _in_time(ranks: list[Lists]) -> Iterator[tuple[int, int, int, int]]:
    """All cells as (slot, rank, type, micro-batch) in time order."""
    cells = ((slot, rank, t, i) for rank, lists in enumerate(ranks) for t, slots in enumerate(lists) for i, slot in enumerate(slots))
    return iter(sorted(cells))


def _moved(ranks: list[Lists], with_weights: bool) -> list[Lists]:
    """The cells before the first whole micro-batch (only `with_weights`) and after the last forward pass started, moved to earlier free slots.

    Then all cells run as early as their inputs allow.
    """
    ranks = [lists + _weights(lists, 1) if with_weights else [list(slots) for slots in lists] for lists in ranks]
    limit = max(map(_peak, ranks))
    taken: list[set[int]] = [set() for _ in ranks]
    gradients: list[list[int]] = [sorted(lists[2] + lists[3]) for lists in ranks]
    n, phase = len(ranks[0][0]), 0
    for slot, rank, kind, i in _in_time(ranks):
        if phase == 0 and (kind, rank) == (3, 0):
            phase = 1
        fixed = phase == 1 or (phase == 0 and not with_weights)
        if phase == 1 and (kind, i) == (0, n - 1):
            phase = 2
        if not fixed:
            earlier = _earliest(ranks, gradients, (rank, kind, i)) + 1
            for free in (slot for slot in range(earlier, slot) if slot not in taken[rank]):
                ranks[rank][kind][i] = free
                if _peak(ranks[rank]) <= limit:
                    if kind in (2, 3):
                        gradients[rank].remove(slot)
                        insort(gradients[rank], free)
                    break
                ranks[rank][kind][i] = slot
        taken[rank].add(ranks[rank][kind][i])
    return _eager(ranks if with_weights else [lists + _weights(lists, 1) for lists in ranks])


def _inputs(n_ranks: int, rank: int, kind: int, i: int) -> Iterator[tuple[int, int, int]]:
    """The cells (rank, type, micro-batch) that a cell needs."""
    neighbour = rank - 1 if kind in (0, 2) else rank + 1 if kind in (1, 3) else -1
    if 0 <= neighbour < n_ranks:
        yield neighbour, kind, i
    if 0 < kind < 4:
        yield rank, kind - 1, i
    if i:
        yield rank, kind, i - 1


def _earliest(ranks: list[Lists], gradients: list[list[int]], cell: tuple[int, int, int]) -> int:
    """The last slot of the inputs of a cell, -1 without any."""
    rank, kind, i = cell
    needed = [ranks[r][k][j] for r, k, j in _inputs(len(ranks), rank, kind, i)]
    return max([*needed, gradients[rank][i] if kind == 4 else -1], default=-1)


def _eager(ranks: list[Lists]) -> list[Lists]:
    """The slots of all cells when each starts as early as its rank and its inputs allow."""
    result: list[Lists] = [[[0] * len(slots) for slots in lists] for lists in ranks]
    free = [0] * len(ranks)
    for _, rank, kind, i in _in_time(ranks):
        needed = [result[r][k][j] + 1 for r, k, j in _inputs(len(ranks), rank, kind, i)]
        result[rank][kind][i] = start = max([free[rank], *needed])
        free[rank] = start + 1
    return result
