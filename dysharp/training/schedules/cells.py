"""A pipeline schedule as data: for every rank an ordered list of slots. A slot holds one cell, or a forward and a backward cell as a pair."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dysharp.base import ConfigError, frozen

FORWARD, BACKWARD, DGRAD, WGRAD = "F", "B", "I", "W"
"""Kinds of cells. B is the whole backward pass: I (gradient of the input) and W (gradient of the weights) as one op."""


class Cell(NamedTuple):
    """One op of a schedule. `chunk` counts the model parts of a rank.

    `stage` is the place in the model: micro-batches of both directions pass stage 0 first. In direction 1 the stages lie on the ranks in
    reverse order. Every direction counts its own micro-batches from 0.
    """

    kind: str
    stage: int
    microbatch: int
    chunk: int = 0
    direction: int = 0

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}" + "'" * self.direction


Slot = tuple[Cell, ...]
"""One cell, or (forward, backward) where both run as one merged pair."""


@frozen
class ScheduleShape:
    """What a family of schedules is built for.

    `chunks`: model parts of a rank (1: the family's own number). `group`: micro-batches of a group of the interleaved order (0: as many as
    ranks). `times`: what greedy families look at.
    """

    ranks: int
    microbatches: int
    chunks: int
    group: int
    times: "Times"


class Times(NamedTuple):
    """Time of a cell by stage, and of a hop between ranks. One unit for all (the package uses picoseconds).

    `pair`: time of a merged pair over the sum of its parts (1: merging gains nothing); `pairs`: its time by (forward stage, backward stage),
    where known.
    """

    forward: tuple[float, ...]
    dgrad: tuple[float, ...]
    wgrad: tuple[float, ...]
    hop: float = 0
    pair: float = 1
    pairs: Mapping[tuple[int, int], float] | None = None

    def of(self, slot: Slot) -> float:
        """Time of a slot."""
        if len(slot) == 2 and self.pairs is not None:
            return self.pairs[slot[0].stage, slot[1].stage]
        total = sum(self.of_cell(cell) for cell in slot)
        return total if len(slot) == 1 or self.pair == 1 else total * self.pair

    def of_cell(self, cell: Cell) -> float:
        """Time of a cell that runs alone."""
        if cell.kind == FORWARD:
            return self.forward[cell.stage]
        first = self.dgrad[cell.stage] if cell.kind != WGRAD else 0
        return first + (self.wgrad[cell.stage] if cell.kind != DGRAD else 0)


def equal_times(stages: int, forward: float = 1, dgrad: float = 1, wgrad: float = 1, hop: float = 0, pair: float = 1) -> Times:
    """Times of equal stages."""
    return Times((forward,) * stages, (dgrad,) * stages, (wgrad,) * stages, hop, pair)


@frozen
class Schedule:
    """A schedule: `slots[rank]` in the order of the rank. `stages` and `microbatches` (of one direction) bound the cells; `directions` is 1 or 2."""

    name: str
    stages: int
    microbatches: int
    directions: int
    slots: tuple[tuple[Slot, ...], ...]

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.slots)

    def cells(self) -> Iterator[tuple[int, Cell]]:
        """All cells with their ranks, rank by rank in order."""
        for rank, slots in enumerate(self.slots):
            for slot in slots:
                for cell in slot:
                    yield rank, cell

    def text(self, rank: int) -> str:
        """The order of a rank in one line: "0F1 (0F2;1B0) 1I1 1W1"."""
        return " ".join(str(slot[0]) if len(slot) == 1 else f"({';'.join(map(str, slot))})" for slot in self.slots[rank])

    def check(self) -> "Schedule":
        """The schedule itself. Raises ConfigError where a (stage, micro-batch, direction) has not exactly one forward pass and one backward pass
        (B, or I and then W), where a stage lies on two ranks, or where the first stage of rank r is not stage r."""
        seen = Counter((cell.kind, cell.stage, cell.microbatch, cell.direction) for _, cell in self.cells())
        for direction in range(self.directions):
            for stage in range(self.stages):
                for batch in range(self.microbatches):
                    n = {kind: seen.pop((kind, stage, batch, direction), 0) for kind in (FORWARD, BACKWARD, DGRAD, WGRAD)}
                    if n[FORWARD] != 1 or n[BACKWARD] + n[DGRAD] != 1 or n[DGRAD] != n[WGRAD]:
                        found = ", ".join(f"{count} {kind}" for kind, count in n.items())
                        where = f"stage {stage}, micro-batch {batch}, direction {direction}"
                        raise ConfigError(f"schedule {self.name}, {where}: found {found}, expected 1 F and either 1 B or 1 I and 1 W")
        if seen:
            raise ConfigError(f"schedule {self.name}: found cells outside {self.stages} stages and {self.microbatches} micro-batches: {min(seen)}")
        homes = Counter({(cell.stage, cell.direction, rank) for rank, cell in self.cells()})
        if len(homes) != self.stages * self.directions:
            raise ConfigError(f"schedule {self.name}: found {len(homes)} (stage, rank) places, expected {self.stages * self.directions}")
        for rank in range(self.ranks):
            first = min((stage for stage, direction, home in homes if home == rank and not direction), default=-1)
            if first != rank:
                raise ConfigError(f"schedule {self.name}: found stage {first} as the first of rank {rank}, expected stage {rank}")
        return self


def in_flight(schedule: Schedule, until: str = DGRAD) -> list[int]:
    """Most chunks of activations that each rank holds at once: forward done, backward (`until` "I") or weight gradient (`until` "W") not.

    A merged pair leaves the number as it is: its forward pass adds a chunk and its backward pass frees one.
    """
    most = []
    for slots in schedule.slots:
        held, peak = 0, 0
        for slot in slots:
            for cell in slot:
                held += 1 if cell.kind == FORWARD else 0
                held -= 1 if cell.kind in (BACKWARD, until) else 0
            peak = max(peak, held)
        most.append(peak)
    return most
