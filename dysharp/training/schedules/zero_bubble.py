"""Greedy zero bubble with a limit of activations: ZB-1p and ZB-2p (one and two times the activations of 1F1B).

The heuristic of arXiv 2401.10241, section 3.1: warm up as far as memory allows, then one forward and one backward pass in turn, and weight
gradients where a rank would wait or memory is full. Eight rules of thumb are tried, and the shortest order wins.
"""

from itertools import product
from typing import NamedTuple

from dysharp.training.schedules.cells import DGRAD, FORWARD, WGRAD, Cell, ScheduleShape
from dysharp.training.schedules.registry import schedule

_SOURCE = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241; sail-sg/zero-bubble-pipeline-parallelism"


@schedule("zb-1p", _SOURCE, greedy=True, splits=True)
def _zb_1p(shape: ScheduleShape) -> list[list[Cell]]:
    """Greedy zero bubble with the activations of 1F1B."""
    return _shortest(shape, shape.ranks)


@schedule("zb-2p", _SOURCE, greedy=True, splits=True)
def _zb_2p(shape: ScheduleShape) -> list[list[Cell]]:
    """Greedy zero bubble with twice the activations of 1F1B."""
    return _shortest(shape, 2 * shape.ranks)


class _Rules(NamedTuple):
    """`late_start`: warm up past the arrival of the first gradient. `backward_first`: skip a forward pass that would delay a rank's backward
    pass. `fill`: run a weight gradient in every wait, also in one that delays nobody."""

    late_start: bool
    backward_first: bool
    fill: bool


def _shortest(shape: ScheduleShape, most: int) -> list[list[Cell]]:
    """The order with the shortest rank of all rules; `most` chunks of activations fit a rank."""
    tried = [_Greedy(shape, most, _Rules(*flags)) for flags in product((True, False), repeat=3)]
    for one in tried:
        one.run()
    return min(tried, key=lambda one: one.longest()).rows


