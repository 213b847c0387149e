"""What the replay of a step says: where the time of every rank goes, what the longest path consists of, and what one changed part would gain.

`Energy`: bits that cross links of EP communication, and FLOPs of products, each at a named price (`energy.*` in choices.toml). Memory, networks
between domains and what a GPU takes when it waits are not counted: no Row counts their bytes.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dysharp.base import Amounts, frozen
from dysharp.costs import Machine, number
from dysharp.model import MEGATRON, Layout, model_flops
from dysharp.specs import Cluster, WholeModel
from dysharp.training.cost import EpTimes
from dysharp.training.graph import COMPUTE, GATHER, NORM, OPTIMIZER, REDUCE, SEND, Node, Replay, StepTimes, replay, step_graph
from dysharp.training.recipe import TrainingRecipe
from dysharp.training.schedules import Schedule, make_schedule

Span = tuple[float, float]
MFU_LINE = "MFU: Megatron's count of model FLOPs over the dense peak of the expert GEMMs' type."
MFU_OF_DENSE = MFU_LINE.replace("the expert", "its")
"""The same of a model without experts."""
BUBBLE, COLLECTIVES, DATA_PARALLEL, EP, LAUNCHES = "bubble", "collectives", "data_parallel", "exposed EP", "launches"
PARTS = (COMPUTE, OPTIMIZER, DATA_PARALLEL, SEND, BUBBLE)
Waits = Mapping[tuple[int, str], Mapping[str, float]]
"""(rank, name of a slot) -> {part: share of the slot's time in which the rank does not compute}."""


@frozen
class StepSplit:
    """Time of a step in the unit of its graph.

    `ranks[r]` splits the time of rank r by `PARTS`; the parts add up to `total`. "data_parallel" and "send" are exposed: the rank computes
    nothing, and its own reduce or gather, or the send that it waits for, is on its way. "bubble" is all other idle time. `Waits` inside slots are
    further parts. `path` splits the longest path by kind of node ("wait": latency between nodes) and these waits; it adds up to `total`, too.
    """

    total: float
    ranks: tuple[Amounts, ...]
    path: Amounts

    def mean(self, part: str) -> float:
        """Mean over ranks."""
        return sum(rank.get(part, 0.0) for rank in self.ranks) / len(self.ranks)

    def share(self, part: str) -> float:
        """Mean over ranks as a share of the step."""
        return self.mean(part) / self.total if self.total else 0.0

    @property
    def slowest(self) -> int:
        """The rank that computes longest."""
        return max(range(len(self.ranks)), key=lambda rank: (self.ranks[rank][COMPUTE], -rank))


def split_step(done: Replay, waits: Waits | None = None) -> StepSplit:
    """Where the time of a replayed step goes."""
    n_ranks, known = 1 + max(node.rank for node in done.graph.nodes), waits or {}
    return StepSplit(done.makespan, tuple(_rank(done, rank, known) for rank in range(n_ranks)), _path(done, known))


def _add(parts: Amounts, node: Node, time: float, waits: Waits) -> None:
    """Add the time of a node on a rank's compute to the parts that it consists of."""
    inside = waits.get((node.rank, node.name), {})
    for part, share in inside.items():
        parts[part] = parts.get(part, 0.0) + share * time
    parts[node.kind] = parts.get(node.kind, 0.0) + (1 - sum(inside.values())) * time


def _rank(done: Replay, rank: int, waits: Waits) -> Amounts:
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
            _add(parts, graph.nodes[n], graph.duration[n], waits)
            last = done.end[n]
    return parts


def _awaited(done: Replay, node: int) -> list[Span]:
    """The send that let a node start, with its latency."""
    cause = done.cause[node]
    return [(done.start[cause], done.start[node])] if cause >= 0 and done.graph.nodes[cause].kind == SEND else []


def _path(done: Replay, waits: Waits) -> Amounts:
    """The longest path by kind of node."""
    parts: Amounts = defaultdict(float)
    path = done.critical_path()
    last = 0.0
    for n in path:
        kind = done.graph.nodes[n].kind
        parts["wait"] += done.start[n] - last
        if kind == COMPUTE:
            _add(parts, done.graph.nodes[n], done.graph.duration[n], waits)
        elif kind != NORM:
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


TWICE, EVEN, NO_EP, NO_SENDS, NO_TRAFFIC, NO_LAUNCHES = (
    "twice the micro-batches", "experts of equal load", "EP communication that costs nothing", "sends that cost nothing",
    "gradient and parameter traffic that costs nothing", "launches that cost nothing",
)  # fmt: skip


def gains(order: Schedule, times: StepTimes, without: Mapping[str, StepTimes]) -> Amounts:
    """{change: relative gain in tokens per second}. `without`: the times of the same step after other changes."""
    base = _makespan(order, times)
    found: Amounts = {}
    if order.ranks > 1:
        twice = 2 * order.microbatches * order.directions
        found[TWICE] = 2 * base / _makespan(make_schedule(order.name, order.ranks, twice, order.stages // order.ranks), times) - 1
        found[NO_SENDS] = base / _makespan(order, replace(times, send=0, cells=times.cells._replace(hop=0))) - 1
    for change, other in without.items():
        found[change] = base / _makespan(order, other) - 1
    if any(times.reduce) or any(times.gather):
        found[NO_TRAFFIC] = base / _makespan(order, replace(times, reduce=(), gather=())) - 1
    return found


def _makespan(order: Schedule, times: StepTimes) -> float:
    return replay(step_graph(order, times)).makespan


MJ_PER_PJ = 1e-9


@frozen
class Energy:
    """Millijoules of one trained token, forward and backward, and the prices. A row that goes through a switch crosses two links."""

    links_mj_per_token: float
    products_mj_per_token: float
    pj_per_bit: float
    pj_per_flop: float


def peak_flops_per_us(cluster: Cluster, products: str) -> float:
    """Dense peak of a GPU in a type of products; where the GPU has no such type, of the one that it multiplies in."""
    own = Machine(cluster).products(products)
    if own == "fp4":
        return 1e6 * cluster.own_gpu.peak_TFLOPS(own)
    return float(cluster.peak_flops_per_us("fp8" if own == "mxfp8" else own))


def energy_of(model: WholeModel, machine: Machine, layout: Layout, sequence: int, ep: EpTimes | None, products: str = "") -> Energy:
    """The energy of a token. `ep`: the MoE layer's Rows, whose flits are counted; without them links count nothing.

    `products`: type of GEMMs; "": the model's.
    """
    dtype = "bf16" if (products or TrainingRecipe().products(model)) == "bf16" else "fp8"  # nothing is published for narrower types
    bit, flop = number("energy.link_pj_per_bit"), number(f"energy.{dtype}_pj_per_flop")
    moved = ep.link_flits * machine.cluster.flit_bytes * model.moe_layers / (layout.tokens(sequence) / layout.tp) if ep else 0.0
    return Energy(8 * moved * bit * MJ_PER_PJ, model_flops(model, sequence, MEGATRON) * flop * MJ_PER_PJ, bit, flop)
