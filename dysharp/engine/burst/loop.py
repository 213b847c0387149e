"""The event loop of the burst level: releases of an instant, then its grants (docs/design/0001), over the blocks of `uarch`.

One function, because the blocks are inlined into it and share its arrays; it can be stopped after `budget` events and called again.
"""

from dysharp.uarch.bits import bit_after, bit_lowest, set_after
from dysharp.uarch.columns import (
    ANSWERS,
    ANY_FLAG,
    B_EXT,
    B_FILL,
    B_LINK,
    B_NODE,
    B_OP,
    B_TIME,
    CLS,
    COPIES,
    DEPS,
    DONE,
    DOWN,
    END,
    FLAGS,
    I_POOL,
    INF,
    IS_PULL,
    LEFT,
    M_ACK,
    M_CLASSES,
    M_LAT,
    M_MEMORY,
    M_RATE,
    M_RESPONDER,
    M_VC_BYTES,
    MEMBER,
    N_RINGS,
    NEXT,
    NEXT2,
    NODE,
    P_BASE,
    P_FREE,
    P_SIZE,
    R_LEFT,
    R_NOTIFY,
    RESPONSE_CLS,
    RING_ACK,
    RING_ARRIVE,
    RING_DELIVER,
    RING_LOCAL,
    RING_NOTIFY,
    RING_RESPOND,
    RING_RESULT,
    RING_RESULT_DELIVERED,
    S_CURSOR,
    S_EXTRA,
    S_FREE,
    S_MASK,
    SCRATCH,
    START,
    T_CAUSE,
    T_NEXT,
    T_NODE,
    T_ROWS,
    T_SLOT0,
    TAIL,
    TEMPLATE,
    TOUCH_LINE_2,
    TT_NOTIFY,
    UP,
    VC,
    W_ACK_DOWN,
    W_ACK_UP,
    W_DOWN,
    W_PAYLOAD,
    W_RESPONSE,
    W_RESULT,
    W_STRIPE_RESPONSE,
    W_STRIPE_UP,
    W_UP,
    WIRE,
    X_BLOCKED_PS,
    X_DIRTY,
    X_DONE,
    X_EVENTS,
    X_NOW,
    X_TOUCHED,
    X_WORK_HEAD,
)
from dysharp.uarch.fifo import fifo_pop, fifo_push, hub_pop, hub_push, ring_push
from dysharp.uarch.heap import heap_pop
from dysharp.uarch.issue import BATCH_BITS, gang_start, issuer_drop, issuer_take, train_issue
from dysharp.uarch.kernel import kernel
from dysharp.uarch.link import server_debt, server_grant, server_hold
from dysharp.uarch.memory import memory_take
from dysharp.uarch.ready import (
    HEAD_OP_ISSUE,
    mark,
    op_ready,
    op_release,
    tile_notify,
    tile_touch,
    work_drain,
    work_push,
)
from dysharp.uarch.region import row_fill
from dysharp.uarch.switch import credits_apply, train_expose, vc_choose
from dysharp.uarch.tree import tree_first, tree_set

IDLE = -(1 << 40)  # S_EXTRA of a down server that sends nothing


@kernel
def run_start(op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x):
    """Time zero: ops without dependencies become ready, in id order."""
    for o in range(op.shape[0] - 1):
        if op[o, DEPS] == 0:
            op_ready(o, -1, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)


