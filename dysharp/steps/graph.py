"""A graph of timed nodes on resources, and its replay: the longest path.

Every resource (the compute of a rank, a link, a communication stream) runs its nodes one after the other in the order in which they were
added. A node starts when its resource is free and all nodes before it have ended. Times are integers of one unit (picoseconds), so the
result is exact, and the order of adding edges has no meaning.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dysharp.errors import ConfigError


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


@dataclass(frozen=True, slots=True)
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
