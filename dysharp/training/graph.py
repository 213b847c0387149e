"""Graphs of timed nodes on resources and their replay (the longest path), of a schedule alone and of one training step.

Every resource (the compute of a rank, a link, a communication stream) runs its nodes one after the other in the order in which they were
added. A node starts when its resource is free and all nodes before it have ended. Times are integers of one unit (picoseconds), so the
result is exact, and the order of adding edges has no meaning.

A step has the cells of a schedule, sends between stages, gradient and parameter traffic in buckets, and the optimizer. All replicas of a pipeline
are alike, so its graph has one rank for each pipeline rank, whatever the number of GPUs. Each rank has a queue for its compute, one for its
data-parallel traffic, and one for every neighbour that it sends to.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dysharp.base import ConfigError, Numbers, frozen
from dysharp.training.schedules import Cell, Schedule, Slot, Times
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD


class Node(NamedTuple):
    """What a node is: the name for timelines, its kind ("compute", "p2p", ...), the rank that it belongs to."""

    name: str
    kind: str
    rank: int


@dataclass(slots=True)
class Graph:
    """Nodes with durations and predecessors. `before[n]` holds (node, lag) pairs: n starts no earlier than the end of that node plus the lag."""

    nodes: list[Node] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    before: list[list[tuple[int, float]]] = field(default_factory=list)
    queues: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, resource: str, node: Node, duration: float, after: Iterable[int] = ()) -> int:
        """The number of a new node at the end of the queue of `resource`; "" is no resource."""
        number = len(self.nodes)
        self.nodes.append(node)
        self.duration.append(duration)
        self.before.append([(one, 0) for one in after])
        if resource:
            self.queues[resource].append(number)
        return number

    def link(self, tail: int, head: int, lag: float = 0) -> None:
        """`head` starts no earlier than the end of `tail` plus `lag`."""
        self.before[head].append((tail, lag))


@frozen
class Replay:
    """When the nodes of a graph run. `cause[n]`: the node whose end (plus lag) let node n start, -1 at time 0."""

    graph: Graph
    start: list[float]
    end: list[float]
    cause: list[int]

    @property
    def makespan(self) -> float:
        """Time from 0 to the last end."""
        return max(self.end, default=0)

    def critical_path(self) -> list[int]:
        """Nodes from the first to the one that ends last, each the cause of the next."""
        path = [max(range(len(self.end)), key=lambda n: (self.end[n], -n))] if self.end else []
        while path and self.cause[path[-1]] >= 0:
            path.append(self.cause[path[-1]])
        return path[::-1]


def replay(graph: Graph) -> Replay:
    """The earliest times of all nodes. Raises ConfigError where nodes wait for each other in a circle."""
    n = len(graph.nodes)
    before = [list(pairs) for pairs in graph.before]
    for queue in graph.queues.values():
        for first, second in pairwise(queue):
            before[second].append((first, 0))
    after: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for head, pairs in enumerate(before):
        for tail, lag in pairs:
            after[tail].append((head, lag))
    missing = [len(pairs) for pairs in before]
    ready = [node for node in range(n) if not missing[node]]
    start: list[float] = [0] * n
    end: list[float] = [0] * n
    cause = [-1] * n
    for node in ready:  # grows while it is read
        end[node] = done = start[node] + graph.duration[node]
        for head, lag in after[node]:
            if done + lag > start[head] or (cause[head] < 0 and done + lag == start[head]):
                start[head], cause[head] = done + lag, node
            missing[head] -= 1
            if not missing[head]:
                ready.append(head)
    if len(ready) < n:
        stuck = next(node for node in range(n) if missing[node])
        waits = next(tail for tail, _ in before[stuck] if missing[tail])
        one, other = graph.nodes[stuck], graph.nodes[waits]
        named = f"{one.name!r} of rank {one.rank} waits for {other.name!r} of rank {other.rank}"
        raise ConfigError(f"graph: found {n - len(ready)} nodes that never start ({named}), expected no circle")
    return Replay(graph, start, end, cause)


COMPUTE = "compute"


@frozen
class _Bubbles:
    """Times of a replayed schedule, in the unit of its `Times`. Lists are by rank.

    `span`: from the first start to the last end of a rank. `work`: busy time.
    """

    makespan: float
    span: list[float]
    work: list[float]

    @property
    def longest(self) -> float:
        """The longest span: the definition of the zero-bubble papers, since the next step may start on a rank that is done."""
        return max(self.span)

    @property
    def of_least_busy(self) -> float:
        """Makespan less the work of the rank that works least: the definition that DualPipe's formula follows."""
        return self.makespan - min(self.work)

    def rate(self, work: float) -> float:
        """Share of the longest span beyond `work` (the time of all micro-batches on a stage)."""
        return (self.longest - work) / self.longest


def slot_name(slot: Slot) -> str:
    """The name of a slot on a timeline."""
    return str(slot[0]) if len(slot) == 1 else "&".join(map(str, slot))


Key = tuple[str, int, int, int]
"""Result of a cell: "F" (output), "I" (gradient of the input) or "W"; stage, micro-batch, direction."""


