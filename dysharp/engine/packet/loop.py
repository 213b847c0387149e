"""The event loop of the packet level: one event per packet and hop (docs/design/0006), ops as at burst level over the same blocks.

One function for the same reason as at burst level; it stops after `budget` events, or when its tables have to grow, and is called again.
"""

from dysharp.uarch.bits import bit_lowest
from dysharp.uarch.columns import (
    B_FILL,
    B_LINK,
    B_NODE,
    B_OP,
    B_TIME,
    COPIES,
    DONE,
    END,
    G_NODE,
    I_POOL,
    INF,
    IS_PULL,
    LEFT,
    M_CLASSES,
    M_MEMORY,
    N_RINGS,
    NODE,
    P_BASE,
    P_FREE,
    P_SIZE,
    R_REGION,
    RESPONSE_CLS,
    RING_LOCAL,
    RING_NOTIFY,
    S_MASK,
    T_NEXT,
    TEMPLATE,
    TT_NOTIFY,
    UP,
    W_PAYLOAD,
    WIRE,
    X_DIRTY,
    X_EVENTS,
    X_NOW,
    X_WORK_HEAD,
)
from dysharp.uarch.fifo import fifo_pop
from dysharp.uarch.heap import heap_pop
from dysharp.uarch.issue import BATCH_BITS, gang_start, issuer_drop, issuer_take, train_issue
from dysharp.uarch.kernel import kernel
from dysharp.uarch.memory import memory_take
from dysharp.uarch.packet.columns import (
    ACK,
    ACKPART,
    BYPASS,
    C_AL,
    C_CLASSES,
    C_EXT,
    C_FILLS,
    C_LAT,
    C_LEAF,
    C_LINKS,
    C_MARGIN,
    C_PORTS,
    C_ROWS,
    C_SIZES,
    C_SLOTS,
    C_TOTAL,
    C_VC_FLITS,
    CONTRIB,
    DATA,
    FR_AL,
    FR_CREDIT,
    FR_CYCLE,
    FR_DELIVER,
    FR_FIXED,
    FR_RESPOND,
    GROW,
    LK_FREE,
    LK_MASK,
    LK_NODE,
    MACK,
    MCOPY,
    NOTE,
    OC_DUE,
    OC_FREE,
    OC_NEXT,
    PARTIAL,
    PK_ACKS,
    PK_CHUNK,
    PK_FLITS,
    PK_KIND,
    PK_LEFT,
    PK_LINK,
    PK_MEMBER,
    PK_NEXT,
    PK_NEXT2,
    PK_OFLITS,
    PK_OP,
    PK_OUT,
    PK_PARENT,
    PK_VC,
    PT_DUE,
    PW_ACK,
    PW_DOWN_H,
    PW_DYNAMIC,
    PW_PACKETS,
    RCOPY,
    REQ,
    RESP,
    RESULT,
    RUNNING,
    X_CREDIT_READ,
    X_CREDITS,
    X_FREE,
    X_OUT,
    X_STATUS,
)
from dysharp.uarch.packet.hub import egress_put, hub_answer, hub_enter, hub_lookup, ingress_leave, request_take
from dysharp.uarch.packet.links import (
    credit_put,
    credits_take,
    dirty_mark,
    dirty_take,
    has_lane,
    lane_back,
    line_next,
    links_free,
    out_ask,
    out_begin,
    out_leave,
    out_pick,
    ring_put,
    slot_free,
)
from dysharp.uarch.packet.ops import B_LEFT, accept_put, link_grant, member_done, notes_make, part_done, transfer_begin
from dysharp.uarch.packet.switch import data_flits, packet_expose, session_end, sessions_look, unit_take
from dysharp.uarch.ready import mark, op_release, work_drain, work_push
from dysharp.uarch.region import row_fill
from dysharp.uarch.tree import tree_first, tree_set


