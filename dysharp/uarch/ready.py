"""Dependencies: what becomes ready or done, and everything that follows from it at zero delay (oracle/depend.py, oracle/stores.py)."""

from dysharp.uarch.columns import (
    CANCELLED,
    CAUSE,
    CHAIN,
    CHAIN_ON,
    DEPS,
    DONE,
    DOWN,
    END,
    FLAGS,
    HARDWARE_NETS,
    HARDWARE_NODES,
    HARDWARE_NOTIFY,
    HARDWARE_NOTIFY_BYTES,
    HAS_CHAIN,
    HAS_DELIVERED,
    HAS_FIRST_EVENT,
    HAS_ISSUED,
    ISSUE,
    ISSUER,
    ISSUER_DISCIPLINE,
    ISSUER_NEXT,
    ISSUER_OWNER,
    ISSUER_SEQ,
    ISSUER_SIZE,
    KEY,
    KIND,
    LEAF_RINGS,
    MEMBER,
    MEMBER_NODE,
    NEXT2,
    NODE,
    PRIO,
    READY,
    RING_NOTIFY,
    ROW_NOTIFY,
    RUN_DIRTY,
    RUN_EVENTS,
    RUN_NOW,
    RUN_TOUCHED,
    RUN_WORK_HEAD,
    RUN_WORK_TAIL,
    START,
    TEMPLATE,
    TILE_CAUSE,
    TILE_NEXT,
    TILE_NODE,
    TILE_NOTIFY,
    TILE_NOTIFY_DEPS,
    TILE_ROWS,
    TILE_SLOT0,
    TOUCH_LINE_2,
    UP,
)
from dysharp.uarch.fifo import fifo_push, ring_push, ring_take
from dysharp.uarch.heap import heap_push
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.link import server_debt
from dysharp.uarch.tree import tree_set

KIND_JOIN = 2
PROGRAM_ORDER, READY_FIFO, ROUND_ROBIN = 0, 1, 3


@block
def mark(dirty, x, i):
    """Resource i wants a grant attempt at this instant. dirty [n_words] int64, 32 bits each."""
    dirty[i >> 5] |= 1 << (i & 31)
    x[RUN_DIRTY] = 1


@block
def work_link(point, following, op, points):
    """The worklist goes on from `point` to `following`."""
    if points is not None and point >= op.shape[0] - 1:
        points.passed[point - op.shape[0] + 1] = following
        return
    op[point, NEXT2] = following


@block
def work_next(point, op, points):
    """The point behind `point` in the worklist, -1 = none."""
    if points is not None and point >= op.shape[0] - 1:
        return points.passed[point - op.shape[0] + 1]
    return op[point, NEXT2]


@block
def work_push(ops, x, point):
    """A point is passed (`Releases`); what it releases waits in the worklist."""
    work_link(point, -1, ops.op, ops.points)
    if x[RUN_WORK_HEAD] < 0:
        x[RUN_WORK_HEAD] = point
    else:
        work_link(x[RUN_WORK_TAIL], point, ops.op, ops.points)
    x[RUN_WORK_TAIL] = point


@block
def complete(o, now, ops, x):
    """Op o is done now."""
    ops.ot[o, DONE] = now
    work_push(ops, x, o)


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
    if points is not None and ops.op[o, FLAGS] & HAS_ISSUED:
        point = ops.op.shape[0] - 1 + o
        semaphores_pass(point, points.releases, points.holds.sem_left, issue, x)
        work_push(ops, x, point)


@block
def delivered(k, o, ops, x, points):
    """Member k of op o is delivered; other ops may wait for the delivery."""
    if points is not None and ops.op[o, FLAGS] & HAS_DELIVERED:
        work_push(ops, x, 2 * (ops.op.shape[0] - 1) + k)


@block
def resides(o, owner, ops, issue, x, points):
    """Whether the chain of op o has a slot. With a slot, the op passes the queue of its issuer."""
    if points is None:
        return False
    if ops.op[o, FLAGS] & HAS_CHAIN == 0 or points.chains[ops.op[o, CHAIN], CHAIN_ON] == 0:
        return False
    fifo_push(points.resident, owner, ops.op, NEXT2, o)
    mark(issue.dirty_issuers, x, owner)
    return True


