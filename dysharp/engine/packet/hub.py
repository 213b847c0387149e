"""The hub of a GPU at packet level: egress queues per link, ingress with AL TLB and responder (docs/design/0006)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks import tables as tab
from dysharp.engine.blocks.fifo import fifo_push
from dysharp.engine.blocks.link import memory_take
from dysharp.engine.blocks.points import row_fill
from dysharp.engine.kernel import block
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.links import dirty_mark, due_take, level_change, ring_join
from dysharp.engine.packet.switch import data_flits


@block
def egress_put(i, q, p, packet, link, egress, dirty_links, c):
    """Packet p joins queue q (a number above the classes of ops) of link i."""
    if fifo_push(egress, i * (c[f.C_CLASSES] + 2) + q - c[f.C_CLASSES], packet, f.PACKET_NEXT, p):
        link[i, f.LINK_MASK] |= 1 << q
    if link[i, f.LINK_FREE] == 1:
        dirty_mark(dirty_links, i)


@block
def _misses_change(by, now, st):
    """`by` more misses are under way: for mean and maximum over all hubs."""
    level_change(by, now, st, f.ST_AL_AREA, f.ST_AL_SINCE, f.ST_MISSES_NOW, f.ST_PEAK_MISSES)


@block
def _bank_wait(key, node, hubs, c, x, st):
    """Time that the lookup of `key` would wait for its bank of the TLB, which takes one lookup in every C_BANK_PS: counted, not charged."""
    bank = tab.HUB_BANK0 + key % c[f.C_BANKS]
    wait = hubs[node, bank] - x[col.RUN_NOW]
    if wait > 0:
        st[f.ST_BANK_WAITS] += 1
        st[f.ST_BANK_PS] += wait
    hubs[node, bank] = max(hubs[node, bank], x[col.RUN_NOW]) + c[f.C_BANK_PS]


@block
def _place_lookup(row, waiter, node, hubs, tables, c, st):
    """The row table's answer to packet lookup `waiter` for `row`, and what it counts."""
    answer = tab.row_lookup(row, waiter, node, c[f.C_BANK_ENTRIES], hubs.keys, hubs.hubs, hubs.waiters, tables.places, tables.spilled)
    if answer == col.ROW_NEW:
        st[f.ST_ALLOCATED] += 1
        st[f.ST_PEAK_ROWS] = max(st[f.ST_PEAK_ROWS], hubs.hubs[node, tab.HUB_CACHED])
    return answer


@block
def _hub_lookup(p, node, packet, members, hubs, tables, agenda):
    """Packet p asks the table for each of its rows, from number PACKET_LEFT on. False: no miss register is free, it has to ask again."""
    mem, fill_row, reads = members.mem, members.fill_row, hubs.reads
    c, x, st = agenda.c, agenda.x, agenda.st
    k = packet[p, f.PACKET_MEMBER]
    first = mem[k, col.MEMBER_FILL]
    allocates = 1 if packet[p, f.PACKET_KIND] == f.MCOPY or packet[p, f.PACKET_KIND] == f.DATA else 0
    for fill in range(first + packet[p, f.PACKET_LEFT], mem[k + 1, col.MEMBER_FILL]):
        key = fill_row[fill]
        if c[f.C_BANK_ENTRIES] >= 0:
            answer = _place_lookup(key, p * c[f.C_FILLS] + fill - first, node, hubs, tables, c, st)
        else:
            answer = tab.al_lookup(key, p * c[f.C_FILLS] + fill - first, allocates, node, c[f.C_ROWS], hubs.keys, hubs.hubs, hubs.waiters)
        if answer == tab.AL_FULL:
            packet[p, f.PACKET_LEFT] = fill - first
            st[f.ST_FULL] += 1
            return False
        st[f.ST_LOOKUPS] += 1
        if c[f.C_BANKS] > 0:
            _bank_wait(key, node, hubs.hubs, c, x, st)
        if answer >= 0:
            st[f.ST_HITS] += 1
            continue
        packet[p, f.PACKET_ACKS] += 1
        if answer == tab.AL_READ:
            st[f.ST_MISSES] += 1
            _misses_change(1, x[col.RUN_NOW], st)
            reads[key, f.READ_DUE] = x[col.RUN_NOW] + c[f.C_AL_MISS]
            ring_join(f.FABRIC_AL, key, reads[key, f.READ_DUE], reads, f.READ_NEXT, agenda)
        else:
            st[f.ST_MERGED] += 1
    packet[p, f.PACKET_ACKS] -= 1
    return True


@block
def _hub_enter(p, node, packet, members, hubs, tables, agenda):
    """A packet that asks a table reaches its hub. True if it goes on at once."""
    stalled, st = hubs.stalled, agenda.st
    packet[p, f.PACKET_LEFT] = 0
    packet[p, f.PACKET_ACKS] = 1
    if stalled[node, 0] < 0 and _hub_lookup(p, node, packet, members, hubs, tables, agenda):
        if packet[p, f.PACKET_ACKS] > 0:
            st[f.ST_AL_WAITS] += 1
        return packet[p, f.PACKET_ACKS] == 0
    st[f.ST_AL_WAITS] += 1
    fifo_push(stalled, node, packet, f.PACKET_NEXT, p)
    return False


