"""What the replay of a step says: where the time of every rank goes, and what the longest path consists of."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dysharp.steps.graph import Replay
from dysharp.steps.pipeline import COMPUTE
from dysharp.steps.step_graph import GATHER, NORM, OPTIMIZER, REDUCE, SEND

Span = tuple[float, float]
BUBBLE, DATA_PARALLEL = "bubble", "data_parallel"
PARTS = (COMPUTE, OPTIMIZER, DATA_PARALLEL, SEND, BUBBLE)


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Time of a step in the unit of its graph.

    `ranks[r]` splits the time of rank r by `PARTS`; the parts add up to `total`. "data_parallel" and "send" are exposed: the rank computes
    nothing, and its own reduce or gather, or the send that it waits for, is on its way. "bubble" is all other idle time.
    `path` splits the longest path by kind of node ("wait": latency between nodes); it adds up to `total`, too.
    """

    total: float
    ranks: tuple[dict[str, float], ...]
    path: dict[str, float]

    def mean(self, part: str) -> float:
        """Mean over ranks."""
        return sum(rank[part] for rank in self.ranks) / len(self.ranks)

    def share(self, part: str) -> float:
        """Mean over ranks as a share of the step."""
        return self.mean(part) / self.total if self.total else 0.0

    @property
    def slowest(self) -> int:
        """The rank that computes longest."""
        return max(range(len(self.ranks)), key=lambda rank: (self.ranks[rank][COMPUTE], -rank))


def split_step(done: Replay) -> StepSplit:
    """Where the time of a replayed step goes."""
    n_ranks = 1 + max(node.rank for node in done.graph.nodes)
    return StepSplit(done.makespan, tuple(_rank(done, rank) for rank in range(n_ranks)), _path(done))


def _rank(done: Replay, rank: int) -> dict[str, float]:
    graph = done.graph
    computed, moved = graph.queues[f"rank {rank} {COMPUTE}"], graph.queues.get(f"rank {rank} data parallel", [])
    own = [(done.start[n], done.end[n]) for n in moved]
    parts = dict.fromkeys(PARTS, 0.0)
    last = 0.0
    for n in [*computed, -1]:
        start = done.start[n] if n >= 0 else done.makespan
        if start > last:
            gap = [(last, start)]
            exposed = _common(gap, own)
            sends = _without(_common(gap, _awaited(done, n)), own) if n >= 0 else []
            parts[DATA_PARALLEL] += _length(exposed)
            parts[SEND] += _length(sends)
            parts[BUBBLE] += start - last - _length(exposed) - _length(sends)
        if n >= 0:
            parts[graph.nodes[n].kind] += graph.duration[n]
            last = done.end[n]
    return parts


def _awaited(done: Replay, node: int) -> list[Span]:
    """The send that let a node start, with its latency."""
    cause = done.cause[node]
    return [(done.start[cause], done.start[node])] if cause >= 0 and done.graph.nodes[cause].kind == SEND else []


def _path(done: Replay) -> dict[str, float]:
    """The longest path by kind of node."""
    parts: dict[str, float] = defaultdict(float)
    path = done.critical_path()
    last = 0.0
    for n in path:
        kind = done.graph.nodes[n].kind
        parts["wait"] += done.start[n] - last
        if kind != NORM:
            parts[DATA_PARALLEL if kind in (REDUCE, GATHER) else kind] += done.graph.duration[n]
        last = done.end[n]
    return dict(parts)


def _common(first: Iterable[Span], second: Sequence[Span]) -> list[Span]:
    """The parts of `first` in which `second` runs. Spans of one list do not overlap; the spans of `second` rise."""
    return [(max(a, c), min(b, d)) for a, b in first for c, d in _near(second, a, b) if max(a, c) < min(b, d)]


def _without(first: Iterable[Span], second: Sequence[Span]) -> list[Span]:
    """The parts of `first` in which `second` does not run."""
    left: list[Span] = []
    for a, b in first:
        at = a
        for c, d in _near(second, a, b):
            left.append((at, min(b, c)))
            at = max(at, d)
        left.append((at, b))
    return [span for span in left if span[0] < span[1]]


def _near(spans: Sequence[Span], start: float, end: float) -> Sequence[Span]:
    """The spans of rising `spans` that may lie between `start` and `end`."""
    return spans[bisect_left(spans, start, key=lambda span: span[1]) : bisect_right(spans, end, key=lambda span: span[0])]


def _length(spans: Iterable[Span]) -> float:
    return sum(b - a for a, b in spans)