def _results(cell: Cell) -> list[Key]:
    """What a cell produces."""
    kinds = (DGRAD, WGRAD) if cell.kind == BACKWARD else (cell.kind,)
    return [(kind, cell.stage, cell.microbatch, cell.direction) for kind in kinds]


def _needs(cell: Cell, stages: int) -> list[Key]:
    """What a cell needs: the output of the stage before, the gradient of the stage after, its own forward pass (W: its own I)."""
    stage, batch, direction = cell.stage, cell.microbatch, cell.direction
    if cell.kind == FORWARD:
        return [(FORWARD, stage - 1, batch, direction)] if stage else []
    if cell.kind == WGRAD:
        return [(DGRAD, stage, batch, direction)]
    later = [(DGRAD, stage + 1, batch, direction)] if stage + 1 < stages else []
    return [(FORWARD, stage, batch, direction), *later]


def _cell_graph(schedule: Schedule, times: Times) -> Graph:
    """The slots of a schedule as a graph, rank by rank in order (a pair is one node). Hops between ranks are lags; links are never busy."""
    graph = Graph()
    made: dict[Key, int] = {}
    for rank, slots in enumerate(schedule.slots):
        for slot in slots:
            number = graph.add(f"rank {rank} {COMPUTE}", Node(slot_name(slot), COMPUTE, rank), times.of(slot))
            made.update((result, number) for cell in slot for result in _results(cell))
    numbers = iter(range(len(graph.nodes)))
    for slot in (slot for slots in schedule.slots for slot in slots):
        number = next(numbers)
        for source in {made[key] for cell in slot for key in _needs(cell, schedule.stages)} - {number}:
            graph.link(source, number, times.hop if graph.nodes[source].rank != graph.nodes[number].rank else 0)
    return graph


def replay_schedule(schedule: Schedule, times: Times) -> tuple[Replay, _Bubbles]:
    """When every slot of a schedule runs. Raises ConfigError where its order cannot run (a rank waits for a cell behind the waiting one)."""
    done = replay(_cell_graph(schedule, times))
    span: list[float] = []
    work: list[float] = []
    for queue in done.graph.queues.values():
        span.append(done.end[queue[-1]] - done.start[queue[0]])
        work.append(sum(done.graph.duration[n] for n in queue))
    return done, _Bubbles(done.makespan, span, work)


SEND, REDUCE, GATHER, OPTIMIZER, NORM = "send", "reduce", "gather", "optimizer", "norm"
KINDS = (COMPUTE, SEND, REDUCE, GATHER, OPTIMIZER)


@frozen
class StepTimes:
    """What a step costs, in integer picoseconds. Tuples by stage of the model, except where said.

    `cells.hop` is the latency of a send beside `send`, the time that its link is busy. `reduce[stage]`: reduce-scatter of each bucket of
    gradients in the order in which a backward pass fills them; `gather[stage]`: all-gather of each bucket of parameters in the order in which a
    forward pass needs them. `optimizer`: update of the parameters of a stage. `late_gather`: gathers follow the optimizer and nothing hides
    them; else they run beside the first forward passes.
    """

    cells: Times
    send: int = 0
    reduce: tuple[Numbers, ...] = ()
    gather: tuple[Numbers, ...] = ()
    optimizer: Numbers = ()
    late_gather: bool = False

    def __post_init__(self) -> None:
        stages = len(self.cells.forward)
        for name, one in (("reduce", self.reduce), ("gather", self.gather), ("optimizer", self.optimizer)):
            if one and len(one) != stages:
                raise ConfigError(f"step: {name}: found {len(one)} stages, expected {stages}")


def step_graph(schedule: Schedule, times: StepTimes) -> Graph:
    """The graph of one step. The first forward pass of a stage is cut where its buckets arrive, the last backward pass where they leave."""
    return _Builder(schedule, times).graph


