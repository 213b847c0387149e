"""A Program as the arrays of the burst kernels: static tables packed by cache line, state blocks at time zero."""

import numpy as np

from dysharp.arrays import Array
from dysharp.errors import ProgramError
from dysharp.program.builder import PULLS, csr_ptr
from dysharp.program.csr import group, owners
from dysharp.program.names import edge_name
from dysharp.program.tables import Alloc, Chaining, Discipline, Head, Kind, Point, Program, Tail
from dysharp.uarch import columns as col
from dysharp.uarch.state import BurstState, Clock, Holds, Issuers, Links, Loads, Members, Ops, Points, Pools, Releases, Stores, Switch, Tables

HEAD_ANNOUNCE, HEAD_EVENT = 4, 5  # of dysharp/uarch/points.py
CHUNK = 1 << 11


def unsupported(program: Program) -> str | None:
    """Why this engine cannot run the Program (the oracle can), or None. One line."""
    if program.ops.chain is not None and (program.edges.head_kind == Head.JOIN_CANCEL).any():
        return "chains together with JOINs that are cancelled are run by the oracle only"
    return None


def beyond_packets(program: Program) -> str | None:
    """Why the packet level cannot run a Program that this engine can, or None. One line."""
    if (program.kinds() == Kind.MERGED_LOAD).any():
        return "found merged loads, expected none"
    if program.ops.chain is not None:
        return "found chains, expected none"
    if (program.issuers.interval_ps > 0).any():
        return "found a paced issuer, expected none"
    tails = program.edges.tail_kind != Tail.MEMBER_DELIVERED
    if not tails.all():
        return f"found {edge_name(program, int(tails.argmin()))}, expected one from another point"
    heads = program.edges.head_kind != Head.MEMBER_RESPOND
    if not heads.all():
        return f"found {edge_name(program, int(heads.argmin()))}, expected one to another point"
    if (program.holds.acquire_kind == Point.ROW_FIRST_TOUCH).any():
        return "found a semaphore that the first byte of a row takes, expected none"
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
    waits, port = dependencies(p), p.ops.node + p.op_net() * np.int32(p.n_nodes) if p.nets else p.ops.node
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
    cancels = p.edges.head[p.edges.head_kind == Head.JOIN_CANCEL]
    if len(cancels):
        op[:n, col.CANCELS] += np.bincount(cancels, minlength=n).astype(np.int32)
    if p.ops.threshold is not None:
        _await_announcements(p, kinds, op)
    if p.ops.chain is not None:
        _link_chains(p, op)
    return op


def _await_announcements(p: Program, kinds: Array, op: Array) -> None:
    """A JOIN with a threshold waits for all announcements, and for as many events as the threshold and they say."""
    assert p.ops.threshold is not None
    joins = np.flatnonzero((p.ops.threshold >= 0) & (kinds == Kind.JOIN))
    signals = np.bincount(p.edges.head[_heads(p, kinds) == HEAD_ANNOUNCE], minlength=p.n_ops)[joins]
    each = 1 + op[joins, col.DEPS] - signals
    waits = p.ops.threshold[joins] + signals * each
    if waits.max(initial=0) >= col.CANCELLED // 4:
        raise ProgramError(f"burst engine: found a JOIN of {waits.max()} announcements times events, expected less than {col.CANCELLED // 4}")
    op[joins, col.DEPS], op[joins, col.ANNOUNCED] = waits, each


def _members(p: Program) -> Array:
    n, ext = p.n_members, p.members.ext_bytes
    mem = _records(n + 1, 8)
    mem[n] = -1
    mem[n, col.MEMBER_FILL] = p.members.fill_ptr[n]
    owner = owners(p.members.ptr)
    port = p.members.node + p.op_net()[owner] * np.int32(p.n_nodes) if p.nets else p.members.node
    for a in range(0, n, CHUNK):
        part, to = slice(a, min(a + CHUNK, n)), mem[a : min(a + CHUNK, n)]
        to[...] = -1
        to[:, col.MEMBER_NODE], to[:, col.MEMBER_OP], to[:, col.MEMBER_FILL] = port[part], owner[part], p.members.fill_ptr[part]
        to[:, col.MEMBER_EXT] = 0 if ext is None else ext[part]
    answers = p.edges.head[p.edges.head_kind == Head.MEMBER_RESPOND]
    if len(answers):
        mem[:n, col.MEMBER_WAITS] = np.bincount(answers, minlength=n)
    return mem


