"""Dependencies: what becomes ready or done, and everything that follows from it at zero delay."""

from dysharp.uarch.columns import (
    B_NODE,
    CAUSE,
    DEPS,
    DONE,
    DOWN,
    END,
    FLAGS,
    HAS_EDGES,
    HAS_RELEASES,
    I_DISCIPLINE,
    I_NEXT,
    I_SEQ,
    I_SIZE,
    ISSUE,
    ISSUER,
    KEY,
    KIND,
    M_NOTIFY,
    M_NOTIFY_BYTES,
    MEMBER,
    NEXT2,
    NODE,
    PRIO,
    R_NOTIFY,
    READY,
    RING_NOTIFY,
    START,
    T_CAUSE,
    T_NEXT,
    T_NODE,
    T_NOTIFY_DEPS,
    T_ROWS,
    T_SLOT0,
    TEMPLATE,
    TOUCH_LINE_2,
    TT_NOTIFY,
    UP,
    X_DIRTY,
    X_DONE,
    X_EVENTS,
    X_NOW,
    X_TOUCHED,
    X_WORK_HEAD,
    X_WORK_TAIL,
)
from dysharp.uarch.fifo import ring_push
from dysharp.uarch.heap import heap_push
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.link import server_debt
from dysharp.uarch.tree import tree_set

KIND_JOIN = 2
PROGRAM_ORDER, READY_FIFO = 0, 1
HEAD_OP_ISSUE = 0


@block
def mark(dirty, x, i):
    """Resource i wants a grant attempt at this instant. dirty [n_words] int64, 32 bits each."""
    dirty[i >> 5] |= 1 << (i & 31)
    x[X_DIRTY] = 1


@block
def work_push(op, x, o):
    """Op o is done; what it releases waits in the worklist."""
    op[o, NEXT2] = -1
    if x[X_WORK_HEAD] < 0:
        x[X_WORK_HEAD] = o
    else:
        op[x[X_WORK_TAIL], NEXT2] = o
    x[X_WORK_TAIL] = o


@kernel
def op_ready(o, cause, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x):
    """Op o has no dependency left: a JOIN is done, any other op joins its issuer's queue."""
    now = x[X_NOW]
    ot[o, READY] = now
    op[o, CAUSE] = cause
    if templates[op[o, TEMPLATE], KIND] == KIND_JOIN:
        ot[o, ISSUE] = now
        ot[o, START] = now
        ot[o, END] = now
        ot[o, DONE] = now
        x[X_EVENTS] += 1
        work_push(op, x, o)
        return
    i = op[o, ISSUER]
    discipline = issuers[i, I_DISCIPLINE]
    if discipline != PROGRAM_ORDER:
        if discipline == READY_FIFO:
            order = issuers[i, I_SEQ]
            issuers[i, I_SEQ] += 1
        else:
            order = op[o, KEY] + 1
        heap_push(heap_keys, heap_ids, issuers[i, I_NEXT], issuers[i, I_SIZE], (op[o, PRIO] << 40) + order, o)
        issuers[i, I_SIZE] += 1
    mark(dirty_issuers, x, i)


@kernel
def op_release(o, cause, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x):
    """One dependency of op o falls."""
    op[o, DEPS] -= 1
    if op[o, DEPS] == 0:
        op_ready(o, cause, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)


@block
def tile_touch(t, op, mem, tiles, slot_row, rows, x):
    """Read the records that tile t's notifications will change. The reads do not depend on each other, so their cache misses overlap;
    in the loop that follows they would come one after the other. Changes nothing.
    """
    total = 0
    for s in range(tiles[t, T_SLOT0], tiles[t, T_SLOT0] + tiles[t, T_ROWS]):
        row = slot_row[s]
        if row >= 0 and rows[row, R_NOTIFY] >= 0:
            o = rows[row, R_NOTIFY]
            total += op[o, DEPS] + op[o, TOUCH_LINE_2] + mem[op[o, MEMBER], B_NODE]
    x[X_TOUCHED] = total


@kernel
def tile_notify(
    t, cause, op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x,
    tiles, tile_times, slot_row, rows, nodes, rings, tree, leaf_rings, m,
):  # fmt: skip
    """One in-edge of tile t's NOTIFY head falls; the last one tells the owners of its rows."""
    tiles[t, T_NOTIFY_DEPS] -= 1
    if tiles[t, T_NOTIFY_DEPS] != 0:
        return
    tiles[t, T_CAUSE] = cause
    here = tiles[t, T_NODE]
    n_remote = 0
    tile_touch(t, op, mem, tiles, slot_row, rows, x)
    for s in range(tiles[t, T_SLOT0], tiles[t, T_SLOT0] + tiles[t, T_ROWS]):
        row = slot_row[s]
        if row < 0:
            continue
        o = rows[row, R_NOTIFY]
        if o < 0:
            continue
        owner = op[o, NODE]
        if owner == here:
            op_release(o, cause, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)
        else:
            n_remote += 1
            server_debt(nodes, here, UP, m[M_NOTIFY_BYTES])
            server_debt(nodes, owner, DOWN, m[M_NOTIFY_BYTES])
    if n_remote > 0:
        tile_times[t, TT_NOTIFY] = x[X_NOW] + m[M_NOTIFY]
        if ring_push(rings, RING_NOTIFY, tiles, T_NEXT, tile_times, TT_NOTIFY, tiles, T_NODE, t):
            tree_set(tree, leaf_rings + RING_NOTIFY, tile_times[t, TT_NOTIFY])


@kernel
def work_drain(
    op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x,
    tiles, tile_times, slot_row, rows, nodes, rings, tree, leaf_rings, m,
    edge_ptr, edge_head_kind, edge_head, release_ptr, release_sem, release_amount, sem_left, sem_issuer_ptr, sem_issuer,
):  # fmt: skip
    """Release what waits for the ops in the worklist, first done first."""
    while x[X_WORK_HEAD] >= 0:
        o = x[X_WORK_HEAD]
        x[X_WORK_HEAD] = op[o, NEXT2]
        x[X_DONE] += 1
        flags = op[o, FLAGS]
        if flags & HAS_RELEASES:
            for h in range(release_ptr[o], release_ptr[o + 1]):
                s = release_sem[h]
                sem_left[s] += release_amount[h]
                for k in range(sem_issuer_ptr[s], sem_issuer_ptr[s + 1]):
                    mark(dirty_issuers, x, sem_issuer[k])
        if flags & HAS_EDGES:
            for e in range(edge_ptr[o], edge_ptr[o + 1]):
                if edge_head_kind[e] == HEAD_OP_ISSUE:
                    op_release(edge_head[e], o, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)
                else:
                    tile_notify(
                        edge_head[e], o, op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x,
                        tiles, tile_times, slot_row, rows, nodes, rings, tree, leaf_rings, m,
                    )  # fmt: skip