class _Greedy:
    """Orders under construction, with the time at which every cell ends."""

    def __init__(self, shape: ScheduleShape, most: int, rules: _Rules) -> None:
        p = shape.ranks
        self.n, self.most, self.rules, self.hop = shape.microbatches, 2 * most, rules, shape.times.hop
        self.cost = dict(zip((FORWARD, DGRAD, WGRAD), shape.times[:3], strict=True))
        self.done = {kind: [0] * p for kind in self.cost}
        self.end: dict[tuple[str, int, int], float] = {}
        self.clock: list[float] = [0] * p
        self.bubble: list[float] = [0] * p
        self.rows: list[list[Cell]] = [[] for _ in range(p)]

    def longest(self) -> float:
        """The longest time of a rank from its first start to its last end."""
        first = [self.end[FORWARD, r, 0] - self.cost[FORWARD][r] for r in range(len(self.rows))]
        return max(clock - start for clock, start in zip(self.clock, first, strict=True))

    def run(self) -> None:
        self._warm_up()
        for i in range(1, self.n):
            for rank, wanted in enumerate(self._forwards()):
                if wanted:
                    while self._held(rank) + 2 > self.most:
                        self._put(rank, WGRAD)
                    self._fill_wait(rank, FORWARD)
                    self._put(rank, FORWARD)
            for rank in reversed(range(len(self.rows))):
                self._fill_wait(rank, DGRAD)
                while rank == 0 and self.done[FORWARD][0] == self.n and self._owed(0):
                    self._put(0, WGRAD)
                assert self.done[DGRAD][rank] == i
                self._put(rank, DGRAD)
        for rank in range(len(self.rows)):
            while self._owed(rank):
                self._put(rank, WGRAD)

    def _put(self, rank: int, kind: str) -> None:
        i = self.done[kind][rank]
        free = self.clock[rank] + self.cost[kind][rank]
        end = max(free, self._arrival(rank, kind, i) + self.cost[kind][rank])
        if self.done[FORWARD][rank]:
            self.bubble[rank] += end - free
        self.end[kind, rank, i] = self.clock[rank] = end
        self.done[kind][rank] += 1
        self.rows[rank].append(Cell(kind, rank, i))

    def _arrival(self, rank: int, kind: str, i: int) -> float:
        """When the input of a cell arrives from the neighbouring rank; before time 0 where none is needed."""
        peer = {FORWARD: rank - 1, DGRAD: rank + 1}.get(kind, -1)
        return self.end[kind, peer, i] + self.hop if 0 <= peer < len(self.rows) else float("-inf")

    def _owed(self, rank: int) -> int:
        return self.done[DGRAD][rank] - self.done[WGRAD][rank]

    def _held(self, rank: int) -> int:
        """Half chunks of activations: a forward pass takes two, each half of a backward pass gives one back."""
        return 2 * self.done[FORWARD][rank] - self.done[DGRAD][rank] - self.done[WGRAD][rank]

    def _fill_wait(self, rank: int, kind: str) -> None:
        """Weight gradients that end before the input arrives, and one more where the wait would make this rank the slowest."""
        arrival = self._arrival(rank, kind, self.done[kind][rank])
        while self._owed(rank) and self.clock[rank] + self.cost[WGRAD][rank] <= arrival:
            self._put(rank, WGRAD)
        harmless = arrival - self.clock[rank] <= max(self.bubble) - self.bubble[rank]
        if self._owed(rank) and self.clock[rank] < arrival and (self.rules.fill or not harmless):
            self._put(rank, WGRAD)

    def _warm_up(self) -> None:
        """Forward passes until the first gradient can arrive, then that gradient on every rank."""
        p = len(self.rows)
        for rank in range(p):
            self._put(rank, FORWARD)
        more = [0] * p
        gradient = self.clock[p - 1] + self.cost[DGRAD][p - 1]
        for rank in reversed(range(p - 1)):
            held, clock, step = self._held(rank), self.clock[rank], self.cost[FORWARD][rank]
            arrival = gradient + self.hop
            while self.done[FORWARD][rank] + more[rank] < self.n and held + 2 <= self.most:
                if (clock + step > arrival) if self.rules.late_start else (clock >= arrival):
                    break
                held, clock, more[rank] = held + 2, clock + step, more[rank] + 1
            gradient = max(clock, arrival) + self.cost[DGRAD][rank]
        for rank in range(1, p):  # a rank runs fewer forward passes ahead than the rank before it
            more[rank] = min(more[rank], more[rank - 1])
            while 0 < more[rank] >= more[rank - 1] and self.done[FORWARD][rank] + more[rank] < self.n:
                more[rank] -= 1
        for rank in range(p):
            for _ in range(more[rank]):
                self._put(rank, FORWARD)
        for rank in reversed(range(p)):
            self._put(rank, DGRAD)

    def _forwards(self) -> list[bool]:
        """Which ranks run a forward pass next: ranks that gain from it, but no rank whose successor runs none."""
        wanted = [self._wants(rank) for rank in range(len(self.rows))]
        for rank in reversed(range(len(wanted) - 1)):
            wanted[rank] = wanted[rank] and wanted[rank + 1]
        return wanted

    def _wants(self, rank: int) -> bool:
        if self.done[FORWARD][rank] >= self.n:
            return False
        nxt = rank + 1
        if not self.rules.backward_first or nxt >= len(self.rows) or self.done[FORWARD][rank] < self.done[FORWARD][nxt] + 2:
            return True
        gradient = self.clock[nxt] + self.cost[FORWARD][nxt] + self.cost[DGRAD][nxt] + self.hop
        if self.clock[rank] >= gradient:
            return False
        weights = min(max(0, self._held(rank) + 2 - self.most), self._owed(rank)) * self.cost[WGRAD][rank]
        if self.clock[rank] + self.cost[FORWARD][rank] + weights <= gradient:
            return True
        return gradient - self.clock[rank] > max(self.bubble) - self.bubble[rank]