def dependencies(p: Program) -> Array:
    """`[n_ops]` in-edges of each op plus rows that notify it."""
    heads = p.edges.head[p.edges.head_kind == Head.OP_ISSUE]
    notified = p.regions.row_notify[p.regions.row_notify >= 0]
    return (np.bincount(heads, minlength=p.n_ops) + np.bincount(notified, minlength=p.n_ops)).astype(np.int32)


def _stores(p: Program, kinds: Array) -> Stores:
    r, n, e = p.regions, p.n_regions, p.edges
    counts, region_of_row, region_of_tile = np.diff(r.row_ptr), owners(r.row_ptr), owners(r.tile_ptr)
    rows = _records(p.n_rows, 4)
    rows[:, col.ROW_LEFT], rows[:, col.ROW_SLOT] = np.repeat(r.row_bytes, counts), -1
    rows[:, col.ROW_NOTIFY], rows[:, col.ROW_REGION] = r.row_notify, region_of_row
    regions = np.zeros((n, 5), np.int32)
    for c, values in ((col.REGION_NODE, r.node), (col.REGION_TILE_ROWS, r.tile_rows)):
        regions[:, c] = values
    regions[:, col.REGION_ROW0], regions[:, col.REGION_TILE0] = r.row_ptr[:-1], r.tile_ptr[:-1]
    slot_row = np.full(p.n_rows, -1, np.int32)
    bound = np.flatnonzero(np.repeat(r.alloc == Alloc.PREFIX, counts))
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
    return Stores(rows, regions, slot_row, tiles, times, edge_ptr, _heads(p, kinds)[from_tile][order], e.head[from_tile][order])


def _first_events(p: Program) -> int:
    """The number of the first of the points "a JOIN has seen its first event" (`Releases`)."""
    return 2 * p.n_ops + p.n_members + p.n_rows


def _points(p: Program, kinds: Array) -> int:
    """Points where something may fall (`Releases`): the ends of the ops alone, where a Program has nothing at the others."""
    h = p.holds
    plain = np.isin(p.edges.tail_kind, (Tail.OP_DONE, Tail.TILE_READY)).all()
    plain &= (h.release_kind == Point.OP_DONE).all() and (h.acquire_kind == Point.OP_ISSUED).all()
    plain &= not (p.edges.head_kind == Head.JOIN_CANCEL).any()  # a cancelled op passes its points, too
    return p.n_ops if plain and not (kinds[h.acquire] == Kind.JOIN).any() else _first_events(p) + p.n_ops


def _heads(p: Program, kinds: Array) -> Array:
    """Kinds of heads as the kernels have them: edges to a JOIN with a threshold are of two kinds of their own (`uarch/points.py`)."""
    e, threshold = p.edges, p.ops.threshold
    if threshold is None:
        return e.head_kind
    waits = np.append((threshold >= 0) & (kinds == Kind.JOIN), False)
    to_join = waits[np.where(e.head_kind == Head.OP_ISSUE, e.head, p.n_ops)]
    signals = np.append(kinds == Kind.SIGNAL, False)[_tail_ops(p)]
    return np.where(to_join, np.where(signals, HEAD_ANNOUNCE, HEAD_EVENT), e.head_kind).astype(np.int32)


def _tail_ops(p: Program) -> Array:
    """`[n_edges]` the op whose point is the tail of an edge, n_ops for tiles and rows."""
    e = p.edges
    owner = np.append(owners(p.members.ptr), np.int32(p.n_ops))
    member = np.where(e.tail_kind == Tail.MEMBER_DELIVERED, e.tail, p.n_members)
    of_op = (e.tail_kind == Tail.OP_DONE) | (e.tail_kind == Tail.OP_ISSUED)
    return np.where(of_op, e.tail, owner[member])


