"""The packet fabric under synthetic traffic: sources with infinite queues, sinks that take everything, the same links and switch."""

from dysharp.uarch.columns import INF, X_NOW
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    C_CYCLE,
    C_EXT,
    C_LAT,
    C_LEAF,
    C_SIZES,
    C_TAIL,
    FR_CREDIT,
    FR_CYCLE,
    FR_DELIVER,
    FR_FIXED,
    LK_FREE,
    LK_MASK,
    LK_S,
    OC_DUE,
    OC_FREE,
    OC_NEXT,
    PK_FLITS,
    PK_KIND,
    PK_LINK,
    PK_NEXT,
    PK_NEXT2,
    PK_OFLITS,
    PK_OP,
    PK_OUT,
    PK_VC,
    PLAIN,
    PT_DUE,
    X_OUT,
)
from dysharp.uarch.packet.links import (
    credit_put,
    credits_take,
    dirty_mark,
    dirty_take,
    lane_back,
    line_next,
    link_blocked,
    link_send,
    links_free,
    out_ask,
    out_begin,
    out_leave,
    out_pick,
    ring_put,
    slot_free,
    slot_take,
    vc_find,
)
from dysharp.uarch.tree import tree_first, tree_set

B_CREATED, B_SOURCE, B_DEST, B_NEXT = range(4)  # columns of `born` [n_packets, 4]
Q_HEAD, Q_TAIL = range(2)
# statistics of the open loop
(
    SO_PACKETS, SO_LATENCY, SO_MIN, SO_MAX, SO_NETWORK, SO_FLITS, SO_ACCEPTED, SO_FROM, SO_TO, SO_LEFT, SO_NEXT, SO_SQUARE,
) = range(12)  # fmt: skip


@block
def source_send(i, now, late, born, queues, pk, pt, pool, lk, occ, fr, tree, dur, c, x, st, so):
    """Source i sends the packet at the head of its queue if a VC has room for it."""
    e = queues[i, Q_HEAD]
    flits = so[SO_FLITS]
    vc = vc_find(i, 0, flits, occ, c)
    if vc < 0:
        link_blocked(i, lk, x, st)
    else:
        queues[i, Q_HEAD] = born[e, B_NEXT]
        if queues[i, Q_HEAD] < 0:
            lk[i, LK_MASK] = 0
        p = slot_take(pool, x)
        pk[p, PK_KIND] = PLAIN
        pk[p, PK_OP] = e
        pk[p, PK_FLITS] = flits
        pk[p, PK_OFLITS] = flits
        pk[p, PK_OUT] = born[e, B_DEST]
        link_send(i, 0, p, vc, 0, late, dur[flits], pk, pt, lk, occ, fr, tree, dur, c, x)


