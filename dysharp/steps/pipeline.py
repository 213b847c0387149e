"""A schedule with times as a graph, and what its replay says: makespan, spans, bubbles."""

from dataclasses import dataclass

from dysharp.steps.graph import Graph, Node, Replay, replay
from dysharp.steps.schedules import Cell, Schedule, Slot, Times
from dysharp.steps.schedules.cells import BACKWARD, DGRAD, FORWARD, WGRAD

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Bubbles:
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


def results(cell: Cell) -> list[Key]:
    """What a cell produces."""
    kinds = (DGRAD, WGRAD) if cell.kind == BACKWARD else (cell.kind,)
    return [(kind, cell.stage, cell.microbatch, cell.direction) for kind in kinds]


def needs(cell: Cell, stages: int) -> list[Key]:
    """What a cell needs: the output of the stage before, the gradient of the stage after, its own forward pass (W: its own I)."""
    stage, batch, direction = cell.stage, cell.microbatch, cell.direction
    if cell.kind == FORWARD:
        return [(FORWARD, stage - 1, batch, direction)] if stage else []
    if cell.kind == WGRAD:
        return [(DGRAD, stage, batch, direction)]
    later = [(DGRAD, stage + 1, batch, direction)] if stage + 1 < stages else []
    return [(FORWARD, stage, batch, direction), *later]


def cell_graph(schedule: Schedule, times: Times) -> Graph:
    """The slots of a schedule as a graph, rank by rank in order (a pair is one node). Hops between ranks are lags; links are never busy."""
    graph = Graph()
    made: dict[Key, int] = {}
    for rank, slots in enumerate(schedule.slots):
        for slot in slots:
            number = graph.add(f"rank {rank} {COMPUTE}", Node(slot_name(slot), COMPUTE, rank), times.of(slot))
            made.update((result, number) for cell in slot for result in results(cell))
    numbers = iter(range(len(graph.nodes)))
    for slot in (slot for slots in schedule.slots for slot in slots):
        number = next(numbers)
        for source in {made[key] for cell in slot for key in needs(cell, schedule.stages)} - {number}:
            graph.link(source, number, times.hop if graph.nodes[source].rank != graph.nodes[number].rank else 0)
    return graph


def replay_schedule(schedule: Schedule, times: Times) -> tuple[Replay, Bubbles]:
    """When every slot of a schedule runs. Raises ConfigError where its order cannot run (a rank waits for a cell behind the waiting one)."""
    done = replay(cell_graph(schedule, times))
    span: list[float] = []
    work: list[float] = []
    for queue in done.graph.queues.values():
        span.append(done.end[queue[-1]] - done.start[queue[0]])
        work.append(sum(done.graph.duration[n] for n in queue))
    return done, Bubbles(done.makespan, span, work)
