"""The packet fabric: links, switch input buffers with credits, crossbar lanes, outputs, reduction units (docs/design/0006).

One event per packet and hop; the same blocks carry Programs and synthetic traffic. `pk` and `pt` are two views of the packet records,
`lk` the links (up direction and input port), `oc` the outputs (down links, then reduction units), `c` constants.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import set_after, split
from dysharp.engine.blocks.fifo import fifo_push
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.kernel import block, lowest
from dysharp.engine.packet import columns as f


@block
def dirty_mark(dirty, i):
    """Resource i wants a grant attempt at this instant. dirty int64 [1 + words]: which words are not empty, then 64 resources a word."""
    dirty[1 + (i >> 6)] |= 1 << (i & 63)
    dirty[0] |= 1 << (i >> 6)


@block
def dirty_take(dirty):
    """Remove and return the lowest marked resource of a non-empty set."""
    w = lowest(dirty[0])
    word = dirty[1 + w]
    dirty[1 + w] = word & (word - 1)
    if dirty[1 + w] == 0:
        dirty[0] &= dirty[0] - 1
    return (w << 6) + lowest(word)


@block
def slot_take(free, x):
    """A free packet record."""
    x[f.RUN_FREE] -= 1
    return free[x[f.RUN_FREE]]


@block
def slot_free(p, free, x):
    """Packet record p is free again."""
    free[x[f.RUN_FREE]] = p
    x[f.RUN_FREE] += 1


@block
def ring_join(r, entry, due, chain, column, agenda):
    """`entry` leaves ring r at `due`, not before any entry that joined earlier. chain[entry, column]: the next entry, -1 = none."""
    if fifo_push(agenda.rings, r, chain, column, entry):
        tree_set(agenda.tree, agenda.c[f.C_LEAF] + r, due)


@block
def due_take(r, now, due, due_column, chain, column, agenda):
    """The head of ring r, taken out, if it is due: at due[entry, due_column]. Else -1, and the ring waits for its head."""
    entry = agenda.rings[r, 0]
    if entry >= 0 and due[entry, due_column] == now:
        agenda.rings[r, 0] = chain[entry, column]
        return entry
    tree_set(agenda.tree, agenda.c[f.C_LEAF] + r, due[entry, due_column] if entry >= 0 else col.INF)
    return -1


@block
def packet_schedule(r, p, due, column, packet, packet_time, agenda):
    """Packet p leaves ring r at `due`, not before any packet that joined earlier."""
    packet_time[p, f.PACKET_DUE] = due
    ring_join(r, p, due, packet, column, agenda)


@block
def _link_busy(i, r, due, link, agenda):
    """Link i is free again at `due`."""
    link[i, f.LINK_FREE] = 0
    link[i, f.LINK_DUE] = due
    ring_join(r, i, due, link, f.LINK_NEXT, agenda)


@block
def links_free(r, now, link, dirty_links, agenda):
    """The links of ring r that are due now are free again; those with something to send are looked at."""
    while True:
        i = due_take(r, now, link, f.LINK_DUE, link, f.LINK_NEXT, agenda)
        if i < 0:
            break
        link[i, f.LINK_FREE] = 1
        if link[i, f.LINK_MASK] != 0:
            dirty_mark(dirty_links, i)


@block
def level_change(by, now, st, area, since, current, peak):
    """A level changes by `by`: its area, last change, value and peak are these columns of `st` (for its mean and maximum)."""
    st[area] += st[current] * (now - st[since])
    st[since] = now
    st[current] += by
    if st[current] > st[peak]:
        st[peak] = st[current]


@block
def vc_find(i, group, flits, occupied, c):
    """The least occupied VC of `group` at input port i if the packet fits as a whole or the VC is empty, else -1 (infinite buffers: its first)."""
    first = group * c[f.C_VPG]
    if c[f.C_VC_FLITS] == 0:
        return first
    best = first
    for v in range(first + 1, first + c[f.C_VPG]):
        if occupied[i, v] < occupied[i, best]:
            best = v
    if occupied[i, best] > 0 and occupied[i, best] + flits > c[f.C_VC_FLITS]:
        return -1
    return best


@block
def link_send(i, turn, p, vc, ext, late, due, packet, packet_time, link, occupied, agenda):
    """Packet p starts on link i towards VC `vc`; its head is routed `late` after, behind `ext` extension flits.

    `turn`: the egress queue that had its turn last. `due`: time from the start to the end of its last flit.
    """
    c, now = agenda.c, agenda.x[col.RUN_NOW]
    flits = packet[p, f.PACKET_FLITS]
    if link[i, f.LINK_BLOCKED] >= 0:
        link[i, f.LINK_PS_CREDIT] += now - link[i, f.LINK_BLOCKED]
        link[i, f.LINK_BLOCKED] = -1
    link[i, f.LINK_CURSOR] = turn
    link[i, f.LINK_FLITS] += flits
    packet[p, f.PACKET_LINK] = i
    packet[p, f.PACKET_VC] = vc
    occupied[i, vc] += flits
    link[i, f.LINK_FULL_FLITS] += flits
    if link[i, f.LINK_FULL_FLITS] > link[i, f.LINK_PEAK]:
        link[i, f.LINK_PEAK] = link[i, f.LINK_FULL_FLITS]
    _link_busy(i, f.FABRIC_FIXED + flits, now + due, link, agenda)
    # rings of arrivals lie behind those of busy links, one per number of extension flits, first plain and then dynamic packets
    packet_schedule(f.FABRIC_FIXED + c[f.C_SIZES] + ext, p, now + late, f.PACKET_NEXT, packet, packet_time, agenda)


@block
def link_blocked(i, link, x, st):
    """Link i has something to send and no VC has room for any of it."""
    if link[i, f.LINK_BLOCKED] < 0:
        link[i, f.LINK_BLOCKED] = x[col.RUN_NOW]
        st[f.ST_CREDIT_WAITS] += 1


@block
def out_ask(o, p, s, packet, link, outputs, c):
    """Packet p, at input s of its plane (C_PORTS = the switch itself), asks for output o."""
    out_queues, asking, output = outputs.out_queues, outputs.asking, outputs.output
    group = packet[p, f.PACKET_VC] // c[f.C_VPG]
    at = o * c[f.C_GROUPS] + group
    row = at * (c[f.C_PORTS] + 1) + s
    if fifo_push(out_queues, row, packet, f.PACKET_NEXT2, p):
        asking[at, s >> 6] |= 1 << (s & 63)
        if s < c[f.C_PORTS]:
            j = link[o if o < c[f.C_TOTAL] else o - c[f.C_TOTAL], f.LINK_INPUT] * 2 + (1 if o >= c[f.C_TOTAL] else 0)
            outputs.asked[packet[p, f.PACKET_LINK], j >> 6] |= 1 << (j & 63)
    if output[o, f.OUTPUT_FREE] > 0:
        dirty_mark(outputs.dirty_outputs, o)


@block
def switch_send(q, vc, flits, packet, link, outputs, c):
    """The switch itself sends packet q to its output, as a packet of VC `vc`."""
    packet[q, f.PACKET_VC] = vc
    packet[q, f.PACKET_OUT_FLITS] = flits
    out_ask(packet[q, f.PACKET_OUT], q, c[f.C_PORTS], packet, link, outputs, c)


@block
def _shares_lane(p, now, packet, packet_time):
    """Whether p is a copy of a packet of which another copy starts to cross at this instant: the buffer is read once for both."""
    kind = packet[p, f.PACKET_KIND]
    return (kind == f.MCOPY or kind == f.RCOPY) and packet_time[packet[p, f.PACKET_PARENT], f.PACKET_DUE] == now


@block
def has_lane(p, packet):
    """Whether the crossing packet p holds a lane of its input (copies that started together hold one)."""
    return (packet[p, f.PACKET_KIND] != f.MCOPY and packet[p, f.PACKET_KIND] != f.RCOPY) or packet[p, f.PACKET_FLITS] == 1


@block
def out_pick(o, now, packet, packet_time, link, outputs, held, c, x, st):
    """The packet that output o begins now, or -1: groups round robin, inputs with a free lane round robin. `x[RUN_OUT]` is its input."""
    out_queues, asking, output = outputs.out_queues, outputs.asking, outputs.output
    n_groups = c[f.C_GROUPS]
    n_ports = c[f.C_PORTS]
    group = output[o, f.OUTPUT_GROUP]
    hub_full = False
    for _ in range(n_groups):
        group = group + 1 if group + 1 < n_groups else 0
        at = o * n_groups + group
        s = set_after(asking, at, output[o, f.OUTPUT_INPUT0 + group])
        first = s
        while s >= 0:
            p = out_queues[at * (n_ports + 1) + s, 0]
            ok = True
            if s < n_ports and link[packet[p, f.PACKET_LINK], f.LINK_LANES] == 0 and not _shares_lane(p, now, packet, packet_time):
                st[f.ST_LANE_WAITS] += 1
                ok = False
            elif o < c[f.C_TOTAL] and held[o, group] > 0 and held[o, group] + packet[p, f.PACKET_OUT_FLITS] > c[f.C_INGRESS]:
                hub_full = True
                ok = False
            if ok:
                output[o, f.OUTPUT_GROUP] = group
                output[o, f.OUTPUT_INPUT0 + group] = s
                x[f.RUN_OUT] = s
                if output[o, f.OUTPUT_BLOCKED] >= 0:
                    output[o, f.OUTPUT_PS_HUB] += now - output[o, f.OUTPUT_BLOCKED]
                    output[o, f.OUTPUT_BLOCKED] = -1
                return p
            s = set_after(asking, at, s)
            if s == first:
                break
    if hub_full and output[o, f.OUTPUT_BLOCKED] < 0:
        output[o, f.OUTPUT_BLOCKED] = now
        st[f.ST_HUB_WAITS] += 1
    return -1


@block
def out_leave(o, p, s, packet, link, outputs, c):
    """The head p of output o's queue of input s has been taken."""
    out_queues, asking, asked = outputs.out_queues, outputs.asking, outputs.asked
    n_groups = c[f.C_GROUPS]
    at = o * n_groups + packet[p, f.PACKET_VC] // c[f.C_VPG]
    row = at * (c[f.C_PORTS] + 1) + s
    out_queues[row, 0] = packet[p, f.PACKET_NEXT2]
    if out_queues[row, 0] < 0:
        asking[at, s >> 6] &= ~(1 << (s & 63))
        if s < c[f.C_PORTS]:
            idle = True
            for g in range(n_groups):
                if out_queues[(o * n_groups + g) * (c[f.C_PORTS] + 1) + s, 0] >= 0:
                    idle = False
            if idle:
                j = link[o if o < c[f.C_TOTAL] else o - c[f.C_TOTAL], f.LINK_INPUT] * 2 + (1 if o >= c[f.C_TOTAL] else 0)
                asked[packet[p, f.PACKET_LINK], j >> 6] &= ~(1 << (j & 63))


