"""Phases, exposed communication and waits of the GPU that finishes last, and utilization of links and SMs."""

import numpy as np

from dysharp.analysis.intervals import union_ps
from dysharp.arrays import F64, I64
from dysharp.program.builder import WIRED
from dysharp.program.payload import sides_of
from dysharp.program.tables import Discipline, Kind, Point, Program
from dysharp.program.trace import Trace
from dysharp.units import PS_PER_US, ps_to_us


class LastGpu:
    """The ops of the GPU that finishes last. `ops`: `[n]` int64 ids. On a tie the op with the smallest id decides."""

    def __init__(self, program: Program, trace: Trace) -> None:
        self.program, self.trace = program, trace
        self.node = int(program.ops.node[int(trace.done.argmax())]) if program.n_ops else 0
        self.ops: I64 = np.flatnonzero(program.ops.node == self.node)
        self.template = program.ops.template[self.ops]
        kinds = np.array([t.kind for t in program.templates], np.int32)[self.template]
        self.computes = self.ops[kinds == Kind.COMPUTE]
        self.transfers = self.ops[np.isin(kinds, WIRED)]
        self.timed = kinds != Kind.JOIN

    def phases_us(self) -> dict[str, dict[str, float]]:
        """{operator: {start, end, busy}} in us. Busy: union of the operator's ops from issue to completion.

        An operator without ops has zeros.
        """
        out = {}
        phase = np.where(self.timed, self.program.template_operator()[self.template], -1)
        for i, name in enumerate(self.program.operator_names):
            ops = self.ops[phase == i]
            start, end = self.trace.issue[ops], self.trace.done[ops]
            first = int(start.min()) if len(ops) else 0
            ps = {"start": first, "end": int(end.max(initial=0)), "busy": union_ps(start, end)}
            out[name] = {key: ps_to_us(value) for key, value in ps.items()}
        return out

    def exposed_ps(self) -> int:
        """Picoseconds with a transfer in flight and no COMPUTE running.

        Two kinds of transfers count: transfers of this GPU over links, from issue to completion; copies and requests of
        other GPUs to this GPU, from their start to their delivery or answer here.
        """
        p, t = self.program, self.trace
        own = self.transfers[t.end[self.transfers] > t.issue[self.transfers]]
        here = np.flatnonzero(p.members.node == self.node)
        sender = np.searchsorted(p.members.ptr, here, side="right") - 1
        other = p.ops.node[sender] != self.node
        busy_start, busy_end = t.issue[self.computes], t.done[self.computes]
        start = np.concatenate([t.issue[own], t.start[sender[other]], busy_start])
        end = np.concatenate([t.done[own], t.member[here[other]], busy_end])
        return union_ps(start, end) - union_ps(busy_start, busy_end)

    def stalls_us(self) -> dict[str, float]:
        """Microseconds in which ops of this GPU waited for a window, for the up link, for an SM slot. Waits overlap."""
        t = self.trace
        window = union_ps(*self._window_waits())
        link = union_ps(t.issue[self.transfers], t.start[self.transfers])
        slots = union_ps(t.ready[self.computes], t.start[self.computes])
        return {"window_us": ps_to_us(window), "link_us": ps_to_us(link), "sm_us": ps_to_us(slots)}

    def _window_waits(self) -> tuple[I64, I64]:
        """(start, end) of waits for semaphores.

        Start: the op is ready, and in program order its predecessor has issued.
        """
        p, t, holds = self.program, self.trace, self.program.holds
        takes = np.zeros(p.n_ops, np.bool_)
        takes[holds.acquire[holds.acquire_kind == Point.OP_ISSUED]] = True
        ops = self.transfers[takes[self.transfers]]
        issuer = p.ops.issuer[ops]
        order = np.argsort(issuer, kind="stable")
        ops, issuer = ops[order], issuer[order]
        start = t.ready[ops]
        follows = np.zeros(len(ops), np.bool_)
        follows[1:] = issuer[1:] == issuer[:-1]
        follows &= p.issuers.discipline[issuer] == Discipline.PROGRAM_ORDER
        start[follows] = np.maximum(start[follows], t.issue[ops][np.flatnonzero(follows) - 1])
        return start, t.issue[ops]


def utilization(program: Program, trace: Trace, pool_busy: I64) -> dict[str, float]:
    """Busy time divided by total time, per link direction and for SM slots: mean over GPUs, and maximum (`_max`).

    `pool_busy`: `[n_pools]` int64 slot-picoseconds (`bound.pool_busy_ps`). Pools without GEMMs (hosts, load/store units) do not count.
    """
    names = list(dict.fromkeys(name for sides in sides_of(program) for name in sides))
    out = dict.fromkeys((*names[:2], "sm", *(f"{name}_max" for name in names[:2]), "sm_max"), 0.0)
    out |= dict.fromkeys(further for name in names[2:] for further in (name, f"{name}_max"))  # type: ignore[arg-type]
    if trace.time_ps == 0:
        return out
    capacity = (trace.time_ps * program.port_rate / PS_PER_US).reshape(-1, program.n_nodes)
    of_side: dict[str, list[F64]] = {name: [] for name in names}  # links between pairs have one name
    for net, sides in enumerate(sides_of(program)):
        for side, busy in zip(sides, (trace.up_busy, trace.down_busy), strict=True):
            of_side[side].append(busy.reshape(capacity.shape)[net] / capacity[net])
    for side, of_links in of_side.items():
        share = np.concatenate(of_links)
        out[side], out[f"{side}_max"] = float(share.mean()), float(share.max())
    computes = np.array([t.kind == Kind.COMPUTE for t in program.templates], np.bool_)
    issuers = np.unique(program.ops.issuer[computes[program.ops.template]])
    pools = np.unique(program.issuers.pool[issuers])
    if len(pools):
        shares = np.zeros(program.n_nodes)
        shares[program.pools.node[pools]] = pool_busy[pools] / program.pools.slots[pools] / trace.time_ps
        out["sm"], out["sm_max"] = float(shares.mean()), float(shares.max())
    return out
