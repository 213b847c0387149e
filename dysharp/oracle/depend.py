"""Dependencies of ops, responses and tiles, and the edges that fall at a point (docs/design/0001, Ops and edges)."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dysharp.base import frozen
from dysharp.oracle.load import Op
from dysharp.oracle.world import Passed, World
from dysharp.program import Head, Kind, Point, Tail


@dataclass(slots=True)
class _Announced:
    """State of a JOIN with a threshold. It is met after all announcements and enough events."""

    signals_missing: int
    required: int
    events: int = 0

    def met(self) -> bool:
        return self.signals_missing == 0 and self.events >= self.required


@frozen
class _OutEdge:
    """The head of an edge. `announces`: the value of a SIGNAL for a JOIN with a threshold, None for another edge."""

    head: Head
    ident: int
    announces: int | None


class Dependencies:
    """For every op, response and tile: the number of dependencies that have not fallen.

    | callback | is called for |
    |---|---|
    | `enqueue(op)` | an op that became ready |
    | `respond(member)` | a response whose last edge fell |
    | `notify(tile, cause)` | a tile whose last edge to its notification fell |
    | `dropped(op)` | an op that was cancelled |
    | `ended(op)` | the id of an op that is done, before its edges fall |
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.enqueue: Callable[[Op], None]
        self.respond: Callable[[int], None]
        self.notify: Callable[[int, int], None]
        self.dropped: Callable[[Op], None]
        self.ended: Callable[[int], None]
        self.waits: Counter[tuple[Head, int]] = Counter()
        """Dependencies left, by what they hold back: of ops also rows that notify them, and the op before in a chain."""
        self.out: dict[tuple[Tail, int], list[_OutEdge]] = defaultdict(list)
        self._touched: set[int] = set()
        self._announced = {op.id: _Announced(0, op.threshold) for op in world.ops if op.kind is Kind.JOIN and op.threshold >= 0}
        self._read_edges()
        self.waits.update((Head.OP_ISSUE, op) for op in world.tables.program.regions.row_notify.tolist() if op >= 0)
        self._chains = self._read_chains()
        self._turn = [0] * len(self._chains)

    def _read_edges(self) -> None:
        edges = self.world.tables.program.edges
        columns = (c.tolist() for c in (edges.tail_kind, edges.tail, edges.head_kind, edges.head))
        for tail_kind, tail, head_kind, head in zip(*columns, strict=True):
            announces = self._announcement(Tail(tail_kind), tail, Head(head_kind), head)
            self.out[Tail(tail_kind), tail].append(_OutEdge(Head(head_kind), head, announces))
            self.waits[Head(head_kind), head] += 1
            if announces is not None:
                self._announced[head].signals_missing += 1

    def _announcement(self, tail_kind: Tail, tail: int, head_kind: Head, head: int) -> int | None:
        if head_kind is not Head.OP_ISSUE or head not in self._announced:
            return None
        if tail_kind in (Tail.OP_DONE, Tail.OP_ISSUED):
            op = self.world.ops[tail]
        elif tail_kind is Tail.MEMBER_DELIVERED:
            op = self.world.op_of(tail)
        else:
            return None
        return op.value if op.kind is Kind.SIGNAL else None

    def _read_chains(self) -> list[list[int]]:
        """Ops of every chain by id. Every op but the first waits for its predecessor as for one more edge."""
        chains = self.world.tables.program.chains
        members: list[list[int]] = [[] for _ in range(0 if chains is None else len(chains.pool))]
        for op in self.world.ops:
            if op.chain >= 0:
                members[op.chain].append(op.id)
        for ops in members:
            self.waits.update((Head.OP_ISSUE, op_id) for op_id in ops[1:])
        return members

    # ---- falling edges ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """At time zero, ops without dependencies become ready in order of their ids."""
        for op in self.world.ops:
            if self._free(op):
                self._ready(op, -1)
        self.drain()

    def drain(self) -> None:
        """Apply all passed points, and all points that follow from them at zero delay."""
        while self.world.fired:
            self.apply(self.world.fired.popleft())

    def apply(self, passed: Passed) -> None:
        """The edges of a passed point fall, in table order."""
        if passed.tail is Tail.OP_DONE:
            self.world.semaphores.passed(Point.OP_DONE, passed.ident)
            self.ended(passed.ident)
        for edge in self.out.get((passed.tail, passed.ident), ()):
            self._fall(edge, passed.cause)
        if passed.tail is Tail.OP_DONE:
            self._next_in_chain(self.world.ops[passed.ident], passed.cause)

    def _fall(self, edge: _OutEdge, cause: int) -> None:
        if edge.head is Head.OP_ISSUE:
            self.event(edge.ident, cause, edge.announces)
            return
        self.waits[edge.head, edge.ident] -= 1
        if self.waits[edge.head, edge.ident] > 0:
            return
        if edge.head is Head.MEMBER_RESPOND:
            self.respond(edge.ident)
        elif edge.head is Head.TILE_NOTIFY:
            self.notify(edge.ident, cause)
        else:
            self.cancel(self.world.ops[edge.ident])

    def event(self, op_id: int, cause: int, announces: int | None = None) -> None:
        """One dependency of an op falls."""
        op = self.world.ops[op_id]
        if op_id in self.world.log.cancelled or self.world.log.ready[op_id] >= 0:
            return
        if op.kind is Kind.JOIN and op_id not in self._touched:
            self._touched.add(op_id)
            self.world.semaphores.passed(Point.JOIN_FIRST_EVENT, op_id)
        self.waits[Head.OP_ISSUE, op_id] -= 1
        if op_id in self._announced:
            self._announce(self._announced[op_id], announces)
        if self._free(op):
            self._ready(op, cause)

    def _announce(self, state: _Announced, value: int | None) -> None:
        if value is None:
            state.events += 1
        else:
            state.signals_missing -= 1
            state.required += value

    def _free(self, op: Op) -> bool:
        announced = self._announced.get(op.id)
        return self.waits[Head.OP_ISSUE, op.id] == 0 if announced is None else announced.met()

    def _ready(self, op: Op, cause: int) -> None:
        log = self.world.log
        log.ready[op.id], log.cause[op.id] = self.world.now, cause
        if op.kind is Kind.JOIN:
            log.start[op.id] = log.end[op.id] = self.world.now
            self.world.issued(op)
            self.world.complete(op)
        else:
            self.enqueue(op)

    def _next_in_chain(self, op: Op, cause: int) -> None:
        if op.chain < 0:
            return
        ops, log = self._chains[op.chain], self.world.log
        while self._turn[op.chain] < len(ops):
            current = ops[self._turn[op.chain]]
            if log.done[current] < 0 and current not in log.cancelled:
                return
            self._turn[op.chain] += 1
            if self._turn[op.chain] < len(ops):
                self.event(ops[self._turn[op.chain]], cause)

    # ---- cancelling ---------------------------------------------------------------------------------------

    def cancel(self, op: Op) -> None:
        """Cancel `op` and all ops that depend on it, unless `op` is ready already.

        A JOIN with a threshold is not cancelled: it counts one event less.
        """
        log = self.world.log
        if log.ready[op.id] >= 0 or op.id in log.cancelled:
            return
        log.cancelled.add(op.id)
        self.world.semaphores.passed(Point.OP_ISSUED, op.id)
        self.world.semaphores.passed(Point.OP_DONE, op.id)
        self.dropped(op)
        tails = [(Tail.OP_ISSUED, op.id), (Tail.OP_DONE, op.id)]
        tails += [(Tail.MEMBER_DELIVERED, m) for m in op.members]
        for tail in tails:
            for edge in self.out.get(tail, ()):
                if edge.head is Head.OP_ISSUE and edge.ident not in self._announced:
                    self.cancel(self.world.ops[edge.ident])
        self._next_in_chain(op, op.id)
