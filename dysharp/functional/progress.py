"""Dependencies, issuing order and semaphores of a Program, without times. Both paths of the machine obey them."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np

from dysharp.base import ConfigError, EmulationMismatch, OnProgress
from dysharp.functional.orders import Pool
from dysharp.program import Discipline, Head, Kind, Point, Program, Tail

KINDS = (Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.SIGNAL, Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE, Kind.PUSH_REDUCE)
LOADS = (Kind.MERGED_LOAD,)
"""Kinds that only a listener with `merges` interprets: one that has the merge tables of the switch."""
HEADS = (Head.OP_ISSUE, Head.MEMBER_RESPOND, Head.TILE_NOTIFY)
SHOWN = 3  # number of waiting ops in the watchdog's message


class _Listener(Protocol):
    """Receives the events that have become possible."""

    def may_issue(self, op: int) -> None: ...
    def may_respond(self, member: int) -> None: ...
    def tile_notifies(self, tile: int) -> None: ...


class Progress:
    """Counts the events for which each op, response and notification still waits. A path reports finished events.

    An op may issue when its edges and notifications have come, when it is next in a program-order issuer, and when its
    semaphores are free. Other disciplines choose by time and hold back no op here. Raises ConfigError for parts of a
    Program that the machine does not interpret: chains, announced thresholds, cancelling, holds by data, merged loads.
    """

    def __init__(self, program: Program, listener: _Listener) -> None:
        check_interpreted(program, getattr(listener, "merges", False))
        self.program, self.listener = program, listener
        e, r = program.edges, program.regions
        n = program.n_ops
        to_op = e.head[e.head_kind == Head.OP_ISSUE]
        told = r.row_notify[r.row_notify >= 0]
        self._waits: list[int] = (np.bincount(to_op, minlength=n) + np.bincount(told, minlength=n)).tolist()
        self._member_waits = _counts(e.head[e.head_kind == Head.MEMBER_RESPOND])
        self._tile_waits = _counts(e.head[e.head_kind == Head.TILE_NOTIFY])
        self._out: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for tail_kind, tail, head_kind, head in zip(e.tail_kind.tolist(), e.tail.tolist(), e.head_kind.tolist(), e.head.tolist(), strict=True):
            self._out[tail_kind, tail].append((head_kind, head))
        self._read_issuers()
        self._read_holds()
        self.issued = bytearray(n)
        self.done = bytearray(n)
        self.n_done = 0

    def _read_issuers(self) -> None:
        p = self.program
        in_order = np.flatnonzero(p.issuers.discipline == Discipline.PROGRAM_ORDER)
        self._queue: dict[int, deque[int]] = {int(i): deque() for i in in_order}
        self._issuer: list[int] = p.ops.issuer.tolist()
        for op in np.flatnonzero(np.isin(p.ops.issuer, in_order)).tolist():
            self._queue[self._issuer[op]].append(op)

    def _read_holds(self) -> None:
        h = self.program.holds
        self._free: list[int] = self.program.semaphores.capacity.tolist()
        self._parked: dict[int, deque[int]] = defaultdict(deque)
        self._needs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._frees: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for sem, amount, op, point, release in zip(
            h.sem.tolist(), h.amount.tolist(), h.acquire.tolist(), h.release_kind.tolist(), h.release.tolist(), strict=True
        ):
            self._needs[op].append((sem, amount))
            self._frees[point, release].append((sem, amount))

    def start(self) -> None:
        """Tell the listener about all ops, responses and notifications without a dependency."""
        for op, waits in enumerate(self._waits):
            if waits == 0:
                self._offer(op)

    def run(
        self, pool: Pool, step: Callable[[int, Any], None], report: OnProgress | None = None, waiting: Callable[[], Iterable[str]] = tuple
    ) -> int:
        """Take every event from the pool, and say from time to time how many ops are done. Returns the number of events.

        Raises EmulationMismatch (the watchdog) if no event is possible and ops are left; `waiting`: what else waits then.
        """
        self.start()
        events = 0
        while len(pool):
            step(*pool.pop())
            events += 1
            if report and not events & 0xFFF:
                report(self.n_done, self.program.n_ops)
        if self.n_done < self.program.n_ops:
            tables = ", ".join(islice(waiting(), SHOWN))
            raise EmulationMismatch(f"watchdog: {self.stuck()}{tables and f'; tables: {tables}'}")
        return events

    def _offer(self, op: int) -> None:
        queue = self._queue.get(self._issuer[op])
        if queue is None or queue[0] == op:
            self.listener.may_issue(op)

    def try_issue(self, op: int) -> bool:
        """Take the op's semaphores. False: the op is parked; the listener hears of the op when a semaphore is free."""
        needs = self._needs.get(op)
        if needs:
            for sem, amount in needs:
                if self._free[sem] < amount:
                    self._parked[sem].append(op)
                    for other, _ in needs:  # the turn of this op is that of the next op there
                        if other != sem:
                            self._wake(other)
                    return False
            for sem, amount in needs:
                self._free[sem] -= amount
        self.issued[op] = 1
        queue = self._queue.get(self._issuer[op])
        if queue is not None:
            queue.popleft()
            if queue and self._waits[queue[0]] == 0:
                self.listener.may_issue(queue[0])
        self._release(Point.OP_ISSUED, op)
        self.fire(Tail.OP_ISSUED, op)
        return True

    def _wake(self, sem: int) -> None:
        parked = self._parked.get(sem)
        if parked and self._free[sem] > 0:
            self.listener.may_issue(parked.popleft())

    def _release(self, point: Point, op: int) -> None:
        for sem, amount in self._frees.pop((int(point), op), ()):
            self._free[sem] += amount
            for _ in range(amount):
                self._wake(sem)

    def finish(self, op: int) -> None:
        """Report that the op is done and visible at its source."""
        self.done[op] = 1
        self.n_done += 1
        self._release(Point.OP_DONE, op)
        self.fire(Tail.OP_DONE, op)

    def fire(self, kind: Tail, ident: int) -> None:
        """Report that an edge point of an op, member, tile or row has passed, and release the heads that waited."""
        for head_kind, head in self._out.get((int(kind), ident), ()):
            if head_kind == Head.OP_ISSUE:
                self.told(head)
            elif head_kind == Head.MEMBER_RESPOND:
                self._member_waits[head] -= 1
                if not self._member_waits[head]:
                    self.listener.may_respond(head)
            else:
                self._tile_waits[head] -= 1
                if not self._tile_waits[head]:
                    self.listener.tile_notifies(head)

    def told(self, op: int, times: int = 1) -> None:
        """Report that one edge, or `times` notifications, of an op has come."""
        self._waits[op] -= times
        if self._waits[op] == 0:
            self._offer(op)

    def responds_freely(self, member: int) -> bool:
        """Whether a pull's member may answer as soon as the request arrives."""
        return self._member_waits.get(member, 0) == 0

    def waiting(self) -> Iterator[str]:
        """One phrase per op that has not finished. Issued ops come first."""
        p = self.program
        left = [op for op in range(p.n_ops) if not self.done[op]]
        for op in sorted(left, key=lambda op: (not self.issued[op], op)):
            name = f"op {op} ({p.templates[p.ops.template[op]].name}, GPU {p.ops.node[op]}, key {p.ops.key[op]})"
            if self.issued[op]:
                yield f"{name} was issued and never completed"
            elif self._waits[op] > 0:
                yield f"{name} waits for {self._waits[op]} more events"
            else:
                yield f"{name} waits for its turn or a semaphore"

    def stuck(self) -> str:
        """The watchdog's message when no event is possible and ops are left."""
        left = self.program.n_ops - self.n_done
        first = "; ".join(islice(self.waiting(), SHOWN))
        return f"found {left} of {self.program.n_ops} ops that wait for ever, expected none: {first}"


