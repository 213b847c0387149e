"""The hub of a GPU at packet level: egress queues per link, ingress with AL TLB and responder (docs/design/0006)."""

from dysharp.uarch.columns import (
    INF,
    MEMBER_FILL,
    NEXT,
    REGION_NODE,
    RESPONSE_CLS,
    ROW_NEW,
    ROW_REGION,
    RUN_EVENTS,
    RUN_NOW,
    TABLE,
    TEMPLATE,
    WIRE,
    WIRE_PAYLOAD,
)  # fmt: skip
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.memory import memory_take
from dysharp.uarch.packet.columns import (
    C_AL,
    C_AL_MISS,
    C_ANSWERS,
    C_BANK_ENTRIES,
    C_BANK_PS,
    C_BANKS,
    C_CLASSES,
    C_FILLS,
    C_LINKS,
    C_RESPONDER,
    C_ROWS,
    C_STRIPE,
    C_VPG,
    CONTRIB,
    CUT_DOWN_H,
    CUT_PACKETS,
    DATA,
    FABRIC_AL,
    FABRIC_DELIVER,
    FABRIC_RESPOND,
    LINK_ANSWERS,
    LINK_FREE,
    LINK_MASK,
    LINK_WAITS,
    MCOPY,
    OP_START,
    OUTPUT_FREE,
    PACKET_ACKS,
    PACKET_CHUNK,
    PACKET_FLITS,
    PACKET_KIND,
    PACKET_LEFT,
    PACKET_LINK,
    PACKET_MEMBER,
    PACKET_NEXT,
    PACKET_NEXT2,
    PACKET_OP,
    PACKET_OUT,
    PACKET_OUT_FLITS,
    PACKET_VC,
    RCOPY,
    READ_DUE,
    READ_NEXT,
    REQ,
    RESP,
    ST_AL_AREA,
    ST_AL_SINCE,
    ST_AL_WAITS,
    ST_ALLOCATED,
    ST_ANSWER_WAITS,
    ST_BANK_PS,
    ST_BANK_WAITS,
    ST_FULL,
    ST_HITS,
    ST_LOOKUPS,
    ST_MERGED,
    ST_MISSES,
    ST_MISSES_NOW,
    ST_PEAK_MISSES,
    ST_PEAK_ROWS,
    ST_TLB_EVICTIONS,
    STRIPE_HASH,
)
from dysharp.uarch.packet.links import dirty_mark, level_change, packet_schedule, ring_due, ring_join, ring_wait
from dysharp.uarch.packet.switch import data_flits, mix
from dysharp.uarch.region import row_fill
from dysharp.uarch.row_table import row_answer, row_lookup
from dysharp.uarch.tables import AL_FULL, AL_READ, HUB_ALLOCATED, HUB_BANK0, HUB_CACHED, WAITER_NEXT, al_answer, al_lookup
from dysharp.uarch.tree import tree_set


@block
def egress_put(i, q, p, packet, link, egress, dirty_links, c):
    """Packet p joins queue q (a number above the classes of ops) of link i."""
    row = i * (c[C_CLASSES] + 2) + q - c[C_CLASSES]
    packet[p, PACKET_NEXT] = -1
    if egress[row, 0] < 0:
        egress[row, 0] = p
        link[i, LINK_MASK] |= 1 << q
    else:
        packet[egress[row, 1], PACKET_NEXT] = p
    egress[row, 1] = p
    if link[i, LINK_FREE] == 1:
        dirty_mark(dirty_links, i)


@kernel
def chunk_from(o, at, number, op, c):
    """The first packet of op o at or behind number `at` that goes by link number `number` of its GPU."""
    n = c[C_LINKS]
    if c[C_STRIPE] == STRIPE_HASH:
        while mix(op[o, OP_START], at) % n != number:
            at += 1
    else:
        at += (number - op[o, OP_START] - at) % n
    return at


