"""Why a layer takes as long as it does: its time split along the critical path.

The walk starts at the op that finishes last and goes back in time, one op after the other, until time zero. Every picosecond on the way
goes to one cause, so the parts sum to the time exactly:

| part of an op | goes to |
|---|---|
| COMPUTE, ready to start (all slots taken) and start to end | `sm` |
| DELAY, ready to end | `sm` if its operator is Dispatch or Combine (an SM that copies rows), else `host` |
| transfer, issue to start: waiting in the hub | `link_up` while the up link was sending, else `link_down` (its buffers were full: a hot receiver) |
| push, start to end: serialisation on the up link | `link_up` |
| pull, start to end: two hops and the responder's memory | `latency`; the rest (requests and responses in queues) `link_up` |
| end to the point that mattered (delivered, acknowledged, result there) | hops, acknowledgement and local memory `latency`; the rest `link_down` |
| from the point that mattered to the successor's ready | up to one notification `latency`; more `link_down` |

What made an op wait *between ready and issue* decides where the walk goes on. In program order an op issues with or after its predecessor:
the walk goes to the first op that issued at that instant. If a semaphore was full until then, the walk goes on at the op that gave it
back. Of the *constant* part of that op's round trip (hops, responder, acknowledgement), as much goes to `window` as both links of its node
were idle during the round trip: a wider window could have used that; the rest goes to the busier link. A wait whose end has no such op (a
paced issuer) goes to `window`.

On slots that take ops in program order the walk goes from the start of an op to the one that held the slot.

The same picoseconds by operator: each goes to that of the op that is walked (Dispatch, a GEMM, Combine; else `other`), so a wait for
another GPU goes to what that GPU did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.count import remote_members
from dysharp.analysis.phases import PHASES
from dysharp.program.builder import PULLS
from dysharp.program.csr import group
from dysharp.program.tables import Discipline, Kind, Point, Program
from dysharp.program.trace import Trace
from dysharp.units import PS_PER_US

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Index = TypeVar("Index")
UP, DOWN = 0, 1
CAUSES = ("link_up", "link_down", "sm", "latency", "window", "host")


def attribute(program: Program, trace: Trace) -> dict[str, int]:
    """Picoseconds of `trace.time_ps` by cause (keys `CAUSES`, sum exact). The Trace must be of a complete run."""
    return critical_path(program, trace)[0]


def critical_path(program: Program, trace: Trace) -> tuple[dict[str, int], dict[str, int]]:
    """Picoseconds of `trace.time_ps` by cause (`CAUSES`) and by operator (`PHASES`); either sum is exact."""
    walk = _Walk(program, trace)
    if program.n_ops == 0:
        return walk.parts, walk.operators
    op, at, exposed = int(trace.done.argmax()), trace.time_ps, False
    for _ in range(4 * program.n_ops):
        if at <= 0:
            break
        op, at, exposed = walk.back(op, at, exposed)
        if op < 0:
            break
    walk.spend("latency", at)  # nothing is before time zero: only a malformed Trace leaves something here
    return walk.parts, walk.operators


@dataclass
class _Walk:
    """State of one walk; `parts` grows while `at` falls. Indices are built when the path first needs them."""

    program: Program
    trace: Trace
    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    operators: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    operator: str = "other"

    def __post_init__(self) -> None:
        p = self.program
        self.kind = [t.kind for t in p.templates]
        self._issuer_ops: tuple[I32, I64] | None = None
        self._releases: dict[int, tuple[I64, I64]] = {}
        self._servers: dict[int, tuple[tuple[I64, I64], tuple[I64, I64]]] = {}
        self._remote: NDArray[np.bool_] | None = None
        self._sem_rows: tuple[I32, I64] | None = None
        self._op_holds: tuple[I32, I64] | None = None

    def spend(self, cause: str, ps: int) -> None:
        self.parts[cause] += ps
        self.operators[self.operator] += ps

    def back(self, o: int, at: int, exposed: bool) -> tuple[int, int, bool]:
        """Charge what op `o` did before time `at`, return where the path comes from: (op, time, through a semaphore). Op -1 = time zero."""
        kind, t = self.kind[self.program.ops.template[o]], self.trace
        operator = self.program.templates[self.program.ops.template[o]].operator
        self.operator = operator if operator in PHASES else "other"
        done = int(t.done[o])
        if at > done:  # a notification on its way
            known = min(at - done, self.program.machine.notify)
            self.spend("latency", known)
            self.spend("link_down", at - done - known)
            at = done
        if kind in (Kind.COMPUTE, Kind.DELAY):
            cause = "sm" if kind is Kind.COMPUTE or self.operator in ("dispatch", "combine") else "host"
            if self.program.issuers.discipline[self.program.ops.issuer[o]] == Discipline.PROGRAM_ORDER:
                return self._in_turn(o, at, cause)
            ready = int(t.ready[o])
            self.spend(cause, at - ready)
            return int(t.cause[o]), ready, False
        if kind is Kind.JOIN:
            return int(t.cause[o]), at, False
        self._transfer(o, at, exposed, kind in PULLS)
        return self._before_issue(o)

    def _in_turn(self, o: int, at: int, cause: str) -> tuple[int, int, bool]:
        """Charge an op on slots that take ops by id; the path goes on at what gave it the slot, a semaphore, or its own start."""
        t, mine = self.trace, self._ops_of(int(self.program.ops.issuer[o]))
        issue = int(t.issue[o])
        self.spend(cause, at - issue)
        place = int(np.searchsorted(t.issue[mine], issue, side="left"))
        first = int(mine[place])
        if issue > int(t.ready[first]):
            giver = self._gave_back(first, issue)
            if giver >= 0:
                return giver, issue, True
            slots = int(self.program.pools.slots[self.program.issuers.pool[self.program.ops.issuer[o]]])
            for before in mine[max(0, place - slots) : place][::-1].tolist():
                if int(t.done[before]) == issue:
                    return before, issue, False
            self.spend(cause, issue - int(t.ready[first]))
        return int(t.cause[first]), int(t.ready[first]), False

    def _transfer(self, o: int, at: int, exposed: bool, pull: bool) -> None:
        """Charge [issue, at] of a transfer."""
        m, t = self.program.machine, self.trace
        issue, start, end, done = (int(c[o]) for c in (t.issue, t.start, t.end, t.done))
        if end <= issue or self._served_here(o, at):  # its own node's memory, no link
            self._constant(o, issue, at, at - issue, exposed)
            return
        # `at` may lie before the train has left (waits for the issue, or for one responder of a pull).
        sent, went = max(at, end), max(start, issue)
        hops = min(sent - end, 2 * m.lat + (m.ack if not pull and at == done else 0))
        self.spend("link_down", sent - end - hops)
        on_way = max(0, min(at, end) - went)
        answer = min(on_way, 2 * m.lat + m.responder) if pull else 0
        self.spend("link_up", on_way - answer)
        self._constant(o, issue, at, hops + answer, exposed)
        self._hub_wait(o, issue, min(went, at))

    def _constant(self, o: int, issue: int, at: int, ps: int, exposed: bool) -> None:
        """Fixed latencies of the round trip [issue, at]; `exposed`: the next op had to wait for its end."""
        if not exposed:
            self.spend("latency", ps)
            return
        node = int(self.program.ops.node[o])
        up, down = (self._busy_ps(self._links(node, side), issue, at) for side in (UP, DOWN))
        idle = min(ps, max(0, at - issue - max(up, down)))
        self.spend("window", idle)
        self.spend("link_up" if up >= down else "link_down", ps - idle)

    def _served_here(self, o: int, at: int) -> bool:
        """Is `at` when the op's member on its own node was served."""
        members = self.program.members
        mine = slice(int(members.ptr[o]), int(members.ptr[o + 1]))
        local = members.node[mine] == self.program.ops.node[o]
        return bool((self.trace.member[mine][local] == at).any())

    def _hub_wait(self, o: int, issue: int, start: int) -> None:
        """[issue, start): the link was busy with others, or its buffers in the switch were full."""
        m, wait = self.program.machine, start - issue
        if wait <= 0:
            return
        busy = wait
        if m.vc_bytes:
            busy = min(wait, self._busy_ps(self._links(int(self.program.ops.node[o]), UP), issue, start))
        self.spend("link_up", busy)
        self.spend("link_down", wait - busy)

    def _busy_ps(self, link: tuple[I64, I64], begin: int, end: int) -> int:
        """How long a link needs for what it was given in [begin, end), and for the train before that, still in service at `begin`."""
        times, total = link
        first, last = np.searchsorted(times, (begin, end))
        sent = int(total[last] - total[max(first - 1, 0)])
        return -(-sent * PS_PER_US // self.program.machine.rate)

    def _before_issue(self, o: int) -> tuple[int, int, bool]:
        """From the issue of transfer `o` to what it waited for."""
        t, ops = self.trace, self.program.ops
        issuer, at = int(ops.issuer[o]), int(t.issue[o])
        if self.program.issuers.discipline[issuer] == Discipline.PROGRAM_ORDER:
            mine = self._ops_of(issuer)
            o = int(mine[np.searchsorted(t.issue[mine], at, side="left")])
        ready = int(t.ready[o])
        if at > ready:
            giver = self._gave_back(o, at)
            if giver >= 0:
                return giver, at, True
            self.spend("window", at - ready)
        return int(t.cause[o]), ready, False

    # ---- indices ---------------------------------------------------------------------------------------------

    def _ops_of(self, issuer: int) -> I64:
        """Ops of an issuer by id; their issue times rise, in program order."""
        if self._issuer_ops is None:
            self._issuer_ops = group(self.program.ops.issuer + 1, len(self.program.issuers.node) + 1)
        ptr, order = self._issuer_ops
        return order[ptr[issuer + 1] : ptr[issuer + 2]]

    def _gave_back(self, o: int, at: int) -> int:
        """The op that released, at time `at`, a semaphore that op `o` takes when it issues; -1 if none did."""
        holds = self.program.holds
        if self._op_holds is None:
            takes = np.where(holds.acquire_kind == Point.OP_ISSUED, holds.acquire, self.program.n_ops).astype(np.int32)
            self._op_holds = group(takes, self.program.n_ops + 1)
        ptr, order = self._op_holds
        for row in order[ptr[o] : ptr[o + 1]].tolist():
            times, ops = self._released(int(holds.sem[row]))
            k = int(np.searchsorted(times, at))
            while k < len(times) and times[k] == at:
                if self.trace.issue[ops[k]] < at:
                    return int(ops[k])
                k += 1
        return -1

    def _released(self, sem: int) -> tuple[I64, I64]:
        """(times, ops) of the releases of a semaphore at done or issue of an op, by time."""

        def build() -> tuple[I64, I64]:
            holds, t = self.program.holds, self.trace
            if self._sem_rows is None:
                self._sem_rows = group(holds.sem, len(self.program.semaphores.capacity))
            ptr, order = self._sem_rows
            rows = order[ptr[sem] : ptr[sem + 1]]
            rows = rows[(holds.release_kind[rows] == Point.OP_DONE) | (holds.release_kind[rows] == Point.OP_ISSUED)]
            ops = holds.release[rows]
            times = np.where(holds.release_kind[rows] == Point.OP_DONE, t.done[ops], t.issue[ops])
            by_time = np.lexsort((ops, times))
            return times[by_time], ops[by_time]

        return _cached(self._releases, sem, build)

    def _links(self, node: int, side: int) -> tuple[I64, I64]:
        """Of a node's up or down server: times of trains and of debt, rising, and the wire bytes before each, `[n + 1]`.

        Up: when a train was granted, a response was granted, a copy was acknowledged. Down: when a copy was delivered, a request
        answered, a result or the last acknowledgement was there.
        """
        return _cached(self._servers, node, lambda: self._links_of(node))[side]

    def _links_of(self, node: int) -> tuple[tuple[I64, I64], tuple[I64, I64]]:
        p, t, w = self.program, self.trace, self.program.wires
        if self._remote is None:
            self._remote = remote_members(p)
        own = np.flatnonzero((p.ops.node == node) & (p.ops.wire >= 0))
        own = own[t.end[own] > t.issue[own]]  # the rest was served by its own node: nothing on the link
        here = np.flatnonzero((p.members.node == node) & self._remote)
        mine = p.ops.wire[own]
        others = p.ops.wire[np.searchsorted(p.members.ptr, here, side="right") - 1]
        # Columns that do not apply are zero: a push has no response or result, a pull no acknowledgement.
        up = _server([t.start[own], t.member[here]], [w.up[mine], w.response[others] + w.ack_up[others]])
        down = _server([t.done[own], t.member[here]], [w.result[mine] + w.ack_down[mine], w.down[others]])
        return up, down


def _server(times: list[I64], sizes: list[I64]) -> tuple[I64, I64]:
    when = np.concatenate(times)
    order = np.argsort(when, kind="stable")
    total = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.concatenate(sizes)[order], out=total[1:])
    return when[order], total


def _cached(table: dict[int, Index], key: int, build: Callable[[], Index]) -> Index:
    if key not in table:
        table[key] = build()
    return table[key]
