"""One training step as a graph: the cells of a schedule, sends between stages, gradient and parameter traffic in buckets, the optimizer.

All replicas of a pipeline are alike, so the graph has one rank for each pipeline rank, whatever the number of GPUs. Each rank has a queue for
its compute, one for its data-parallel traffic, and one for every neighbour that it sends to.
"""

from dataclasses import dataclass

from dysharp.errors import ConfigError
from dysharp.steps.graph import Graph, Node
from dysharp.steps.pipeline import COMPUTE, Key, needs, results, slot_name
from dysharp.steps.schedules import Schedule, Slot, Times
from dysharp.steps.schedules.cells import BACKWARD, FORWARD, WGRAD

SEND, REDUCE, GATHER, OPTIMIZER, NORM = "send", "reduce", "gather", "optimizer", "norm"
KINDS = (COMPUTE, SEND, REDUCE, GATHER, OPTIMIZER)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step costs, in integer picoseconds. Tuples by stage of the model, except where said.

    `cells.hop` is the latency of a send beside `send`, the time that its link is busy. `reduce[stage]`: reduce-scatter of each bucket of
    gradients in the order in which a backward pass fills them; `gather[stage]`: all-gather of each bucket of parameters in the order in which a
    forward pass needs them. `optimizer`: update of the parameters of a stage. `late_gather`: gathers follow the optimizer and nothing hides
    them; else they run beside the first forward passes.
    """

    cells: Times
    send: int = 0
    reduce: tuple[tuple[int, ...], ...] = ()
    gather: tuple[tuple[int, ...], ...] = ()
    optimizer: tuple[int, ...] = ()
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

    def _buckets(self, stage: int) -> tuple[int, ...]:
        return self.times.reduce[stage] if self.times.reduce else ()

    def _gathers(self, rank: int, slots: list[Slot]) -> dict[tuple[int, int], list[int]]:
        """All-gathers of a rank's stages, one behind the other in the order of their first forward passes."""
        gathers: dict[tuple[int, int], list[int]] = {}
        for cell in (cell for slot in slots for cell in slot if cell.kind == FORWARD):
            durations = self.times.gather[cell.stage] if self.times.gather else ()
            nodes = [self._comm(rank, Node(f"gather {cell.stage}.{b}", GATHER, rank), ps) for b, ps in enumerate(durations)]
            gathers[cell.stage, cell.direction] = nodes
        return gathers

    def _comm(self, rank: int, node: Node, duration: float, after: tuple[int, ...] = ()) -> int:
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
        self.made.update((result, nodes[-1]) for cell in slot for result in results(cell))
        return nodes

    def _edges(self) -> None:
        """Edges within ranks, and a send for every result that another rank needs."""
        sends: list[tuple[int, int, int, int]] = []
        for rank, node, slot in self.waiting:
            own = {result for cell in slot for result in results(cell)}
            for key in (key for cell in slot for key in needs(cell, self.schedule.stages) if key not in own):
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
