"""Dependencies: what becomes ready or done, and everything that follows from it at zero delay (oracle/depend.py, oracle/stores.py).

Shares of pools: issuers that hold no more than a number of slots together, which may change (oracle/issue.py).
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import fifo_push, ring_push, ring_take
from dysharp.engine.blocks.heap import heap_push, tree_set
from dysharp.engine.blocks.link import server_debt
from dysharp.engine.kernel import block, prefetch, routine

KIND_JOIN = 2
PROGRAM_ORDER, READY_FIFO, ROUND_ROBIN = 0, 1, 3


@block
def mark(dirty, x, i):
    """Resource i wants a grant attempt at this instant. dirty [n_words] int64, 32 bits each."""
    dirty[i >> 5] |= 1 << (i & 31)
    x[col.RUN_DIRTY] = 1


@block
def ops_of(op, points):
    """Number of ops. Records of the pieces of bulk ops stand behind them."""
    return op.shape[0] - 1 - len(points.pieces)


@block
def _work_link(point, following, op, points):
    """The worklist goes on from `point` to `following`."""
    if points is not None and point >= ops_of(op, points):
        points.passed[point - ops_of(op, points)] = following
        return
    op[point, col.NEXT2] = following


@block
def _work_push(ops, x, point):
    """A point is passed (`Releases`); what it releases waits in the worklist."""
    _work_link(point, -1, ops.op, ops.points)
    if x[col.RUN_WORK_HEAD] < 0:
        x[col.RUN_WORK_HEAD] = point
    else:
        _work_link(x[col.RUN_WORK_TAIL], point, ops.op, ops.points)
    x[col.RUN_WORK_TAIL] = point


@block
def complete(o, now, ops, x):
    """Op o is done now."""
    ops.ot[o, col.DONE] = now
    _work_push(ops, x, o)


@block
def semaphores_pass(point, releases, sem_left, issue, x):
    """Semaphores get back, or give, what the point changes."""
    for h in range(releases.release_ptr[point], releases.release_ptr[point + 1]):
        s = releases.release_sem[h]
        sem_left[s] += releases.release_amount[h]
        for k in range(releases.sem_issuer_ptr[s], releases.sem_issuer_ptr[s + 1]):
            mark(issue.dirty_issuers, x, releases.sem_issuer[k])


@block
def issued(o, ops, issue, x, points):
    """Op o is issued now; other ops may wait for its issue."""
    if points is not None and ops.op[o, col.FLAGS] & col.HAS_ISSUED:
        point = ops_of(ops.op, points) + o
        semaphores_pass(point, points.releases, points.holds.sem_left, issue, x)
        _work_push(ops, x, point)


@block
def delivered(k, o, ops, x, points):
    """Member k of op o is delivered; other ops may wait for the delivery."""
    if points is not None and ops.op[o, col.FLAGS] & col.HAS_DELIVERED:
        _work_push(ops, x, 2 * ops_of(ops.op, points) + k)


@block
def _resides(o, owner, ops, issue, x, points):
    """Whether the chain of op o has a slot. With a slot, the op passes the queue of its issuer."""
    if points is None:
        return False
    if ops.op[o, col.FLAGS] & col.HAS_CHAIN == 0 or points.chains[ops.op[o, col.CHAIN], col.CHAIN_ON] == 0:
        return False
    fifo_push(points.resident, owner, ops.op, col.NEXT2, o)
    mark(issue.dirty_issuers, x, owner)
    return True


@block
def op_ready(o, cause, ops, issue, x):
    """Op o has no dependency left: a JOIN is done, any other op joins its issuer's queue."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    issuers = issue.issuers
    now = x[col.RUN_NOW]
    ot[o, col.READY] = now
    op[o, col.CAUSE] = cause
    if templates[op[o, col.TEMPLATE], col.KIND] == KIND_JOIN:
        ot[o, col.ISSUE] = now
        ot[o, col.START] = now
        ot[o, col.END] = now
        x[col.RUN_EVENTS] += 1
        issued(o, ops, issue, x, ops.points)
        complete(o, now, ops, x)
        return
    i = op[o, col.ISSUER]
    owner = issuers[i, col.ISSUER_OWNER]
    if _resides(o, owner, ops, issue, x, ops.points):
        return
    discipline = issuers[i, col.ISSUER_DISCIPLINE]
    if discipline != PROGRAM_ORDER:
        if discipline == READY_FIFO:
            order = issuers[i, col.ISSUER_SEQ]
            issuers[i, col.ISSUER_SEQ] += 1
        else:
            order = op[o, col.KEY] + 1
        heap_push(issue.heap_keys, issue.heap_ids, issuers[i, col.ISSUER_NEXT], issuers[i, col.ISSUER_SIZE], (op[o, col.PRIO] << 40) + order, o)
        issuers[i, col.ISSUER_SIZE] += 1
    mark(issue.dirty_issuers, x, owner)