def _point_of(kind: Array, ident: Array, first: dict[int, int]) -> Array:
    """Numbers of points (`Releases`) by their kind and id; -1 for a kind that `first` lacks."""
    start = np.full(len(Tail), -(1 << 40), np.int64)
    start[list(first)] = list(first.values())
    point: Array = np.maximum(start[kind] + ident, -1)
    return point


def _releases(p: Program, kinds: Array) -> tuple[Releases, Holds]:
    e, h, n, points = p.edges, p.holds, p.n_ops, _points(p, kinds)
    if points == n:
        from_point, waits = e.tail_kind == Tail.OP_DONE, np.ones(len(h.sem), bool)
        tail, changed = e.tail[from_point], h.release
    else:
        row, first = 2 * n + p.n_members, _first_events(p)
        tails = _point_of(e.tail_kind, e.tail, {Tail.OP_DONE: 0, Tail.OP_ISSUED: n, Tail.MEMBER_DELIVERED: 2 * n, Tail.ROW_COMPLETE: row})
        from_point, waits = tails >= 0, h.acquire_kind == Point.OP_ISSUED
        waits[waits] = kinds[h.acquire[waits]] != Kind.JOIN
        at: dict[int, int] = {Point.OP_DONE: 0, Point.OP_ISSUED: n, Point.ROW_FIRST_TOUCH: row, Point.JOIN_FIRST_EVENT: first}
        tail, taken = tails[from_point], _point_of(h.acquire_kind, h.acquire, at)[~waits]
        changed = np.append(taken, _point_of(h.release_kind, h.release, at))
    edge_ptr, edges = group(tail, points)
    release_ptr, order = group(changed, points)
    hold_ptr, holds = group(h.acquire[waits], n)
    pairs = np.unique(h.sem[waits].astype(np.int64) << 32 | p.ops.issuer[h.acquire[waits]]) if waits.any() else np.zeros(0, np.int64)
    sem_ptr, by_sem = group((pairs >> 32).astype(np.int32), len(p.semaphores.capacity))
    return Releases(
        edge_ptr=edge_ptr,
        edge_head_kind=_heads(p, kinds)[from_point][edges],
        edge_head=e.head[from_point][edges],
        release_ptr=release_ptr,
        release_sem=np.append(h.sem[~waits], h.sem)[order],
        release_amount=np.append(-h.amount[~waits], h.amount)[order],
        sem_issuer_ptr=sem_ptr,
        sem_issuer=(pairs & 0xFFFFFFFF).astype(np.int32)[by_sem],
    ), Holds(hold_ptr, h.sem[waits][holds], h.amount[waits][holds], p.semaphores.capacity.astype(np.int32))


def _others(p: Program, releases: Releases, holds: Holds, links: Links, mem: Array) -> Points | None:
    """What a Program has besides ends of ops, or None."""
    n, passed, announced = p.n_ops, len(releases.edge_ptr) - 1 - p.n_ops, p.ops.threshold is not None
    paced = (p.issuers.interval_ps > 0).any()
    plain = passed == 0 and not paced and not announced and p.ops.chain is None and p.ops.session is None
    if plain and not (p.edges.head_kind == Head.MEMBER_RESPOND).any():
        return None
    pace = np.zeros((len(p.issuers.node) if paced else 0, 2), np.int64)
    pace[:, col.PACE_PS] = p.issuers.interval_ps[: len(pace)]
    return Points(
        passed=np.empty(passed, np.int32),
        value=p.ops.value if p.ops.value is not None else np.zeros(n if announced else 0, np.int32),
        touched=np.zeros(p.n_rows if passed else 0, np.int8),
        pace=pace,
        chains=_chains(p),
        **_sums(p),
        loads=_loads(p, mem),
        resident=np.full((len(p.issuers.node) if p.chains is not None else 0, 2), -1, np.int32),
        releases=releases,
        holds=holds,
        hub=links.hub,
        dirty_up=links.dirty_up,
    )


