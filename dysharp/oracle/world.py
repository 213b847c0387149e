"""State that all parts of the oracle share: the clock, the record, the list of points that were just passed, and pending events."""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from dysharp.base import frozen
from dysharp.oracle.load import Op, Tables
from dysharp.oracle.servers import PS_PER_US
from dysharp.program import Point, Tail


class Event(IntEnum):
    """Kinds of events, in the order in which they are applied at one instant."""

    COMPUTE_END = 0
    UP_END = 1
    ARRIVE = 2
    DOWN_END = 3
    DELIVER = 4
    RESPOND = 5
    RESULT = 6
    RESULT_DELIVERED = 7
    LOCAL = 8
    ACK = 9
    NOTIFY = 10
    RESPOND_LATE = 11
    CREDIT = 12
    KNOWN = 13
    ISSUER = 14
    DOWN_FREE = 15


class _EventHeap:
    """Pending events, a heap of (time, kind, resource, id) (docs/design/0001, Order). `now`: the time of the last event that was taken, in ps."""

    def __init__(self) -> None:
        self.now = 0
        self.n_events = 0
        self._heap: list[tuple[int, int, int, int]] = []
        self._pending: set[tuple[int, int, int, int]] = set()

    def add(self, time: int, kind: Event, resource: int, ident: int) -> None:
        """Schedule an event. A second event with an equal key is dropped."""
        key = (time, int(kind), resource, ident)
        if key not in self._pending:
            self._pending.add(key)
            heapq.heappush(self._heap, key)

    def drop(self, time: int, kind: Event, resource: int, ident: int) -> None:
        """Take a pending event back."""
        self._pending.remove((time, int(kind), resource, ident))

    def due(self) -> bool:
        """Whether an event is pending at `now`."""
        self._forget_dropped()
        return bool(self._heap) and self._heap[0][0] == self.now

    def _forget_dropped(self) -> None:
        while self._heap and self._heap[0] not in self._pending:
            heapq.heappop(self._heap)

    def take(self) -> tuple[Event, int, int] | None:
        """Take the next (kind, resource, id) and set the clock to its time. None: no event is pending."""
        self._forget_dropped()
        if not self._heap:
            return None
        key = heapq.heappop(self._heap)
        self._pending.discard(key)
        self.now, kind, resource, ident = key
        self.n_events += 1
        return Event(kind), resource, ident


@dataclass(slots=True)
class _TraceColumns:
    """Columns of the Trace so far (`program.trace.Trace`). `cancelled`: ops that never run."""

    ready: list[int]
    issue: list[int]
    start: list[int]
    end: list[int]
    done: list[int]
    cause: list[int]
    member: list[int]
    tile_ready: list[int]
    cancelled: set[int] = field(default_factory=set)


@frozen
class Passed:
    """A point that was just passed. `cause`: the op that the Trace names as the cause of the ops that it releases."""

    tail: Tail
    ident: int
    cause: int


class _SemaphoreLevels:
    """Levels of all semaphores. An op waits for room to issue. Holds by data never wait: they overflow."""

    def __init__(self, tables: Tables) -> None:
        holds, semaphores = tables.program.holds, tables.program.semaphores
        self.capacity: list[int] = semaphores.capacity.tolist()
        self.names = semaphores.name
        self.level = [0] * len(self.capacity)
        self._sem: list[int] = holds.sem.tolist()
        self._amount: list[int] = holds.amount.tolist()
        self._acquire: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._release: dict[tuple[int, int], list[int]] = defaultdict(list)
        points = zip(*(c.tolist() for c in (holds.acquire_kind, holds.acquire, holds.release_kind, holds.release)), strict=True)
        for h, (acquire_kind, acquire, release_kind, release) in enumerate(points):
            self._acquire[acquire_kind, acquire].append(h)
            self._release[release_kind, release].append(h)

    def full(self, op: Op) -> list[int]:
        """The semaphores without room for the issue of `op`."""
        need: dict[int, int] = defaultdict(int)
        for h in self._acquire.get((Point.OP_ISSUED, op.id), ()):
            need[self._sem[h]] += self._amount[h]
        return [s for s, n in need.items() if self.level[s] + n > self.capacity[s]]

    def passed(self, point: Point, ident: int) -> None:
        """Take holds that begin at this point, give back holds that end at it. A release may come first (credit)."""
        for h in self._acquire.get((point, ident), ()):
            self.level[self._sem[h]] += self._amount[h]
        for h in self._release.get((point, ident), ()):
            self.level[self._sem[h]] -= self._amount[h]


class World:
    """Shared state of one run. `counts`: how often each rare branch was taken. Tests print it."""

    def __init__(self, tables: Tables) -> None:
        n_ops, n_members, n_tiles = len(tables.ops), len(tables.members), tables.program.n_tiles
        self.tables = tables
        self.hardware, self.ops, self.members = tables.hardware, tables.ops, tables.members
        self.agenda = _EventHeap()
        self.semaphores = _SemaphoreLevels(tables)
        self._memory_until = [0] * tables.program.n_nodes
        self.fired: deque[Passed] = deque()
        self.finished: Callable[[Op], None]
        self.apply: Callable[[Passed], None]
        ready, issue, start, end, done, cause = ([-1] * n_ops for _ in range(6))
        self.log = _TraceColumns(ready, issue, start, end, done, cause, [-1] * n_members, [-1] * n_tiles)
        self.counts: Counter[str] = Counter()

    @property
    def now(self) -> int:
        return self.agenda.now

    def moves(self, node: int, n_bytes: int) -> int:
        """The memory of `node` reads or writes `n_bytes` behind all earlier bytes, and rounds every access. Returns the time of the last byte.

        A rate of 0: the memory is not shared.
        """
        if (rate := self.hardware.memory_rate) > 0:
            self._memory_until[node] = max(self._memory_until[node], self.now) + -(-n_bytes * PS_PER_US // rate)
        return self._memory_until[node]

    def op_of(self, member: int) -> Op:
        """The op that owns a member."""
        return self.ops[self.members[member].op]

    def remote(self, op: Op) -> list[int]:
        """Members of `op` on other nodes, in table order."""
        return [m for m in op.members if self.members[m].node != op.node]

    def local(self, op: Op) -> list[int]:
        """Members of `op` on its own node, in table order."""
        return [m for m in op.members if self.members[m].node == op.node]

    def fire(self, tail: Tail, ident: int, cause: int) -> None:
        """A point was passed. Edges of rows and tiles fall at once, edges of ops in first-in, first-out order."""
        passed = Passed(tail, ident, cause)
        if tail in (Tail.ROW_COMPLETE, Tail.TILE_READY):
            self.apply(passed)
        else:
            self.fired.append(passed)

    def delivered(self, op: Op, member: int) -> None:
        """The data of `op` are visible at `member`, or on their way back from it."""
        self.log.member[member] = self.now
        self.fire(Tail.MEMBER_DELIVERED, member, op.id)

    def issued(self, op: Op) -> None:
        """The issuer took `op`, or the JOIN `op` fired."""
        self.log.issue[op.id] = self.now
        self.semaphores.passed(Point.OP_ISSUED, op.id)
        self.fire(Tail.OP_ISSUED, op.id, op.id)

    def complete(self, op: Op) -> None:
        """`op` is done now."""
        self.log.done[op.id] = self.now
        self.finished(op)
        self.fire(Tail.OP_DONE, op.id, op.id)
