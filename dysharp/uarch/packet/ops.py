"""Between ops and packets: where an op's packets go, which of them a link sends next, what is done when they have arrived (docs/design/0006)."""

from dysharp.uarch.columns import (
    B_FILL,
    B_OP,
    B_TIME,
    COPIES,
    DONE,
    END,
    IS_PULL,
    KEY,
    KIND,
    LEFT,
    NODE,
    R_NOTIFY,
    START,
    T_CAUSE,
    T_NODE,
    T_ROWS,
    T_SLOT0,
    TEMPLATE,
    W_PAYLOAD,
    WIRE,
    X_NOW,
)
from dysharp.uarch.flit.router import pick
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    C_CLASSES,
    C_CYCLE,
    C_EXT,
    C_FETCH,
    C_LAT,
    C_LINKS,
    C_NOTE_FLITS,
    C_QUEUE,
    C_STRIPE,
    CONTRIB,
    DATA,
    LK_ANSWERS,
    LK_CURSOR,
    LK_FETCH,
    LK_MASK,
    LK_NODE,
    LK_PS_FETCH,
    MDATA,
    MREQ,
    NOTE,
    PK_CHUNK,
    PK_FLITS,
    PK_KIND,
    PK_MEMBER,
    PK_NEXT,
    PK_NEXT2,
    PK_OP,
    PK_OUT,
    PW_DOWN_H,
    PW_DYNAMIC,
    PW_PACKETS,
    PW_UP_H,
    REQ,
    RESP,
    ST_FETCH_WAITS,
    ST_FETCHES,
    STRIPE_EVEN,
    STRIPE_ROTATING,
    X_NOTES,
    X_PACKETS,
)
from dysharp.uarch.packet.hub import OP_START, OP_UNSENT, chunk_from, cut_find, egress_put
from dysharp.uarch.packet.links import link_blocked, link_send, slot_take, vc_find
from dysharp.uarch.packet.switch import data_flits, mix
from dysharp.uarch.ready import HEAD_OP_ISSUE, op_release, tile_notify, work_push
from dysharp.uarch.region import row_fill

KIND_MULTICAST, KIND_PULL_REDUCE = 5, 7
B_LEFT = 5  # free column of a member's record: packets that have not arrived


@kernel
def transfer_begin(o, is_pull, op, pw, stripes, c):
    """A transfer with members elsewhere has entered its hub: where its packets go, and what is left until it is done."""
    n = pw[op[o, WIRE], PW_PACKETS]
    op[o, OP_UNSENT] = n
    # at burst level a pull waits for one result and a push for every remote delivery; here both wait for their packets
    op[o, LEFT] += n - (1 if is_pull else op[o, COPIES])
    node = op[o, NODE]
    if c[C_STRIPE] == STRIPE_EVEN:
        op[o, OP_START] = stripes[node]
        stripes[node] = (stripes[node] + n) % c[C_LINKS]
    elif c[C_STRIPE] == STRIPE_ROTATING:
        op[o, OP_START] = mix(op[o, KEY] if op[o, KEY] >= 0 else o, 0) % c[C_LINKS]
    else:
        op[o, OP_START] = op[o, KEY] if op[o, KEY] >= 0 else o


@kernel
def notes_make(t, op, ot, tiles, slot_row, rows, pk, lk, eq, pool, du, c, x):
    """Tile t tells the owners of its rows on other nodes: one packet each."""
    node = tiles[t, T_NODE]
    for s in range(tiles[t, T_SLOT0], tiles[t, T_SLOT0] + tiles[t, T_ROWS]):
        row = slot_row[s]
        if row < 0 or rows[row, R_NOTIFY] < 0:
            continue
        o = rows[row, R_NOTIFY]
        if op[o, NODE] == node:
            continue
        p = slot_take(pool, x)
        link = mix(row, 1) % c[C_LINKS]
        pk[p, PK_KIND] = NOTE
        pk[p, PK_OP] = o
        pk[p, PK_MEMBER] = tiles[t, T_CAUSE]
        pk[p, PK_FLITS] = c[C_NOTE_FLITS]
        pk[p, PK_OUT] = op[o, NODE] * c[C_LINKS] + link
        x[X_NOTES] += 1
        egress_put(node * c[C_LINKS] + link, 2 * c[C_CLASSES] + 1, p, pk, lk, eq, du, c)


@kernel
def packet_cut(i, q, op, ot, templates, cut, pw, pk, pool, c, x, st):
    """The next packet of class q of link i as a record; its op counts it as sent."""
    o = cut[i * c[C_CLASSES] + q, 0]
    chunk = cut[i * c[C_CLASSES] + q, 1]
    cut[i * c[C_CLASSES] + q, 1] = chunk_from(o, chunk + 1, i % c[C_LINKS], op, c)
    t = op[o, TEMPLATE]
    w = op[o, WIRE]
    p = slot_take(pool, x)
    several = templates[t, KIND] == KIND_MULTICAST or templates[t, KIND] == KIND_PULL_REDUCE
    pk[p, PK_KIND] = (MREQ if several else REQ) if templates[t, IS_PULL] else (MDATA if several else DATA)
    pk[p, PK_OP] = o
    pk[p, PK_CHUNK] = chunk
    pk[p, PK_FLITS] = pw[w, PW_UP_H] + (0 if templates[t, IS_PULL] else data_flits(pw, w, chunk))
    op[o, OP_UNSENT] -= 1
    if ot[o, START] < 0:
        ot[o, START] = x[X_NOW]
    return p


