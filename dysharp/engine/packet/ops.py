"""Between ops and packets: where an op's packets go, which of them a link sends next, what is done when they have arrived (docs/design/0006)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import pick
from dysharp.engine.blocks.fifo import fifo_push, member_due
from dysharp.engine.blocks.issue import gang_start, issuer_drop, issuer_take, train_issue
from dysharp.engine.blocks.link import memory_take
from dysharp.engine.blocks.points import member_fill, row_fill
from dysharp.engine.blocks.ready import complete
from dysharp.engine.kernel import block, routine
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.hub import egress_put
from dysharp.engine.packet.links import link_blocked, link_send, slot_free, slot_take, vc_find
from dysharp.engine.packet.switch import data_flits, mix, sessions_change

KIND_MULTICAST, KIND_PULL_REDUCE, KIND_PUSH_REDUCE, KIND_MERGED_LOAD = 5, 7, 8, 9


@block
def _transfer_begin(o, is_pull, op, cuts, stripes, c):
    """A transfer with members elsewhere has entered its hub: where its packets go, and what is left until it is done."""
    n = cuts[op[o, col.WIRE], f.CUT_PACKETS]
    op[o, f.OP_UNSENT] = n
    # at burst level a pull waits for one result and a push for every remote delivery; here both wait for their packets
    op[o, col.LEFT] += n - (1 if is_pull else op[o, col.COPIES])
    node = op[o, col.NODE]
    if c[f.C_STRIPE] == f.STRIPE_EVEN:
        op[o, f.OP_START] = stripes[node]
        stripes[node] = (stripes[node] + n) % c[f.C_LINKS]
    elif c[f.C_STRIPE] == f.STRIPE_ROTATING:
        op[o, f.OP_START] = mix(op[o, col.KEY] if op[o, col.KEY] >= 0 else o, 0) % c[f.C_LINKS]
    else:
        op[o, f.OP_START] = op[o, col.KEY] if op[o, col.KEY] >= 0 else o


@block
def _packet_cut(i, q, ops, sources, packets, c, x):
    """The next packet of class q of link i as a record; its op counts it as sent."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    packet, cursors, cuts = packets.packet, sources.cursors, sources.cuts
    o = cursors[i * c[f.C_CLASSES] + q, 0]
    chunk = cursors[i * c[f.C_CLASSES] + q, 1]
    cursors[i * c[f.C_CLASSES] + q, 1] = _chunk_from(o, chunk + 1, i % c[f.C_LINKS], op, c)
    t = op[o, col.TEMPLATE]
    w = op[o, col.WIRE]
    p = slot_take(packets.free, x)
    several = templates[t, col.KIND] == KIND_MULTICAST or templates[t, col.KIND] == KIND_PULL_REDUCE
    packet[p, f.PACKET_KIND] = (f.MREQ if several else f.REQ) if templates[t, col.IS_PULL] else (f.MDATA if several else f.DATA)
    if templates[t, col.KIND] == KIND_PUSH_REDUCE:
        packet[p, f.PACKET_KIND] = f.PUSHED
    elif templates[t, col.KIND] == KIND_MERGED_LOAD:
        packet[p, f.PACKET_KIND] = f.LOAD
    packet[p, f.PACKET_OP] = o
    packet[p, f.PACKET_CHUNK] = chunk
    packet[p, f.PACKET_FLITS] = cuts[w, f.CUT_UP_H] + (0 if templates[t, col.IS_PULL] else data_flits(cuts, w, chunk, f.CUT_FULL))
    op[o, f.OP_UNSENT] -= 1
    if ot[o, col.START] < 0:
        ot[o, col.START] = x[col.RUN_NOW]
    return p


@block
def _chunk_from(o, at, number, op, c):
    """The first packet of op o at or behind number `at` that goes by link number `number` of its GPU."""
    n = c[f.C_LINKS]
    if c[f.C_STRIPE] == f.STRIPE_HASH:
        while mix(op[o, f.OP_START], at) % n != number:
            at += 1
    else:
        at += (number - op[o, f.OP_START] - at) % n
    return at


