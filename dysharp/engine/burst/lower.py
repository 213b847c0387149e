"""A Program as the arrays of the burst kernels: static tables packed by cache line, state blocks at time zero."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ProgramError
from dysharp.program.csr import group
from dysharp.program.names import edge_name
from dysharp.program.tables import Alloc, Discipline, Head, Kind, Point, Program, Tail
from dysharp.uarch import columns as col

Array = NDArray[Any]
CHUNK = 1 << 11
SUPPORTED = (Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.SIGNAL, Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE)


class Lowered(NamedTuple):
    """Arguments of `run_loop` after `budget`, in its order."""

    op: Array
    ot: Array
    templates: Array
    wires: Array
    durations: Array
    task_bytes: Array
    mem: Array
    mem_time: Array
    fill_row: Array
    rows: Array
    regions: Array
    slot_row: Array
    tiles: Array
    tile_times: Array
    tile_edge_ptr: Array
    tile_edge_kind: Array
    tile_edge: Array
    edge_ptr: Array
    edge_head_kind: Array
    edge_head: Array
    hold_ptr: Array
    hold_sem: Array
    hold_amount: Array
    release_ptr: Array
    release_sem: Array
    release_amount: Array
    sem_left: Array
    sem_issuer_ptr: Array
    sem_issuer: Array
    issuers: Array
    issuer_ops: Array
    heap_keys: Array
    heap_ids: Array
    pools: Array
    pool_keys: Array
    pool_ids: Array
    pool_issuer_ptr: Array
    pool_issuer: Array
    nodes: Array
    hub: Array
    occupied: Array
    channels: Array
    credits: Array
    out_queues: Array
    out_mask: Array
    out_cursor: Array
    rings: Array
    tree: Array
    dirty_issuers: Array
    dirty_up: Array
    dirty_down: Array
    m: Array
    x: Array


def unsupported(program: Program) -> str | None:
    """Why this engine cannot run the Program (the oracle can), or None. One line."""
    kinds = {t.kind for t in program.templates} - set(SUPPORTED)
    if kinds:
        return f"op kind {min(kinds).name} is run by the oracle only"
    if program.ops.chain is not None or program.ops.threshold is not None or program.ops.session is not None:
        return "chains, sessions and announced thresholds are run by the oracle only"
    if (program.issuers.interval_ps > 0).any() or (program.issuers.discipline == Discipline.ROUND_ROBIN).any():
        return "paced and round-robin issuers are run by the oracle only"
    tails = np.isin(program.edges.tail_kind, (Tail.OP_DONE, Tail.TILE_READY))
    if not tails.all():
        return f"found {edge_name(program, int(tails.argmin()))}, expected one from OP_DONE or TILE_READY (the oracle alone runs other tails)"
    heads = np.isin(program.edges.head_kind, (Head.OP_ISSUE, Head.TILE_NOTIFY))
    if not heads.all():
        return f"found {edge_name(program, int(heads.argmin()))}, expected one to OP_ISSUE or TILE_NOTIFY (the oracle alone runs other heads)"
    if (program.holds.acquire_kind != Point.OP_ISSUED).any() or (program.holds.release_kind != Point.OP_DONE).any():
        return "semaphores taken or given back elsewhere than at issue and done are run by the oracle only"
    return None


def _words(n: int) -> Array:
    return np.zeros((n + 31) // 32 or 1, np.int64)


def _records(rows: int, columns: int) -> Array:
    """`[rows, columns]` int32, unset, on a cache line, so that a record of 128 B takes two lines and not three."""
    n = rows * columns
    raw = np.empty(n + 32, np.int32)
    first = -raw.ctypes.data // 4 % 32
    return raw[first : first + n].reshape(rows, columns)


def _ops(p: Program, kinds: Array, flags: Array) -> Array:
    n = p.n_ops
    op = _records(n + 1, 32)
    op[n] = -1
    tasks = np.array([t.tasks for t in p.templates] or [0], np.int32)
    is_pooled = (kinds == Kind.COMPUTE) | (kinds == Kind.DELAY)
    waits = dependencies(p)
    for a in range(0, n, CHUNK):  # record by record in cache, instead of one pass over all memory per column
        part, to = slice(a, min(a + CHUNK, n)), op[a : min(a + CHUNK, n)]
        to[...] = -1
        pooled = is_pooled[part]
        to[:, col.TEMPLATE], to[:, col.NODE], to[:, col.ISSUER] = p.ops.template[part], p.ops.node[part], p.ops.issuer[part]
        to[:, col.WIRE] = np.where(pooled, p.ops.rows[part], p.ops.wire[part])
        to[:, col.PRIO], to[:, col.KEY], to[:, col.MEMBER] = p.ops.prio[part], p.ops.key[part], p.members.ptr[part]
        to[:, col.FLAGS] = np.diff(p.members.ptr[a : to.shape[0] + a + 1]) << col.MEMBERS_SHIFT | flags[part]
        to[:, col.DEPS], to[:, col.COPIES] = waits[part], 0
        to[:, col.LEFT] = to[:, col.ANSWERS] = np.where(pooled, tasks[p.ops.template[part]], 0)
    return op


def _members(p: Program) -> Array:
    n, ext = p.n_members, p.members.ext_bytes
    mem = _records(n + 1, 8)
    mem[n] = -1
    mem[n, col.B_FILL] = p.members.fill_ptr[n]
    owner = np.repeat(np.arange(p.n_ops, dtype=np.int32), np.diff(p.members.ptr))
    for a in range(0, n, CHUNK):
        part, to = slice(a, min(a + CHUNK, n)), mem[a : min(a + CHUNK, n)]
        to[...] = -1
        to[:, col.B_NODE], to[:, col.B_OP], to[:, col.B_FILL] = p.members.node[part], owner[part], p.members.fill_ptr[part]
        to[:, col.B_EXT] = 0 if ext is None else ext[part]
    return mem


def dependencies(p: Program) -> Array:
    """`[n_ops]` in-edges of each op plus rows that notify it."""
    heads = p.edges.head[p.edges.head_kind == Head.OP_ISSUE]
    notified = p.regions.row_notify[p.regions.row_notify >= 0]
    return (np.bincount(heads, minlength=p.n_ops) + np.bincount(notified, minlength=p.n_ops)).astype(np.int32)


def _regions(p: Program) -> dict[str, Array]:
    r, n = p.regions, p.n_regions
    counts, n_tiles = np.diff(r.row_ptr), np.diff(r.tile_ptr)
    region_of_row, region_of_tile = np.repeat(np.arange(n), counts), np.repeat(np.arange(n), n_tiles)
    rows = _records(p.n_rows, 4)
    rows[:, col.R_LEFT], rows[:, col.R_SLOT] = r.row_bytes[region_of_row], -1
    rows[:, col.R_NOTIFY], rows[:, col.R_REGION] = r.row_notify, region_of_row
    regions = np.zeros((n, 5), np.int32)
    for c, values in ((col.G_NODE, r.node), (col.G_TILE_ROWS, r.tile_rows)):
        regions[:, c] = values
    regions[:, col.G_ROW0], regions[:, col.G_TILE0] = r.row_ptr[:-1], r.tile_ptr[:-1]
    slot_row = np.full(p.n_rows, -1, np.int32)
    bound = np.flatnonzero(r.alloc[region_of_row] == Alloc.PREFIX)
    rows[bound, col.R_SLOT] = bound - r.row_ptr[:-1][region_of_row[bound]]
    slot_row[bound] = bound
    tiles = np.full((p.n_tiles, 7), -1, np.int32)
    index = np.arange(p.n_tiles) - r.tile_ptr[:-1][region_of_tile]
    first = index * r.tile_rows[region_of_tile]
    tiles[:, col.T_ROWS] = np.minimum(r.tile_rows[region_of_tile], counts[region_of_tile] - first)
    tiles[:, col.T_LEFT] = tiles[:, col.T_ROWS]
    tiles[:, col.T_SLOT0] = r.row_ptr[:-1][region_of_tile] + first
    tiles[:, col.T_NODE] = r.node[region_of_tile]
    into = p.edges.head[p.edges.head_kind == Head.TILE_NOTIFY]
    tiles[:, col.T_NOTIFY_DEPS] = np.bincount(into, minlength=p.n_tiles)
    return {
        "rows": rows,
        "regions": regions,
        "tiles": tiles,
        "slot_row": slot_row,
        "tile_times": np.full((p.n_tiles, 2), -1, np.int64),
    }


def _edges(p: Program) -> dict[str, Array]:
    e, out = p.edges, {}
    from_op, from_tile = e.tail_kind == Tail.OP_DONE, e.tail_kind == Tail.TILE_READY
    out["edge_ptr"], order = group(e.tail[from_op], p.n_ops)
    out["edge_head_kind"], out["edge_head"] = e.head_kind[from_op][order], e.head[from_op][order]
    out["tile_edge_ptr"], order = group(e.tail[from_tile], p.n_tiles)
    out["tile_edge_kind"], out["tile_edge"] = e.head_kind[from_tile][order], e.head[from_tile][order]
    return out


def _semaphores(p: Program) -> dict[str, Array]:
    h, out = p.holds, {}
    out["hold_ptr"], order = group(h.acquire, p.n_ops)
    out["hold_sem"], out["hold_amount"] = h.sem[order], h.amount[order]
    out["release_ptr"], order = group(h.release, p.n_ops)
    out["release_sem"], out["release_amount"] = h.sem[order], h.amount[order]
    pairs = np.unique(h.sem.astype(np.int64) << 32 | p.ops.issuer[h.acquire]) if len(h.sem) else np.zeros(0, np.int64)
    out["sem_issuer_ptr"], order = group((pairs >> 32).astype(np.int32), len(p.semaphores.capacity))
    out["sem_issuer"] = (pairs & 0xFFFFFFFF).astype(np.int32)[order]
    out["sem_left"] = p.semaphores.capacity.astype(np.int32).copy()
    return out


def _issuers(p: Program, kinds: Array) -> dict[str, Array]:
    n = len(p.issuers.node)
    issued = np.flatnonzero(kinds != Kind.JOIN).astype(np.int32)
    ptr, order = group(p.ops.issuer[issued], n)
    issuers = np.zeros((n, 7), np.int64)
    issuers[:, col.I_NODE], issuers[:, col.I_POOL] = p.issuers.node, p.issuers.pool
    issuers[:, col.I_DISCIPLINE] = p.issuers.discipline
    issuers[:, col.I_NEXT], issuers[:, col.I_END] = ptr[:-1], ptr[1:]
    n_pools = len(p.pools.node)
    pools = np.zeros((n_pools, 3), np.int64)
    pools[:, col.P_FREE] = p.pools.slots
    pools[:, col.P_BASE] = np.cumsum(p.pools.slots) - p.pools.slots
    with_pool = np.flatnonzero(p.issuers.pool >= 0).astype(np.int32)
    pool_ptr, pool_order = group(p.issuers.pool[with_pool], n_pools)
    slots = int(p.pools.slots.sum()) + 1
    return {
        "issuers": issuers,
        "issuer_ops": issued[order],
        "heap_keys": np.empty(len(issued), np.int64),
        "heap_ids": np.empty(len(issued), np.int32),
        "pools": pools,
        "pool_keys": np.empty(slots, np.int64),
        "pool_ids": np.empty(slots, np.int64),
        "pool_issuer_ptr": pool_ptr,
        "pool_issuer": with_pool[pool_order],
    }


def _fabric(p: Program) -> dict[str, Array]:
    n, c, m = p.n_nodes, len(p.classes), p.machine
    nodes = np.zeros((n, 17), np.int64)
    nodes[:, col.UP + col.S_EXTRA], nodes[:, col.DOWN + col.S_EXTRA] = -1, -(1 << 40)
    nodes[:, [col.UP + col.S_CURSOR, col.DOWN + col.S_CURSOR]] = -1
    n_vcs = m.n_vcs if m.vc_bytes else 1
    n_leaves = len(p.pools.node) + 3 * n + col.N_RINGS
    size = 1 << max(1, (n_leaves - 1).bit_length())
    return {
        "nodes": nodes,
        "hub": np.full((n * c, 2), -1, np.int32),
        "occupied": np.zeros((n * c, n_vcs), np.int64),
        "channels": np.full((n * c * n_vcs, 2), -1, np.int32),
        "credits": np.full((n * c, 2), -1, np.int32),
        "out_queues": np.full((n * c * (n + 1), 2), -1, np.int32),
        "out_mask": np.zeros((n * c, n // 32 + 1), np.int64),
        "out_cursor": np.full(n * c, -1, np.int64),
        "rings": np.full((col.N_RINGS, 2), -1, np.int32),
        "tree": np.full(2 * size, col.INF, np.int64),
        "dirty_issuers": _words(len(p.issuers.node)),
        "dirty_up": _words(n),
        "dirty_down": _words(n),
    }


def _constants(p: Program) -> dict[str, Array]:
    m, w = p.machine, p.wires
    templates = np.zeros((max(1, len(p.templates)), 6), np.int32)
    for i, t in enumerate(p.templates):
        is_pull = t.kind in (Kind.GET, Kind.PULL_REDUCE)
        templates[i] = (t.kind, t.cls, t.response_cls, t.tasks, is_pull, t.duration)
    wires = np.zeros((max(1, len(w.up)), 9), np.int64)
    wires[: len(w.up), :8] = np.stack(
        (w.up, w.down, w.response, w.result, w.ack_up, w.ack_down, w.stripe_up, w.stripe_response), axis=1
    )
    wired = p.ops.wire >= 0
    wires[p.ops.wire[wired], col.W_PAYLOAD] = p.ops.bytes[wired]
    machine = np.array(
        [m.rate, m.lat, m.ack, m.notify, m.responder, m.local, m.n_vcs, m.vc_bytes, m.notify_bytes, len(p.classes), m.memory_rate], np.int64
    )
    x = np.zeros(8, np.int64)
    x[col.X_WORK_HEAD] = -1
    durations, task_bytes = (table if len(table) else np.zeros((1, 1), np.int64) for table in (p.durations, p.task_bytes))
    return {"templates": templates, "wires": wires, "durations": durations, "task_bytes": task_bytes, "m": machine, "x": x}


def lower(p: Program) -> Lowered:
    """All arrays of one run. Raises ProgramError where the engine's subset ends."""
    reason = unsupported(p)
    if reason:
        raise ProgramError(f"burst engine: {reason}")
    kinds = p.kinds()
    arrays = _regions(p) | _edges(p) | _semaphores(p) | _issuers(p, kinds) | _fabric(p) | _constants(p)
    flags = np.zeros(p.n_ops, np.int32)
    for name, bit in (("edge_ptr", col.HAS_EDGES), ("hold_ptr", col.HAS_HOLDS), ("release_ptr", col.HAS_RELEASES)):
        flags |= (np.diff(arrays[name]) > 0) * np.int32(bit)
    op, mem = _ops(p, kinds, flags), _members(p)
    return Lowered(
        op=op,
        ot=op.view(np.int64),
        mem=mem,
        mem_time=mem.view(np.int64),
        fill_row=p.members.fill_row,
        **arrays,
    )