@kernel
def run_events(
    budget, op, ot, templates, wires, durations, task_bytes,
    mem, mem_time, fill_row,
    rows, regions, slot_row, tiles, tile_times, tile_edge_ptr, tile_edge_kind, tile_edge,
    edge_ptr, edge_head_kind, edge_head,
    hold_ptr, hold_sem, hold_amount, release_ptr, release_sem, release_amount, sem_left, sem_issuer_ptr, sem_issuer,
    issuers, issuer_ops, heap_keys, heap_ids, pools, pool_keys, pool_ids, pool_issuer_ptr, pool_issuer,
    nodes, hub, rings, tree, dirty_issuers, dirty_nodes, m, x,
    pk, pt, pq, pool, sessions, idle, waiters, lk, plane_links, eq, cut, occ, vcq, oq, om, oc, im, held, rq, stalled, ports, keys, hubs, al,
    next_free, mmq, node_wake, stripes, cr_due, cr_what, fr, du, do, pw, groups, dur, accepted, out, flits_by_kind, c, st,
):  # fmt: skip
    """Run until `budget` more events have been counted, nothing is pending or a table has to grow. Returns True while there is more to do."""
    n_pools = pools.shape[0]
    n_classes = c[C_CLASSES]
    n_links = c[C_LINKS]
    total = c[C_TOTAL]
    n_ports = c[C_PORTS]
    leaf_rings = n_pools
    leaf_wake = n_pools + N_RINGS
    leaf_fabric = c[C_LEAF]
    ring_up = FR_FIXED
    ring_arrive = FR_FIXED + c[C_SIZES]
    ring_out = ring_arrive + c[C_EXT]
    ring_line = ring_out + c[C_SIZES]
    lat = c[C_LAT]
    shared = m[M_MEMORY] > 0
    stop = x[X_EVENTS] + budget
    now = x[X_NOW]
    x[X_STATUS] = RUNNING
    while x[X_EVENTS] < stop:
        if x[X_WORK_HEAD] >= 0:
            work_drain(
                op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x, tiles, tile_times, slot_row, rows, nodes,
                rings, tree, leaf_rings, m, edge_ptr, edge_head_kind, edge_head, release_ptr, release_sem,
                release_amount, sem_left, sem_issuer_ptr, sem_issuer,
            )  # fmt: skip
        # ---- releases -------------------------------------------------------------------------------------------------------
        while tree[1] == now or accepted[0] >= 0:
            if x[X_FREE] < c[C_MARGIN] or len(cr_due) - (x[X_CREDITS] - x[X_CREDIT_READ]) < c[C_MARGIN]:
                x[X_STATUS] = GROW
                return True
            leaf = tree_first(tree) if tree[1] == now else -1
            r = leaf - leaf_fabric
            if leaf < 0:
                pass
            elif leaf < n_pools:
                base = pools[leaf, P_BASE]
                batch = pool_ids[base]
                heap_pop(pool_keys, pool_ids, base, pools[leaf, P_SIZE])
                pools[leaf, P_SIZE] -= 1
                tree_set(tree, leaf, pool_keys[base] if pools[leaf, P_SIZE] > 0 else INF)
                o = batch >> BATCH_BITS
                n = batch & ((1 << BATCH_BITS) - 1)
                pools[leaf, P_FREE] += n
                for k in range(pool_issuer_ptr[leaf], pool_issuer_ptr[leaf + 1]):
                    mark(dirty_issuers, x, pool_issuer[k])
                op[o, LEFT] -= n
                x[X_EVENTS] += 1
                if op[o, LEFT] == 0:
                    ot[o, END] = now
                    ot[o, DONE] = now
                    work_push(op, x, o)
            elif leaf < leaf_wake:
                if leaf == leaf_rings + RING_LOCAL:
                    k = fifo_pop(rings, RING_LOCAL, mem, B_LINK)
                    head = rings[RING_LOCAL, 0]
                    tree_set(tree, leaf, mem_time[head, B_TIME] if head >= 0 else INF)
                    o = mem[k, B_OP]
                    x[X_EVENTS] += 1
                    if shared:
                        memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
                    if not templates[op[o, TEMPLATE], IS_PULL]:
                        member_done(
                            k, op, ot, mem, mem_time, fill_row, templates, wires, issuers, heap_keys, heap_ids, dirty_issuers, x, rows,
                            regions, slot_row, tiles, tile_times, tile_edge_ptr, tile_edge_kind, tile_edge, nodes, rings, tree,
                            leaf_rings, m,
                        )  # fmt: skip
                    part_done(o, now, op, ot, x)
                else:  # a tile's notifications leave (Machine.notify is zero here: they travel as packets)
                    t = fifo_pop(rings, RING_NOTIFY, tiles, T_NEXT)
                    head = rings[RING_NOTIFY, 0]
                    tree_set(tree, leaf, tile_times[head, TT_NOTIFY] if head >= 0 else INF)
                    notes_make(t, op, ot, tiles, slot_row, rows, pk, lk, eq, pool, du, c, x)
            elif leaf < leaf_fabric:
                tree_set(tree, leaf, INF)
                node = leaf - leaf_wake
                node_wake[node] = INF
                for i in range(node * n_links, (node + 1) * n_links):
                    if lk[i, LK_FREE] == 1 and lk[i, LK_MASK] != 0:
                        dirty_mark(du, i)
            elif r >= ring_line:
                o = fr[r, 0]
                while o >= 0 and oc[o, OC_DUE] == now:
                    fr[r, 0] = oc[o, OC_NEXT]
                    p = line_next(o, now, pk, pq, oc, fr, tree, dur, c)
                    x[X_EVENTS] += 1
                    flits_by_kind[1, pk[p, PK_KIND]] += pk[p, PK_OFLITS]
                    ring_put(FR_DELIVER, p, now + lat, PK_NEXT, pk, pt, fr, tree, c)
                    o = fr[r, 0]
                tree_set(tree, leaf, oc[o, OC_DUE] if o >= 0 else INF)
            elif r >= ring_out:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    following = pk[p, PK_NEXT2]
                    kind = pk[p, PK_KIND]
                    x[X_EVENTS] += 1
                    o = pk[p, PK_OUT] + (total if kind == CONTRIB or kind == ACKPART else 0)
                    oc[o, OC_FREE] += 1
                    dirty_mark(do, o)
                    if kind < MACK or kind == BYPASS or kind >= NOTE:  # it came through an input port
                        i = pk[p, PK_LINK]
                        if has_lane(p, pk):
                            lane_back(i, lk, plane_links, im, do, c)
                        parent = pk[p, PK_PARENT] if kind == MCOPY or kind == RCOPY else p
                        pk[parent, PK_LEFT] -= 1
                        if pk[parent, PK_LEFT] == 0 and c[C_VC_FLITS] > 0:
                            vc = pk[parent, PK_VC]
                            row = i * occ.shape[1] + vc
                            vcq[row, 0] = pk[parent, PK_NEXT]
                            credit_put(i, vc, pk[parent, PK_FLITS], now + lat, cr_due, cr_what, fr, tree, c, x)
                            if vcq[row, 0] >= 0:
                                packet_expose(
                                    vcq[row, 0], pk, pt, op, mem, pw, lk, oq, om, oc, im, do, sessions, ports, c[C_SLOTS], pool, c, x, st,
                                    idle, fr, tree,
                                )  # fmt: skip
                    fr[r, 0] = following
                    if o >= total:
                        slot_free(p, pool, x)
                    p = following
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r >= ring_arrive:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    pk[p, PK_NEXT] = -1
                    x[X_EVENTS] += 1
                    flits_by_kind[0, pk[p, PK_KIND]] += pk[p, PK_FLITS]
                    expose = True
                    if c[C_VC_FLITS] > 0:
                        row = pk[p, PK_LINK] * occ.shape[1] + pk[p, PK_VC]
                        expose = vcq[row, 0] < 0
                        if expose:
                            vcq[row, 0] = p
                        else:
                            pk[vcq[row, 1], PK_NEXT] = p
                        vcq[row, 1] = p
                    if expose:
                        packet_expose(
                            p, pk, pt, op, mem, pw, lk, oq, om, oc, im, do, sessions, ports, c[C_SLOTS], pool, c, x, st, idle, fr, tree,
                        )  # fmt: skip
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r >= ring_up:
                links_free(r, leaf, now, lk, du, fr, tree)
            elif r == FR_CREDIT:
                credits_take(now, cr_due, cr_what, lk, occ, du, tree, c, x)
            elif r == FR_CYCLE:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    out_ask(pk[p, PK_OUT], p, n_ports, pk, lk, oq, om, oc, im, do, c)
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r == FR_DELIVER:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    x[X_EVENTS] += 1
                    kind = pk[p, PK_KIND]
                    go = True
                    if c[C_AL] > 0 and (kind == MCOPY or kind == RCOPY) and pw[op[pk[p, PK_OP], WIRE], PW_DYNAMIC]:
                        go = hub_enter(
                            p, pk[p, PK_OUT] // n_links, pk, mem, fill_row, keys, hubs, waiters, al, stalled, fr, tree, c, x, st
                        )
                    if go:
                        accept_put(p, pk, accepted)
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r == FR_AL:
                key = fr[r, 0]
                while key >= 0 and al[key, 1] == now:
                    fr[r, 0] = al[key, 0]
                    x[X_EVENTS] += 1
                    node = regions[rows[key, R_REGION], G_NODE]
                    if hub_answer(key, rows[key, R_REGION], node, c[C_ROWS], keys, hubs, waiters, next_free, out, x, st):
                        row_fill(key, 0, rows, regions, slot_row, tiles, tile_times, x)
                    k = out[0]
                    while k >= 0:
                        p = k // c[C_FILLS]
                        k = waiters[k, 0]
                        pk[p, PK_ACKS] -= 1
                        if pk[p, PK_ACKS] == 0:
                            accept_put(p, pk, accepted)
                    while stalled[node, 0] >= 0:
                        p = stalled[node, 0]
                        if not hub_lookup(p, node, pk, mem, fill_row, keys, hubs, waiters, al, fr, tree, c, x, st):
                            break
                        stalled[node, 0] = pk[p, PK_NEXT]
                        if pk[p, PK_ACKS] == 0:
                            accept_put(p, pk, accepted)
                    key = fr[r, 0]
                tree_set(tree, leaf, al[key, 1] if key >= 0 else INF)
            elif r == FR_RESPOND:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    x[X_EVENTS] += 1
                    o = pk[p, PK_OP]
                    pk[p, PK_KIND] = RESP if pk[p, PK_KIND] == REQ else CONTRIB
                    pk[p, PK_FLITS] = pw[op[o, WIRE], PW_DOWN_H] + data_flits(pw, op[o, WIRE], pk[p, PK_CHUNK])
                    i = pk[p, PK_OUT]
                    if shared and pk[p, PK_CHUNK] == 0:
                        memory_take(nodes, i // n_links, wires[op[o, WIRE], W_PAYLOAD], m, now)
                    pk[p, PK_OUT] = pk[p, PK_LINK]
                    egress_put(i, n_classes + templates[op[o, TEMPLATE], RESPONSE_CLS], p, pk, lk, eq, du, c)
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            else:  # FR_TIMEOUT
                sessions_look(now, pk, op, pw, lk, oq, om, oc, im, do, sessions, ports, pool, idle, fr, tree, c, x, st)
            # what goes on from an ingress buffer
            while accepted[0] >= 0:
                p = accepted[0]
                accepted[0] = pk[p, PK_NEXT2]
                kind = pk[p, PK_KIND]
                if kind == REQ or kind == RCOPY:
                    request_take(p, pk, pt, lk, oc, held, rq, do, fr, tree, c, x, st)
                    continue
                ingress_leave(p, pk, oc, held, do, c)
                o = pk[p, PK_OP]
                if kind == DATA or kind == MCOPY:
                    k = pk[p, PK_MEMBER]
                    w = op[o, WIRE]
                    if mem[k, B_LEFT] == pw[w, PW_PACKETS]:
                        for f in range(mem[k, B_FILL], mem[k + 1, B_FILL]):
                            row_fill(fill_row[f], 0, rows, regions, slot_row, tiles, tile_times, x)
                    mem[k, B_LEFT] -= 1
                    if mem[k, B_LEFT] == 0:
                        mem_time[k, B_TIME] = now
                        if shared:
                            memory_take(nodes, mem[k, B_NODE], wires[w, W_PAYLOAD], m, now)
                        member_done(
                            k, op, ot, mem, mem_time, fill_row, templates, wires, issuers, heap_keys, heap_ids, dirty_issuers, x, rows,
                            regions, slot_row, tiles, tile_times, tile_edge_ptr, tile_edge_kind, tile_edge, nodes, rings, tree,
                            leaf_rings, m,
                        )  # fmt: skip
                    pk[p, PK_KIND] = ACK if kind == DATA else ACKPART
                    pk[p, PK_FLITS] = pw[w, PW_ACK]
                    i = pk[p, PK_OUT]
                    pk[p, PK_OUT] = pk[p, PK_LINK]
                    egress_put(i, 2 * n_classes, p, pk, lk, eq, du, c)
                elif kind == NOTE:
                    op_release(o, pk[p, PK_MEMBER], op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)
                    slot_free(p, pool, x)
                elif kind == ACK or kind == MACK or kind == RESP:
                    part_done(o, now, op, ot, x)
                    if shared and kind == RESP and op[o, LEFT] == 0:
                        memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
                    slot_free(p, pool, x)
                else:  # RESULT, PARTIAL, BYPASS
                    parent = pk[p, PK_PARENT]
                    pk[parent, PK_ACKS] -= pk[p, PK_MEMBER] if kind == RESULT else pk[p, PK_ACKS] if kind == PARTIAL else 1
                    if kind != RESULT:
                        slot_free(p, pool, x)
                    if pk[parent, PK_ACKS] == 0:
                        part_done(o, now, op, ot, x)
                        if shared and op[o, LEFT] == 0:
                            memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
                        session_end(parent, pool, idle, c, x)
            if x[X_WORK_HEAD] >= 0:
                work_drain(
                    op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x, tiles, tile_times, slot_row, rows,
                    nodes, rings, tree, leaf_rings, m, edge_ptr, edge_head_kind, edge_head, release_ptr,
                    release_sem, release_amount, sem_left, sem_issuer_ptr, sem_issuer,
                )  # fmt: skip
        # ---- grants ---------------------------------------------------------------------------------------------------------
        if x[X_DIRTY] == 0 and du[0] == 0 and do[0] == 0:
            if tree[1] == INF:
                return False
            now = tree[1]
            x[X_NOW] = now
            continue
        if x[X_FREE] < c[C_MARGIN]:
            x[X_STATUS] = GROW
            return True
        if x[X_DIRTY] != 0:
            x[X_DIRTY] = 0
            for word in range(len(dirty_issuers)):
                low = -1
                while (dirty_issuers[word] & ~((2 << low) - 1 if low >= 0 else 0)) != 0:
                    low = bit_lowest(dirty_issuers[word] & ~((2 << low) - 1 if low >= 0 else 0))
                    dirty_issuers[word] &= ~(1 << low)
                    i = (word << 5) + low
                    while True:
                        o = issuer_take(
                            i, issuers, issuer_ops, heap_keys, heap_ids, op, ot, pools, hold_ptr, hold_sem, hold_amount, sem_left, x,
                        )  # fmt: skip
                        if o < 0:
                            break
                        if issuers[i, I_POOL] >= 0:
                            if gang_start(
                                o, issuers[i, I_POOL], op, ot, templates, durations, task_bytes, pools, pool_keys, pool_ids, nodes, m, tree, x
                            ):
                                issuer_drop(i, issuers, heap_keys, heap_ids)
                        elif train_issue(
                            o, op, ot, templates, mem, mem_time, nodes, hub, dirty_nodes, rings, tree, leaf_rings, m, x, m[M_CLASSES],
                        ):  # fmt: skip
                            ot[o, DONE] = now
                            work_push(op, x, o)
                            x[X_DIRTY] = 1
                        elif op[o, COPIES] > 0:
                            transfer_begin(o, templates[op[o, TEMPLATE], IS_PULL], op, pw, stripes, c)
                            if shared and not templates[op[o, TEMPLATE], IS_PULL]:
                                memory_take(nodes, op[o, NODE], wires[op[o, WIRE], W_PAYLOAD], m, now)
            for word in range(len(dirty_nodes)):
                while dirty_nodes[word] != 0:
                    low = bit_lowest(dirty_nodes[word])
                    dirty_nodes[word] &= ~(1 << low)
                    node = (word << 5) + low
                    for i in range(node * n_links, (node + 1) * n_links):
                        lk[i, LK_MASK] |= nodes[node, UP + S_MASK]
                        if lk[i, LK_FREE] == 1:
                            dirty_mark(du, i)
                    nodes[node, UP + S_MASK] = 0
        while du[0] != 0:
            i = dirty_take(du)
            if lk[i, LK_FREE] == 1 and lk[i, LK_MASK] != 0:
                link_grant(
                    i, now, op, ot, templates, mem_time, hub, cut, pw, groups, pk, pt, pool, lk, eq, occ, fr, tree, rq, accepted, mmq,
                    node_wake, dur, c, x, st,
                )  # fmt: skip
                node = lk[i, LK_NODE]
                if node_wake[node] < tree[(len(tree) >> 1) + leaf_wake + node]:
                    tree_set(tree, leaf_wake + node, node_wake[node])
        while do[0] != 0:
            o = dirty_take(do)
            while oc[o, OC_FREE] > 0:
                p = out_pick(o, now, pk, pt, lk, oq, om, oc, held, c, x, st)
                if p < 0:
                    break
                s = x[X_OUT]
                out_leave(o, p, s, pk, lk, oq, om, im, c)
                if o >= total and not unit_take(
                    p, pk, pt, op, pw, lk, oq, om, oc, im, do, sessions, ports, c[C_SLOTS], c, x, st, fr, tree
                ):
                    pk[p, PK_KIND] = BYPASS
                    out_ask(o - total, p, s, pk, lk, oq, om, oc, im, do, c)
                    continue
                out_begin(o, p, s, now, pk, pt, pq, lk, oc, held, fr, tree, dur, c)
    return True