@kernel
def open_run(
    until, late, born, queues, pk, pt, pq, pool, lk, plane_links, occ, vcq, oq, om, oc, im, held, cr_due, cr_what, fr, tree, du, do, dur, c, x,
    st, so, accepted,
):  # fmt: skip
    """Run to time `until`, or until every packet created in [SO_FROM, SO_TO) has arrived. Returns the events handled."""
    ring_up = FR_FIXED
    ring_arrive = FR_FIXED + c[C_SIZES]
    ring_out = ring_arrive + c[C_EXT]
    ring_line = ring_out + c[C_SIZES]
    tail = c[C_TAIL]
    now = x[X_NOW]
    events = 0
    n_born = born.shape[0]
    flits = so[SO_FLITS]
    while now < until and so[SO_LEFT] > 0:
        while tree[1] == now:
            leaf = tree_first(tree)
            r = leaf - c[C_LEAF]
            if r < 0:  # packets are created
                e = so[SO_NEXT]
                while e < n_born and born[e, B_CREATED] == now:
                    i = born[e, B_SOURCE]
                    born[e, B_NEXT] = -1
                    if queues[i, Q_HEAD] < 0:
                        queues[i, Q_HEAD] = e
                        lk[i, LK_MASK] = 1
                        if lk[i, LK_FREE] == 1:
                            dirty_mark(du, i)
                    else:
                        born[queues[i, Q_TAIL], B_NEXT] = e
                    queues[i, Q_TAIL] = e
                    e += 1
                so[SO_NEXT] = e
                tree_set(tree, leaf, born[e, B_CREATED] if e < n_born else INF)
            elif r >= ring_line:
                o = fr[r, 0]
                while o >= 0 and oc[o, OC_DUE] == now:
                    fr[r, 0] = oc[o, OC_NEXT]
                    p = line_next(o, now, pk, pq, oc, fr, tree, dur, c)
                    ring_put(FR_DELIVER, p, now + tail, PK_NEXT, pk, pt, fr, tree, c)
                    o = fr[r, 0]
                tree_set(tree, leaf, oc[o, OC_DUE] if o >= 0 else INF)
            elif r >= ring_out:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    following = pk[p, PK_NEXT2]
                    events += 1
                    o = pk[p, PK_OUT]
                    oc[o, OC_FREE] += 1
                    dirty_mark(do, o)
                    i = pk[p, PK_LINK]
                    lane_back(i, lk, plane_links, im, do, c)
                    row = i * occ.shape[1] + pk[p, PK_VC]
                    vcq[row, 0] = pk[p, PK_NEXT]
                    credit_put(i, pk[p, PK_VC], flits, now + c[C_LAT], cr_due, cr_what, fr, tree, c, x)
                    if vcq[row, 0] >= 0 and c[C_CYCLE] > 0:
                        ring_put(FR_CYCLE, vcq[row, 0], now + c[C_CYCLE], PK_NEXT2, pk, pt, fr, tree, c)
                    elif vcq[row, 0] >= 0:
                        out_ask(pk[vcq[row, 0], PK_OUT], vcq[row, 0], lk[i, LK_S], pk, lk, oq, om, oc, im, do, c)
                    fr[r, 0] = following
                    p = following
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r >= ring_arrive:
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    pk[p, PK_NEXT] = -1
                    events += 1
                    i = pk[p, PK_LINK]
                    row = i * occ.shape[1] + pk[p, PK_VC]
                    if vcq[row, 0] < 0:
                        vcq[row, 0] = p
                        out_ask(pk[p, PK_OUT], p, lk[i, LK_S], pk, lk, oq, om, oc, im, do, c)
                    else:
                        pk[vcq[row, 1], PK_NEXT] = p
                    vcq[row, 1] = p
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r >= ring_up:
                links_free(r, leaf, now, lk, du, fr, tree)
            elif r == FR_CYCLE:  # packets that came to the head of their VC are allocated
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT2]
                    out_ask(pk[p, PK_OUT], p, lk[pk[p, PK_LINK], LK_S], pk, lk, oq, om, oc, im, do, c)
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
            elif r == FR_CREDIT:
                credits_take(now, cr_due, cr_what, lk, occ, du, tree, c, x)
            else:  # FR_DELIVER: the tail is there
                p = fr[r, 0]
                while p >= 0 and pt[p, PT_DUE] == now:
                    fr[r, 0] = pk[p, PK_NEXT]
                    events += 1
                    o = pk[p, PK_OUT]
                    held[o, 0] -= flits
                    accepted[o] += flits if so[SO_FROM] <= now < so[SO_TO] else 0
                    t = born[pk[p, PK_OP], B_CREATED]
                    if so[SO_FROM] <= t < so[SO_TO]:
                        so[SO_PACKETS] += 1
                        so[SO_LATENCY] += now - t
                        so[SO_MIN] = min(so[SO_MIN], now - t)
                        so[SO_MAX] = max(so[SO_MAX], now - t)
                        so[SO_LEFT] -= 1
                    so[SO_ACCEPTED] += 1
                    slot_free(p, pool, x)
                    p = fr[r, 0]
                tree_set(tree, leaf, pt[p, PT_DUE] if p >= 0 else INF)
        while du[0] != 0:
            i = dirty_take(du)
            if lk[i, LK_FREE] == 1 and lk[i, LK_MASK] != 0:
                source_send(i, now, late, born, queues, pk, pt, pool, lk, occ, fr, tree, dur, c, x, st, so)
        while do[0] != 0:
            o = dirty_take(do)
            while oc[o, OC_FREE] > 0:
                p = out_pick(o, now, pk, pt, lk, oq, om, oc, held, c, x, st)
                if p < 0:
                    break
                out_leave(o, p, x[X_OUT], pk, lk, oq, om, im, c)
                out_begin(o, p, x[X_OUT], now, pk, pt, pq, lk, oc, held, fr, tree, dur, c)
        now = tree[1]
        if now == INF:
            break
        x[X_NOW] = now
    return events