@kernel
def link_grant(
    i, now, op, ot, templates, mem_time, hub, cut, pw, groups, pk, pt, pool, lk, eq, occ, fr, tree, rq, accepted, mmq, node_wake, dur, c, x, st,
):  # fmt: skip
    """Link i sends the next packet that may go: egress queues round robin."""
    n_classes = c[C_CLASSES]
    node = lk[i, LK_NODE]
    waiting = lk[i, LK_MASK]
    q = lk[i, LK_CURSOR]
    blocked = False
    fetching = False
    while waiting != 0:
        q = pick(waiting, q + 1 if q < 62 else 0)
        waiting &= ~(1 << q)
        if q < n_classes:
            if not cut_find(i, q, op, hub, cut, pw, c):
                lk[i, LK_MASK] &= ~(1 << q)
                continue
            o = cut[i * n_classes + q, 0]
            w = op[o, WIRE]
            if pw[w, PW_DYNAMIC] and c[C_QUEUE] > 0:
                ready = mmq[node, 1 + mmq[node, 0] % c[C_QUEUE]] + c[C_FETCH]
                if ready > now:
                    fetching = True
                    node_wake[node] = min(node_wake[node], ready)
                    continue
            flits = pw[w, PW_UP_H]
            if not templates[op[o, TEMPLATE], IS_PULL]:
                flits += data_flits(pw, w, cut[i * n_classes + q, 1])
            vc = vc_find(i, groups[q], flits, occ, c)
        else:
            p = eq[i * (n_classes + 2) + q - n_classes, 0]
            flits = pk[p, PK_FLITS]
            vc = vc_find(i, groups[q], flits, occ, c)
        if vc < 0:
            blocked = True
            continue
        ext = 0
        cycle = 0
        if q < n_classes:
            p = packet_cut(i, q, op, ot, templates, cut, pw, pk, pool, c, x, st)
            x[X_PACKETS] += 1
            ext = pw[w, PW_UP_H] - pw[w, PW_DOWN_H]
            if pw[w, PW_DYNAMIC]:
                cycle = c[C_CYCLE]
                st[ST_FETCHES] += 1
                if c[C_QUEUE] > 0:
                    mmq[node, 1 + mmq[node, 0] % c[C_QUEUE]] = now
                    mmq[node, 0] += 1
            if not templates[op[o, TEMPLATE], IS_PULL]:
                ot[o, END] = max(ot[o, END], now + dur[flits])
        else:
            row = i * (n_classes + 2) + q - n_classes
            eq[row, 0] = pk[p, PK_NEXT]
            if eq[row, 0] < 0:
                lk[i, LK_MASK] &= ~(1 << q)
            kind = pk[p, PK_KIND]
            if kind == CONTRIB or kind == RESP:
                o = pk[p, PK_OP]
                mem_time[pk[p, PK_MEMBER], B_TIME] = now
                ot[o, END] = max(ot[o, END], now + dur[flits])
                lk[i, LK_ANSWERS] -= 1
                if rq[i, 0] >= 0:  # the next request of this link may be answered
                    k = rq[i, 0]
                    rq[i, 0] = pk[k, PK_NEXT]
                    accept_put(k, pk, accepted)
        if lk[i, LK_FETCH] >= 0:
            lk[i, LK_PS_FETCH] += now - lk[i, LK_FETCH]
            lk[i, LK_FETCH] = -1
        late = c[C_LAT] + cycle + dur[ext]
        link_send(i, q, p, vc, ext + (c[C_EXT] >> 1 if cycle > 0 else 0), late, dur[flits], pk, pt, lk, occ, fr, tree, dur, c, x)
        return
    if fetching and lk[i, LK_FETCH] < 0:
        lk[i, LK_FETCH] = now
        st[ST_FETCH_WAITS] += 1
    if blocked:
        link_blocked(i, lk, x, st)


@block
def accept_put(p, pk, accepted):
    """Packet p, in the ingress buffer of its hub, goes on at this instant. accepted int64 [2]: first and last of them."""
    pk[p, PK_NEXT2] = -1
    if accepted[0] < 0:
        accepted[0] = p
    else:
        pk[accepted[1], PK_NEXT2] = p
    accepted[1] = p


@kernel
def member_done(
    k, op, ot, mem, mem_time, fill_row, templates, wires, issuers, heap_keys, heap_ids, dirty_issuers, x,
    rows, regions, slot_row, tiles, tile_times, tile_edge_ptr, tile_edge_kind, tile_edge, nodes, rings, tree, leaf_rings, m,
):  # fmt: skip
    """All of member k's packets are visible: its rows have received their bytes."""
    o = mem[k, B_OP]
    n = wires[op[o, WIRE], W_PAYLOAD]
    for f in range(mem[k, B_FILL], mem[k + 1, B_FILL]):
        t = row_fill(fill_row[f], n, rows, regions, slot_row, tiles, tile_times, x)
        if t >= 0:
            for e in range(tile_edge_ptr[t], tile_edge_ptr[t + 1]):
                if tile_edge_kind[e] == HEAD_OP_ISSUE:
                    op_release(tile_edge[e], o, op, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x)
                else:
                    tile_notify(
                        tile_edge[e], o, op, mem, ot, templates, issuers, heap_keys, heap_ids, dirty_issuers, x,
                        tiles, tile_times, slot_row, rows, nodes, rings, tree, leaf_rings, m,
                    )  # fmt: skip


@block
def part_done(o, now, op, ot, x):
    """One packet (or local member) of op o is complete; the last one completes the op."""
    op[o, LEFT] -= 1
    if op[o, LEFT] == 0:
        ot[o, DONE] = now
        work_push(op, x, o)


