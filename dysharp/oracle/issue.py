"""Issuers, their queues and the SM slots of their pools (docs/design/0001, Ops)."""

import heapq
from collections import defaultdict
from collections.abc import Callable

from dysharp.oracle.load import Op
from dysharp.oracle.world import Event, World
from dysharp.program import Chaining, Discipline, Kind

TIMED = (Kind.COMPUTE, Kind.DELAY)


class _ReadyQueue:
    """Ready ops of one issuer. `head` shows the next op, `pop` takes it, `drop` removes a cancelled op."""

    def __init__(self, discipline: Discipline, tables_ops: list[Op], program_order: list[int], first_node: list[int]) -> None:
        self.discipline = discipline
        self._ops = tables_ops
        self._order = program_order
        self._to = first_node
        self._ready: set[int] = set()
        self._heap: list[tuple[int, int, int]] = []
        self._by_destination: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._last_destination = -1
        self._arrivals = 0

    def push(self, op: Op) -> None:
        self._arrivals += 1
        if self.discipline is Discipline.PROGRAM_ORDER:
            self._ready.add(op.id)
        elif self.discipline is Discipline.READY_FIFO:
            heapq.heappush(self._heap, (op.prio, self._arrivals, op.id))
        elif self.discipline is Discipline.SMALLEST_KEY:
            heapq.heappush(self._heap, (op.prio, op.key, op.id))
        else:
            heapq.heappush(self._by_destination[self._to[op.id]], (op.prio, op.key, op.id))

    def head(self) -> Op | None:
        if self.discipline is Discipline.PROGRAM_ORDER:
            return self._ops[self._order[0]] if self._order and self._order[0] in self._ready else None
        heap = self._heap if self.discipline is not Discipline.ROUND_ROBIN else self._turn()
        return self._ops[heap[0][2]] if heap else None

    def pop(self) -> None:
        if self.discipline is Discipline.PROGRAM_ORDER:
            self._ready.discard(self._order.pop(0))
            return
        heap = self._heap if self.discipline is not Discipline.ROUND_ROBIN else self._turn()
        op_id = heapq.heappop(heap)[2]
        self._last_destination = self._to[op_id]

    def drop(self, op: Op) -> None:
        """Remove a cancelled op. A cancelled op was never ready, so only the program order holds it."""
        if op.id in self._order:
            self._order.remove(op.id)

    def waiting(self) -> Op | None:
        """The op that the issuer takes next, ready or not. For the deadlock report."""
        if self.discipline is Discipline.PROGRAM_ORDER:
            return self._ops[self._order[0]] if self._order else None
        return self.head()

    def _turn(self) -> list[tuple[int, int, int]]:
        """The heap of the next destination with a ready op, in cyclic order after the destination served last."""
        destinations = sorted(d for d, heap in self._by_destination.items() if heap)
        after = [d for d in destinations if d > self._last_destination]
        return self._by_destination[(after or destinations)[0]] if destinations else []