@kernel
def run_loop(
    budget, op, ot, templates, wires, durations, task_bytes,
    mem, mem_time, fill_row,
    rows, regions, slot_row, tiles, tile_times, tile_edge_ptr, tile_edge_kind, tile_edge,
    edge_ptr, edge_head_kind, edge_head,
    hold_ptr, hold_sem, hold_amount, release_ptr, release_sem, release_amount, sem_left, sem_issuer_ptr, sem_issuer,
    issuers, issuer_ops, heap_keys, heap_ids, pools, pool_keys, pool_ids, pool_issuer_ptr, pool_issuer,
    nodes, hub, occupied, channels, credits, out_queues, out_mask, out_cursor,
    rings, tree, dirty_issuers, dirty_up, dirty_down, m, x,
):  # fmt: skip
    """Run until `budget` more events have been counted or nothing is pending. Returns True while there is more to do."""
    n_nodes = nodes.shape[0]
    n_pools = pools.shape[0]
    n_classes = m[M_CLASSES]
    n_vcs = occupied.shape[1]
    n_sources = n_nodes + 1
    leaf_up = n_pools
    leaf_arrive = leaf_up + n_nodes
    leaf_down = leaf_arrive + 1
    leaf_rings = leaf_down + n_nodes - 1  # ring k > 0 has leaf leaf_rings + k; RING_ARRIVE has leaf_arrive
    leaf_credit = leaf_rings + N_RINGS
    rate = m[M_RATE]
    lat = m[M_LAT]
    finite = m[M_VC_BYTES] > 0
    shared = m[M_MEMORY] > 0
    stop = x[X_EVENTS] + budget
    now = x[X_NOW]
    while x[X_EVENTS] < stop:
        # what the last grants completed at once (transfers without members)
        if x[X_WORK_HEAD] >= 0:
            work_drain(
                op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x, tiles, tile_times, slot_row, rows, nodes,
                rings, tree, leaf_rings, m, edge_ptr, edge_head_kind, edge_head, release_ptr, release_sem,
                release_amount, sem_left, sem_issuer_ptr, sem_issuer,
            )  # fmt: skip
        # ---- releases -------------------------------------------------------------------------------------------------------
        while tree[1] == now:
            leaf = tree_first(tree)
            done = -1  # an op that this event completes
            filled = -1  # a member whose rows this event fills
            if leaf < leaf_up:
                p = leaf
                base = pools[p, P_BASE]
                batch = pool_ids[base]
                heap_pop(pool_keys, pool_ids, base, pools[p, P_SIZE])
                pools[p, P_SIZE] -= 1
                tree_set(tree, leaf, pool_keys[base] if pools[p, P_SIZE] > 0 else INF)
                o = batch >> BATCH_BITS
                n = batch & ((1 << BATCH_BITS) - 1)
                pools[p, P_FREE] += n
                for k in range(pool_issuer_ptr[p], pool_issuer_ptr[p + 1]):
                    mark(dirty_issuers, x, pool_issuer[k])
                op[o, LEFT] -= n
                x[X_EVENTS] += 1
                if op[o, LEFT] == 0:
                    ot[o, END] = now
                    done = o
            elif leaf < leaf_arrive:
                tree_set(tree, leaf, INF)
                mark(dirty_up, x, leaf - leaf_up)
            elif leaf == leaf_arrive:
                o = fifo_pop(rings, RING_ARRIVE, op, NEXT)
                tree_set(tree, leaf, ot[rings[RING_ARRIVE, 0], SCRATCH] if rings[RING_ARRIVE, 0] >= 0 else INF)
                expose = True
                if finite:
                    row = (op[o, NODE] * n_classes + templates[op[o, TEMPLATE], CLS]) * n_vcs + op[o, VC]
                    expose = channels[row, 0] < 0
                    fifo_push(channels, row, op, NEXT, o)
                if expose:
                    train_expose(o, op, templates, mem, out_queues, out_mask, nodes, dirty_down, x, n_classes)
            elif leaf < leaf_down + n_nodes:
                j = leaf - leaf_down
                tree_set(tree, leaf, INF)
                mark(dirty_down, x, j)
                entry = nodes[j, DOWN + S_EXTRA]
                nodes[j, DOWN + S_EXTRA] = IDLE
                if entry < 0:
                    o = -2 - entry
                    ot[o, DONE] = now + lat
                    if ring_push(rings, RING_RESULT_DELIVERED, op, NEXT2, ot, DONE, op, NODE, o):
                        tree_set(tree, leaf_rings + RING_RESULT_DELIVERED, now + lat)
                else:
                    o = mem[entry, B_OP]
                    t = op[o, TEMPLATE]
                    op[o, COPIES] -= 1
                    if op[o, COPIES] == 0 and finite:
                        i = op[o, NODE]
                        at = i * n_classes + templates[t, CLS]
                        row = at * n_vcs + op[o, VC]
                        fifo_pop(channels, row, op, NEXT)
                        if channels[row, 0] >= 0:
                            train_expose(
                                channels[row, 0], op, templates, mem, out_queues, out_mask, nodes,
                                dirty_down, x, n_classes,
                            )  # fmt: skip
                        ot[o, SCRATCH] = now + lat
                        fifo_push(credits, at, op, NEXT, o)
                        if nodes[i, UP + S_EXTRA] >= 0 and tree[(len(tree) >> 1) + leaf_credit + i] > now + lat:
                            tree_set(tree, leaf_credit + i, now + lat)
                    if templates[t, IS_PULL]:
                        mem_time[entry, B_TIME] = now + lat + m[M_RESPONDER]
                        k = RING_RESPOND
                    else:
                        mem_time[entry, B_TIME] = now + lat
                        k = RING_DELIVER
                        if mem[entry, B_FILL] < mem[entry + 1, B_FILL]:  # read ahead: DELIVER will fill this row
                            x[X_TOUCHED] = rows[fill_row[mem[entry, B_FILL]], R_LEFT]
                    if ring_push(rings, k, mem, B_LINK, mem_time, B_TIME, mem, B_NODE, entry):
                        tree_set(tree, leaf_rings + k, mem_time[entry, B_TIME])
            elif leaf == leaf_rings + RING_DELIVER:
                filled = fifo_pop(rings, RING_DELIVER, mem, B_LINK)
                head = rings[RING_DELIVER, 0]
                tree_set(tree, leaf, mem_time[head, B_TIME] if head >= 0 else INF)
                o = mem[filled, B_OP]
                w = op[o, WIRE]
                if shared:
                    memory_take(nodes, mem[filled, B_NODE], wires[w, W_PAYLOAD], m, now)
                server_debt(nodes, mem[filled, B_NODE], UP, wires[w, W_ACK_UP])
                op[o, LEFT] -= 1
                if op[o, LEFT] == 0:
                    server_debt(nodes, op[o, NODE], DOWN, wires[w, W_ACK_DOWN])
                    ot[o, DONE] = now + m[M_ACK]
                    if op[o, FLAGS] & ANY_FLAG == 0:
                        x[X_DONE] += 1  # nothing waits for this acknowledgement: it needs no event
                    elif ring_push(rings, RING_ACK, op, NEXT2, ot, DONE, op, NODE, o):
                        tree_set(tree, leaf_rings + RING_ACK, ot[o, DONE])
            elif leaf == leaf_rings + RING_RESPOND:
                k = fifo_pop(rings, RING_RESPOND, mem, B_LINK)
                head = rings[RING_RESPOND, 0]
                tree_set(tree, leaf, mem_time[head, B_TIME] if head >= 0 else INF)
                j = mem[k, B_NODE]
                c = templates[op[mem[k, B_OP], TEMPLATE], RESPONSE_CLS]
                hub_push(hub, j * n_classes + c, op, mem, -2 - k)
                nodes[j, UP + S_MASK] |= 1 << c
                if nodes[j, UP + S_FREE] <= now:
                    mark(dirty_up, x, j)
            elif leaf == leaf_rings + RING_RESULT:
                o = fifo_pop(rings, RING_RESULT, op, NEXT2)
                head = rings[RING_RESULT, 0]
                tree_set(tree, leaf, ot[head, DONE] if head >= 0 else INF)
                j = op[o, NODE]
                c = templates[op[o, TEMPLATE], RESPONSE_CLS]
                at = j * n_classes + c
                fifo_push(out_queues, at * n_sources + n_nodes, op, NEXT2, o)
                out_mask[at, n_nodes >> 5] |= 1 << (n_nodes & 31)
                nodes[j, DOWN + S_MASK] |= 1 << c
                if nodes[j, DOWN + S_FREE] <= now:
                    mark(dirty_down, x, j)
            elif leaf == leaf_rings + RING_RESULT_DELIVERED:
                o = fifo_pop(rings, RING_RESULT_DELIVERED, op, NEXT2)
                head = rings[RING_RESULT_DELIVERED, 0]
                tree_set(tree, leaf, ot[head, DONE] if head >= 0 else INF)
                if shared:
                    memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
                op[o, LEFT] -= 1
                if op[o, LEFT] == 0:
                    done = o
            elif leaf == leaf_rings + RING_LOCAL:
                k = fifo_pop(rings, RING_LOCAL, mem, B_LINK)
                head = rings[RING_LOCAL, 0]
                tree_set(tree, leaf, mem_time[head, B_TIME] if head >= 0 else INF)
                o = mem[k, B_OP]
                op[o, LEFT] -= 1
                if shared:
                    memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
                if not templates[op[o, TEMPLATE], IS_PULL]:
                    filled = k
                if op[o, LEFT] == 0:
                    if templates[op[o, TEMPLATE], IS_PULL] or op[o, ANSWERS] == 0:
                        done = o
                    else:
                        server_debt(nodes, op[o, NODE], DOWN, wires[op[o, WIRE], W_ACK_DOWN])
                        ot[o, DONE] = now + m[M_ACK]
                        if ring_push(rings, RING_ACK, op, NEXT2, ot, DONE, op, NODE, o):
                            tree_set(tree, leaf_rings + RING_ACK, ot[o, DONE])
            elif leaf == leaf_rings + RING_ACK:
                done = fifo_pop(rings, RING_ACK, op, NEXT2)
                head = rings[RING_ACK, 0]
                tree_set(tree, leaf, ot[head, DONE] if head >= 0 else INF)
            elif leaf == leaf_rings + RING_NOTIFY:
                t = fifo_pop(rings, RING_NOTIFY, tiles, T_NEXT)
                head = rings[RING_NOTIFY, 0]
                tree_set(tree, leaf, tile_times[head, TT_NOTIFY] if head >= 0 else INF)
                tile_touch(t, op, mem, tiles, slot_row, rows, x)
                for s in range(tiles[t, T_SLOT0], tiles[t, T_SLOT0] + tiles[t, T_ROWS]):
                    k = slot_row[s]
                    if k >= 0 and rows[k, R_NOTIFY] >= 0 and op[rows[k, R_NOTIFY], NODE] != tiles[t, T_NODE]:
                        op_release(
                            rows[k, R_NOTIFY], tiles[t, T_CAUSE], op, ot, templates, issuers, heap_keys, heap_ids,
                            dirty_issuers, x,
                        )  # fmt: skip
            else:
                tree_set(tree, leaf, INF)
                mark(dirty_up, x, leaf - leaf_credit)
            if filled >= 0:
                o = mem[filled, B_OP]
                n = wires[op[o, WIRE], W_PAYLOAD]
                for f in range(mem[filled, B_FILL], mem[filled + 1, B_FILL]):
                    t = row_fill(fill_row[f], n, rows, regions, slot_row, tiles, tile_times, x)
                    if t >= 0:
                        for e in range(tile_edge_ptr[t], tile_edge_ptr[t + 1]):
                            if tile_edge_kind[e] == HEAD_OP_ISSUE:
                                op_release(
                                    tile_edge[e], o, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x
                                )
                            else:
                                tile_notify(
                                    tile_edge[e], o, op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x,
                                    tiles, tile_times, slot_row, rows, nodes, rings, tree, leaf_rings, m,
                                )  # fmt: skip
            if done >= 0:
                ot[done, DONE] = now
                work_push(op, x, done)
            if x[X_WORK_HEAD] >= 0:
                work_drain(
                    op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x, tiles, tile_times, slot_row, rows,
                    nodes, rings, tree, leaf_rings, m, edge_ptr, edge_head_kind, edge_head, release_ptr,
                    release_sem, release_amount, sem_left, sem_issuer_ptr, sem_issuer,
                )  # fmt: skip
        # ---- grants ---------------------------------------------------------------------------------------------------------
        if x[X_DIRTY] == 0:
            if tree[1] == INF:
                return False
            now = tree[1]
            x[X_NOW] = now
            continue
        x[X_DIRTY] = 0
        for word in range(len(dirty_issuers)):
            low = -1
            while (dirty_issuers[word] & ~((2 << low) - 1 if low >= 0 else 0)) != 0:
                low = bit_lowest(dirty_issuers[word] & ~((2 << low) - 1 if low >= 0 else 0))
                dirty_issuers[word] &= ~(1 << low)
                i = (word << 5) + low
                while True:
                    o = issuer_take(
                        i, issuers, issuer_ops, heap_keys, heap_ids, op, ot, pools, hold_ptr, hold_sem, hold_amount,
                        sem_left, x,
                    )  # fmt: skip
                    if o < 0:
                        break
                    if issuers[i, I_POOL] >= 0:
                        if gang_start(
                            o, issuers[i, I_POOL], op, ot, templates, durations, task_bytes, pools, pool_keys, pool_ids, nodes, m, tree, x
                        ):
                            issuer_drop(i, issuers, heap_keys, heap_ids)
                    elif train_issue(
                        o, op, ot, templates, mem, mem_time, nodes, hub, dirty_up, rings, tree,
                        leaf_rings, m, x, n_classes,
                    ):  # fmt: skip
                        ot[o, DONE] = now
                        work_push(op, x, o)
                        x[X_DIRTY] = 1
        for word in range(len(dirty_up)):
            while dirty_up[word] != 0:
                low = bit_lowest(dirty_up[word])
                dirty_up[word] &= ~(1 << low)
                i = (word << 5) + low
                waiting = nodes[i, UP + S_MASK]
                if nodes[i, UP + S_FREE] > now or waiting == 0:
                    continue
                c = nodes[i, UP + S_CURSOR]
                chosen = -1
                v = 0
                wake = INF
                while waiting != 0:
                    c = bit_after(waiting, c)
                    waiting &= ~(1 << c)
                    at = i * n_classes + c
                    entry = hub[at, 0]
                    if entry < 0 or not finite:
                        chosen = c
                        break
                    credits_apply(at, credits, ot, op, wires, occupied, now)
                    v = vc_choose(at, occupied, wires[op[entry, WIRE], W_UP], m[M_VC_BYTES])
                    if v >= 0:
                        chosen = c
                        break
                    if credits[at, 0] >= 0 and ot[credits[at, 0], SCRATCH] < wake:
                        wake = ot[credits[at, 0], SCRATCH]
                if chosen < 0:
                    if nodes[i, UP + S_EXTRA] < 0:
                        nodes[i, UP + S_EXTRA] = now
                    tree_set(tree, leaf_credit + i, wake)
                    continue
                if nodes[i, UP + S_EXTRA] >= 0:
                    x[X_BLOCKED_PS] += now - nodes[i, UP + S_EXTRA]
                    nodes[i, UP + S_EXTRA] = -1
                    tree_set(tree, leaf_credit + i, INF)
                at = i * n_classes + chosen
                entry = hub[at, 0]
                hub_pop(hub, at, op, mem)
                if hub[at, 0] >= 0:  # read ahead: the next train's record has been out of cache since its issue
                    x[X_TOUCHED] = op[hub[at, 0], DEPS] + op[hub[at, 0], TOUCH_LINE_2] + mem[op[hub[at, 0], MEMBER], B_NODE]
                if hub[at, 0] == -1:
                    nodes[i, UP + S_MASK] &= ~(1 << chosen)
                nodes[i, UP + S_CURSOR] = chosen
                x[X_EVENTS] += 1
                if entry >= 0:
                    w = op[entry, WIRE]
                    end = server_grant(nodes, i, UP, now, wires[w, W_UP], rate)
                    ot[entry, START] = now
                    ot[entry, TAIL] = end + wires[w, W_STRIPE_UP]
                    ot[entry, END] = ot[entry, TAIL]
                    ot[entry, SCRATCH] = now + lat
                    op[entry, VC] = v
                    if shared and not templates[op[entry, TEMPLATE], IS_PULL]:
                        memory_take(nodes, i, wires[w, W_PAYLOAD], m, now)
                    if finite:
                        occupied[at, v] += wires[w, W_UP]
                    if ring_push(rings, RING_ARRIVE, op, NEXT, ot, SCRATCH, op, NODE, entry):
                        tree_set(tree, leaf_arrive, now + lat)
                else:
                    k = -2 - entry
                    o = mem[k, B_OP]
                    w = op[o, WIRE]
                    end = server_grant(nodes, i, UP, now, wires[w, W_RESPONSE], rate)
                    mem_time[k, B_TIME] = now
                    if shared:
                        memory_take(nodes, i, wires[w, W_PAYLOAD], m, now)
                    end_tail = end + wires[w, W_STRIPE_RESPONSE]
                    ot[o, END] = max(ot[o, END], end_tail)
                    op[o, ANSWERS] -= 1
                    x[X_EVENTS] += 1
                    if op[o, ANSWERS] == 0:
                        ot[o, DONE] = now + lat
                        if ring_push(rings, RING_RESULT, op, NEXT2, ot, DONE, op, NODE, o):
                            tree_set(tree, leaf_rings + RING_RESULT, now + lat)
                tree_set(tree, leaf_up + i, end)
        for word in range(len(dirty_down)):
            while dirty_down[word] != 0:
                low = bit_lowest(dirty_down[word])
                dirty_down[word] &= ~(1 << low)
                j = (word << 5) + low
                if nodes[j, DOWN + S_FREE] > now or nodes[j, DOWN + S_MASK] == 0:
                    continue
                c = bit_after(nodes[j, DOWN + S_MASK], nodes[j, DOWN + S_CURSOR])
                nodes[j, DOWN + S_CURSOR] = c
                at = j * n_classes + c
                s = set_after(out_mask, at, out_cursor[at])
                out_cursor[at] = s
                x[X_EVENTS] += 1
                if s == n_nodes:
                    o = fifo_pop(out_queues, at * n_sources + s, op, NEXT2)
                    wire = wires[op[o, WIRE], W_RESULT]
                    bound = ot[o, END] + lat
                    nodes[j, DOWN + S_EXTRA] = -2 - o
                else:
                    k = fifo_pop(out_queues, at * n_sources + s, mem, B_LINK)
                    o = mem[k, B_OP]
                    wire = wires[op[o, WIRE], W_DOWN] + mem[k, B_EXT]
                    bound = ot[o, TAIL] + lat
                    nodes[j, DOWN + S_EXTRA] = k
                if out_queues[at * n_sources + s, 0] < 0:
                    out_mask[at, s >> 5] &= ~(1 << (s & 31))
                    empty = True
                    for k in range(out_mask.shape[1]):
                        if out_mask[at, k] != 0:
                            empty = False
                    if empty:
                        nodes[j, DOWN + S_MASK] &= ~(1 << c)
                end = server_grant(nodes, j, DOWN, now, wire, rate)
                end = server_hold(nodes, j, DOWN, end, bound)
                tree_set(tree, leaf_down + j, end)
    return True