@block
def _line_send(o, p, now, packet, output, agenda):
    """Packet p starts on the down link o; rings of sending links lie behind those of crossings."""
    c = agenda.c
    flits = packet[p, f.PACKET_OUT_FLITS]
    output[o, f.OUTPUT_SENDING] = p
    output[o, f.OUTPUT_DUE] = now + agenda.flit_ps[flits]
    ring_join(f.FABRIC_FIXED + 2 * c[f.C_SIZES] + c[f.C_EXT] + flits, o, output[o, f.OUTPUT_DUE], output, f.OUTPUT_NEXT, agenda)


@block
def _is_short(kind):
    """Whether a packet of this kind on a down link is an acknowledgement or a notification."""
    return kind == f.ACK or kind == f.MACK or kind == f.NOTE


@block
def _line_first(o, p, behind, output):
    """Packet p waits for the busy link o after the packets that go first, before all others."""
    last = output[o, f.OUTPUT_SHORT]
    following = output[o, f.OUTPUT_HEAD] if last < 0 else behind[last]
    behind[p] = following
    if last < 0:
        output[o, f.OUTPUT_HEAD] = p
    else:
        behind[last] = p
    if following < 0:
        output[o, f.OUTPUT_TAIL] = p
    output[o, f.OUTPUT_SHORT] = p


