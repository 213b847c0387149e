"""Between ops and packets: where an op's packets go, which of them a link sends next, what is done when they have arrived (docs/design/0006)."""

from dysharp.uarch.columns import (
    COPIES,
    END,
    HARDWARE_NETS,
    HARDWARE_NODES,
    INF,
    IS_PULL,
    ISSUER_POOL,
    KEY,
    KIND,
    LEFT,
    MEMBER_FILL,
    MEMBER_NODE,
    MEMBER_OP,
    MEMBER_TIME,
    NODE,
    RING_LOCAL,
    ROW_NOTIFY,
    RUN_DIRTY,
    RUN_EVENTS,
    RUN_NOW,
    SERVER_MASK,
    START,
    TEMPLATE,
    TILE_CAUSE,
    TILE_NODE,
    TILE_ROWS,
    TILE_SLOT0,
    UP,
    WIRE,
    WIRE_PAYLOAD,
)
from dysharp.uarch.fifo import member_due
from dysharp.uarch.flit.router import pick
from dysharp.uarch.issue import gang_start, issuer_drop, issuer_take, train_issue
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.memory import memory_take
from dysharp.uarch.packet.columns import (
    ACK,
    ACKPART,
    C_CLASSES,
    C_CYCLE,
    C_EXT,
    C_FETCH,
    C_FIRST,
    C_LAT,
    C_LINKS,
    C_NOTE_FLITS,
    C_QUEUE,
    C_STRIPE,
    C_TOTAL,
    CHUNK_HEAD,
    CONTRIB,
    CUT_ACK,
    CUT_DOWN_H,
    CUT_DYNAMIC,
    CUT_PACKETS,
    CUT_UP_H,
    DATA,
    LINK_ANSWERS,
    LINK_CURSOR,
    LINK_FETCH,
    LINK_FREE,
    LINK_MASK,
    LINK_NODE,
    LINK_PS_FETCH,
    MDATA,
    MEMBER_LEFT,
    MREQ,
    NOTE,
    OP_START,
    OP_UNSENT,
    PACKET_ACKS,
    PACKET_CHUNK,
    PACKET_FLITS,
    PACKET_KIND,
    PACKET_LINK,
    PACKET_MEMBER,
    PACKET_NEXT,
    PACKET_OP,
    PACKET_OUT,
    PACKET_PARENT,
    PARTIAL,
    PUSHED,
    REQ,
    RESP,
    RESULT,
    RUN_NOTES,
    RUN_PACKETS,
    ST_FETCH_WAITS,
    ST_FETCHES,
    STRIPE_EVEN,
    STRIPE_ROTATING,
    SUMACK,
)
from dysharp.uarch.packet.hub import accept_put, chunk_from, cut_find, egress_put
from dysharp.uarch.packet.links import dirty_mark, link_blocked, link_send, slot_free, slot_take, vc_find
from dysharp.uarch.packet.switch import data_flits, mix, session_end, sessions_change
from dysharp.uarch.points import member_fill
from dysharp.uarch.ready import complete
from dysharp.uarch.region import row_fill
from dysharp.uarch.tree import tree_set

KIND_MULTICAST, KIND_PULL_REDUCE, KIND_PUSH_REDUCE = 5, 7, 8