@block
def link_grant(i, now, ops, mem_time, hub, sources, packets, lanes, accepted, agenda):
    """Link i sends the next packet that may go: egress queues round robin."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    packet, link, occupied = packets.packet, lanes.link, lanes.occupied
    egress, cursors, cuts, groups = sources.egress, sources.cursors, sources.cuts, sources.groups
    fetches, node_wake, requests = sources.fetches, sources.node_wake, sources.requests
    flit_ps, c, x, st = agenda.flit_ps, agenda.c, agenda.x, agenda.st
    n_classes = c[f.C_CLASSES]
    node = link[i, f.LINK_NODE]
    waiting = link[i, f.LINK_MASK]
    turn = link[i, f.LINK_CURSOR]
    blocked = False
    fetching = False
    while waiting != 0:
        if waiting & c[f.C_FIRST] != 0:  # what goes first takes no turn
            q = pick(waiting & c[f.C_FIRST], 0)
        else:
            turn = pick(waiting, turn + 1 if turn < 62 else 0)
            q = turn
        waiting &= ~(1 << q)
        if q < n_classes:
            if not _cut_find(i, q, op, hub, cursors, cuts, c):
                link[i, f.LINK_MASK] &= ~(1 << q)
                continue
            o = cursors[i * n_classes + q, 0]
            w = op[o, col.WIRE]
            if cuts[w, f.CUT_DYNAMIC] and c[f.C_QUEUE] > 0:
                ready = fetches[node, 1 + fetches[node, 0] % c[f.C_QUEUE]] + c[f.C_FETCH]
                if ready > now:
                    fetching = True
                    node_wake[node] = min(node_wake[node], ready)
                    continue
            flits = cuts[w, f.CUT_UP_H]
            if not templates[op[o, col.TEMPLATE], col.IS_PULL]:
                flits += data_flits(cuts, w, cursors[i * n_classes + q, 1], f.CUT_FULL)
            vc = vc_find(i, groups[q], flits, occupied, c)
        else:
            p = egress[i * (n_classes + 2) + q - n_classes, 0]
            flits = packet[p, f.PACKET_FLITS]
            vc = vc_find(i, groups[q], flits, occupied, c)
        if vc < 0:
            blocked = True
            continue
        ext = 0
        cycle = 0
        if q < n_classes:
            p = _packet_cut(i, q, ops, sources, packets, c, x)
            x[f.RUN_PACKETS] += 1
            ext = cuts[w, f.CUT_UP_H] - cuts[w, f.CUT_DOWN_H]
            if cuts[w, f.CUT_DYNAMIC]:
                cycle = c[f.C_CYCLE]
                st[f.ST_FETCHES] += 1
                if c[f.C_QUEUE] > 0:
                    fetches[node, 1 + fetches[node, 0] % c[f.C_QUEUE]] = now
                    fetches[node, 0] += 1
            if not templates[op[o, col.TEMPLATE], col.IS_PULL]:
                ot[o, col.END] = max(ot[o, col.END], now + flit_ps[flits])
        else:
            row = i * (n_classes + 2) + q - n_classes
            egress[row, 0] = packet[p, f.PACKET_NEXT]
            if egress[row, 0] < 0:
                link[i, f.LINK_MASK] &= ~(1 << q)
            kind = packet[p, f.PACKET_KIND]
            if kind == f.CONTRIB or kind == f.RESP:
                o = packet[p, f.PACKET_OP]
                mem_time[packet[p, f.PACKET_MEMBER], col.MEMBER_TIME] = now
                ot[o, col.END] = max(ot[o, col.END], now + flit_ps[flits])
                link[i, f.LINK_ANSWERS] -= 1
                if requests[i, 0] >= 0:  # the next request of this link may be answered
                    k = requests[i, 0]
                    requests[i, 0] = packet[k, f.PACKET_NEXT]
                    fifo_push(accepted, 0, packet, f.PACKET_NEXT2, k)
        if link[i, f.LINK_FETCH] >= 0:
            link[i, f.LINK_PS_FETCH] += now - link[i, f.LINK_FETCH]
            link[i, f.LINK_FETCH] = -1
        late = c[f.C_LAT] + cycle + flit_ps[ext]
        ext += c[f.C_EXT] >> 1 if cycle > 0 else 0
        link_send(i, turn, p, vc, ext, late, flit_ps[flits], packet, packets.packet_time, link, occupied, agenda)
        return
    if fetching and link[i, f.LINK_FETCH] < 0:
        link[i, f.LINK_FETCH] = now
        st[f.ST_FETCH_WAITS] += 1
    if blocked:
        link_blocked(i, link, x, st)


@block
def _cut_find(i, q, op, hub, cursors, cuts, c):
    """Class q of link i: its next op and packet stand in `cursors` [links * classes, 2]. False if there is none."""
    row = i * c[f.C_CLASSES] + q
    number = i % c[f.C_LINKS]
    o = cursors[row, 0]
    chunk = cursors[row, 1]
    while True:
        if o < 0:
            nxt = hub[i // c[f.C_LINKS] * c[f.C_CLASSES] + q, 0]
        elif chunk >= cuts[op[o, col.WIRE], f.CUT_PACKETS]:
            nxt = op[o, col.NEXT]
        else:
            break
        if nxt < 0:
            cursors[row, 0] = o
            cursors[row, 1] = chunk
            return False
        o = nxt
        chunk = _chunk_from(o, 0, number, op, c)
    cursors[row, 0] = o
    cursors[row, 1] = chunk
    return True


@block
def _part_done(o, now, ops, x):
    """One packet (or local member) of op o is complete; the last one completes the op."""
    ops.op[o, col.LEFT] -= 1
    if ops.op[o, col.LEFT] == 0:
        complete(o, now, ops, x)


@block
def local(now, ops, members, stores, issue, links, clock):
    """LOCAL: a member on the op's own node was served."""
    op, x = ops.op, clock.x
    k = member_due(col.RING_LOCAL * clock.m[col.HARDWARE_NETS], members, clock)
    o = members.mem[k, col.MEMBER_OP]
    x[col.RUN_EVENTS] += 1
    memory_take(links.nodes, op[o, col.NODE], links.wires[op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
    if not ops.templates[op[o, col.TEMPLATE], col.IS_PULL]:
        member_fill(k, ops, members, stores, issue, links, clock)
    _part_done(o, now, ops, x)


@block
def deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, c):
    """A packet of a store is visible at its member; the member's last packet fills its rows. Its acknowledgement joins the egress."""
    op, mem, cuts = ops.op, members.mem, sources.cuts
    k = packet[p, f.PACKET_MEMBER]
    w = op[packet[p, f.PACKET_OP], col.WIRE]
    if mem[k, f.MEMBER_LEFT] == cuts[w, f.CUT_PACKETS]:  # the first packet takes the slots
        for fill in range(mem[k, col.MEMBER_FILL], mem[k + 1, col.MEMBER_FILL]):
            row_fill(members.fill_row[fill], 0, stores, clock.x)
    mem[k, f.MEMBER_LEFT] -= 1
    if mem[k, f.MEMBER_LEFT] == 0:
        members.mem_time[k, col.MEMBER_TIME] = now
        memory_take(links.nodes, mem[k, col.MEMBER_NODE], links.wires[w, col.WIRE_PAYLOAD], clock.m, now)
        member_fill(k, ops, members, stores, issue, links, clock)
    packet[p, f.PACKET_KIND] = f.ACK if packet[p, f.PACKET_KIND] == f.DATA else f.ACKPART
    packet[p, f.PACKET_FLITS] = cuts[w, f.CUT_ACK]
    i = packet[p, f.PACKET_OUT]
    packet[p, f.PACKET_OUT] = packet[p, f.PACKET_LINK]
    egress_put(i, 2 * c[f.C_CLASSES], p, packet, lanes.link, sources.egress, lanes.dirty_links, c)


@routine
def sum_deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, units, agenda):
    """A packet of a sum of pushes is visible at its home, for every contributor; its place is free. One acknowledgement joins the egress."""
    mem, cuts, c = members.mem, sources.cuts, agenda.c
    o = packet[p, f.PACKET_OP]
    k = packet[p, f.PACKET_MEMBER]
    for fill in range(mem[k, col.MEMBER_FILL], mem[k + 1, col.MEMBER_FILL]):  # the first packet takes the slots
        row_fill(members.fill_row[fill], 0, stores, clock.x)
    row = units.chunk0[units.sum_of[o]] + packet[p, f.PACKET_CHUNK]
    written = False
    q = units.chunks[row, f.CHUNK_HEAD]
    while q >= 0:
        k = packet[q, f.PACKET_MEMBER]
        mem[k, f.MEMBER_LEFT] -= 1
        if mem[k, f.MEMBER_LEFT] == 0:
            if not written:
                memory_take(links.nodes, mem[k, col.MEMBER_NODE], links.wires[ops.op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
                written = True
            members.mem_time[k, col.MEMBER_TIME] = now
            member_fill(k, ops, members, stores, issue, links, clock)
        q = packet[q, f.PACKET_PARENT]
    i = packet[p, f.PACKET_OUT]
    units.places[i] += 1
    sessions_change(-1, now, agenda.st)
    packet[p, f.PACKET_KIND] = f.SUMACK
    packet[p, f.PACKET_FLITS] = cuts[ops.op[o, col.WIRE], f.CUT_ACK]
    egress_put(i, 2 * c[f.C_CLASSES], p, packet, lanes.link, sources.egress, lanes.dirty_links, c)


@block
def answered(p, now, lat, ops, mem_time, links, clock, packets):
    """An acknowledgement or a response is back at its source. A pull whose last part this is writes its memory."""
    o = packets.packet[p, f.PACKET_OP]
    kind = packets.packet[p, f.PACKET_KIND]
    if kind == f.ANSWER:
        k = packets.packet[p, f.PACKET_MEMBER]
        if ops.ot[o, col.END] <= mem_time[k, col.MEMBER_TIME]:  # no response was for this load alone: its end is the time of its member
            ops.ot[o, col.END] = mem_time[k, col.MEMBER_TIME] = now - lat
    _part_done(o, now, ops, clock.x)
    if (kind == f.RESP or kind == f.ANSWER) and ops.op[o, col.LEFT] == 0:
        memory_take(links.nodes, ops.op[o, col.NODE], links.wires[ops.op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
    slot_free(p, packets.free, clock.x)


@block
def result_delivered(p, now, ops, links, clock, packets, idle, c):
    """A result, a partial sum or a response that passed by is at the source of its pull, which counts the contributions."""
    packet = packets.packet
    o = packet[p, f.PACKET_OP]
    kind = packet[p, f.PACKET_KIND]
    parent = packet[p, f.PACKET_PARENT]
    packet[parent, f.PACKET_ACKS] -= packet[p, f.PACKET_MEMBER] if kind == f.RESULT else packet[p, f.PACKET_ACKS] if kind == f.PARTIAL else 1
    if kind != f.RESULT:
        slot_free(p, packets.free, clock.x)
    if packet[parent, f.PACKET_ACKS] == 0:
        _part_done(o, now, ops, clock.x)
        if ops.op[o, col.LEFT] == 0:
            memory_take(links.nodes, ops.op[o, col.NODE], links.wires[ops.op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
        _session_end(parent, packets.free, idle, c, clock.x)


@block
def _session_end(p, free, idle, c, x):
    """All contributions of session p have reached its source."""
    if c[f.C_TIMEOUT] > 0 and idle[p, f.IDLE_LOOK] == f.LOOK_AGAIN:
        idle[p, f.IDLE_LOOK] = f.LOOK_TO_FREE
    else:
        slot_free(p, free, x)


@block
def grant_issuer(i, now, ops, members, holds, issue, slots, links, clock, sources, c):
    """Issuer i puts on the machine whatever it may: tasks on free slots, transfers into the hub."""
    pool = issue.issuers[i, col.ISSUER_POOL]
    while True:
        o = issuer_take(i, ops, holds, issue, slots.pools, clock.x)
        if o < 0:
            break
        is_pull = ops.templates[ops.op[o, col.TEMPLATE], col.IS_PULL]
        if pool >= 0:
            if gang_start(o, pool, ops, slots, links.nodes, clock):
                issuer_drop(i, issue)
        elif train_issue(o, ops, members, links, clock):
            complete(o, now, ops, clock.x)
            clock.x[col.RUN_DIRTY] = 1
        elif ops.op[o, col.COPIES] > 0 and ops.op[o, col.NODE] < clock.m[col.HARDWARE_NODES]:  # other ports send messages, not packets
            _transfer_begin(o, is_pull, ops.op, sources.cuts, sources.stripes, c)
            if not is_pull:
                memory_take(links.nodes, ops.op[o, col.NODE], links.wires[ops.op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
