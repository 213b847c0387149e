"""Counters of a Timeline: link use, tokens in flight, reductions in the switch, SM slots in use, entries of the hubs' tables."""


import numpy as np

from dysharp.analysis.count import remote_members
from dysharp.analysis.timeline.links import Trains, link_groups
from dysharp.analysis.timeline.record import Recording
from dysharp.base import F64, I64, Array, Ints, frozen
from dysharp.program import Kind, Program, owners

BINS = 500
"""Samples of a counter that changes at every train."""


@frozen
class Counter:
    """A number over time: `value[i]` from `at[i]` (ps) on. Columns `[n]` int64."""

    gpu: int
    name: str
    unit: str
    at: I64
    value: I64


def counters(run: Recording, up: Trains, down: Trains) -> tuple[Counter, ...]:
    """All counters of a run, by GPU."""
    if run.trace.time_ps == 0:
        return ()
    edges = np.linspace(0, run.trace.time_ps, BINS + 1).astype(np.int64)
    found = [*_link_use(up, 0, edges, run.program), *_link_use(down, 1, edges, run.program)]
    found += [*_tokens(run, edges), *_reductions(run, edges), *_pools(run, edges), *_hubs(run)]
    return tuple(sorted(found, key=lambda c: c.gpu))


def _link_use(trains: Trains, side: int, edges: I64, p: Program) -> list[Counter]:
    """Percent of each bin in which the link sends."""
    ptr, out, groups = np.searchsorted(trains.port, np.arange(p.n_ports + 1)), [], link_groups(p)
    for port in range(p.n_ports):
        here = slice(int(ptr[port]), int(ptr[port + 1]))
        start, end = trains.start[here], trains.end[here]
        if not len(start):
            continue
        use = used_in(edges, start, end) * 100 / np.maximum(1, np.diff(edges))
        net, gpu = divmod(port, p.n_nodes)
        out.append(Counter(gpu, f"{groups[net][side]} use", "%", edges[:-1], np.round(use).astype(np.int64)))
    return out


def used_in(edges: Array, start: I64, end: I64) -> F64:
    """`[bins]` the part of each bin of `edges` that the intervals cover, which do not overlap and rise."""
    busy = np.concatenate([[0], np.cumsum(end - start)])
    corners, heights = np.stack([start, end], axis=1).ravel(), np.stack([busy[:-1], busy[1:]], axis=1).ravel()
    return np.diff(np.interp(edges, corners, heights))


def _tokens(run: Recording, edges: I64) -> list[Counter]:
    """Tokens of each GPU between the issue of their first dispatch and the end of their last combine."""
    p, t = run.program, run.trace
    wired = (p.ops.wire >= 0) & (p.ops.key >= 0)
    out_ops, back = (
        np.flatnonzero(wired & np.array([x.operator == name for x in p.templates] or [False])[p.ops.template]) for name in ("dispatch", "combine")
    )
    if not len(out_ops) or not len(back):
        return []
    n = int(max(p.ops.key[out_ops].max(), p.ops.key[back].max())) + 1
    begin, end = np.full(n, 1 << 62), np.full(n, -1)
    np.minimum.at(begin, p.ops.key[out_ops], t.issue[out_ops])
    np.maximum.at(end, p.ops.key[back], t.done[back])
    home = np.full(n, -1)
    home[p.ops.key[out_ops]] = p.ops.node[out_ops]
    here = (home >= 0) & (end >= begin)
    return _inside(begin[here], end[here], home[here], edges, "tokens in flight", p.n_nodes)


def _reductions(run: Recording, edges: I64) -> list[Counter]:
    """Reductions of each GPU in the switch: from the request's arrival to the last response."""
    p, t = run.program, run.trace
    owner = owners(p.members.ptr)
    here = np.flatnonzero(remote_members(p) & (p.kinds() == Kind.PULL_REDUCE)[owner])
    if not len(here):
        return []
    last = np.full(p.n_ops, -1)
    np.maximum.at(last, owner[here], t.member[here])
    ops = np.flatnonzero(last >= 0)
    hop = p.hardware.lat
    return _inside(t.start[ops] + hop, last[ops] + hop, p.ops.node[ops], edges, "reductions in the switch", p.n_nodes)


def _inside(begin: I64, end: I64, gpu: Ints, edges: I64, name: str, n_nodes: int) -> list[Counter]:
    """For each GPU and each time of `edges`: the number of its intervals from `begin` to `end` that contain this time."""
    out = []
    for node in range(n_nodes):
        mine = gpu == node
        if mine.any():
            value = np.searchsorted(np.sort(begin[mine]), edges, side="right") - np.searchsorted(np.sort(end[mine]), edges, side="right")
            out.append(Counter(node, name, "", edges, value.astype(np.int64)))
    return out


def _pools(run: Recording, edges: I64) -> list[Counter]:
    """Percent of the slots of each pool that run tasks. The tasks of an op are spread evenly over the time of the op."""
    p, t, out = run.program, run.trace, []
    pool = np.where(p.ops.issuer >= 0, p.issuers.pool[p.ops.issuer], -1)
    ops = np.flatnonzero((pool >= 0) & np.isin(p.kinds(), (Kind.COMPUTE, Kind.DELAY)) & (t.end > t.start))
    share = np.zeros(p.n_ops)
    share[ops] = p.work_ps(ops) / (t.end[ops] - t.start[ops])
    for q, slots in enumerate(p.pools.slots.tolist()):
        mine = ops[pool[ops] == q]
        if not len(mine):
            continue
        # The slots in use are a sum of steps; their integral at the edges gives the mean of each bin.
        at = np.concatenate([t.start[mine], t.end[mine]])
        order = np.argsort(at, kind="stable")
        level = np.cumsum(np.concatenate([share[mine], -share[mine]])[order])
        corners = at[order]
        area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(corners))])
        use = np.diff(np.interp(edges, corners, area)) * 100 / slots / np.maximum(1, np.diff(edges))
        kind = p.pools.name[q].partition("].")[2]
        out.append(Counter(int(p.pools.node[q]), f"{_slot_words(kind)} in use", "%", edges[:-1], np.round(use).astype(np.int64)))
    return out


def _slot_words(kind: str) -> str:
    """The slots of a pool in words."""
    return "SM slots" if kind == "sm" else f"slots of {kind or 'a pool'}"


def _hubs(run: Recording) -> list[Counter]:
    """Rows in the cache of each hub's table, and rows read from memory so far."""
    p, log, out = run.program, run.hubs, []
    order = np.argsort(log.where, kind="stable")
    ptr = np.searchsorted(log.where[order], np.arange(len(p.tables) * p.n_nodes + 1))
    for hub in range(len(p.tables) * p.n_nodes):
        mine = order[ptr[hub] : ptr[hub + 1]]
        table, node = divmod(hub, p.n_nodes)
        name = p.tables[table].name
        if len(mine) and log.what[mine].any():
            out.append(Counter(node, f"{name} entries", "", log.at[mine], log.what[mine]))
            out.append(Counter(node, f"{name} reads of memory", "", log.at[mine], log.count[mine]))
    return out
