"""ZBV: two chunks of a rank in a V, so that the first and the last stage share rank 0, and split weight gradients."""

from collections import deque
from itertools import product

from dysharp.training.schedules.cells import DGRAD, FORWARD, WGRAD, Cell, ScheduleShape
from dysharp.training.schedules.registry import schedule

_SOURCE = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"


@schedule("zbv", _SOURCE + "; PyTorch ScheduleZBVZeroBubble", chunks=2, splits=True)
def _zbv(shape: ScheduleShape) -> list[list[Cell]]:
    """Two chunks in a V, fixed order: no bubble for equal times."""
    n = max(2 * shape.ranks - 1, shape.microbatches)
    return [[cell for cell in _fixed(shape.ranks, rank, n) if cell.microbatch < shape.microbatches] for rank in range(shape.ranks)]


def _fixed(p: int, rank: int, n: int) -> list[Cell]:
    """The order of a rank for `n` micro-batches, at least 2p - 1 (with fewer, the cells of the missing ones are left out)."""
    stages = (rank, 2 * p - 1 - rank)
    count = {(kind, chunk): 0 for kind in (FORWARD, DGRAD, WGRAD) for chunk in (0, 1)}
    row: list[Cell] = []

    def put(chunk: int, *kinds: str) -> None:
        for kind in kinds:
            row.append(Cell(kind, stages[chunk], count[kind, chunk], chunk))
            count[kind, chunk] += 1

    for _ in range(2 * (p - rank) - 1):
        put(0, FORWARD)
    for _ in range(rank):
        put(1, FORWARD)
        put(0, FORWARD)
    for _ in range(p - rank):
        put(1, FORWARD, DGRAD, WGRAD)
    while count[FORWARD, 1] < n:
        put(0, *(FORWARD,) * (count[FORWARD, 0] < n), DGRAD, WGRAD)
        put(1, FORWARD, DGRAD, WGRAD)
    for _ in range(rank):
        put(0, DGRAD)
        put(1, DGRAD)
    for _ in range(p - rank):
        put(0, DGRAD, WGRAD)
    for chunk in (1, 0):
        put(chunk, *(WGRAD,) * (n - count[WGRAD, chunk]))
    return row


@schedule("zbv-greedy", _SOURCE + "; sail-sg/zero-bubble-pipeline-parallelism", chunks=2, greedy=True, splits=True)
def _zbv_greedy(shape: ScheduleShape) -> list[list[Cell]]:
    """Two chunks in a V, weight gradients where the given times leave a wait."""
    best: _GreedyV | None = None
    for fill_backward, fill_forward in product((True, False), repeat=2):
        for one in _repeated(shape, fill_forward, fill_backward):
            if best is None or max(one.bubble) < max(best.bubble):
                best = one
    assert best is not None
    return best.rows


def _repeated(shape: ScheduleShape, fill_forward: bool, fill_backward: bool) -> "list[_GreedyV]":
    """Orders that each allow the waits of the order before, as long as they get better."""
    tried = [_GreedyV(shape, fill_forward, fill_backward, None)]
    while True:
        one = _GreedyV(shape, fill_forward, fill_backward, tried[-1].bubble)
        if max(one.bubble) >= max(tried[-1].bubble):
            return tried
        tried.append(one)


