"""A Program as the arrays of the burst kernels: static tables packed by cache line, state blocks at time zero."""

import numpy as np

from dysharp.base import Array, Numbers, ProgramError
from dysharp.base.threads import at_once, in_parts
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.state import BurstState, Clock, IssuerState, Links, MemberState, OpState, PoolState, StoreState, SwitchState, TableState
from dysharp.engine.burst.lower_bulk import pieces_of
from dysharp.engine.burst.lower_points import HEAD_ANNOUNCE, heads_of, others_of, point_flags, queues_of, releases_of
from dysharp.program import PULLS, Alloc, Discipline, Head, Kind, Point, Program, Tail, csr_ptr, edge_name, group, owners


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


def _unsupported(program: Program) -> str | None:
    """Why this engine cannot run the Program (the oracle can), or None. One line."""
    if program.ops.chain is not None and (program.edges.head_kind == Head.JOIN_CANCEL).any():
        return "chains together with JOINs that are cancelled are run by the oracle only"
    return None


def beyond_packets(program: Program) -> str | None:
    """Why the packet level cannot run a Program that this engine can, or None. One line."""
    if program.ops.chain is not None:
        return "found chains, expected none"
    bulk = program.bulk_ops()
    if len(bulk):
        return f"found op {bulk[0]} of {program.wires.trains[program.ops.wire[bulk[0]]]} trains, expected ops of one train"
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
    return _zeros((n + 31) // 32 or 1)


def _records(rows: int, columns: int) -> Array:
    """`[rows, columns]` int32, unset, on a cache line, so that a record of 128 B takes two lines and not three."""
    n = rows * columns
    raw = np.empty(n + 32, np.int32)
    first = -raw.ctypes.data // 4 % 32
    return raw[first : first + n].reshape(rows, columns)


def _ops(p: Program, kinds: Array, flags: Array, queue: Array, n_pieces: int) -> Array:
    n = p.n_ops
    op = _records(n + n_pieces + 1, 32)
    op[n:] = -1
    tasks = np.array([t.tasks for t in p.templates] or [0], np.int32)
    is_pooled = (kinds == Kind.COMPUTE) | (kinds == Kind.DELAY)
    waits, port = _dependencies(p), p.ops.node + p.op_net() * np.int32(p.n_nodes) if p.nets else p.ops.node

    def fill(part: slice) -> None:
        to = op[part]
        to[...] = -1
        pooled = is_pooled[part]
        to[:, col.TEMPLATE], to[:, col.NODE], to[:, col.ISSUER] = p.ops.template[part], port[part], queue[part]
        to[:, col.WIRE] = np.where(pooled, p.ops.rows[part], p.ops.wire[part])
        to[:, col.PRIO], to[:, col.KEY], to[:, col.MEMBER] = p.ops.prio[part], p.ops.key[part], p.members.ptr[part]
        to[:, col.FLAGS] = np.diff(p.members.ptr[part.start : part.stop + 1]) << col.MEMBERS_SHIFT | flags[part]
        to[:, col.DEPS], to[:, col.COPIES] = waits[part], 0
        to[:, col.LEFT] = to[:, col.ANSWERS] = np.where(pooled, tasks[p.ops.template[part]], 0)

    in_parts(n, fill)
    cancels = p.edges.head[p.edges.head_kind == Head.JOIN_CANCEL]
    if len(cancels):
        op[:n, col.CANCELS] += np.bincount(cancels, minlength=n).astype(np.int32)
    if p.ops.threshold is not None:
        _await_announcements(p, kinds, op)
    if p.ops.chain is not None:
        _link_chains(p, op)
    return op


def _await_announcements(p: Program, kinds: Array, op: Array) -> None:
    """A JOIN with a threshold waits for all announcements, and for as many events as threshold and announcements say."""
    assert p.ops.threshold is not None
    joins = np.flatnonzero((p.ops.threshold >= 0) & (kinds == Kind.JOIN))
    signals = np.bincount(p.edges.head[heads_of(p, kinds) == HEAD_ANNOUNCE], minlength=p.n_ops)[joins]
    each = 1 + op[joins, col.DEPS] - signals
    waits = p.ops.threshold[joins] + signals * each
    if waits.max(initial=0) >= col.CANCELLED // 4:
        raise ProgramError(f"burst engine: found a JOIN of {waits.max()} announcements times events, expected less than {col.CANCELLED // 4}")
    op[joins, col.DEPS], op[joins, col.ANNOUNCED] = waits, each


def _members(p: Program, n_pieces: int) -> Array:
    n, ext = p.n_members, p.members.ext_bytes
    mem = _records(n + n_pieces + 1, 8)
    mem[n:] = -1
    mem[n:, col.MEMBER_FILL] = p.members.fill_ptr[n]
    owner = owners(p.members.ptr)
    port = p.members.node + p.op_net()[owner] * np.int32(p.n_nodes) if p.nets else p.members.node

    def fill(part: slice) -> None:
        to = mem[part]
        to[...] = -1
        to[:, col.MEMBER_NODE], to[:, col.MEMBER_OP], to[:, col.MEMBER_FILL] = port[part], owner[part], p.members.fill_ptr[part]
        to[:, col.MEMBER_EXT] = 0 if ext is None else ext[part]

    in_parts(n, fill)
    answers = p.edges.head[p.edges.head_kind == Head.MEMBER_RESPOND]
    if len(answers):
        mem[:n, col.MEMBER_WAITS] = np.bincount(answers, minlength=n)
    return mem


def _dependencies(p: Program) -> Array:
    """`[n_ops]` in-edges of each op plus rows that notify it."""
    heads = p.edges.head[p.edges.head_kind == Head.OP_ISSUE]
    notified = p.regions.row_notify[p.regions.row_notify >= 0]
    return (np.bincount(heads, minlength=p.n_ops) + np.bincount(notified, minlength=p.n_ops)).astype(np.int32)


def _stores(p: Program, kinds: Array) -> StoreState:
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
    return StoreState(rows, regions, slot_row, tiles, times, edge_ptr, heads_of(p, kinds)[from_tile][order], e.head[from_tile][order])


def _issuers(p: Program, kinds: Array, queue: Array, owner: Array) -> IssuerState:
    """`queue`, `owner`: of `queues_of`. Only an issuer in program order lists its ops; the others need a heap for as many."""
    n, n_queues = len(p.issuers.node), len(owner)
    is_issued = kinds != Kind.JOIN
    ptr = csr_ptr(np.bincount(queue[is_issued], minlength=n_queues))
    in_order = np.append(p.issuers.discipline == Discipline.PROGRAM_ORDER, np.zeros(n_queues - n, bool))
    listed = np.flatnonzero(in_order[queue] & is_issued).astype(np.int32)
    issuer_ops = np.empty(ptr[-1], np.int32)
    issuer_ops[np.repeat(in_order, np.diff(ptr))] = listed[group(queue[listed], n_queues)[1]]
    issuers = _zeros(n_queues, 8)
    issuers[:n, col.ISSUER_NODE], issuers[:n, col.ISSUER_POOL] = p.issuers.node, p.issuers.pool
    issuers[:n, col.ISSUER_DISCIPLINE], issuers[n:, col.ISSUER_DISCIPLINE] = p.issuers.discipline, Discipline.SMALLEST_KEY
    issuers[:, col.ISSUER_NEXT], issuers[:, col.ISSUER_END], issuers[:, col.ISSUER_OWNER] = ptr[:-1], ptr[1:], owner
    turns = np.flatnonzero(p.issuers.discipline == Discipline.ROUND_ROBIN)
    issuers[turns, col.ISSUER_NEXT] = n + np.searchsorted(owner[n:], turns)
    issuers[turns, col.ISSUER_END] = n + np.searchsorted(owner[n:], turns, "right")
    issuers[turns, col.ISSUER_SEQ] = -1
    return IssuerState(issuers, issuer_ops, np.empty(ptr[-1], np.int64), np.empty(ptr[-1], np.int32), _words(n))


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


def _pools(p: Program) -> PoolState:
    n = len(p.pools.node)
    pools = _zeros(n, 3)
    pools[:, col.POOL_FREE] = p.pools.slots
    pools[:, col.POOL_BASE] = np.cumsum(p.pools.slots) - p.pools.slots
    with_pool = np.flatnonzero(p.issuers.pool >= 0).astype(np.int32)
    ptr, order = group(p.issuers.pool[with_pool], n)
    slots = int(p.pools.slots.sum()) + 1
    durations, task_bytes = (table if len(table) else _zeros(1, 1) for table in (p.durations, p.task_bytes))
    return PoolState(pools, np.empty(slots, np.int64), np.empty(slots, np.int64), ptr, with_pool[order], durations, task_bytes)


def _links(p: Program, kinds: Array) -> Links:
    n, w = p.n_ports, p.wires
    wires = np.zeros((max(1, len(w.up)), 16), np.int64)
    wires[: len(w.up), :8] = np.stack((w.up, w.down, w.response, w.result, w.ack_up, w.ack_down, w.stripe_up, w.stripe_response), axis=1)
    payload = _zeros(len(w.up) + 1)
    payload[p.ops.wire] = p.ops.bytes  # ops without a wire have -1, the last entry
    wires[: len(w.up), col.WIRE_PAYLOAD] = payload[:-1]
    summed = p.ops.wire[kinds == Kind.PUSH_REDUCE]
    if p.hardware.ack_turns or p.hardware.hashed_links:
        wires[: len(w.up), col.WIRE_PACKETS :] = _on_links(p)
    for result, part in ((col.WIRE_RESULT, col.WIRE_DOWN), (col.WIRE_LINK_RESULT, col.WIRE_LINK_DOWN)):
        wires[summed, result] = wires[summed, part]  # a sum is as long as its contributions
    nodes = _zeros(n, 32)
    nodes[:, col.UP + col.SERVER_EXTRA], nodes[:, col.DOWN + col.SERVER_EXTRA] = -1, -(1 << 40)
    nodes[:, [col.UP + col.SERVER_CURSOR, col.DOWN + col.SERVER_CURSOR]] = -1
    nodes[:, col.PORT_RATE : col.PORT_NET + 1] = [_port(p, port) for port in range(n)]
    nodes[: p.n_nodes, col.PORT_TURNS] = p.hardware.ack_turns
    pushes = p.n_ops if p.hardware.ack_turns else 0
    unequal = p.hardware.hashed_links and not len(p.bulk_ops())
    return Links(
        wires=wires,
        nodes=nodes,
        hub=np.full((n * len(p.classes), 2), -1, np.int32),
        packet=_zeros(n * len(p.classes)),
        acks=np.zeros(pushes + 1, np.int32),
        lines=_zeros(2 * p.n_nodes if unequal else 0, 3 + p.hardware.n_links),
        first=_first_links(p) if unequal else np.zeros(0, np.int8),
        dirty_up=_words(n),
    )


def _first_links(p: Program) -> Array:
    """`[n_ops]` int8: the link at which the packets of each op begin, as at packet level (`mix`)."""
    own = np.where(p.ops.key >= 0, p.ops.key, np.arange(p.n_ops)).astype(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    h = own * np.uint64(0x9E3779B1) & mask
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        h = (h ^ h >> np.uint64(shift)) * np.uint64(factor) & mask
    return ((h ^ h >> np.uint64(15)) % np.uint64(p.hardware.n_links)).astype(np.int8)


def _on_links(p: Program) -> Array:
    """`[n_wires, 7]` packets of a train on NVLink: their number, rounds over the links and rest, ps of one on its link by part."""
    m, w = p.hardware, p.wires
    n = np.ones(len(w.up), np.int64)
    wired = np.flatnonzero((p.ops.wire >= 0) & (p.op_net() == 0))
    for row, op in zip(*np.unique(p.ops.wire[wired], return_index=True), strict=True):
        framing = p.framings[p.templates[p.ops.template[wired[op]]].framing]
        payload = -(-int(p.ops.bytes[wired[op]]) // max(1, int(w.trains[row])))
        n[row] = max(1, framing.packets(payload) + framing.packets(int(w.aux[row])))
    parts = [-(-(part // n) * m.n_links * 1_000_000 // m.rate) for part in (w.up, w.down, w.response, w.result)]
    return np.stack((n, n // m.n_links, n % m.n_links, *parts), axis=1)


def _port(p: Program, port: int) -> Numbers:
    """Constants of the links of `port`, in the order of the columns PORT_*."""
    m, (net, node) = p.hardware, divmod(port, p.n_nodes)
    if net == 0:
        return m.rate, m.lat, m.ack, 0, p.channels[1], m.output_bytes, net
    other = p.nets[net - 1]
    rate = other.rate_of(node)
    return rate, other.lat, other.ack, other.message_ps * rate // 1_000_000, 0, 0, net


def _switch(p: Program) -> SwitchState:
    n, c = p.n_ports, len(p.classes)
    n_vcs = p.channels[0] if p.channels[1] else 1
    return SwitchState(
        occupied=_zeros(n * c, n_vcs),
        channels=np.full((n * c * n_vcs, 2), -1, np.int32),
        credits=np.full((n * c, 2), -1, np.int32),
        out_queues=np.full((n * c * (n + 1), 2), -1, np.int32),
        out_mask=_zeros(n * c, n // 64 + 1),
        out_cursor=np.full(n * c, -1, np.int64),
        held=_zeros(n * c),
        crossed=np.full((n * c, 2), -1, np.int32),
        sending=np.full((n, 2), -1, np.int32),
        dirty_down=_words(n),
    )


def _tables(p: Program) -> TableState:
    n, t = p.n_nodes, len(p.tables)
    n_rows = p.n_rows if t else 0
    kinds = _zeros(max(1, t), 4)
    for i, table in enumerate(p.tables):
        kinds[i] = (table.entries // table.banks, table.misses, table.miss_ps, table.allocates)
    asked = _zeros(n_rows + t * n, 4)
    sentinels = np.arange(n_rows, n_rows + t * n)
    asked[sentinels, col.ASKED_PREV] = asked[sentinels, col.ASKED_NEXT] = sentinels
    most = max((table.misses for table in p.tables), default=0)
    hubs, finish, waits = _zeros(t * n, 5), _zeros(t * n, max(1, most)), np.full((n, 2), -1, np.int32)
    return TableState(kinds, hubs, finish, asked, waits, row_places(p, None), _zeros(p.n_regions if p.row_table >= 0 else 0))


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
    """`[n_rows]` pieces of the copies to another node that fill a row and ask the row table."""
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
    x = _zeros(7)
    x[col.RUN_WORK_HEAD] = -1
    return Clock(np.full((col.N_RINGS * nets, 4), -1, np.int32), tree(pace + paced), hardware, x)


def _templates(p: Program) -> Array:
    templates = np.zeros((max(1, len(p.templates)), 7), np.int32)
    for i, t in enumerate(p.templates):
        is_pull = t.kind in PULLS
        response_cls = t.cls if t.kind is Kind.PUSH_REDUCE else t.response_cls
        templates[i] = (t.kind, t.cls, response_cls, t.tasks, is_pull, t.duration, t.table)
    return templates


def lower(p: Program) -> BurstState:
    """All arrays of one run at time zero. Raises ProgramError where the engine's subset ends."""
    reason = _unsupported(p)
    if reason:
        raise ProgramError(f"burst engine: {reason}")
    kinds = p.kinds()
    (releases, holds), (queue, owner) = releases_of(p, kinds), queues_of(p)
    flags = np.zeros(p.n_ops, np.uint8)
    for ptr, bit in ((releases.edge_ptr, col.HAS_EDGES), (holds.hold_ptr, col.HAS_HOLDS), (releases.release_ptr, col.HAS_RELEASES)):
        flags |= (ptr[1 : p.n_ops + 1] > ptr[: p.n_ops]) * np.uint8(bit)
    if p.shares is not None:
        flags[p.shares.split_op] |= col.HAS_RELEASES
    if len(releases.release_ptr) > p.n_ops + 1:
        flags |= point_flags(p, releases)
    if p.ops.offset is not None:
        flags[:-1] |= (p.ops.offset[1:] > 0) * np.uint8(col.HAS_NEXT_TRAIN)
    of_piece = pieces_of(p)
    op, mem = _ops(p, kinds, flags, queue, len(of_piece)), _members(p, len(of_piece))
    _add_pieces(p, of_piece, op, mem)
    links, stores, issuers, tables = at_once(
        p.n_ops, lambda: _links(p, kinds), lambda: _stores(p, kinds), lambda: _issuers(p, kinds, queue, owner), lambda: _tables(p)
    )
    return BurstState(
        ops=OpState(op, op.view(np.int64), _templates(p), others_of(p, releases, holds, links, mem, of_piece)),
        members=MemberState(mem, mem.view(np.int64), p.members.fill_row),
        stores=stores,
        releases=releases,
        holds=holds,
        issue=issuers,
        slots=_pools(p),
        links=links,
        switch=_switch(p),
        tables=tables,
        clock=_clock(p),
    )


def _add_pieces(p: Program, of_piece: Array, op: Array, mem: Array) -> None:
    """Fill the records of the pieces in `op` and `mem`, behind those of all ops and members."""
    n = len(of_piece)
    pieces, members, ids = op[p.n_ops : p.n_ops + n], mem[p.n_members : p.n_members + n], np.arange(n)
    for c in (col.TEMPLATE, col.NODE, col.WIRE):
        pieces[:, c] = op[of_piece, c]
    pieces[:, col.MEMBER], pieces[:, col.FLAGS] = p.n_members + ids, 1 << col.MEMBERS_SHIFT
    pieces[:, col.DEPS] = col.CANCELLED  # a piece is no op that could become ready
    pieces[:, col.NEXT2] = np.where(np.append(of_piece[1:] == of_piece[:-1], False)[:n], ids + 1, -1)
    members[:, col.MEMBER_NODE] = mem[p.members.ptr[of_piece], col.MEMBER_NODE]
    members[:, col.MEMBER_OP], members[:, col.MEMBER_EXT] = p.n_ops + ids, 0
