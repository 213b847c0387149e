"""The causes of a layer's time, found along the critical path.

The walk starts at the op that finishes last. It goes back in time, op by op, until time zero. Every picosecond on the
way is charged to one cause, so the parts sum to the time exactly:

| part of an op | charged to |
|---|---|
| COMPUTE: ready to start (all slots are taken), and start to end | `sm` |
| DELAY of a late node (`program.skew`): ready to end | `start`, a cause that only Programs with late nodes have |
| kernels beside the GEMMs of a real layer and their starts: ready to end | `surroundings`, a cause that only Programs with them have |
| other DELAY: ready to end | `host` if its operator is a host operator, else `sm` (an SM copies rows, or computes padding) |
| transfer: issue to start, in the hub | `link_up` while the up link sends, else `link_down` (hot receiver) |
| push: start to end, serialisation on the up link | `link_up` |
| pull: start to end | `latency` for two hops and the responder's memory, `link_up` for queues |
| transfer: end to edge point | `latency` for hops, acknowledgement and local memory, else `link_down` |
| edge point to the successor's ready | `latency` up to one notification, else `link_down` |

A transfer in another network NAME than NVLink is charged to `NAME_out`, `NAME_in` and `NAME_latency` in place of `link_up`,
`link_down` and `latency`. Only Programs with such a network have these causes.

A wait *between ready and issue* decides where the walk continues:

- Program order: an op issues with or after its predecessor. The walk continues at the first op that issued at that
  instant.
- A semaphore was full until the issue: the walk continues at the op that released the semaphore. The round trip of that
  op has a *constant* part (hops, responder, acknowledgement). Of this part, the time in which both links of the node
  were idle is charged to `window`, because a wider window could have used the links. The remaining time is charged to
  the busier link.
- Neither (a paced issuer): the wait is charged to `window`.
- SM slots that take ops in program order: the walk continues at the op that held the slot before.

An edge point is, for example, the delivery, the acknowledgement or the result of a transfer.

The same picoseconds are also split by operator. Each picosecond is charged to the operator of the op that the walk is
at (Dispatch, a GEMM, Combine, else `other`). A wait for another GPU is so charged to the operators of that GPU.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from dysharp.analysis.count import copied_members, remote_members, sums_that_passed
from dysharp.base import I32, I64, PS_PER_US, Bools, Tally, Texts
from dysharp.program import BESIDE, LATE, PULLS, START, Discipline, Kind, Nature, Point, Program, Template, Trace, group

Index = TypeVar("Index")
Key = TypeVar("Key")
UP, DOWN = 0, 1
CAUSES = ("link_up", "link_down", "sm", "latency", "window", "host")
OWN_CAUSES = {LATE: START, BESIDE: "surroundings"}
"""Function of a DELAY -> its cause, which only Programs with such DELAYs have."""


def attribute(program: Program, trace: Trace) -> Tally:
    """Picoseconds of `trace.time_ps` by cause. Keys: `CAUSES`; the sum is exact. The Trace must be complete."""
    return critical_path(program, trace)[0]


def critical_path(program: Program, trace: Trace, passed: Bools | None = None) -> tuple[Tally, Tally]:
    """Picoseconds of `trace.time_ps` by cause (`CAUSES`) and by operator (`Program.operators`). Both sums are exact.

    `passed`: as from `count.sums_that_passed`, if the caller has it.
    """
    walk = _Walk(program, trace, passed)
    if program.n_ops == 0:
        return walk.parts, walk.operators
    op, at, exposed = int(trace.done.argmax()), trace.time_ps, False
    for _ in range(4 * program.n_ops):
        if at <= 0:
            break
        op, at, exposed = walk.back(op, at, exposed)
        if op < 0:
            break
    walk.spend("latency", at)  # the walk ends at time zero; only a malformed Trace leaves time here
    return walk.parts, walk.operators


class _Step(NamedTuple):
    """What the walk does at an op of a template. `cause`: the cause of a COMPUTE or DELAY; "" = another kind."""

    operator: str
    cause: str
    join: bool
    pull: bool


def _step(template: Template, hosts: Texts) -> _Step:
    """`hosts`: the host operators of the Program."""
    cause = ""
    if template.fn in OWN_CAUSES:
        cause = OWN_CAUSES[template.fn]
    elif template.kind in (Kind.COMPUTE, Kind.DELAY):
        cause = "host" if template.kind is Kind.DELAY and template.operator in hosts else "sm"
    return _Step(template.operator, cause, template.kind is Kind.JOIN, template.kind in PULLS)


@dataclass
class _Walk:
    """State of one walk. `parts` grows while the time `at` falls. Indices are built when the walk first needs them."""

    program: Program
    trace: Trace
    passed: Bools | None = None
    parts: Tally = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    def __post_init__(self) -> None:
        p = self.program
        self.operators, self.operator = dict.fromkeys(p.operator_names, 0), p.host_operator
        hosts = p.with_nature(Nature.HOST)
        self.steps = [_step(t, hosts) for t in p.templates]
        self.in_order: list[bool] = (p.issuers.discipline == Discipline.PROGRAM_ORDER).tolist()
        self.slots: list[int] = [int(p.pools.slots[pool]) if pool >= 0 else 0 for pool in p.issuers.pool.tolist()]
        self.parts |= {cause: 0 for fn, cause in OWN_CAUSES.items() if any(t.fn == fn for t in p.templates)}
        self.words = [("link_up", "link_down", "latency")]
        for net in p.nets:
            self.words.append((f"{net.name}_out", f"{net.name}_in", f"{net.name}_latency"))
            self.parts |= dict.fromkeys(self.words[-1], 0)
        self._issuer_ops: tuple[I32, I64] | None = None
        self._turns: dict[int, tuple[list[int], list[int]]] = {}
        self._releases: dict[int, tuple[I64, I64]] = {}
        self._servers: dict[tuple[int, int], tuple[tuple[I64, I64], tuple[I64, I64]]] = {}
        self._remote: Bools | None = None
        self._sem_rows: tuple[I32, I64] | None = None
        self._op_holds: tuple[I32, I64] | None = None

    def spend(self, cause: str, ps: int) -> None:
        self.parts[cause] += ps
        self.operators[self.operator] += ps

    def back(self, o: int, at: int, exposed: bool) -> tuple[int, int, bool]:
        """Charge the time of op `o` before `at` (ps).

        Returns where the walk continues: (op, time, through a semaphore). Op -1 = time zero.
        """
        t, step, issuer = self.trace, self.steps[self.program.ops.template.item(o)], self.program.ops.issuer.item(o)
        self.operator, done = step.operator, t.done.item(o)
        if at > done:  # a notification in flight
            known = min(at - done, self.program.hardware.notify)
            self.spend("latency", known)
            self.spend("link_down", at - done - known)
            at = done
        if step.cause:
            if self.in_order[issuer]:
                return self._in_turn(o, issuer, at, step.cause)
            ready = t.ready.item(o)
            self.spend(step.cause, at - ready)
            return t.cause.item(o), ready, False
        if step.join:
            return t.cause.item(o), at, False
        self._transfer(o, at, exposed, step.pull)
        return self._before_issue(o)

    def _in_turn(self, o: int, issuer: int, at: int, cause: str) -> tuple[int, int, bool]:
        """Charge an op on SM slots that take ops by id.

        The walk continues at the op that freed the slot, at the op that released a semaphore, or at the op's own start.
        """
        t, (mine, issued) = self.trace, self._turns_of(issuer)
        issue = t.issue.item(o)
        self.spend(cause, at - issue)
        place = bisect_left(issued, issue)
        first = mine[place]
        ready = t.ready.item(first)
        if issue > ready:
            giver = self._gave_back(first, issue)
            if giver >= 0:
                return giver, issue, True
            slots = self.slots[issuer]
            for k in range(place - 1, max(0, place - slots) - 1, -1):
                if t.done.item(mine[k]) == issue:
                    return mine[k], issue, False
            self.spend(cause, issue - ready)
        return t.cause.item(first), ready, False

    def _transfer(self, o: int, at: int, exposed: bool, pull: bool) -> None:
        """Charge the interval [issue, at] of a transfer."""
        t, net = self.trace, self._net(o)
        m, (up, down, _) = self.program.hardware, self.words[net]
        hop, ack = int(self.program.hop_ps[net]), int(self.program.ack_ps[net])
        issue, start, end, done = (int(c[o]) for c in (t.issue, t.start, t.end, t.done))
        if end <= issue or self._served_here(o, at):  # served by the memory of its own node, without a link
            self._constant(o, issue, at, at - issue, exposed)
            return
        # `at` may lie before the end of the train: an op may wait for the issue or for one responder of a pull.
        sent, went = max(at, end), max(start, issue)
        hops = min(sent - end, 2 * hop + (ack if not pull and at == done else 0))
        self.spend(down, sent - end - hops)
        on_way = max(0, min(at, end) - went)
        answer = min(on_way, 2 * hop + m.responder) if pull else 0
        self.spend(up, on_way - answer)
        self._constant(o, issue, at, hops + answer, exposed)
        self._hub_wait(o, issue, min(went, at))

    def _constant(self, o: int, issue: int, at: int, ps: int, exposed: bool) -> None:
        """Charge the fixed latencies `ps` of the round trip [issue, at]. `exposed`: the next op waited for its end."""
        net = self._net(o)
        out_word, in_word, latency = self.words[net]
        if not exposed:
            self.spend(latency, ps)
            return
        node = int(self.program.ops.node[o])
        up, down = (self._busy_ps(node, net, side, issue, at) for side in (UP, DOWN))
        idle = min(ps, max(0, at - issue - max(up, down)))
        self.spend("window", idle)
        self.spend(out_word if up >= down else in_word, ps - idle)

    def _net(self, o: int) -> int:
        return int(self.program.templates[self.program.ops.template[o]].net)

    def _served_here(self, o: int, at: int) -> bool:
        """Whether `at` is the time at which the op's member on its own node was served."""
        members = self.program.members
        mine = slice(int(members.ptr[o]), int(members.ptr[o + 1]))
        local = members.node[mine] == self.program.ops.node[o]
        return bool((self.trace.member[mine][local] == at).any())

    def _hub_wait(self, o: int, issue: int, start: int) -> None:
        """Charge [issue, start): the link sent other trains, or its buffers in the switch were full."""
        net, wait = self._net(o), start - issue
        if wait <= 0:
            return
        busy = wait
        if self.program.hardware.vc_bytes and not net:
            busy = min(wait, self._busy_ps(int(self.program.ops.node[o]), net, UP, issue, start))
        self.spend(self.words[net][UP], busy)
        self.spend(self.words[net][DOWN], wait - busy)

    def _busy_ps(self, node: int, net: int, side: int, begin: int, end: int) -> int:
        """Time (ps) that a link needs for the trains of [begin, end) and for the train in service at `begin`."""
        times, total = self._links(node, net, side)
        first, last = np.searchsorted(times, (begin, end))
        sent = int(total[last] - total[max(first - 1, 0)])
        return -(-sent * PS_PER_US // int(self.program.port_rate[net * self.program.n_nodes + node]))

    def _before_issue(self, o: int) -> tuple[int, int, bool]:
        """Walk from the issue of transfer `o` to the op that it waited for."""
        t, ops = self.trace, self.program.ops
        issuer, at = int(ops.issuer[o]), int(t.issue[o])
        if self.in_order[issuer]:
            mine, issued = self._turns_of(issuer)
            o = mine[bisect_left(issued, at)]
        ready = int(t.ready[o])
        if at > ready:
            giver = self._gave_back(o, at)
            if giver >= 0:
                return giver, at, True
            self.spend("window", at - ready)
        return int(t.cause[o]), ready, False

    # ---- indices ---------------------------------------------------------------------------------------------

    def _turns_of(self, issuer: int) -> tuple[list[int], list[int]]:
        """Ops of an issuer by id, and their issue times, which rise in program order. Lists: the walk reads single entries."""

        def build() -> tuple[list[int], list[int]]:
            if self._issuer_ops is None:
                self._issuer_ops = group(self.program.ops.issuer + 1, len(self.program.issuers.node) + 1)
            ptr, order = self._issuer_ops
            mine = order[ptr[issuer + 1] : ptr[issuer + 2]]
            return mine.tolist(), self.trace.issue[mine].tolist()

        return _cached(self._turns, issuer, build)

    def _gave_back(self, o: int, at: int) -> int:
        """The op that released, at time `at`, a semaphore that op `o` takes at its issue. -1 = no op."""
        holds = self.program.holds
        if self._op_holds is None:
            takes = np.where(holds.acquire_kind == Point.OP_ISSUED, holds.acquire, self.program.n_ops).astype(np.int32)
            self._op_holds = group(takes, self.program.n_ops + 1)
        ptr, order = self._op_holds
        for row in order[ptr.item(o) : ptr.item(o + 1)].tolist():
            times, ops = self._released(int(holds.sem[row]))
            k = int(np.searchsorted(times, at))
            while k < len(times) and times[k] == at:
                if self.trace.issue[ops[k]] < at:
                    return int(ops[k])
                k += 1
        return -1

    def _released(self, sem: int) -> tuple[I64, I64]:
        """(times, ops) of all releases of a semaphore, by time. An op releases at its issue or when it is done."""

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

    def _links(self, node: int, net: int, side: int) -> tuple[I64, I64]:
        """Of the up or down server of a node in network `net`: rising times `[n]` of trains and debt, and wire bytes before each, `[n + 1]`.

        Up: times at which a train or a response is granted or a copy is acknowledged. Down: times at which a copy is
        delivered, a request is answered, or a result or the last acknowledgement arrives.
        """
        return _cached(self._servers, (node, net), lambda: self._links_of(node, net))[side]

    def _links_of(self, node: int, net: int) -> tuple[tuple[I64, I64], tuple[I64, I64]]:
        p, t, w = self.program, self.trace, self.program.wires
        up_bytes, down_bytes, ack_up, ack_down = (w.trains * size for size in (w.up, w.down, w.ack_up, w.ack_down))
        if self._remote is None:
            passed = sums_that_passed(p, t) if self.passed is None else self.passed
            self._remote = copied_members(p, passed, t) if p.sessions is not None else remote_members(p)
        own = np.flatnonzero((p.ops.node == node) & (p.ops.wire >= 0))
        own = own[t.end[own] > t.issue[own]]  # the node itself serves the other pulls, without a link
        here = np.flatnonzero((p.members.node == node) & self._remote)
        senders = np.searchsorted(p.members.ptr, here, side="right") - 1
        if p.nets:
            nets = p.op_net()
            own, here, senders = own[nets[own] == net], here[nets[senders] == net], senders[nets[senders] == net]
        mine, others = p.ops.wire[own], p.ops.wire[senders]
        # Columns without a meaning are zero: a push has no response or result, a pull no acknowledgement.
        up = _server([t.start[own], t.member[here]], [up_bytes[mine], w.response[others] + ack_up[others]])
        down = _server([t.done[own], t.member[here]], [w.result[mine] + ack_down[mine], down_bytes[others]])
        return up, down


def _server(times: list[I64], sizes: list[I64]) -> tuple[I64, I64]:
    when = np.concatenate(times)
    order = np.argsort(when, kind="stable")
    total = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.concatenate(sizes)[order], out=total[1:])
    return when[order], total


def _cached(table: dict[Key, Index], key: Key, build: Callable[[], Index]) -> Index:
    if key not in table:
        table[key] = build()
    return table[key]