class _GreedyV:
    """Orders under construction: a backward and a forward pass of every rank in turn. Equal stages: times are those of stage 0."""

    def __init__(self, shape: ScheduleShape, fill_forward: bool, fill_backward: bool, allowed: list[float] | None) -> None:
        p = shape.ranks
        self.p, self.n, self.hop = p, shape.microbatches, shape.times.hop
        self.cost = {FORWARD: shape.times.forward[0], DGRAD: shape.times.dgrad[0], WGRAD: shape.times.wgrad[0]}
        self.fill = {FORWARD: fill_forward, DGRAD: fill_backward}
        self.allowed = allowed
        self.count = [{(kind, chunk): 0 for kind in (FORWARD, DGRAD) for chunk in (0, 1)} for _ in range(p)]
        self.end: dict[tuple[str, int, int, int], float] = {}
        self.clock: list[float] = [0] * p
        self.bubble: list[float] = [0] * p
        self.owed: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]
        self.held = [0] * p
        """Half chunks of activations: a forward pass takes two, each half of a backward pass gives one back."""
        self.rows: list[list[Cell]] = [[] for _ in range(p)]
        self._warm_up()
        for _ in range(2 * self.n):
            self._backwards()
            self._forwards()
        for rank in range(p):
            while self.owed[rank]:
                self._weights(rank)

    def _peer(self, rank: int, chunk: int) -> int:
        """The rank that a chunk of a rank waits for, in both kinds of passes; -1 at the bottom of the V and at its ends."""
        if chunk == 0:
            return rank - 1
        return rank + 1 if rank + 1 < self.p else -1

    def _arrival(self, rank: int, kind: str, chunk: int) -> float | None:
        """When the input of the next cell arrives from another rank; None: from none, or not known yet."""
        key = (kind, self._peer(rank, chunk), chunk, self.count[rank][kind, chunk])
        return self.end[key] + self.hop if key in self.end else None

    def _put(self, rank: int, kind: str, chunk: int) -> None:
        i = self.count[rank][kind, chunk]
        free = self.clock[rank] + self.cost[kind]
        arrival = self._arrival(rank, kind, chunk)
        end = free if arrival is None else max(free, arrival + self.cost[kind])
        if self.count[rank][FORWARD, 0]:
            self.bubble[rank] += end - free
        self.end[kind, rank, chunk, i] = end
        self.count[rank][kind, chunk] += 1
        self.held[rank] += 2 if kind == FORWARD else -1
        if kind == DGRAD:
            self.owed[rank].append((chunk, i))
        self._add(rank, kind, chunk if kind == FORWARD else 1 - chunk, i, end)

    def _weights(self, rank: int) -> None:
        chunk, i = self.owed[rank].popleft()
        self.held[rank] -= 1
        self._add(rank, WGRAD, 1 - chunk, i, self.clock[rank] + self.cost[WGRAD])

    def _add(self, rank: int, kind: str, chunk: int, i: int, end: float) -> None:
        """Append a cell. Gradients pass the V backwards: their first chunk is the model's last."""
        self.clock[rank] = end
        self.rows[rank].append(Cell(kind, rank if chunk == 0 else 2 * self.p - 1 - rank, i, chunk))

    def _warm_up(self) -> None:
        n, count, full = self.n, self.count, 4 * self.p
        for rank in range(self.p):
            self._put(rank, FORWARD, 0)
        for rank in reversed(range(self.p)):
            arrival = self._arrival(rank, FORWARD, 1)
            while arrival is not None and self._room_for(rank, full) and self.clock[rank] + self.cost[FORWARD] <= arrival:
                for earlier in range(rank + 1):
                    self._put(earlier, FORWARD, 0)
            self._put(rank, FORWARD, 1)
        chunk = 0
        for rank in range(1, self.p):
            mine, before = count[rank], count[rank - 1]
            while _both(mine) < _both(before) or mine[FORWARD, 1] <= before[FORWARD, 1] < n:
                for later in reversed(range(rank, self.p)):
                    if count[later][FORWARD, chunk] < n:
                        self._put(later, FORWARD, chunk)
                chunk = 1 - chunk

    def _room_for(self, rank: int, full: int) -> bool:
        return self.held[rank] + 2 * (2 + 2 * rank) <= full and self.count[rank][FORWARD, 0] < self.n

    def _backwards(self) -> None:
        first = [rank for rank in range(self.p) if not self._late_gradient(rank)]
        second = [rank for rank in reversed(range(self.p)) if rank not in first]
        for rank, chunk in [(rank, 1) for rank in second] + [(rank, 0) for rank in first]:
            self._fill_wait(rank, DGRAD, chunk, always=chunk == 1)
            self._put(rank, DGRAD, chunk)

    def _late_gradient(self, rank: int) -> bool:
        """Whether the gradient on its way back up the V is next on a rank."""
        mine = self.count[rank]
        if mine[DGRAD, 1] >= mine[DGRAD, 0]:
            return False
        return rank == self.p - 1 or self._arrival(rank, DGRAD, 1) is not None or mine[DGRAD, 0] >= self.n

    def _forwards(self) -> None:
        for rank in range(self.p):
            chunk = self._next_forward(rank)
            if chunk is None:
                continue
            while self.held[rank] + 2 > 4 * self.p:
                self._weights(rank)
            self._fill_wait(rank, FORWARD, chunk, always=False)
            self._put(rank, FORWARD, chunk)

    def _next_forward(self, rank: int) -> int | None:
        mine = self.count[rank]
        if mine[FORWARD, 1] >= self.n:
            return None
        if mine[FORWARD, 1] >= mine[FORWARD, 0]:
            return 0
        if rank == self.p - 1 or self._arrival(rank, FORWARD, 1) is not None:
            return 1
        return 0 if mine[FORWARD, 0] < self.n and (rank == 0 or self._arrival(rank, FORWARD, 0) is not None) else None

    def _fill_wait(self, rank: int, kind: str, chunk: int, always: bool) -> None:
        """Weight gradients that end before the input arrives, and one more where the wait would make this rank the slowest."""
        arrival = self._arrival(rank, kind, chunk)
        while self.owed[rank] and arrival is not None and arrival >= self.clock[rank] + self.cost[WGRAD]:
            self._weights(rank)
        worst = max(self.bubble)
        if self.allowed is not None:
            worst = max(worst, max(self.allowed) - self.allowed[rank])
        wait = (self.hop if arrival is None else arrival) - self.clock[rank]
        if self.owed[rank] and wait > worst - self.bubble[rank] and (always or self.fill[kind]):
            self._weights(rank)


def _both(count: dict[tuple[str, int], int]) -> int:
    """Forward passes of a rank."""
    return count[FORWARD, 0] + count[FORWARD, 1]