@block
def _hub_answer(key, expert, node, hubs, tables, agenda):
    """Memory answers the miss of `key`; hubs.answer[0] is the first lookup that goes on. True if the row takes its slot now."""
    table, st, now = hubs.hubs, agenda.st, agenda.x[col.RUN_NOW]
    if agenda.c[f.C_BANK_ENTRIES] >= 0:
        entries = agenda.c[f.C_BANK_ENTRIES]
        st[f.ST_ALLOCATED] += tab.row_answer(key, node, entries, hubs.keys, table, hubs.waiters, tables.places, tables.spilled, hubs.answer)
        _misses_change(-1, now, st)
        return False
    full = table[node, tab.HUB_CACHED]
    tab.al_answer(key, expert, node, agenda.c[f.C_ROWS], hubs.keys, table, hubs.waiters, hubs.next_free, hubs.answer)
    _misses_change(-1, now, st)
    if table[node, tab.HUB_CACHED] == full:
        st[f.ST_TLB_EVICTIONS] += 1
    st[f.ST_ALLOCATED] += table[node, tab.HUB_ALLOCATED]
    return table[node, tab.HUB_ALLOCATED] == 1


@block
def tails_arrive(now, ops, members, packets, hubs, tables, accepted, agenda):
    """Tails reach their hubs: a packet is accepted at once, one whose op asks a table when the table knows its rows."""
    packet, packet_time, c = packets.packet, packets.packet_time, agenda.c
    while True:
        p = due_take(f.FABRIC_DELIVER, now, packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        agenda.x[col.RUN_EVENTS] += 1
        kind = packet[p, f.PACKET_KIND]
        known = True
        payload = kind == f.MCOPY or kind == f.RCOPY or kind == f.DATA
        if c[f.C_AL] > 0 and payload and ops.templates[ops.op[packet[p, f.PACKET_OP], col.TEMPLATE], col.TABLE] >= 0:
            known = _hub_enter(p, packet[p, f.PACKET_OUT] // c[f.C_LINKS], packet, members, hubs, tables, agenda)
        if known:
            fifo_push(accepted, 0, packet, f.PACKET_NEXT2, p)


@block
def entries_answer(now, members, stores, packet, hubs, tables, accepted, agenda):
    """Memory answers AL misses: packets that have all their rows are accepted, and stalled ones ask again."""
    rows, reads, stalled = stores.rows, hubs.reads, hubs.stalled
    x = agenda.x
    while True:
        key = due_take(f.FABRIC_AL, now, reads, f.READ_DUE, reads, f.READ_NEXT, agenda)
        if key < 0:
            break
        x[col.RUN_EVENTS] += 1
        node = stores.regions[rows[key, col.ROW_REGION], col.REGION_NODE]
        if _hub_answer(key, rows[key, col.ROW_REGION], node, hubs, tables, agenda):
            row_fill(key, 0, stores, x)
        k = hubs.answer[0]
        while k >= 0:
            p = k // agenda.c[f.C_FILLS]
            k = hubs.waiters[k, tab.WAITER_NEXT]
            packet[p, f.PACKET_ACKS] -= 1
            if packet[p, f.PACKET_ACKS] == 0:
                fifo_push(accepted, 0, packet, f.PACKET_NEXT2, p)
        while stalled[node, 0] >= 0:
            p = stalled[node, 0]
            if not _hub_lookup(p, node, packet, members, hubs, tables, agenda):
                break
            stalled[node, 0] = packet[p, f.PACKET_NEXT]
            if packet[p, f.PACKET_ACKS] == 0:
                fifo_push(accepted, 0, packet, f.PACKET_NEXT2, p)


@block
def respond(now, ops, packets, sources, lanes, links, m, agenda):
    """Responders have read their memory: a request becomes a response and queues for its link."""
    op, packet, cuts = ops.op, packets.packet, sources.cuts
    c = agenda.c
    while True:
        p = due_take(f.FABRIC_RESPOND, now, packets.packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        agenda.x[col.RUN_EVENTS] += 1
        o = packet[p, f.PACKET_OP]
        w = op[o, col.WIRE]
        packet[p, f.PACKET_KIND] = f.RESP if packet[p, f.PACKET_KIND] == f.REQ else f.CONTRIB
        packet[p, f.PACKET_FLITS] = cuts[w, f.CUT_DOWN_H] + data_flits(cuts, w, packet[p, f.PACKET_CHUNK], f.CUT_ANSWER)
        i = packet[p, f.PACKET_OUT]
        if packet[p, f.PACKET_CHUNK] == 0:
            memory_take(links.nodes, i // c[f.C_LINKS], links.wires[w, col.WIRE_PAYLOAD], m, now)
        packet[p, f.PACKET_OUT] = packet[p, f.PACKET_LINK]
        queue = c[f.C_CLASSES] + ops.templates[op[o, col.TEMPLATE], col.RESPONSE_CLS]
        egress_put(i, queue, p, packet, lanes.link, sources.egress, lanes.dirty_links, c)