@kernel
def transfer_begin(o, is_pull, op, cuts, stripes, c):
    """A transfer with members elsewhere has entered its hub: where its packets go, and what is left until it is done."""
    n = cuts[op[o, WIRE], CUT_PACKETS]
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
def notes_make(t, op, stores, packet, free, link, egress, dirty_links, c, x):
    """Tile t tells the owners of its rows on other nodes: one packet each."""
    tiles, slot_row, rows = stores.tiles, stores.slot_row, stores.rows
    node = tiles[t, TILE_NODE]
    for s in range(tiles[t, TILE_SLOT0], tiles[t, TILE_SLOT0] + tiles[t, TILE_ROWS]):
        row = slot_row[s]
        if row < 0 or rows[row, ROW_NOTIFY] < 0:
            continue
        o = rows[row, ROW_NOTIFY]
        owner = op[o, NODE] % (c[C_TOTAL] // c[C_LINKS])
        if owner == node:
            continue
        p = slot_take(free, x)
        number = mix(row, 1) % c[C_LINKS]
        packet[p, PACKET_KIND] = NOTE
        packet[p, PACKET_OP] = o
        packet[p, PACKET_MEMBER] = tiles[t, TILE_CAUSE]
        packet[p, PACKET_FLITS] = c[C_NOTE_FLITS]
        packet[p, PACKET_OUT] = owner * c[C_LINKS] + number
        x[RUN_NOTES] += 1
        egress_put(node * c[C_LINKS] + number, 2 * c[C_CLASSES] + 1, p, packet, link, egress, dirty_links, c)


@kernel
def packet_cut(i, q, ops, sources, packets, c, x):
    """The next packet of class q of link i as a record; its op counts it as sent."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    packet, cursors, cuts = packets.packet, sources.cursors, sources.cuts
    o = cursors[i * c[C_CLASSES] + q, 0]
    chunk = cursors[i * c[C_CLASSES] + q, 1]
    cursors[i * c[C_CLASSES] + q, 1] = chunk_from(o, chunk + 1, i % c[C_LINKS], op, c)
    t = op[o, TEMPLATE]
    w = op[o, WIRE]
    p = slot_take(packets.free, x)
    several = templates[t, KIND] == KIND_MULTICAST or templates[t, KIND] == KIND_PULL_REDUCE
    packet[p, PACKET_KIND] = (MREQ if several else REQ) if templates[t, IS_PULL] else (MDATA if several else DATA)
    if templates[t, KIND] == KIND_PUSH_REDUCE:
        packet[p, PACKET_KIND] = PUSHED
    packet[p, PACKET_OP] = o
    packet[p, PACKET_CHUNK] = chunk
    packet[p, PACKET_FLITS] = cuts[w, CUT_UP_H] + (0 if templates[t, IS_PULL] else data_flits(cuts, w, chunk))
    op[o, OP_UNSENT] -= 1
    if ot[o, START] < 0:
        ot[o, START] = x[RUN_NOW]
    return p


@kernel
def link_grant(i, now, ops, mem_time, hub, sources, packets, lanes, accepted, agenda):
    """Link i sends the next packet that may go: egress queues round robin."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    packet, link, occupied = packets.packet, lanes.link, lanes.occupied
    egress, cursors, cuts, groups = sources.egress, sources.cursors, sources.cuts, sources.groups
    fetches, node_wake, requests = sources.fetches, sources.node_wake, sources.requests
    flit_ps, c, x, st = agenda.flit_ps, agenda.c, agenda.x, agenda.st
    n_classes = c[C_CLASSES]
    node = link[i, LINK_NODE]
    waiting = link[i, LINK_MASK]
    turn = link[i, LINK_CURSOR]
    blocked = False
    fetching = False
    while waiting != 0:
        if waiting & c[C_FIRST] != 0:  # what goes first takes no turn
            q = pick(waiting & c[C_FIRST], 0)
        else:
            turn = pick(waiting, turn + 1 if turn < 62 else 0)
            q = turn
        waiting &= ~(1 << q)
        if q < n_classes:
            if not cut_find(i, q, op, hub, cursors, cuts, c):
                link[i, LINK_MASK] &= ~(1 << q)
                continue
            o = cursors[i * n_classes + q, 0]
            w = op[o, WIRE]
            if cuts[w, CUT_DYNAMIC] and c[C_QUEUE] > 0:
                ready = fetches[node, 1 + fetches[node, 0] % c[C_QUEUE]] + c[C_FETCH]
                if ready > now:
                    fetching = True
                    node_wake[node] = min(node_wake[node], ready)
                    continue
            flits = cuts[w, CUT_UP_H]
            if not templates[op[o, TEMPLATE], IS_PULL]:
                flits += data_flits(cuts, w, cursors[i * n_classes + q, 1])
            vc = vc_find(i, groups[q], flits, occupied, c)
        else:
            p = egress[i * (n_classes + 2) + q - n_classes, 0]
            flits = packet[p, PACKET_FLITS]
            vc = vc_find(i, groups[q], flits, occupied, c)
        if vc < 0:
            blocked = True
            continue
        ext = 0
        cycle = 0
        if q < n_classes:
            p = packet_cut(i, q, ops, sources, packets, c, x)
            x[RUN_PACKETS] += 1
            ext = cuts[w, CUT_UP_H] - cuts[w, CUT_DOWN_H]
            if cuts[w, CUT_DYNAMIC]:
                cycle = c[C_CYCLE]
                st[ST_FETCHES] += 1
                if c[C_QUEUE] > 0:
                    fetches[node, 1 + fetches[node, 0] % c[C_QUEUE]] = now
                    fetches[node, 0] += 1
            if not templates[op[o, TEMPLATE], IS_PULL]:
                ot[o, END] = max(ot[o, END], now + flit_ps[flits])
        else:
            row = i * (n_classes + 2) + q - n_classes
            egress[row, 0] = packet[p, PACKET_NEXT]
            if egress[row, 0] < 0:
                link[i, LINK_MASK] &= ~(1 << q)
            kind = packet[p, PACKET_KIND]
            if kind == CONTRIB or kind == RESP:
                o = packet[p, PACKET_OP]
                mem_time[packet[p, PACKET_MEMBER], MEMBER_TIME] = now
                ot[o, END] = max(ot[o, END], now + flit_ps[flits])
                link[i, LINK_ANSWERS] -= 1
                if requests[i, 0] >= 0:  # the next request of this link may be answered
                    k = requests[i, 0]
                    requests[i, 0] = packet[k, PACKET_NEXT]
                    accept_put(k, packet, accepted)
        if link[i, LINK_FETCH] >= 0:
            link[i, LINK_PS_FETCH] += now - link[i, LINK_FETCH]
            link[i, LINK_FETCH] = -1
        late = c[C_LAT] + cycle + flit_ps[ext]
        ext += c[C_EXT] >> 1 if cycle > 0 else 0
        link_send(i, turn, p, vc, ext, late, flit_ps[flits], packet, packets.packet_time, link, occupied, agenda)
        return
    if fetching and link[i, LINK_FETCH] < 0:
        link[i, LINK_FETCH] = now
        st[ST_FETCH_WAITS] += 1
    if blocked:
        link_blocked(i, link, x, st)


@block
def part_done(o, now, ops, x):
    """One packet (or local member) of op o is complete; the last one completes the op."""
    ops.op[o, LEFT] -= 1
    if ops.op[o, LEFT] == 0:
        complete(o, now, ops, x)


@block
def local(now, ops, members, stores, issue, links, clock):
    """LOCAL: a member on the op's own node was served."""
    op, x = ops.op, clock.x
    k = member_due(RING_LOCAL * clock.m[HARDWARE_NETS], members, clock)
    o = members.mem[k, MEMBER_OP]
    x[RUN_EVENTS] += 1
    memory_take(links.nodes, op[o, NODE], links.wires[op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
    if not ops.templates[op[o, TEMPLATE], IS_PULL]:
        member_fill(k, ops, members, stores, issue, links, clock)
    part_done(o, now, ops, x)


@block
def deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, c):
    """A packet of a store is visible at its member; the member's last packet fills its rows. Its acknowledgement joins the egress."""
    op, mem, cuts = ops.op, members.mem, sources.cuts
    k = packet[p, PACKET_MEMBER]
    w = op[packet[p, PACKET_OP], WIRE]
    if mem[k, MEMBER_LEFT] == cuts[w, CUT_PACKETS]:  # the first packet takes the slots
        for f in range(mem[k, MEMBER_FILL], mem[k + 1, MEMBER_FILL]):
            row_fill(members.fill_row[f], 0, stores, clock.x)
    mem[k, MEMBER_LEFT] -= 1
    if mem[k, MEMBER_LEFT] == 0:
        members.mem_time[k, MEMBER_TIME] = now
        memory_take(links.nodes, mem[k, MEMBER_NODE], links.wires[w, WIRE_PAYLOAD], clock.m, now)
        member_fill(k, ops, members, stores, issue, links, clock)
    packet[p, PACKET_KIND] = ACK if packet[p, PACKET_KIND] == DATA else ACKPART
    packet[p, PACKET_FLITS] = cuts[w, CUT_ACK]
    i = packet[p, PACKET_OUT]
    packet[p, PACKET_OUT] = packet[p, PACKET_LINK]
    egress_put(i, 2 * c[C_CLASSES], p, packet, lanes.link, sources.egress, lanes.dirty_links, c)


@kernel
def sum_deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, units, agenda):
    """A packet of a sum of pushes is visible at its home, for every contributor; its place is free. One acknowledgement joins the egress."""
    mem, cuts, c = members.mem, sources.cuts, agenda.c
    o = packet[p, PACKET_OP]
    k = packet[p, PACKET_MEMBER]
    for f in range(mem[k, MEMBER_FILL], mem[k + 1, MEMBER_FILL]):  # the first packet takes the slots
        row_fill(members.fill_row[f], 0, stores, clock.x)
    row = units.chunk0[units.sum_of[o]] + packet[p, PACKET_CHUNK]
    written = False
    q = units.chunks[row, CHUNK_HEAD]
    while q >= 0:
        k = packet[q, PACKET_MEMBER]
        mem[k, MEMBER_LEFT] -= 1
        if mem[k, MEMBER_LEFT] == 0:
            if not written:
                memory_take(links.nodes, mem[k, MEMBER_NODE], links.wires[ops.op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
                written = True
            members.mem_time[k, MEMBER_TIME] = now
            member_fill(k, ops, members, stores, issue, links, clock)
        q = packet[q, PACKET_PARENT]
    i = packet[p, PACKET_OUT]
    units.places[i] += 1
    sessions_change(-1, now, agenda.st)
    packet[p, PACKET_KIND] = SUMACK
    packet[p, PACKET_FLITS] = cuts[ops.op[o, WIRE], CUT_ACK]
    egress_put(i, 2 * c[C_CLASSES], p, packet, lanes.link, sources.egress, lanes.dirty_links, c)


@block
def answered(p, now, ops, links, clock, packets):
    """An acknowledgement or a response is back at its source. A pull whose last part this is writes its memory."""
    o = packets.packet[p, PACKET_OP]
    part_done(o, now, ops, clock.x)
    if packets.packet[p, PACKET_KIND] == RESP and ops.op[o, LEFT] == 0:
        memory_take(links.nodes, ops.op[o, NODE], links.wires[ops.op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
    slot_free(p, packets.free, clock.x)


@block
def result_delivered(p, now, ops, links, clock, packets, idle, c):
    """A result, a partial sum or a response that passed by is at the source of its pull, which counts the contributions."""
    packet = packets.packet
    o = packet[p, PACKET_OP]
    kind = packet[p, PACKET_KIND]
    parent = packet[p, PACKET_PARENT]
    packet[parent, PACKET_ACKS] -= packet[p, PACKET_MEMBER] if kind == RESULT else packet[p, PACKET_ACKS] if kind == PARTIAL else 1
    if kind != RESULT:
        slot_free(p, packets.free, clock.x)
    if packet[parent, PACKET_ACKS] == 0:
        part_done(o, now, ops, clock.x)
        if ops.op[o, LEFT] == 0:
            memory_take(links.nodes, ops.op[o, NODE], links.wires[ops.op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
        session_end(parent, packets.free, idle, c, clock.x)


@block
def node_wake_up(node, leaf, sources, lanes, agenda):
    """A target list has come to the MultimemQ of `node`: its idle links try again."""
    tree_set(agenda.tree, leaf, INF)
    sources.node_wake[node] = INF
    n_links = agenda.c[C_LINKS]
    for i in range(node * n_links, (node + 1) * n_links):
        if lanes.link[i, LINK_FREE] == 1 and lanes.link[i, LINK_MASK] != 0:
            dirty_mark(lanes.dirty_links, i)


@block
def node_links_ask(node, links, lanes, n_links):
    """Add the classes that became non-empty in the hub of `node` to the masks of its links. Idle links ask for a grant."""
    for i in range(node * n_links, (node + 1) * n_links):
        lanes.link[i, LINK_MASK] |= links.nodes[node, UP + SERVER_MASK]
        if lanes.link[i, LINK_FREE] == 1:
            dirty_mark(lanes.dirty_links, i)
    links.nodes[node, UP + SERVER_MASK] = 0


@block
def grant_issuer(i, now, ops, members, holds, issue, slots, links, clock, sources, c):
    """Issuer i puts on the machine whatever it may: tasks on free slots, transfers into the hub."""
    pool = issue.issuers[i, ISSUER_POOL]
    while True:
        o = issuer_take(i, ops, holds, issue, slots.pools, clock.x)
        if o < 0:
            break
        is_pull = ops.templates[ops.op[o, TEMPLATE], IS_PULL]
        if pool >= 0:
            if gang_start(o, pool, ops, slots, links.nodes, clock):
                issuer_drop(i, issue)
        elif train_issue(o, ops, members, links, clock):
            complete(o, now, ops, clock.x)
            clock.x[RUN_DIRTY] = 1
        elif ops.op[o, COPIES] > 0 and ops.op[o, NODE] < clock.m[HARDWARE_NODES]:  # other ports send messages, not packets
            transfer_begin(o, is_pull, ops.op, sources.cuts, sources.stripes, c)
            if not is_pull:
                memory_take(links.nodes, ops.op[o, NODE], links.wires[ops.op[o, WIRE], WIRE_PAYLOAD], clock.m, now)


@block
def grant_link(i, now, ops, members, links, sources, packets, lanes, accepted, leaf_wake, agenda):
    """Link i sends its next packet, if it is free and one may go; its node may have to wait for a target list."""
    link, node_wake, tree = lanes.link, sources.node_wake, agenda.tree
    if link[i, LINK_FREE] == 1 and link[i, LINK_MASK] != 0:
        link_grant(i, now, ops, members.mem_time, links.hub, sources, packets, lanes, accepted, agenda)
        node = link[i, LINK_NODE]
        if node_wake[node] < tree[(len(tree) >> 1) + leaf_wake + node]:
            tree_set(tree, leaf_wake + node, node_wake[node])
