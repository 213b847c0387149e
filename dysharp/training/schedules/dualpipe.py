"""DualPipe and DualPipeV: forward and backward passes of two streams of micro-batches run as merged pairs on every rank."""

from collections import Counter, deque

from dysharp.base import ConfigError
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD, Cell, ScheduleShape, Slot
from dysharp.training.schedules.registry import schedule

_SOURCE = "DeepSeek-V3, arXiv 2412.19437; deepseek-ai/DualPipe"


class _Writer:
    """Writes the slots of a rank: counts the micro-batches of each phase and keeps the weight gradients that wait."""

    def __init__(self, places: tuple[tuple[int, int, int], tuple[int, int, int]]) -> None:
        """`places`: stage, chunk and direction of phase 0 and of phase 1."""
        self.places = places
        self.slots: list[Slot] = []
        self._next: Counter[tuple[bool, int]] = Counter()
        self._waiting: deque[Cell] = deque()

    def _cell(self, kind: str, phase: int) -> Cell:
        stage, chunk, direction = self.places[phase]
        key = (kind == FORWARD, phase)
        self._next[key] += 1
        return Cell(kind, stage, self._next[key] - 1, chunk, direction)

    def forward(self, phase: int) -> None:
        self.slots.append((self._cell(FORWARD, phase),))

    def backward(self, phase: int, split: bool = False) -> None:
        cell = self._cell(DGRAD if split else BACKWARD, phase)
        if split:
            self._waiting.append(cell._replace(kind=WGRAD))
        self.slots.append((cell,))

    def pair(self, ahead: int, behind: int) -> None:
        self.slots.append((self._cell(FORWARD, ahead), self._cell(BACKWARD, behind)))

    def weights(self) -> None:
        if self._waiting:
            self.slots.append((self._waiting.popleft(),))


def _eight_steps(write: _Writer, depth: int, most: int, batches: int) -> list[Slot]:
    """The order of a rank that is `depth` ranks from an end, `most` for the rank in the middle; `batches` micro-batches of each phase."""
    outside, inside = most - depth, depth + 1
    for _ in range(2 * outside):
        write.forward(0)
    for _ in range(inside):
        write.forward(0)
        write.forward(1)
    for _ in range(outside):
        write.backward(1, split=True)
        write.weights()
        write.forward(1)
    for i in range(batches - 2 * (most + 1) + inside):
        if i == 0 and not outside:  # the middle ranks run the first two cells one after the other: a pair would delay both
            write.forward(0)
            write.backward(1)
        else:
            write.pair(0, 1)
        write.pair(1, 0)
    for _ in range(outside):
        write.backward(1)
        write.pair(1, 0)
    for i in range(2 * inside):  # the second half of these splits its weight gradients
        write.backward(1 - i % 2, split=i >= inside)
    for _ in range(outside):
        write.weights()
        write.backward(0, split=True)
    for _ in range(inside):
        write.weights()
    return write.slots


@schedule("dualpipe", _SOURCE, two_way=True, splits=True)
def _dualpipe(shape: ScheduleShape) -> list[list[Slot]]:
    """Micro-batches enter at both ends; every rank holds two stages, and weights exist twice."""
    p, n = shape.ranks, shape.microbatches
    if p % 2 or n % 2 or n < 2 * p:
        found = f"found {p} ranks and {n} micro-batches"
        raise ConfigError(f"schedule dualpipe: {found}, expected even numbers and at least two micro-batches for each rank")
    rows = []
    for rank in range(p):
        here, far = (rank, 0, 0), (p - 1 - rank, 1, 1)
        places = (here, far) if rank < p // 2 else (far, here)
        rows.append(_eight_steps(_Writer(places), min(rank, p - 1 - rank), p // 2 - 1, n // 2))
    return rows


@schedule("dualpipev", _SOURCE + "; PyTorch ScheduleDualPipeV", chunks=2, splits=True)
def _dualpipev(shape: ScheduleShape) -> list[list[Slot]]:
    """DualPipe cut in half: two chunks of a rank in a V, weights exist once."""
    p, n = shape.ranks, shape.microbatches
    if n < 2 * p:
        raise ConfigError(f"schedule dualpipev: found {n} micro-batches on {p} ranks, expected at least {2 * p}")
    return [_eight_steps(_Writer(((rank, 0, 0), (2 * p - 1 - rank, 1, 0))), rank, p - 1, n) for rank in range(p)]
