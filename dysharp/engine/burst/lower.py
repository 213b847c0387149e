"""A Program as the arrays of the burst kernels: static tables packed by cache line, state blocks at time zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ProgramError
from dysharp.program.csr import group
from dysharp.program.names import edge_name
from dysharp.program.tables import Alloc, Discipline, Head, Kind, Point, Program, Tail
from dysharp.uarch import columns as col
from dysharp.uarch.state import BurstState, Clock, Holds, Issuers, Links, Members, Ops, Pools, Releases, Stores, Switch, Tables

Array = NDArray[Any]
CHUNK = 1 << 11
SUPPORTED = (Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.SIGNAL, Kind.MULTICAST, Kind.GET, Kind.PULL_REDUCE)


def unsupported(program: Program) -> str | None:
    """Why this engine cannot run the Program (the oracle can), or None. One line."""
    kinds = {t.kind for t in program.templates} - set(SUPPORTED)
    if kinds:
        return f"op kind {min(kinds).name} is run by the oracle only"
    if program.ops.chain is not None or program.ops.threshold is not None or program.ops.session is not None:
        return "chains, sessions and announced thresholds are run by the oracle only"
    if (program.issuers.interval_ps > 0).any():
        return "paced issuers are run by the oracle only"
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


def _ops(p: Program, kinds: Array, flags: Array, queue: Array) -> Array:
    n = p.n_ops
    op = _records(n + 1, 32)
    op[n] = -1
    tasks = np.array([t.tasks for t in p.templates] or [0], np.int32)
    is_pooled = (kinds == Kind.COMPUTE) | (kinds == Kind.DELAY)
    waits, port = dependencies(p), p.ops.node + p.op_net() * np.int32(p.n_nodes)
    for a in range(0, n, CHUNK):  # record by record in cache, instead of one pass over all memory per column
        part, to = slice(a, min(a + CHUNK, n)), op[a : min(a + CHUNK, n)]
        to[...] = -1
        pooled = is_pooled[part]
        to[:, col.TEMPLATE], to[:, col.NODE], to[:, col.ISSUER] = p.ops.template[part], port[part], queue[part]
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
    mem[n, col.MEMBER_FILL] = p.members.fill_ptr[n]
    owner = np.repeat(np.arange(p.n_ops, dtype=np.int32), np.diff(p.members.ptr))
    port = p.members.node + p.op_net()[owner] * np.int32(p.n_nodes) if p.nets else p.members.node
    for a in range(0, n, CHUNK):
        part, to = slice(a, min(a + CHUNK, n)), mem[a : min(a + CHUNK, n)]
        to[...] = -1
        to[:, col.MEMBER_NODE], to[:, col.MEMBER_OP], to[:, col.MEMBER_FILL] = port[part], owner[part], p.members.fill_ptr[part]
        to[:, col.MEMBER_EXT] = 0 if ext is None else ext[part]
    return mem


def dependencies(p: Program) -> Array:
    """`[n_ops]` in-edges of each op plus rows that notify it."""
    heads = p.edges.head[p.edges.head_kind == Head.OP_ISSUE]
    notified = p.regions.row_notify[p.regions.row_notify >= 0]
    return (np.bincount(heads, minlength=p.n_ops) + np.bincount(notified, minlength=p.n_ops)).astype(np.int32)


def _stores(p: Program) -> Stores:
    r, n, e = p.regions, p.n_regions, p.edges
    counts, n_tiles = np.diff(r.row_ptr), np.diff(r.tile_ptr)
    region_of_row, region_of_tile = np.repeat(np.arange(n), counts), np.repeat(np.arange(n), n_tiles)
    rows = _records(p.n_rows, 4)
    rows[:, col.ROW_LEFT], rows[:, col.ROW_SLOT] = r.row_bytes[region_of_row], -1
    rows[:, col.ROW_NOTIFY], rows[:, col.ROW_REGION] = r.row_notify, region_of_row
    regions = np.zeros((n, 5), np.int32)
    for c, values in ((col.REGION_NODE, r.node), (col.REGION_TILE_ROWS, r.tile_rows)):
        regions[:, c] = values
    regions[:, col.REGION_ROW0], regions[:, col.REGION_TILE0] = r.row_ptr[:-1], r.tile_ptr[:-1]
    slot_row = np.full(p.n_rows, -1, np.int32)
    bound = np.flatnonzero(r.alloc[region_of_row] == Alloc.PREFIX)
    rows[bound, col.ROW_SLOT] = bound - r.row_ptr[:-1][region_of_row[bound]]
    slot_row[bound] = bound
    tiles = np.full((p.n_tiles, 7), -1, np.int32)
    index = np.arange(p.n_tiles) - r.tile_ptr[:-1][region_of_tile]
    first = index * r.tile_rows[region_of_tile]
    tiles[:, col.TILE_ROWS] = np.minimum(r.tile_rows[region_of_tile], counts[region_of_tile] - first)
    tiles[:, col.TILE_LEFT] = tiles[:, col.TILE_ROWS]
    tiles[:, col.TILE_SLOT0] = r.row_ptr[:-1][region_of_tile] + first
    tiles[:, col.TILE_NODE] = r.node[region_of_tile]
    into = p.edges.head[p.edges.head_kind == Head.TILE_NOTIFY]
    tiles[:, col.TILE_NOTIFY_DEPS] = np.bincount(into, minlength=p.n_tiles)
    from_tile = e.tail_kind == Tail.TILE_READY
    edge_ptr, order = group(e.tail[from_tile], p.n_tiles)
    times = np.full((p.n_tiles, 2), -1, np.int64)
    return Stores(rows, regions, slot_row, tiles, times, edge_ptr, e.head_kind[from_tile][order], e.head[from_tile][order])


def _releases(p: Program) -> Releases:
    e, h = p.edges, p.holds
    from_op = e.tail_kind == Tail.OP_DONE
    edge_ptr, edges = group(e.tail[from_op], p.n_ops)
    release_ptr, releases = group(h.release, p.n_ops)
    pairs = np.unique(h.sem.astype(np.int64) << 32 | p.ops.issuer[h.acquire]) if len(h.sem) else np.zeros(0, np.int64)
    sem_ptr, order = group((pairs >> 32).astype(np.int32), len(p.semaphores.capacity))
    return Releases(
        edge_ptr=edge_ptr,
        edge_head_kind=e.head_kind[from_op][edges],
        edge_head=e.head[from_op][edges],
        release_ptr=release_ptr,
        release_sem=h.sem[releases],
        release_amount=h.amount[releases],
        sem_issuer_ptr=sem_ptr,
        sem_issuer=(pairs & 0xFFFFFFFF).astype(np.int32)[order],
    )


def _holds(p: Program) -> Holds:
    ptr, order = group(p.holds.acquire, p.n_ops)
    return Holds(ptr, p.holds.sem[order], p.holds.amount[order], p.semaphores.capacity.astype(np.int32).copy())


def _queues(p: Program) -> tuple[Array, Array]:
    """(queue of each op, issuer of each queue). A round-robin issuer has a queue per destination, behind all issuers."""
    n, queue = len(p.issuers.node), p.ops.issuer.copy()
    turns = p.issuers.discipline == Discipline.ROUND_ROBIN
    if not turns.any():
        return queue, np.arange(n)
    mine = np.flatnonzero((queue >= 0) & turns[queue])
    first = p.members.ptr[mine]
    to = p.ops.node[mine].astype(np.int64)
    sends = p.members.ptr[mine + 1] > first
    to[sends] = p.members.node[first[sends]]
    streams, number = np.unique(queue[mine].astype(np.int64) << 32 | to, return_inverse=True)
    queue[mine] = n + number
    return queue, np.append(np.arange(n), streams >> 32)


def _issuers(p: Program, kinds: Array, queue: Array, owner: Array) -> Issuers:
    """`queue`, `owner`: of `_queues`."""
    n, n_queues = len(p.issuers.node), len(owner)
    issued = np.flatnonzero(kinds != Kind.JOIN).astype(np.int32)
    ptr, order = group(queue[issued], n_queues)
    issuers = np.zeros((n_queues, 8), np.int64)
    issuers[:n, col.ISSUER_NODE], issuers[:n, col.ISSUER_POOL] = p.issuers.node, p.issuers.pool
    issuers[:n, col.ISSUER_DISCIPLINE], issuers[n:, col.ISSUER_DISCIPLINE] = p.issuers.discipline, Discipline.SMALLEST_KEY
    issuers[:, col.ISSUER_NEXT], issuers[:, col.ISSUER_END], issuers[:, col.ISSUER_OWNER] = ptr[:-1], ptr[1:], owner
    turns = np.flatnonzero(p.issuers.discipline == Discipline.ROUND_ROBIN)
    issuers[turns, col.ISSUER_NEXT] = n + np.searchsorted(owner[n:], turns)
    issuers[turns, col.ISSUER_END] = n + np.searchsorted(owner[n:], turns, "right")
    issuers[turns, col.ISSUER_SEQ] = -1
    return Issuers(issuers, issued[order], np.empty(len(issued), np.int64), np.empty(len(issued), np.int32), _words(n))


def _pools(p: Program) -> Pools:
    n = len(p.pools.node)
    pools = np.zeros((n, 3), np.int64)
    pools[:, col.POOL_FREE] = p.pools.slots
    pools[:, col.POOL_BASE] = np.cumsum(p.pools.slots) - p.pools.slots
    with_pool = np.flatnonzero(p.issuers.pool >= 0).astype(np.int32)
    ptr, order = group(p.issuers.pool[with_pool], n)
    slots = int(p.pools.slots.sum()) + 1
    durations, task_bytes = (table if len(table) else np.zeros((1, 1), np.int64) for table in (p.durations, p.task_bytes))
    return Pools(pools, np.empty(slots, np.int64), np.empty(slots, np.int64), ptr, with_pool[order], durations, task_bytes)


def _links(p: Program) -> Links:
    n, w = p.n_ports, p.wires
    wires = np.zeros((max(1, len(w.up)), 9), np.int64)
    wires[: len(w.up), :8] = np.stack((w.up, w.down, w.response, w.result, w.ack_up, w.ack_down, w.stripe_up, w.stripe_response), axis=1)
    wired = p.ops.wire >= 0
    wires[p.ops.wire[wired], col.WIRE_PAYLOAD] = p.ops.bytes[wired]
    nodes = np.zeros((n, 24), np.int64)
    nodes[:, col.UP + col.SERVER_EXTRA], nodes[:, col.DOWN + col.SERVER_EXTRA] = -1, -(1 << 40)
    nodes[:, [col.UP + col.SERVER_CURSOR, col.DOWN + col.SERVER_CURSOR]] = -1
    nodes[:, col.PORT_RATE : col.PORT_NET + 1] = [_port(p, port) for port in range(n)]
    return Links(wires, nodes, np.full((n * len(p.classes), 2), -1, np.int32), _words(n))


def _port(p: Program, port: int) -> tuple[int, ...]:
    """Constants of the links of `port`, in the order of the columns PORT_*."""
    m, (net, node) = p.hardware, divmod(port, p.n_nodes)
    if net == 0:
        return m.rate, m.lat, m.ack, 0, p.channels[1], m.output_bytes, net
    other = p.nets[net - 1]
    rate = other.rate_of(node)
    return rate, other.lat, other.ack, other.message_ps * rate // 1_000_000, 0, 0, net


def _switch(p: Program) -> Switch:
    n, c = p.n_ports, len(p.classes)
    n_vcs = p.channels[0] if p.channels[1] else 1
    return Switch(
        occupied=np.zeros((n * c, n_vcs), np.int64),
        channels=np.full((n * c * n_vcs, 2), -1, np.int32),
        credits=np.full((n * c, 2), -1, np.int32),
        out_queues=np.full((n * c * (n + 1), 2), -1, np.int32),
        out_mask=np.zeros((n * c, n // 32 + 1), np.int64),
        out_cursor=np.full(n * c, -1, np.int64),
        held=np.zeros(n * c, np.int64),
        crossed=np.full((n * c, 2), -1, np.int32),
        dirty_down=_words(n),
    )


def _tables(p: Program) -> Tables:
    n, t = p.n_nodes, len(p.tables)
    n_rows = p.n_rows if t else 0
    kinds = np.zeros((max(1, t), 3), np.int64)
    for i, table in enumerate(p.tables):
        kinds[i] = (table.entries, table.misses, table.miss_ps)
    asked = np.zeros((n_rows + t * n, 4), np.int64)
    sentinels = np.arange(n_rows, n_rows + t * n)
    asked[sentinels, col.ASKED_PREV] = asked[sentinels, col.ASKED_NEXT] = sentinels
    most = max((table.misses for table in p.tables), default=0)
    return Tables(kinds, np.zeros((t * n, 5), np.int64), np.zeros((t * n, max(1, most)), np.int64), asked, np.full((n, 2), -1, np.int32))


def tree(n_leaves: int) -> Array:
    """`[2 * size]` int64 ps, nothing pending: a tree of minima over at least `n_leaves` sources of events."""
    return np.full(2 << max(1, (n_leaves - 1).bit_length()), col.INF, np.int64)


def _clock(p: Program) -> Clock:
    m, n, nets = p.hardware, p.n_ports, p.n_nets
    up = len(p.pools.node)
    arrive = up + n
    down = arrive + nets
    rings = down + n - nets  # rings of kind 0 are ARRIVE and have leaves of their own
    credit = rings + col.N_RINGS * nets
    table = credit + n
    hardware = np.array(
        [
            *(m.notify, m.responder, m.local, m.notify_bytes, len(p.classes), m.memory_rate, p.n_nodes, nets),
            *(up, arrive, down, rings, credit, table),
        ],
        np.int64,
    )
    x = np.zeros(8, np.int64)
    x[col.RUN_WORK_HEAD] = -1
    return Clock(np.full((col.N_RINGS * nets, 3), -1, np.int32), tree(table + p.n_nodes), hardware, x)


def _templates(p: Program) -> Array:
    templates = np.zeros((max(1, len(p.templates)), 7), np.int32)
    for i, t in enumerate(p.templates):
        is_pull = t.kind in (Kind.GET, Kind.PULL_REDUCE)
        templates[i] = (t.kind, t.cls, t.response_cls, t.tasks, is_pull, t.duration, t.table)
    return templates


def lower(p: Program) -> BurstState:
    """All arrays of one run at time zero. Raises ProgramError where the engine's subset ends."""
    reason = unsupported(p)
    if reason:
        raise ProgramError(f"burst engine: {reason}")
    kinds = p.kinds()
    releases, holds, (queue, owner) = _releases(p), _holds(p), _queues(p)
    flags = np.zeros(p.n_ops, np.int32)
    for ptr, bit in (
        (releases.edge_ptr, col.HAS_EDGES),
        (holds.hold_ptr, col.HAS_HOLDS),
        (releases.release_ptr, col.HAS_RELEASES),
    ):
        flags |= (np.diff(ptr) > 0) * np.int32(bit)
    if p.ops.offset is not None:
        flags[:-1] |= (p.ops.offset[1:] > 0) * np.int32(col.HAS_NEXT_TRAIN)
    op, mem = _ops(p, kinds, flags, queue), _members(p)
    return BurstState(
        ops=Ops(op, op.view(np.int64), _templates(p)),
        members=Members(mem, mem.view(np.int64), p.members.fill_row),
        stores=_stores(p),
        releases=releases,
        holds=holds,
        issue=_issuers(p, kinds, queue, owner),
        slots=_pools(p),
        links=_links(p),
        switch=_switch(p),
        tables=_tables(p),
        clock=_clock(p),
    )