class IssueQueues:
    """All issuers. `send(op)` starts a transfer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.send: Callable[[Op], None]
        program, ops = world.tables.program, world.ops
        self.pool: list[int] = program.issuers.pool.tolist()
        self.names = program.issuers.name
        self._interval: list[int] = program.issuers.interval_ps.tolist()
        self._next_time = [0] * len(self.pool)
        self.free: list[int] = program.pools.slots.tolist()
        shares = program.shares
        self._share = [-1] * len(self.pool) if program.issuers.share is None else program.issuers.share.tolist()
        self._most: list[int] = [] if shares is None else shares.most.tolist()
        self._held = [0] * len(self._most)
        self._splits: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        if shares is not None:
            columns = [x.tolist() for x in (shares.split_op, shares.split_share, shares.split_most)]
            extra = [0] * len(columns[0]) if shares.split_more is None else shares.split_more.tolist()
            for op, share, most, more in zip(*columns, extra, strict=True):
                self._splits[op].append((share, most, more))
        self._tasks_left = [op.tasks for op in ops]
        self._tasks_running = [0] * len(ops)
        self._batches: dict[tuple[int, int], int] = defaultdict(int)
        self._resident: dict[int, list[Op]] = defaultdict(list)
        self._mode = [] if program.chains is None else [Chaining(m) for m in program.chains.mode.tolist()]
        self._chain_left: dict[int, int] = defaultdict(int)
        self._on_slot: set[int] = set()
        for op in ops:
            self._chain_left[op.chain] += 1
        first_node = [world.members[op.members[0]].node if op.members else op.node for op in ops]
        self.queues = [
            _ReadyQueue(Discipline(d), ops, [op.id for op in ops if op.issuer == i and op.kind is not Kind.JOIN], first_node)
            for i, d in enumerate(program.issuers.discipline.tolist())
        ]

    def enqueue(self, op: Op) -> None:
        """`op` became ready. An op whose chain has a slot passes the queue."""
        if op.chain in self._on_slot:
            self._resident[op.issuer].append(op)
        else:
            self.queues[op.issuer].push(op)

    def dropped(self, op: Op) -> None:
        """`op` was cancelled."""
        if op.issuer >= 0:
            self.queues[op.issuer].drop(op)
        if op.chain >= 0:
            self._left_chain(op)

    # ---- grants -------------------------------------------------------------------------------------------

    def grant(self, issuer: int) -> None:
        """Issue ops of one issuer until its next op has to wait."""
        while self.world.now >= self._next_time[issuer]:
            resident = self._resident[issuer]
            op = resident[0] if resident else self.queues[issuer].head()
            if op is None or not self._start(op):
                return
            if resident:
                resident.pop(0)
                self.queues[issuer].drop(op)
            else:
                self.queues[issuer].pop()

    def _start(self, op: Op) -> bool:
        """Give free slots to `op`. Returns whether it leaves the queue."""
        slots = self._slots_for(op)
        if slots == 0:
            self.world.counts["no free slot"] += 1
            return False
        if self.world.log.issue[op.id] < 0:
            if self.world.semaphores.full(op):
                self.world.counts["semaphore full"] += 1
                return False
            self.world.issued(op)
            self._pace(op.issuer)
        if op.chain >= 0 and op.chain not in self._on_slot:
            self._on_slot.add(op.chain)
            self.free[self.pool[op.issuer]] -= 1
        if op.kind in TIMED:
            self._run_batch(op, slots)
            return self._tasks_left[op.id] == 0
        self.send(op)
        return True

    def _slots_for(self, op: Op) -> int:
        pool = self.pool[op.issuer]
        if op.chain in self._on_slot or (op.chain < 0 and op.kind not in TIMED):
            return 1
        share = self._share[op.issuer]
        left = self.free[pool] if share < 0 else min(self.free[pool], max(0, self._most[share] - self._held[share]))
        self.world.counts["share full"] += left < self.free[pool]
        return min(left, self._tasks_left[op.id] if op.kind in TIMED else 1)

    def _pace(self, issuer: int) -> None:
        if self._interval[issuer] > 0:
            self._next_time[issuer] = self.world.now + self._interval[issuer]
            self.world.agenda.add(self._next_time[issuer], Event.ISSUER, issuer, -1)

    def _run_batch(self, op: Op, slots: int) -> None:
        if self.world.log.start[op.id] < 0:
            self.world.log.start[op.id] = self.world.now
        if op.chain < 0:
            self._hold(op, slots)
        self._tasks_left[op.id] -= slots
        self._tasks_running[op.id] += slots
        end = self.world.now + op.duration
        if op.task_bytes > 0:
            gone = self.world.moves(op.node, slots * op.task_bytes)
            self.world.counts["task behind memory"] += gone > end
            end = max(end, gone)
        self._batches[end, op.id] += slots
        self.world.agenda.add(end, Event.COMPUTE_END, self.pool[op.issuer], op.id)

    def _hold(self, op: Op, slots: int) -> None:
        """The issuer of `op` takes slots of its pool, or gives them back (below 0)."""
        self.free[self.pool[op.issuer]] -= slots
        if self._share[op.issuer] >= 0:
            self._held[self._share[op.issuer]] += slots

    # ---- events -------------------------------------------------------------------------------------------

    def compute_end(self, op: Op) -> None:
        """A batch of `op` leaves its slots. The op is done with its last task."""
        slots = self._batches.pop((self.world.now, op.id))
        self._tasks_running[op.id] -= slots
        if op.chain < 0:
            self._hold(op, -slots)
        if self._tasks_left[op.id] == 0 and self._tasks_running[op.id] == 0:
            self.world.log.end[op.id] = self.world.now
            self.world.complete(op)

    def finished(self, op: Op) -> None:
        """`op` is done. Its chain may give back its slot."""
        if op.chain >= 0:
            self._left_chain(op)

    def split(self, op_id: int) -> None:
        """The end of an op has passed: shares of pools change that wait for it."""
        for share, most, more in self._splits.get(op_id, ()):
            self._most[share] = self._most[share] + more if more else most

    def _left_chain(self, op: Op) -> None:
        self._chain_left[op.chain] -= 1
        over = self._chain_left[op.chain] == 0 or (self._mode[op.chain] is Chaining.YIELD and op.id not in self.world.log.cancelled)
        if over and op.chain in self._on_slot:
            self._on_slot.discard(op.chain)
            self.free[self.pool[op.issuer]] += 1