@block
def op_release(o, cause, ops, issue, x):
    """One dependency of op o falls. Further dependencies change nothing: DEPS is below 0 then, or belongs to a cancelled op."""
    ops.op[o, col.DEPS] -= 1
    first_event(o, ops, issue, x, ops.points)
    if ops.op[o, col.DEPS] == 0:
        op_ready(o, cause, ops, issue, x)


@block
def first_event(o, ops, issue, x, points):
    """An event of JOIN o: the first one takes its semaphores, full or not."""
    if points is not None and ops.op[o, col.FLAGS] & col.HAS_FIRST_EVENT and ops.ot[o, col.READY] < 0 and ops.op[o, col.DEPS] < col.CANCELLED // 2:
        ops.op[o, col.FLAGS] &= ~col.HAS_FIRST_EVENT
        point = len(points.releases.release_ptr) - 1 - ops_of(ops.op, points) + o
        semaphores_pass(point, points.releases, points.holds.sem_left, issue, x)


@block
def _tile_touch(t, op, mem, stores):
    """Read ahead: the records that tile t's notifications will change.

    The reads do not depend on each other, so their cache misses overlap; in the loop that follows they would come one after the other.
    """
    slot_row, rows, tiles = stores.slot_row, stores.rows, stores.tiles
    for s in range(tiles[t, col.TILE_SLOT0], tiles[t, col.TILE_SLOT0] + tiles[t, col.TILE_ROWS]):
        row = slot_row[s]
        if row >= 0 and rows[row, col.ROW_NOTIFY] >= 0:
            o = rows[row, col.ROW_NOTIFY]
            prefetch(op, o, col.TOUCH_LINE_2)
            prefetch(mem, op[o, col.MEMBER], 0)


@routine
def tile_notify(t, cause, ops, mem, stores, issue, nodes, clock):
    """One in-edge of tile t's NOTIFY head falls; the last one tells the owners of its rows."""
    op, tiles, tile_times, slot_row, rows = ops.op, stores.tiles, stores.tile_times, stores.slot_row, stores.rows
    m, x = clock.m, clock.x
    tiles[t, col.TILE_NOTIFY_DEPS] -= 1
    if tiles[t, col.TILE_NOTIFY_DEPS] != 0:
        return
    tiles[t, col.TILE_CAUSE] = cause
    here = tiles[t, col.TILE_NODE]
    n_remote = 0
    _tile_touch(t, op, mem, stores)
    for s in range(tiles[t, col.TILE_SLOT0], tiles[t, col.TILE_SLOT0] + tiles[t, col.TILE_ROWS]):
        row = slot_row[s]
        if row < 0:
            continue
        o = rows[row, col.ROW_NOTIFY]
        if o < 0:
            continue
        owner = op[o, col.NODE] % m[col.HARDWARE_NODES]
        if owner == here:
            op_release(o, cause, ops, issue, x)
        else:
            n_remote += 1
            server_debt(nodes, here, col.UP, m[col.HARDWARE_NOTIFY_BYTES])
            server_debt(nodes, owner, col.DOWN, m[col.HARDWARE_NOTIFY_BYTES])
    if n_remote > 0:
        tile_times[t, col.TILE_NOTIFY] = x[col.RUN_NOW] + m[col.HARDWARE_NOTIFY]
        ring = col.RING_NOTIFY * m[col.HARDWARE_NETS]
        if ring_push(clock.rings, ring, tiles, col.TILE_NEXT, tile_times, col.TILE_NOTIFY, tiles, col.TILE_NODE, t):
            tree_set(clock.tree, m[col.LEAF_RINGS] + ring, tile_times[t, col.TILE_NOTIFY])


@block
def tile_due(stores, clock):
    """The tile whose notifications are due, taken out of its ring."""
    ring = col.RING_NOTIFY * clock.m[col.HARDWARE_NETS]
    return ring_take(clock.m[col.LEAF_RINGS] + ring, ring, stores.tiles, col.TILE_NEXT, stores.tile_times, col.TILE_NOTIFY, clock)


@block
def notified(ops, members, stores, issue, clock):
    """NOTIFY: the owners of a tile's rows on other nodes know that the tile is done."""
    op, tiles, slot_row, rows = ops.op, stores.tiles, stores.slot_row, stores.rows
    t = tile_due(stores, clock)
    _tile_touch(t, op, members.mem, stores)
    for s in range(tiles[t, col.TILE_SLOT0], tiles[t, col.TILE_SLOT0] + tiles[t, col.TILE_ROWS]):
        row = slot_row[s]
        if row < 0:
            continue
        told = rows[row, col.ROW_NOTIFY]
        if told >= 0 and op[told, col.NODE] % clock.m[col.HARDWARE_NODES] != tiles[t, col.TILE_NODE]:
            op_release(told, tiles[t, col.TILE_CAUSE], ops, issue, clock.x)


@block
def share_left(queue, points):
    """Slots that a queue's share leaves; without a share a number larger than any pool."""
    if points is not None and len(points.shares) > 0 and points.share_of[queue] >= 0:
        share = points.share_of[queue]
        return max(0, points.shares[share, col.SHARE_MOST] - points.shares[share, col.SHARE_HELD])
    return col.INF