def _sums(p: Program) -> dict[str, Array]:
    """The columns of `Points` for sums in the switch."""
    if p.sessions is None or p.ops.session is None:
        return {"sum_of": np.zeros(0, np.int32), "sums": np.zeros((0, 5), np.int64), "places": np.zeros(0, np.int64)}
    sums = np.full((len(p.sessions.home), 5), -1, np.int64)
    sums[:, col.SUM_LEFT], sums[:, col.SUM_STATE], sums[:, col.SUM_TAIL] = p.sessions.expected, col.SUM_NEW, 0
    places = np.full(p.n_nodes, p.sessions.places or 1 << 40, np.int64)
    return {"sum_of": _far_sessions(p, Kind.PUSH_REDUCE), "sums": sums, "places": places}


def _far_sessions(p: Program, kind: Kind) -> Array:
    """`[n_ops]` int32 sessions of the ops of `kind` on another node than their home, -1 = none."""
    assert p.ops.session is not None
    first = np.minimum(p.members.ptr[:-1], max(0, p.n_members - 1))
    far = np.append(p.members.node, -1)[first] != p.ops.node
    return np.where(far & (p.kinds() == kind), p.ops.session, -1).astype(np.int32)


def _loads(p: Program, mem: Array) -> Loads | None:
    """Loads that merge, or None. `mem`: the records of the members."""
    if p.sessions is None or p.ops.session is None or not (p.kinds() == Kind.MERGED_LOAD).any():
        return None
    n = len(p.sessions.home)
    entries = np.zeros((n + p.n_nodes, 10), np.int64)
    entries[:n, col.LOAD_EXPECTED] = p.sessions.expected
    lists = np.arange(n, len(entries))
    entries[lists, col.LOAD_PREV] = entries[lists, col.LOAD_NEXT] = lists
    return Loads(_far_sessions(p, Kind.MERGED_LOAD), entries, np.array([p.sessions.timeout_ps], np.int64), mem.view(np.int64))


def _falls(releases: Releases, first: int, n: int) -> Array:
    """`[n]` edges and changes of semaphores at the points from `first` on."""
    part = slice(first, first + n + 1)
    out: Array = np.diff(releases.edge_ptr[part]) + np.diff(releases.release_ptr[part])
    return out


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
    """`queue`, `owner`: of `_queues`. Only a program order lists its ops; the others need a heap of their number."""
    n, n_queues = len(p.issuers.node), len(owner)
    is_issued = kinds != Kind.JOIN
    ptr = csr_ptr(np.bincount(queue[is_issued], minlength=n_queues))
    in_order = np.append(p.issuers.discipline == Discipline.PROGRAM_ORDER, np.zeros(n_queues - n, bool))
    listed = np.flatnonzero(in_order[queue] & is_issued).astype(np.int32)
    issuer_ops = np.empty(ptr[-1], np.int32)
    issuer_ops[np.repeat(in_order, np.diff(ptr))] = listed[group(queue[listed], n_queues)[1]]
    issuers = np.zeros((n_queues, 8), np.int64)
    issuers[:n, col.ISSUER_NODE], issuers[:n, col.ISSUER_POOL] = p.issuers.node, p.issuers.pool
    issuers[:n, col.ISSUER_DISCIPLINE], issuers[n:, col.ISSUER_DISCIPLINE] = p.issuers.discipline, Discipline.SMALLEST_KEY
    issuers[:, col.ISSUER_NEXT], issuers[:, col.ISSUER_END], issuers[:, col.ISSUER_OWNER] = ptr[:-1], ptr[1:], owner
    turns = np.flatnonzero(p.issuers.discipline == Discipline.ROUND_ROBIN)
    issuers[turns, col.ISSUER_NEXT] = n + np.searchsorted(owner[n:], turns)
    issuers[turns, col.ISSUER_END] = n + np.searchsorted(owner[n:], turns, "right")
    issuers[turns, col.ISSUER_SEQ] = -1
    return Issuers(issuers, issuer_ops, np.empty(ptr[-1], np.int64), np.empty(ptr[-1], np.int32), _words(n))


