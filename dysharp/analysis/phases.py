"""Phases, exposed communication and waits of the GPU that finishes last, and utilization of links and SMs."""

import numpy as np

from dysharp.analysis.count import remote_members
from dysharp.base import F64, I64, PS_PER_US, Amounts, ByName, ps_to_us
from dysharp.program import Discipline, Kind, Point, Program, Trace, owners, sides_of
from dysharp.program.builder import PULLS, WIRED


def union_ps(start: I64, end: I64) -> int:
    """Length (ps) of the union of the intervals `[start[i], end[i])`. Arrays: `[n]` int64 in any order; n may be 0."""
    if len(start) == 0:
        return 0
    order = np.argsort(start, kind="stable")
    begin = start[order]
    reach = np.maximum.accumulate(end[order])
    covered = np.empty_like(reach)  # the end of the time that earlier intervals cover
    covered[0] = begin[0]
    covered[1:] = reach[:-1]
    return int(np.maximum(reach - np.maximum(begin, covered), 0).sum())


def merged(start: I64, end: I64) -> tuple[I64, I64]:
    """The union as intervals that do not touch, in order."""
    if not len(start):
        return start, end
    # Sorted apart: where the i-th start lies above the i-th end before it, all earlier intervals have ended.
    begin, reach = np.sort(start), np.sort(end)
    first = np.flatnonzero(np.append(True, begin[1:] > reach[:-1]))
    return begin[first], reach[np.append(first[1:], len(begin)) - 1]


class LastGpu:
    """The ops of the GPU that finishes last. `ops`: `[n]` int64 ids. On a tie the op with the smallest id decides."""

    def __init__(self, program: Program, trace: Trace) -> None:
        self.program, self.trace = program, trace
        self.node = int(program.ops.node[int(trace.done.argmax())]) if program.n_ops else 0
        self.ops: I64 = np.flatnonzero(program.ops.node == self.node)
        self.template = program.ops.template[self.ops]
        kinds = program.kinds()[self.ops]
        self.computes = self.ops[kinds == Kind.COMPUTE]
        self.transfers = self.ops[np.isin(kinds, WIRED)]
        self.timed = kinds != Kind.JOIN

    def phases_us(self) -> dict[str, Amounts]:
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
        sender = owners(p.members.ptr)[here]
        other = p.ops.node[sender] != self.node
        busy_start, busy_end = t.issue[self.computes], t.done[self.computes]
        start = np.concatenate([t.issue[own], t.start[sender[other]], busy_start])
        end = np.concatenate([t.done[own], t.member[here[other]], busy_end])
        return union_ps(start, end) - union_ps(busy_start, busy_end)

    def stalls_us(self) -> Amounts:
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


def utilization(program: Program, trace: Trace, pool_busy: I64) -> Amounts:
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
    pools = np.unique(program.issuers.pool[program.ops.issuer[program.kinds() == Kind.COMPUTE]])
    if len(pools):
        shares = np.zeros(program.n_nodes)
        shares[program.pools.node[pools]] = pool_busy[pools] / program.pools.slots[pools] / trace.time_ps
        out["sm"], out["sm_max"] = float(shares.mean()), float(shares.max())
    return out


def row_visits(program: Program, trace: Trace, al_read: I64) -> ByName | None:
    """Rates and lifetimes of rows at the hubs, for a run without evictions. None: no row is both pushed and pulled.

    `al_read`: `[n_rows]` ps, first lookup of each row, -1 = none.

    | key | meaning |
    |---|---|
    | `rows` | rows of all hubs |
    | `rows_per_hub` | rows of the hub with most rows |
    | `dispatch_per_us`, `combine_per_us` | rows per hub and us, counted by the first packet of each row |
    | `lifetime_us` | mean time from a row's first Dispatch packet to its first Combine packet |

    Rates are taken between the first and the last of these packets. For a pull the earliest arrival of its first request counts.
    """
    pulled = _pull_arrival(program, trace)
    both = np.flatnonzero((al_read >= 0) & (pulled >= 0))
    if not len(both):
        return None
    first, second = al_read[both], np.maximum(pulled[both], al_read[both])
    hub = program.regions.node[owners(program.regions.row_ptr)[both]]
    per_hub = np.bincount(hub, minlength=program.n_nodes)
    mean = len(both) / int(np.count_nonzero(per_hub))

    def rate(times: I64) -> float:
        return float(mean * 1e6 / max(1, int(times.max()) - int(times.min())))

    return {
        "rows": len(both), "rows_per_hub": int(per_hub.max()), "dispatch_per_us": rate(first), "combine_per_us": rate(second),
        "lifetime_us": float((second - first).mean()) / 1e6,
    }  # fmt: skip


def _pull_arrival(program: Program, trace: Trace) -> I64:
    """`[n_rows]` ps: earliest arrival of the first request for a row at its hub, two hops after the start of the pull.

    -1 = no other GPU pulls the row.
    """
    members = program.members
    owner = owners(members.ptr)
    member = owners(members.fill_ptr)
    pulls = np.isin(program.kinds(), PULLS)[owner] & remote_members(program)
    fills = np.flatnonzero(pulls[member])
    out = np.full(program.n_rows, -1, np.int64)
    out[members.fill_row[fills]] = trace.start[owner[member[fills]]] + 2 * program.hardware.lat
    return out