@kernel
def cut_find(i, q, op, hub, cursors, cuts, c):
    """Class q of link i: its next op and packet stand in `cursors` [links * classes, 2]. False if there is none."""
    row = i * c[C_CLASSES] + q
    number = i % c[C_LINKS]
    o = cursors[row, 0]
    chunk = cursors[row, 1]
    while True:
        if o < 0:
            nxt = hub[i // c[C_LINKS] * c[C_CLASSES] + q, 0]
        elif chunk >= cuts[op[o, WIRE], CUT_PACKETS]:
            nxt = op[o, NEXT]
        else:
            break
        if nxt < 0:
            cursors[row, 0] = o
            cursors[row, 1] = chunk
            return False
        o = nxt
        chunk = chunk_from(o, 0, number, op, c)
    cursors[row, 0] = o
    cursors[row, 1] = chunk
    return True


@block
def misses_change(by, now, st):
    """`by` more misses are under way: for mean and maximum over all hubs."""
    level_change(by, now, st, ST_AL_AREA, ST_AL_SINCE, ST_MISSES_NOW, ST_PEAK_MISSES)


@block
def bank_wait(key, node, hubs, c, x, st):
    """What the lookup of `key` would wait for its bank of the TLB, which takes one in every C_BANK_PS: counted, not charged."""
    bank = HUB_BANK0 + key % c[C_BANKS]
    wait = hubs[node, bank] - x[RUN_NOW]
    if wait > 0:
        st[ST_BANK_WAITS] += 1
        st[ST_BANK_PS] += wait
    hubs[node, bank] = max(hubs[node, bank], x[RUN_NOW]) + c[C_BANK_PS]


@block
def place_lookup(row, waiter, node, hubs, tables, c, st):
    """The row table's answer to packet lookup `waiter` for `row`, and what it counts."""
    answer = row_lookup(row, waiter, node, c[C_BANK_ENTRIES], hubs.keys, hubs.hubs, hubs.waiters, tables.places, tables.spilled)
    if answer == ROW_NEW:
        st[ST_ALLOCATED] += 1
        st[ST_PEAK_ROWS] = max(st[ST_PEAK_ROWS], hubs.hubs[node, HUB_CACHED])
    return answer


@kernel
def hub_lookup(p, node, packet, members, hubs, tables, agenda):
    """Packet p asks the table for each of its rows, from number PACKET_LEFT on. False: no miss register is free, it has to ask again."""
    mem, fill_row, reads = members.mem, members.fill_row, hubs.reads
    c, x, st = agenda.c, agenda.x, agenda.st
    k = packet[p, PACKET_MEMBER]
    first = mem[k, MEMBER_FILL]
    allocates = 1 if packet[p, PACKET_KIND] == MCOPY or packet[p, PACKET_KIND] == DATA else 0
    for f in range(first + packet[p, PACKET_LEFT], mem[k + 1, MEMBER_FILL]):
        key = fill_row[f]
        if c[C_BANK_ENTRIES] >= 0:
            answer = place_lookup(key, p * c[C_FILLS] + f - first, node, hubs, tables, c, st)
        else:
            answer = al_lookup(key, p * c[C_FILLS] + f - first, allocates, node, c[C_ROWS], hubs.keys, hubs.hubs, hubs.waiters)
        if answer == AL_FULL:
            packet[p, PACKET_LEFT] = f - first
            st[ST_FULL] += 1
            return False
        st[ST_LOOKUPS] += 1
        if c[C_BANKS] > 0:
            bank_wait(key, node, hubs.hubs, c, x, st)
        if answer >= 0:
            st[ST_HITS] += 1
            continue
        packet[p, PACKET_ACKS] += 1
        if answer == AL_READ:
            st[ST_MISSES] += 1
            misses_change(1, x[RUN_NOW], st)
            reads[key, READ_DUE] = x[RUN_NOW] + c[C_AL_MISS]
            ring_join(FABRIC_AL, key, reads[key, READ_DUE], reads, READ_NEXT, agenda)
        else:
            st[ST_MERGED] += 1
    packet[p, PACKET_ACKS] -= 1
    return True


@kernel
def hub_enter(p, node, packet, members, hubs, tables, agenda):
    """A packet that asks a table reaches its hub. True if it goes on at once."""
    stalled, st = hubs.stalled, agenda.st
    packet[p, PACKET_LEFT] = 0
    packet[p, PACKET_ACKS] = 1
    if stalled[node, 0] < 0 and hub_lookup(p, node, packet, members, hubs, tables, agenda):
        if packet[p, PACKET_ACKS] > 0:
            st[ST_AL_WAITS] += 1
        return packet[p, PACKET_ACKS] == 0
    st[ST_AL_WAITS] += 1
    packet[p, PACKET_NEXT] = -1
    if stalled[node, 0] < 0:
        stalled[node, 0] = p
    else:
        packet[stalled[node, 1], PACKET_NEXT] = p
    stalled[node, 1] = p
    return False


@kernel
def hub_answer(key, expert, node, hubs, tables, agenda):
    """Memory answers the miss of `key`; hubs.answer[0] is the first lookup that goes on. True if the row takes its slot now."""
    table, st, now = hubs.hubs, agenda.st, agenda.x[RUN_NOW]
    if agenda.c[C_BANK_ENTRIES] >= 0:
        entries = agenda.c[C_BANK_ENTRIES]
        st[ST_ALLOCATED] += row_answer(key, node, entries, hubs.keys, table, hubs.waiters, tables.places, tables.spilled, hubs.answer)
        misses_change(-1, now, st)
        return False
    full = table[node, HUB_CACHED]
    al_answer(key, expert, node, agenda.c[C_ROWS], hubs.keys, table, hubs.waiters, hubs.next_free, hubs.answer)
    misses_change(-1, now, st)
    if table[node, HUB_CACHED] == full:
        st[ST_TLB_EVICTIONS] += 1
    st[ST_ALLOCATED] += table[node, HUB_ALLOCATED]
    return table[node, HUB_ALLOCATED] == 1


@block
def ingress_leave(p, packet, outputs, held, c):
    """Packet p leaves the ingress buffer of its hub."""
    o = packet[p, PACKET_OUT]
    held[o, packet[p, PACKET_VC] // c[C_VPG]] -= packet[p, PACKET_OUT_FLITS]
    if outputs.output[o, OUTPUT_FREE] > 0:
        dirty_mark(outputs.dirty_outputs, o)


@kernel
def request_take(p, packet, packet_time, link, outputs, held, requests, agenda):
    """A request may be answered, unless the answers of its link have no room: then it stays in the ingress buffer."""
    c, x, st = agenda.c, agenda.x, agenda.st
    o = packet[p, PACKET_OUT]
    if c[C_ANSWERS] > 0 and link[o, LINK_ANSWERS] >= c[C_ANSWERS]:
        st[ST_ANSWER_WAITS] += 1
        link[o, LINK_WAITS] += 1
        packet[p, PACKET_NEXT] = -1
        if requests[o, 0] < 0:
            requests[o, 0] = p
        else:
            packet[requests[o, 1], PACKET_NEXT] = p
        requests[o, 1] = p
        return
    link[o, LINK_ANSWERS] += 1
    ingress_leave(p, packet, outputs, held, c)
    packet_schedule(FABRIC_RESPOND, p, x[RUN_NOW] + c[C_RESPONDER], PACKET_NEXT, packet, packet_time, agenda)


@block
def accept_put(p, packet, accepted):
    """Packet p, in the ingress buffer of its hub, goes on at this instant. accepted int64 [2]: first and last of them."""
    packet[p, PACKET_NEXT2] = -1
    if accepted[0] < 0:
        accepted[0] = p
    else:
        packet[accepted[1], PACKET_NEXT2] = p
    accepted[1] = p


@block
def tails_arrive(leaf, now, ops, members, packets, hubs, tables, accepted, agenda):
    """Tails reach their hubs: a packet is accepted at once, one whose op asks a table when the table knows its rows."""
    packet, packet_time, c = packets.packet, packets.packet_time, agenda.c
    p = ring_due(FABRIC_DELIVER, now, packet_time, agenda)
    while p >= 0:
        agenda.rings[FABRIC_DELIVER, 0] = packet[p, PACKET_NEXT]
        agenda.x[RUN_EVENTS] += 1
        kind = packet[p, PACKET_KIND]
        known = True
        if c[C_AL] > 0 and (kind == MCOPY or kind == RCOPY or kind == DATA) and ops.templates[ops.op[packet[p, PACKET_OP], TEMPLATE], TABLE] >= 0:
            known = hub_enter(p, packet[p, PACKET_OUT] // c[C_LINKS], packet, members, hubs, tables, agenda)
        if known:
            accept_put(p, packet, accepted)
        p = ring_due(FABRIC_DELIVER, now, packet_time, agenda)
    ring_wait(FABRIC_DELIVER, leaf, packet_time, agenda)


@block
def entries_answer(leaf, now, members, stores, packet, hubs, tables, accepted, agenda):
    """Memory answers AL misses: packets that have all their rows are accepted, and stalled ones ask again."""
    rows, reads, stalled = stores.rows, hubs.reads, hubs.stalled
    rings, c, x = agenda.rings, agenda.c, agenda.x
    key = rings[FABRIC_AL, 0]
    while key >= 0 and reads[key, READ_DUE] == now:
        rings[FABRIC_AL, 0] = reads[key, READ_NEXT]
        x[RUN_EVENTS] += 1
        node = stores.regions[rows[key, ROW_REGION], REGION_NODE]
        if hub_answer(key, rows[key, ROW_REGION], node, hubs, tables, agenda):
            row_fill(key, 0, stores, x)
        k = hubs.answer[0]
        while k >= 0:
            p = k // c[C_FILLS]
            k = hubs.waiters[k, WAITER_NEXT]
            packet[p, PACKET_ACKS] -= 1
            if packet[p, PACKET_ACKS] == 0:
                accept_put(p, packet, accepted)
        while stalled[node, 0] >= 0:
            p = stalled[node, 0]
            if not hub_lookup(p, node, packet, members, hubs, tables, agenda):
                break
            stalled[node, 0] = packet[p, PACKET_NEXT]
            if packet[p, PACKET_ACKS] == 0:
                accept_put(p, packet, accepted)
        key = rings[FABRIC_AL, 0]
    tree_set(agenda.tree, leaf, reads[key, READ_DUE] if key >= 0 else INF)


@block
def respond(leaf, now, ops, packets, sources, lanes, links, m, agenda):
    """Responders have read their memory: a request becomes a response and queues for its link."""
    op, packet, cuts = ops.op, packets.packet, sources.cuts
    c = agenda.c
    p = ring_due(FABRIC_RESPOND, now, packets.packet_time, agenda)
    while p >= 0:
        agenda.rings[FABRIC_RESPOND, 0] = packet[p, PACKET_NEXT]
        agenda.x[RUN_EVENTS] += 1
        o = packet[p, PACKET_OP]
        w = op[o, WIRE]
        packet[p, PACKET_KIND] = RESP if packet[p, PACKET_KIND] == REQ else CONTRIB
        packet[p, PACKET_FLITS] = cuts[w, CUT_DOWN_H] + data_flits(cuts, w, packet[p, PACKET_CHUNK])
        i = packet[p, PACKET_OUT]
        if packet[p, PACKET_CHUNK] == 0:
            memory_take(links.nodes, i // c[C_LINKS], links.wires[w, WIRE_PAYLOAD], m, now)
        packet[p, PACKET_OUT] = packet[p, PACKET_LINK]
        queue = c[C_CLASSES] + ops.templates[op[o, TEMPLATE], RESPONSE_CLS]
        egress_put(i, queue, p, packet, lanes.link, sources.egress, lanes.dirty_links, c)
        p = ring_due(FABRIC_RESPOND, now, packets.packet_time, agenda)
    ring_wait(FABRIC_RESPOND, leaf, packets.packet_time, agenda)
