"""The span of each operator on each rank, split into moving and three kinds of waiting.

The *span* of an operator on a rank begins when its first op is ready there, or when its first row sets out to that rank, but not before the rank
starts. It ends when its last op is done and its last row has arrived. Every picosecond of the span has the first part that fits:

| part | at this time |
|---|---|
| moving | a transfer or task of the operator runs on this rank, or one of its rows is on the way to this rank |
| resource | an op of the operator is ready here and waits: for a link (in the switch too), a window, an SM slot, its turn |
| own | another operator runs or is ready on this rank, so the wait is hidden behind it |
| peers | nothing runs, is ready or arrives here: the rank is idle and waits for other ranks |

The parts sum to the span. An op of an issuer in program order counts as ready when all ops before it are ready too.

A push waits for a resource in the switch, too: from the end of its train on the up link until the fixed latencies of the rest of its way remain. What
a Trace cannot tell apart counts as moving: queues on the way of a pull, and tasks of a gang that wait for a slot after the first task has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dysharp.analysis.phases import merged, union_ps
from dysharp.base import I64, frozen, ps_to_us
from dysharp.program import LATE, PUSHES, Discipline, Kind, Program, Trace

if TYPE_CHECKING:
    from dysharp.analysis.spans import Unions

Spans = tuple[I64, I64]
"""Starts and ends of intervals, `[n]` ps each."""
PARTS = ("moving", "resource", "own", "peers")


@frozen
class _IntervalTable:
    """Intervals of all ranks that do not touch, sorted by rank, operator and time: `[n]` each."""

    ptr: I64
    start: I64
    end: I64
    operators: int

    def at(self, rank: int, operator: int) -> Spans:
        """The intervals of one operator on one rank."""
        group_id = rank * self.operators + operator
        here = slice(int(self.ptr[group_id]), int(self.ptr[group_id + 1]))
        return self.start[here], self.end[here]


def waiting_us(program: Program, trace: Trace) -> dict[str, dict[str, list[float]]]:
    """{operator: {span, moving, resource, own, peers}}, each `[n_nodes]` microseconds; operators without ops are left out."""
    split = _waiting_ps(program, trace)
    return {name: {part: [ps_to_us(int(ps)) for ps in column] for part, column in parts.items()} for name, parts in split.items()}


def _waiting_ps(program: Program, trace: Trace) -> dict[str, dict[str, I64]]:
    """{operator: {span, moving, resource, own, peers}}, each `[n_nodes]` int64 ps. The parts sum to the span."""
    present, running = _tables(program, trace)
    begin, names = _starts(program, trace), program.operator_names
    out = {name: {part: np.zeros(program.n_nodes, np.int64) for part in ("span", *PARTS)} for name in names}
    for rank in range(program.n_nodes):
        active = [present.at(rank, k) for k in range(len(names))]
        for k, name in enumerate(names):
            others = _joined([spans for j, spans in enumerate(active) if j != k])
            _fill(out[name], rank, int(begin[rank]), running.at(rank, k), active[k], others)
    return {name: parts for name, parts in out.items() if parts["span"].any()}


def _fill(out: dict[str, I64], rank: int, begin: int, moving: Spans, both: Spans, others: Spans) -> None:
    """The parts of one operator on one rank. `both`: moving and waiting for a resource."""
    if not len(both[0]):
        return
    low, high = max(begin, int(both[0].min())), int(both[1].max())
    if high <= low:  # only rows that arrived before the rank began
        return
    steps = (moving, both, _joined([both, others]))
    covered = [0, *(union_ps(np.clip(start, low, high), np.clip(end, low, high)) for start, end in steps), high - low]
    out["span"][rank] = high - low
    for part, more in zip(PARTS, np.diff(covered), strict=True):
        out[part][rank] = more


def _tables(program: Program, trace: Trace) -> tuple[_IntervalTable, _IntervalTable]:
    """The intervals in which operators wait for a resource or move, and in which they move."""
    from dysharp.analysis.spans import Columns, ready_in_turn, spans_read  # numba loads here and nowhere earlier

    p, t, n_groups = program, trace, program.n_nodes * len(program.operators)
    ready, in_order = np.empty(p.n_ops, np.int64), p.issuers.discipline == Discipline.PROGRAM_ORDER
    ready_in_turn(p.ops.issuer, in_order, t.ready, np.full(len(in_order), -1, np.int64), ready)
    nets = np.array([x.net for x in p.templates], np.int32)
    columns = Columns(
        operator=p.template_operator(), counted=np.array([x.kind is not Kind.JOIN and x.fn != LATE for x in p.templates], np.bool_),
        pushed=np.array([x.kind in PUSHES for x in p.templates], np.bool_), hops=2 * p.hop_ps[nets], ack=p.ack_ps[nets],
        template=p.ops.template, node=p.ops.node, member_ptr=p.members.ptr, member_node=p.members.node, member=t.member, ready=ready,
        start=t.start, end=t.end, done=t.done,
    )  # fmt: skip
    present, moving = (_unions(n_groups, most) for most in (p.n_ops + len(t.member), 2 * (p.n_ops + len(t.member))))
    coarse = (t.start >> max(0, t.time_ps.bit_length() - 16)).astype(np.uint16)  # NumPy sorts 16 bits by counting; any order has the same unions
    spans_read(columns, np.argsort(coarse, kind="stable"), len(p.operators), present, moving)
    return _table(p, t.time_ps, present), _table(p, t.time_ps, moving)


def _unions(n_groups: int, most: int) -> Unions:
    """No intervals yet, and room for `most`. Room that is not written to takes no memory."""
    from dysharp.analysis.spans import Unions

    last = np.zeros((n_groups, 2, 2), np.int64)
    last[..., 1] = -1
    return Unions(last, np.empty(most, np.int32), np.empty((most, 2), np.int64), np.zeros(1, np.int64))


def _table(program: Program, time_ps: int, unions: Unions) -> _IntervalTable:
    """The unions of the intervals of each group. One merge over all groups: the times of each group lie above the times of the group before."""
    n, step, n_groups = int(unions.written[0]), time_ps + 2, program.n_nodes * len(program.operators)
    above = unions.group[:n].astype(np.int64) * step
    start, end = merged(unions.times[:n, 0] + above, unions.times[:n, 1] + above)
    ptr = np.searchsorted(start, np.arange(n_groups + 1) * step)
    return _IntervalTable(ptr, start % step, end % step, len(program.operators))


def _starts(program: Program, trace: Trace) -> I64:
    """`[n_nodes]` start time of each rank."""
    start = np.zeros(program.n_nodes, np.int64)
    delays = np.flatnonzero(np.array([t.fn == LATE for t in program.templates], np.bool_)[program.ops.template])
    start[program.ops.node[delays]] = trace.done[delays]
    return start


def _joined(parts: list[Spans]) -> Spans:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
