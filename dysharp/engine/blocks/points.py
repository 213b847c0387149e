"""What falls when a point is passed: edges to ops, responses and tiles, announcements, and ops that never run (oracle/depend.py).

Row stores: the first byte of a row takes the next slot, bytes complete it, complete rows make a tile ready.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.ready import delivered, first_event, mark, op_ready, op_release, ops_of, semaphores_pass, tile_notify
from dysharp.engine.blocks.switch import sum_of
from dysharp.engine.blocks.trains import response_out
from dysharp.engine.kernel import block, routine


@block
def row_fill(row, n_bytes, stores, x):
    """`n_bytes` arrive for `row` (rows of a PREFIX region have their slot from the start). Returns the tile that is now ready, else -1."""
    rows, regions, tiles = stores.rows, stores.regions, stores.tiles
    r = rows[row, col.ROW_REGION]
    if rows[row, col.ROW_SLOT] < 0:
        slot = regions[r, col.REGION_USED]
        regions[r, col.REGION_USED] += 1
        rows[row, col.ROW_SLOT] = slot
        stores.slot_row[regions[r, col.REGION_ROW0] + slot] = row
    rows[row, col.ROW_LEFT] -= n_bytes
    ready = -1
    if rows[row, col.ROW_LEFT] == 0:
        t = regions[r, col.REGION_TILE0] + rows[row, col.ROW_SLOT] // regions[r, col.REGION_TILE_ROWS]
        tiles[t, col.TILE_LEFT] -= 1
        if tiles[t, col.TILE_LEFT] == 0:
            stores.tile_times[t, col.TILE_READY] = x[col.RUN_NOW]
            ready = t
    return ready


HEAD_OP_ISSUE, HEAD_MEMBER_RESPOND, HEAD_TILE_NOTIFY, HEAD_JOIN_CANCEL, HEAD_ANNOUNCE, HEAD_EVENT = range(6)
# HEAD_ANNOUNCE, HEAD_EVENT: edges to a JOIN with a threshold, from a SIGNAL that adds to the threshold and from anything else


@block
def _announce(o, signal, ops, issue, x, points):
    """SIGNAL `signal` tells JOIN o how many further events to wait for. DEPS counts a missing announcement as more than all events."""
    op = ops.op
    if ops.ot[o, col.READY] < 0 and op[o, col.DEPS] < col.CANCELLED // 2:
        first_event(o, ops, issue, x, points)
        op[o, col.DEPS] += points.value[signal] - op[o, col.ANNOUNCED]
        if op[o, col.DEPS] <= 0:
            op_ready(o, signal, ops, issue, x)


@block
def _cancel_mark(o, rest, ops):
    """Op o never runs, unless it is ready. Puts it before `rest`, a list of cancelled ops. Returns the head of the list."""
    op = ops.op
    if ops.ot[o, col.READY] >= 0 or op[o, col.DEPS] >= col.CANCELLED // 2:
        return rest
    op[o, col.DEPS] = col.CANCELLED
    op[o, col.NEXT2] = rest
    return o


@block
def _edges_cancel(point, rest, ops, releases):
    """`_cancel_mark` for every op that waits for the point. A JOIN with a threshold counts one event less."""
    for e in range(releases.edge_ptr[point], releases.edge_ptr[point + 1]):
        if releases.edge_head_kind[e] == HEAD_OP_ISSUE:
            rest = _cancel_mark(releases.edge_head[e], rest, ops)
    return rest


@routine
def _op_cancel(o, ops, issue, x, points):
    """JOIN o and what depends on it never run, unless it is ready already. Semaphores see their issue and their end."""
    op, releases, holds = ops.op, points.releases, points.holds
    n_ops = ops_of(op, points)
    rest = _cancel_mark(o, -1, ops)
    while rest >= 0:
        o = rest
        rest = op[o, col.NEXT2]
        x[col.RUN_DONE] += 1
        for h in range(holds.hold_ptr[o], holds.hold_ptr[o + 1]):
            holds.sem_left[holds.hold_sem[h]] -= holds.hold_amount[h]
        semaphores_pass(n_ops + o, releases, holds.sem_left, issue, x)
        semaphores_pass(o, releases, holds.sem_left, issue, x)
        if op[o, col.ISSUER] >= 0:
            mark(issue.dirty_issuers, x, issue.issuers[op[o, col.ISSUER], col.ISSUER_OWNER])  # the next one in its order may go
        rest = _edges_cancel(n_ops + o, rest, ops, releases)
        rest = _edges_cancel(o, rest, ops, releases)
        for k in range(op[o, col.MEMBER], op[o, col.MEMBER] + (op[o, col.FLAGS] >> col.MEMBERS_SHIFT)):
            rest = _edges_cancel(2 * n_ops + k, rest, ops, releases)


@block
def _member_respond(k, ops, mem, clock, points):
    """One edge to the response of member k falls. The response goes now if the last edge falls behind the read of the memory."""
    mem[k, col.MEMBER_WAITS] -= 1
    if mem[k, col.MEMBER_WAITS] == col.RESPONSE_HELD:
        mem[k, col.MEMBER_WAITS] = 0
        response_out(k, clock.x[col.RUN_NOW], ops, mem, points.links, clock)


@routine
def _other_fall(kind, head, o, ops, mem, stores, issue, nodes, clock, points):
    """An edge falls to anything but the issue of an op. `o`: the op that caused it."""
    if kind == HEAD_TILE_NOTIFY:
        tile_notify(head, o, ops, mem, stores, issue, nodes, clock)
    elif kind == HEAD_EVENT:
        op_release(head, o, ops, issue, clock.x)
    elif kind == HEAD_ANNOUNCE:
        _announce(head, o, ops, issue, clock.x, points)
    elif kind == HEAD_MEMBER_RESPOND:
        _member_respond(head, ops, mem, clock, points)
    else:
        ops.op[head, col.CANCELS] -= 1
        if ops.op[head, col.CANCELS] == 0:
            _op_cancel(head, ops, issue, clock.x, points)


@block
def _edge_fall(kind, head, o, ops, mem, stores, issue, nodes, clock, points):
    """An edge falls. `o`: the op that caused it."""
    if kind == HEAD_OP_ISSUE:
        op_release(head, o, ops, issue, clock.x)
    elif points is None:
        tile_notify(head, o, ops, mem, stores, issue, nodes, clock)
    else:
        _other_fall(kind, head, o, ops, mem, stores, issue, nodes, clock, points)


@block
def _edges_fall(point, o, ops, mem, stores, releases, issue, nodes, clock):
    """The out-edges of the point fall, in the order of the table."""
    for e in range(releases.edge_ptr[point], releases.edge_ptr[point + 1]):
        _edge_fall(releases.edge_head_kind[e], releases.edge_head[e], o, ops, mem, stores, issue, nodes, clock, ops.points)


@block
def _row_point(row, ops, mem):
    """Number of the point of a row (`Releases`)."""
    pieces = len(ops.points.pieces)
    return 2 * (ops.op.shape[0] - 1 - pieces) + mem.shape[0] - 1 - pieces + row


@block
def _row_touch(row, n_bytes, ops, mem, issue, clock, points):
    """The first byte of the row takes its semaphores, full or not."""
    if points is not None and clock.m[col.ROW_POINTS] != 0 and n_bytes > 0 and points.touched[row] == 0:
        points.touched[row] = 1
        semaphores_pass(_row_point(row, ops, mem), points.releases, points.holds.sem_left, issue, clock.x)


@block
def _row_complete(row, n_bytes, o, ops, mem, stores, issue, nodes, clock, points):
    """If the row is complete now, the edges that wait for the row fall. `o`: the op that filled it."""
    if points is not None and clock.m[col.ROW_POINTS] != 0 and n_bytes > 0 and stores.rows[row, col.ROW_LEFT] == 0:
        _edges_fall(_row_point(row, ops, mem), o, ops, mem, stores, points.releases, issue, nodes, clock)


@block
def _fills(o, points):
    """Whether the rows have what they need of op o: contributions without a place in the switch fill them together."""
    if points is None:
        return True
    s = sum_of(o, points)
    if s < 0:
        return True
    points.sums[s, col.SUM_LEFT] -= 1
    return points.sums[s, col.SUM_LEFT] == 0


@block
def member_fill(k, ops, members, stores, issue, links, clock):
    """All bytes of member k are visible: its rows have received them."""
    o, x = members.mem[k, col.MEMBER_OP], clock.x
    delivered(k, o, ops, x, ops.points)
    if _fills(o, ops.points):
        rows_fill(k, o, ops, members, stores, issue, links, clock)


@block
def rows_fill(k, o, ops, members, stores, issue, links, clock):
    """The rows of member k have received the bytes of op o, and edges of rows and tiles that are ready by it fall."""
    mem, fill_row, x = members.mem, members.fill_row, clock.x
    n_bytes = links.wires[ops.op[o, col.WIRE], col.WIRE_PAYLOAD]
    for f in range(mem[k, col.MEMBER_FILL], mem[k + 1, col.MEMBER_FILL]):
        row = fill_row[f]
        _row_touch(row, n_bytes, ops, mem, issue, clock, ops.points)
        t = row_fill(row, n_bytes, stores, x)
        _row_complete(row, n_bytes, o, ops, mem, stores, issue, links.nodes, clock, ops.points)
        if t >= 0:
            for e in range(stores.tile_edge_ptr[t], stores.tile_edge_ptr[t + 1]):
                _edge_fall(stores.tile_edge_kind[e], stores.tile_edge[e], o, ops, mem, stores, issue, links.nodes, clock, ops.points)


@block
def _passes_elsewhere(point, ops, mem, stores, releases, issue, nodes, clock, points):
    """Whether the point is not the end of an op. Then what waits for it falls."""
    if points is None:
        return False
    n_ops = ops_of(ops.op, points)
    if point < n_ops:
        return False
    o = point - n_ops if point < 2 * n_ops else mem[point - 2 * n_ops, col.MEMBER_OP]
    _edges_fall(point, o, ops, mem, stores, releases, issue, nodes, clock)
    return True


@block
def _chain_goes_on(o, ops, issue, x, points):
    """Op o is done; the next op of its chain waited for this end."""
    if points is not None and ops.op[o, col.FLAGS] & col.HAS_CHAIN and ops.op[o, col.CHAIN_NEXT] >= 0:
        op_release(ops.op[o, col.CHAIN_NEXT], o, ops, issue, x)


@routine
def work_drain(ops, mem, stores, releases, sem_left, issue, nodes, clock):
    """Release what waits for the points in the worklist, first passed first."""
    op, x = ops.op, clock.x
    while x[col.RUN_WORK_HEAD] >= 0:
        point = x[col.RUN_WORK_HEAD]
        x[col.RUN_WORK_HEAD] = _work_next(point, op, ops.points)
        if _passes_elsewhere(point, ops, mem, stores, releases, issue, nodes, clock, ops.points):
            continue
        x[col.RUN_DONE] += 1
        flags = op[point, col.FLAGS]
        if flags & col.HAS_RELEASES:
            semaphores_pass(point, releases, sem_left, issue, x)
            _splits_apply(point, issue, x, ops.points)
        if flags & col.HAS_EDGES:
            _edges_fall(point, point, ops, mem, stores, releases, issue, nodes, clock)
        _chain_goes_on(point, ops, issue, x, ops.points)


@block
def _splits_apply(o, issue, x, points):
    """Op o is done: shares change that wait for this end."""
    if points is not None and len(points.splits) > 0 and points.split_of[o] >= 0:
        k = points.split_of[o]
        while k < len(points.splits) and points.splits[k, col.SPLIT_OP] == o:
            share = points.splits[k, col.SPLIT_SHARE]
            if points.splits[k, col.SPLIT_MORE] != 0:
                points.shares[share, col.SHARE_MOST] += points.splits[k, col.SPLIT_MORE]
            else:
                points.shares[share, col.SHARE_MOST] = points.splits[k, col.SPLIT_MOST]
            for queue in range(len(points.share_of)):
                if points.share_of[queue] == share:
                    mark(issue.dirty_issuers, x, issue.issuers[queue, col.ISSUER_OWNER])
            k += 1


@block
def _work_next(point, op, points):
    """The point behind `point` in the worklist, -1 = none."""
    if points is not None and point >= ops_of(op, points):
        return points.passed[point - ops_of(op, points)]
    return op[point, col.NEXT2]