@block
def out_begin(o, p, s, now, packets, link, output, held, agenda):
    """Packet p crosses to output o: a lane of its input and a lane of the output are busy; the link takes the packets in turn."""
    packet, packet_time, behind = packets.packet, packets.packet_time, packets.behind
    flit_ps, c = agenda.flit_ps, agenda.c
    flits = packet[p, f.PACKET_OUT_FLITS]
    output[o, f.OUTPUT_FREE] -= 1
    output[o, f.OUTPUT_FLITS] += flits
    if s < c[f.C_PORTS]:
        shared = _shares_lane(p, now, packet, packet_time)
        if packet[p, f.PACKET_KIND] == f.MCOPY or packet[p, f.PACKET_KIND] == f.RCOPY:
            packet[p, f.PACKET_FLITS] = 0 if shared else 1
            packet_time[packet[p, f.PACKET_PARENT], f.PACKET_DUE] = now
        if not shared:
            link[packet[p, f.PACKET_LINK], f.LINK_LANES] -= 1
    packet_schedule(f.FABRIC_FIXED + c[f.C_SIZES] + c[f.C_EXT] + flits, p, now + flit_ps[flits], f.PACKET_NEXT2, packet, packet_time, agenda)
    if o < c[f.C_TOTAL]:
        held[o, packet[p, f.PACKET_VC] // c[f.C_VPG]] += flits
        behind[p] = -1
        if output[o, f.OUTPUT_SENDING] < 0:
            _line_send(o, p, now, packet, output, agenda)
        elif c[f.C_FIRST] != 0 and _is_short(packet[p, f.PACKET_KIND]):
            _line_first(o, p, behind, output)
        elif output[o, f.OUTPUT_HEAD] < 0:
            output[o, f.OUTPUT_HEAD] = p
            output[o, f.OUTPUT_TAIL] = p
        else:
            behind[output[o, f.OUTPUT_TAIL]] = p
            output[o, f.OUTPUT_TAIL] = p


@block
def _line_next(o, now, packets, output, agenda):
    """The packet on link o has left; the next one that crossed follows. Returns the packet that has left."""
    p = output[o, f.OUTPUT_SENDING]
    following = output[o, f.OUTPUT_HEAD]
    output[o, f.OUTPUT_SENDING] = -1
    if following >= 0:
        if following == output[o, f.OUTPUT_SHORT]:
            output[o, f.OUTPUT_SHORT] = -1
        output[o, f.OUTPUT_HEAD] = packets.behind[following]
        _line_send(o, following, now, packets.packet, output, agenda)
    return p


@block
def lane_back(i, lanes, outputs, c):
    """A crossbar lane of input i is free: outputs that passed it over try again."""
    link, asked = lanes.link, outputs.asked
    link[i, f.LINK_LANES] += 1
    if link[i, f.LINK_LANES] == 1:
        for w in range(asked.shape[1]):
            word = asked[i, w]
            while word != 0:
                low, word = split(word)
                j = (w << 6) + low
                dirty_mark(outputs.dirty_outputs, lanes.plane_links[link[i, f.LINK_PLANE], j >> 1] + (c[f.C_TOTAL] if j & 1 else 0))


@block
def credit_put(i, vc, flits, due, lanes, agenda):
    """`flits` of VC `vc` of input i are free; its link knows at `due`."""
    credit_due, x = lanes.credit_due, agenda.x
    mask = len(credit_due) - 1
    if x[f.RUN_CREDITS] == x[f.RUN_CREDIT_READ]:
        tree_set(agenda.tree, agenda.c[f.C_LEAF] + f.FABRIC_CREDIT, due)
    credit_due[x[f.RUN_CREDITS] & mask] = due
    lanes.credit_what[x[f.RUN_CREDITS] & mask] = (i << 32) | (vc << 24) | flits
    x[f.RUN_CREDITS] += 1


@block
def credits_take(now, lanes, agenda):
    """All credits that are due."""
    link, credit_due, x = lanes.link, lanes.credit_due, agenda.x
    mask = len(credit_due) - 1
    at = x[f.RUN_CREDIT_READ]
    while at < x[f.RUN_CREDITS] and credit_due[at & mask] <= now:
        what = lanes.credit_what[at & mask]
        i = what >> 32
        lanes.occupied[i, (what >> 24) & 255] -= what & 0xFFFFFF
        link[i, f.LINK_FULL_FLITS] -= what & 0xFFFFFF
        if link[i, f.LINK_FREE] == 1 and link[i, f.LINK_MASK] != 0:
            dirty_mark(lanes.dirty_links, i)
        at += 1
    x[f.RUN_CREDIT_READ] = at
    tree_set(agenda.tree, agenda.c[f.C_LEAF] + f.FABRIC_CREDIT, credit_due[at & mask] if at < x[f.RUN_CREDITS] else col.INF)


@block
def lines_end(r, now, packets, output, agenda, flits_by_kind):
    """Tails have left down links: the packets reach their hubs one latency later."""
    packet = packets.packet
    while True:
        o = due_take(r, now, output, f.OUTPUT_DUE, output, f.OUTPUT_NEXT, agenda)
        if o < 0:
            break
        p = _line_next(o, now, packets, output, agenda)
        agenda.x[col.RUN_EVENTS] += 1
        flits_by_kind[1, packet[p, f.PACKET_KIND]] += packet[p, f.PACKET_OUT_FLITS]
        packet_schedule(f.FABRIC_DELIVER, p, now + agenda.c[f.C_TAIL], f.PACKET_NEXT, packet, packets.packet_time, agenda)