def _counts(heads: np.ndarray) -> dict[int, int]:
    ids, counts = np.unique(heads, return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def check_interpreted(p: Program, merges: bool = False) -> None:
    """Raises ConfigError as `Progress`."""
    kinds = sorted({t.kind for t in p.templates} - set(KINDS) - set(LOADS if merges else ()))
    if kinds:
        raise ConfigError(f"functional machine: found ops of kind {Kind(kinds[0]).name}, expected one of {', '.join(k.name for k in KINDS)}")
    if p.ops.chain is not None and (p.ops.chain >= 0).any():
        raise ConfigError("functional machine: found ops on chains, expected none")
    if p.ops.threshold is not None and (p.ops.threshold >= 0).any():
        raise ConfigError("functional machine: found JOINs with announced thresholds, expected none")
    if not np.isin(p.edges.head_kind, [int(h) for h in HEADS]).all():
        raise ConfigError("functional machine: found edges that cancel JOINs, expected none")
    points = (
        {*p.holds.acquire_kind.tolist()} - {int(Point.OP_ISSUED)},
        {*p.holds.release_kind.tolist()} - {int(Point.OP_ISSUED), int(Point.OP_DONE)},
    )
    if points[0] or points[1]:
        raise ConfigError("functional machine: found semaphores held by data, expected by ops (issued to issued or done)")