class _Builder:
    def __init__(self, schedule: Schedule, times: StepTimes) -> None:
        self.schedule, self.times, self.graph = schedule, times, Graph()
        self.made: dict[Key, int] = {}
        self.waiting: list[tuple[int, int, Slot]] = []
        """(rank, first node, slot) of every slot, for the edges between slots."""
        self.home = {(cell.stage, cell.direction): rank for rank, cell in schedule.cells()}
        self.ready: dict[tuple[int, int, int], int] = {}
        """(stage, direction, bucket) -> node that fills the bucket."""
        for rank, slots in enumerate(schedule.slots):
            self._rank(rank, slots)
        self._edges()
        self._end()

    def _rank(self, rank: int, slots: tuple[Slot, ...]) -> None:
        """The slots of a rank in order, cut at the buckets of its first and last passes."""
        firsts, lasts = _first_and_last(slots)
        arrived = {} if self.times.late_gather else self._gathers(rank, [slot for at, slot in enumerate(slots) if at in firsts])
        for at, slot in enumerate(slots):
            enters = [one for cell in slot if at in firsts and cell.kind == FORWARD for one in arrived.get((cell.stage, cell.direction), [])]
            leaves = [cell for cell in slot if lasts.get((cell.stage, cell.direction)) == at and cell.kind in (BACKWARD, WGRAD)]
            buckets = max([len(self._buckets(cell.stage)) for cell in leaves], default=0)
            nodes = self._slot(rank, slot, max(1, len(enters), buckets))
            for part, gather in enumerate(enters):
                self.graph.link(gather, nodes[part])
            for cell in leaves:
                n = len(self._buckets(cell.stage))
                self.ready.update(((cell.stage, cell.direction, b), nodes[len(nodes) * (b + 1) // n - 1]) for b in range(n))

    def _buckets(self, stage: int) -> Numbers:
        return self.times.reduce[stage] if self.times.reduce else ()

    def _gathers(self, rank: int, slots: list[Slot]) -> dict[tuple[int, int], list[int]]:
        """All-gathers of a rank's stages, one behind the other in the order of their first forward passes."""
        gathers: dict[tuple[int, int], list[int]] = {}
        for cell in (cell for slot in slots for cell in slot if cell.kind == FORWARD):
            durations = self.times.gather[cell.stage] if self.times.gather else ()
            nodes = [self._comm(rank, Node(f"gather {cell.stage}.{b}", GATHER, rank), ps) for b, ps in enumerate(durations)]
            gathers[cell.stage, cell.direction] = nodes
        return gathers

    def _comm(self, rank: int, node: Node, duration: float, after: Numbers = ()) -> int:
        return self.graph.add(f"rank {rank} data parallel", node, duration, after)

    def _slot(self, rank: int, slot: Slot, parts: int) -> list[int]:
        """The nodes of a slot: its time in `parts` nearly equal pieces."""
        total, name = self.times.cells.of(slot), slot_name(slot)
        whole = round(total)
        ends = [whole * (part + 1) // parts for part in range(parts)]
        nodes = [
            self.graph.add(f"rank {rank} {COMPUTE}", Node(name, COMPUTE, rank), end - start) for start, end in zip([0, *ends], ends, strict=False)
        ]
        self.waiting.append((rank, nodes[0], slot))
        self.made.update((result, nodes[-1]) for cell in slot for result in _results(cell))
        return nodes

    def _edges(self) -> None:
        """Edges within ranks, and a send for every result that another rank needs."""
        sends: list[tuple[int, int, int, int]] = []
        for rank, node, slot in self.waiting:
            own = {result for cell in slot for result in _results(cell)}
            for key in (key for cell in slot for key in _needs(cell, self.schedule.stages) if key not in own):
                source = self.made[key]
                sender = self.graph.nodes[source].rank
                if sender == rank:
                    self.graph.link(source, node)
                else:
                    sends.append((sender, source, rank, node))
        for sender, source, rank, node in sorted(sends):  # a link carries results in the order in which its rank computes them
            name = f"{self.graph.nodes[source].name} to {rank}"
            sent = self.graph.add(f"rank {sender} to {rank}", Node(name, SEND, rank), self.times.send, (source,))
            self.graph.link(sent, node, round(self.times.cells.hop))

    def _end(self) -> None:
        """Reduce-scatters in the order in which buckets fill, the norm of all gradients, the optimizer, late gathers."""
        order: list[tuple[int, int, int, int]] = []
        for (stage, direction, bucket), node in self.ready.items():
            order.append((self.home[stage, direction], node, stage, bucket))
        reduces = []
        for rank, _, stage, bucket in sorted(order):
            copies = tuple(self.ready[stage, direction, bucket] for direction in range(self.schedule.directions))
            reduces.append(self._comm(rank, Node(f"reduce {stage}.{bucket}", REDUCE, rank), self.times.reduce[stage][bucket], copies))
        lasts = [queue[-1] for name, queue in self.graph.queues.items() if name.endswith(COMPUTE)]
        norm = self.graph.add("", Node("norm of all gradients", NORM, 0), 0, [*lasts, *reduces])
        for rank in range(self.schedule.ranks):
            stages = sorted({stage for (stage, _), home in self.home.items() if home == rank})
            update = sum(self.times.optimizer[stage] for stage in stages) if self.times.optimizer else 0
            done = self.graph.add(f"rank {rank} {COMPUTE}", Node("optimizer", OPTIMIZER, rank), update, (norm,))
            if self.times.late_gather:
                for stage in stages if self.times.gather else ():
                    for b, ps in enumerate(self.times.gather[stage]):
                        self._comm(rank, Node(f"gather {stage}.{b}", GATHER, rank), ps, (done,))


def _first_and_last(slots: tuple[Slot, ...]) -> tuple[set[int], dict[tuple[int, int], int]]:
    """Places of the first forward pass of every stage, and of the last weight gradient of each (stage, direction)."""
    firsts: dict[tuple[int, int], int] = {}
    lasts: dict[tuple[int, int], int] = {}
    for at, slot in enumerate(slots):
        for cell in slot:
            if cell.kind == FORWARD:
                firsts.setdefault((cell.stage, cell.direction), at)
            elif cell.kind in (BACKWARD, WGRAD):
                lasts[cell.stage, cell.direction] = at
    return set(firsts.values()), lasts