@kernel
def op_ready(o, cause, ops, issue, x):
    """Op o has no dependency left: a JOIN is done, any other op joins its issuer's queue."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    issuers = issue.issuers
    now = x[RUN_NOW]
    ot[o, READY] = now
    op[o, CAUSE] = cause
    if templates[op[o, TEMPLATE], KIND] == KIND_JOIN:
        ot[o, ISSUE] = now
        ot[o, START] = now
        ot[o, END] = now
        x[RUN_EVENTS] += 1
        issued(o, ops, issue, x, ops.points)
        complete(o, now, ops, x)
        return
    i = op[o, ISSUER]
    owner = issuers[i, ISSUER_OWNER]
    if resides(o, owner, ops, issue, x, ops.points):
        return
    discipline = issuers[i, ISSUER_DISCIPLINE]
    if discipline != PROGRAM_ORDER:
        if discipline == READY_FIFO:
            order = issuers[i, ISSUER_SEQ]
            issuers[i, ISSUER_SEQ] += 1
        else:
            order = op[o, KEY] + 1
        heap_push(issue.heap_keys, issue.heap_ids, issuers[i, ISSUER_NEXT], issuers[i, ISSUER_SIZE], (op[o, PRIO] << 40) + order, o)
        issuers[i, ISSUER_SIZE] += 1
    mark(issue.dirty_issuers, x, owner)


@kernel
def op_release(o, cause, ops, issue, x):
    """One dependency of op o falls. Further dependencies change nothing: DEPS is below 0 then, or belongs to a cancelled op."""
    ops.op[o, DEPS] -= 1
    first_event(o, ops, issue, x, ops.points)
    if ops.op[o, DEPS] == 0:
        op_ready(o, cause, ops, issue, x)


@block
def first_event(o, ops, issue, x, points):
    """An event of JOIN o: the first one takes its semaphores, full or not."""
    if points is not None and ops.op[o, FLAGS] & HAS_FIRST_EVENT and ops.ot[o, READY] < 0 and ops.op[o, DEPS] < CANCELLED // 2:
        ops.op[o, FLAGS] &= ~HAS_FIRST_EVENT
        point = len(points.releases.release_ptr) - ops.op.shape[0] + o
        semaphores_pass(point, points.releases, points.holds.sem_left, issue, x)


@block
def tile_touch(t, op, mem, stores, x):
    """Read the records that tile t's notifications will change. Changes nothing.

    The reads do not depend on each other, so their cache misses overlap; in the loop that follows they would come one after the other.
    """
    slot_row, rows, tiles = stores.slot_row, stores.rows, stores.tiles
    total = 0
    for s in range(tiles[t, TILE_SLOT0], tiles[t, TILE_SLOT0] + tiles[t, TILE_ROWS]):
        row = slot_row[s]
        if row >= 0 and rows[row, ROW_NOTIFY] >= 0:
            o = rows[row, ROW_NOTIFY]
            total += op[o, DEPS] + op[o, TOUCH_LINE_2] + mem[op[o, MEMBER], MEMBER_NODE]
    x[RUN_TOUCHED] = total


@kernel
def tile_notify(t, cause, ops, mem, stores, issue, nodes, clock):
    """One in-edge of tile t's NOTIFY head falls; the last one tells the owners of its rows."""
    op, tiles, tile_times, slot_row, rows = ops.op, stores.tiles, stores.tile_times, stores.slot_row, stores.rows
    m, x = clock.m, clock.x
    tiles[t, TILE_NOTIFY_DEPS] -= 1
    if tiles[t, TILE_NOTIFY_DEPS] != 0:
        return
    tiles[t, TILE_CAUSE] = cause
    here = tiles[t, TILE_NODE]
    n_remote = 0
    tile_touch(t, op, mem, stores, x)
    for s in range(tiles[t, TILE_SLOT0], tiles[t, TILE_SLOT0] + tiles[t, TILE_ROWS]):
        row = slot_row[s]
        if row < 0:
            continue
        o = rows[row, ROW_NOTIFY]
        if o < 0:
            continue
        owner = op[o, NODE] % m[HARDWARE_NODES]
        if owner == here:
            op_release(o, cause, ops, issue, x)
        else:
            n_remote += 1
            server_debt(nodes, here, UP, m[HARDWARE_NOTIFY_BYTES])
            server_debt(nodes, owner, DOWN, m[HARDWARE_NOTIFY_BYTES])
    if n_remote > 0:
        tile_times[t, TILE_NOTIFY] = x[RUN_NOW] + m[HARDWARE_NOTIFY]
        ring = RING_NOTIFY * m[HARDWARE_NETS]
        if ring_push(clock.rings, ring, tiles, TILE_NEXT, tile_times, TILE_NOTIFY, tiles, TILE_NODE, t):
            tree_set(clock.tree, m[LEAF_RINGS] + ring, tile_times[t, TILE_NOTIFY])


@block
def tile_due(stores, clock):
    """The tile whose notifications are due, taken out of its ring."""
    ring = RING_NOTIFY * clock.m[HARDWARE_NETS]
    return ring_take(clock.m[LEAF_RINGS] + ring, ring, stores.tiles, TILE_NEXT, stores.tile_times, TILE_NOTIFY, clock)


@block
def notified(ops, members, stores, issue, clock):
    """NOTIFY: the owners of a tile's rows on other nodes know that the tile is done."""
    op, tiles, slot_row, rows = ops.op, stores.tiles, stores.slot_row, stores.rows
    t = tile_due(stores, clock)
    tile_touch(t, op, members.mem, stores, clock.x)
    for s in range(tiles[t, TILE_SLOT0], tiles[t, TILE_SLOT0] + tiles[t, TILE_ROWS]):
        row = slot_row[s]
        if row >= 0 and rows[row, ROW_NOTIFY] >= 0 and op[rows[row, ROW_NOTIFY], NODE] % clock.m[HARDWARE_NODES] != tiles[t, TILE_NODE]:
            op_release(rows[row, ROW_NOTIFY], tiles[t, TILE_CAUSE], ops, issue, clock.x)