def _chains(p: Program) -> Array:
    """`[n_chains, 4]` int32: the columns CHAIN_*."""
    if p.chains is None or p.ops.chain is None:
        return np.zeros((0, 4), np.int32)
    chains = np.zeros((len(p.chains.pool), 4), np.int32)
    chains[:, col.CHAIN_POOL], chains[:, col.CHAIN_YIELD] = p.chains.pool, p.chains.mode == Chaining.YIELD
    chains[:, col.CHAIN_LEFT] = np.bincount(p.ops.chain[p.ops.chain >= 0], minlength=len(chains))
    return chains


def _link_chains(p: Program, op: Array) -> None:
    """Every op of a chain but the first waits for the op before it."""
    assert p.ops.chain is not None
    ops = np.flatnonzero(p.ops.chain >= 0)
    ops = ops[np.argsort(p.ops.chain[ops], kind="stable")]
    follows = p.ops.chain[ops[1:]] == p.ops.chain[ops[:-1]]
    op[ops, col.CHAIN] = p.ops.chain[ops]
    op[ops[:-1][follows], col.CHAIN_NEXT] = ops[1:][follows]
    op[ops[1:][follows], col.DEPS] += 1
    op[ops, col.FLAGS] |= col.HAS_CHAIN


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


def _links(p: Program, kinds: Array) -> Links:
    n, w = p.n_ports, p.wires
    wires = np.zeros((max(1, len(w.up)), 9), np.int64)
    wires[: len(w.up), :8] = np.stack((w.up, w.down, w.response, w.result, w.ack_up, w.ack_down, w.stripe_up, w.stripe_response), axis=1)
    payload = np.zeros(len(w.up) + 1, np.int64)
    payload[p.ops.wire] = p.ops.bytes  # ops without a wire have -1, the last entry
    wires[: len(w.up), col.WIRE_PAYLOAD] = payload[:-1]
    summed = p.ops.wire[kinds == Kind.PUSH_REDUCE]
    wires[summed, col.WIRE_RESULT] = wires[summed, col.WIRE_DOWN]  # a sum is as long as its contributions
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
    kinds = np.zeros((max(1, t), 4), np.int64)
    for i, table in enumerate(p.tables):
        kinds[i] = (table.entries // table.banks, table.misses, table.miss_ps, table.allocates)
    asked = np.zeros((n_rows + t * n, 4), np.int64)
    sentinels = np.arange(n_rows, n_rows + t * n)
    asked[sentinels, col.ASKED_PREV] = asked[sentinels, col.ASKED_NEXT] = sentinels
    most = max((table.misses for table in p.tables), default=0)
    hubs, finish, waits = np.zeros((t * n, 5), np.int64), np.zeros((t * n, max(1, most)), np.int64), np.full((n, 2), -1, np.int32)
    return Tables(kinds, hubs, finish, asked, waits, row_places(p, None), np.zeros(p.n_regions if p.row_table >= 0 else 0, np.int64))


def row_places(p: Program, pieces: Array | None) -> Array:
    """`[n_rows + n_nodes * banks, 6]` the empty row table; no rows where the Program has none.

    `pieces`: `[n_members]` number of pieces of a copy, None = one.
    """
    if p.row_table < 0:
        return np.zeros((0, 6), np.int32)
    banks, n = p.tables[p.row_table].banks, p.n_rows
    region = owners(p.regions.row_ptr)
    places = np.zeros((n + p.n_nodes * banks, 6), np.int32)
    places[:n, col.PLACE_REGION] = region
    places[:n, col.PLACE_BANK] = n + (p.regions.node * np.int32(banks))[region] + (region + np.arange(n, dtype=np.int32)) % np.int32(banks)
    places[:n, col.PLACE_LEFT] = _pieces_of_rows(p, pieces)
    sentinels = np.arange(n, len(places))
    places[sentinels, col.PLACE_PREV] = places[sentinels, col.PLACE_NEXT] = sentinels
    return places


def _pieces_of_rows(p: Program, pieces: Array | None) -> Array:
    """`[n_rows]` pieces of the copies that fill a row and ask the row table: those to another node."""
    asks = np.array([t.table == p.row_table for t in p.templates])[p.ops.template]
    owner = owners(p.members.ptr)
    far = asks[owner] & (p.members.node != p.ops.node[owner])
    member = owners(p.members.fill_ptr)
    fills = far[member]
    return np.bincount(p.members.fill_row[fills], None if pieces is None else pieces[member[fills]], minlength=p.n_rows)


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
    pace = table + p.n_nodes
    paced = len(p.issuers.node) if (p.issuers.interval_ps > 0).any() else 0
    rows = (p.edges.tail_kind == Tail.ROW_COMPLETE).any() or (p.holds.acquire_kind == Point.ROW_FIRST_TOUCH).any()
    rows |= (p.holds.release_kind == Point.ROW_FIRST_TOUCH).any()
    hardware = np.array(
        [
            *(m.notify, m.responder, m.local, m.notify_bytes, len(p.classes), m.memory_rate, p.n_nodes, nets),
            *(up, arrive, down, rings, credit, table, pace, rows),
        ],
        np.int64,
    )
    x = np.zeros(8, np.int64)
    x[col.RUN_WORK_HEAD] = -1
    return Clock(np.full((col.N_RINGS * nets, 3), -1, np.int32), tree(pace + paced), hardware, x)


def _templates(p: Program) -> Array:
    templates = np.zeros((max(1, len(p.templates)), 7), np.int32)
    for i, t in enumerate(p.templates):
        is_pull = t.kind in PULLS
        response_cls = t.cls if t.kind is Kind.PUSH_REDUCE else t.response_cls
        templates[i] = (t.kind, t.cls, response_cls, t.tasks, is_pull, t.duration, t.table)
    return templates


def _point_flags(p: Program, releases: Releases) -> Array:
    """`[n_ops]` uint8 bits of FLAGS for points besides the ends of the ops."""
    n = p.n_ops
    flags = (_falls(releases, n, n) > 0) * np.uint8(col.HAS_ISSUED)
    flags |= (_falls(releases, _first_events(p), n) > 0) * np.uint8(col.HAS_FIRST_EVENT)
    flags[owners(p.members.ptr)[_falls(releases, 2 * n, p.n_members) > 0]] |= np.uint8(col.HAS_DELIVERED)
    return flags


def lower(p: Program) -> BurstState:
    """All arrays of one run at time zero. Raises ProgramError where the engine's subset ends."""
    reason = unsupported(p)
    if reason:
        raise ProgramError(f"burst engine: {reason}")
    kinds = p.kinds()
    (releases, holds), (queue, owner) = _releases(p, kinds), _queues(p)
    flags = np.zeros(p.n_ops, np.uint8)
    for ptr, bit in ((releases.edge_ptr, col.HAS_EDGES), (holds.hold_ptr, col.HAS_HOLDS), (releases.release_ptr, col.HAS_RELEASES)):
        flags |= (ptr[1 : p.n_ops + 1] > ptr[: p.n_ops]) * np.uint8(bit)
    if len(releases.release_ptr) > p.n_ops + 1:
        flags |= _point_flags(p, releases)
    if p.ops.offset is not None:
        flags[:-1] |= (p.ops.offset[1:] > 0) * np.uint8(col.HAS_NEXT_TRAIN)
    op, mem, links = _ops(p, kinds, flags, queue), _members(p), _links(p, kinds)
    return BurstState(
        ops=Ops(op, op.view(np.int64), _templates(p), _others(p, releases, holds, links, mem)),
        members=Members(mem, mem.view(np.int64), p.members.fill_row),
        stores=_stores(p, kinds),
        releases=releases,
        holds=holds,
        issue=_issuers(p, kinds, queue, owner),
        slots=_pools(p),
        links=links,
        switch=_switch(p),
        tables=_tables(p),
        clock=_clock(p),
    )
