"""The packet fabric: links, switch input buffers with credits, crossbar lanes, outputs, reduction units (docs/design/0006).

One event per packet and hop; the same blocks carry Programs and synthetic traffic. `pk` and `pt` are two views of the packet records,
`lk` the links (up direction and input port), `oc` the outputs (down links, then reduction units), `c` constants.
"""

from dysharp.uarch.columns import INF, RUN_EVENTS, RUN_NOW
from dysharp.uarch.flit.router import lowest
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    ACK,
    C_EXT,
    C_FIRST,
    C_GROUPS,
    C_INGRESS,
    C_LEAF,
    C_PORTS,
    C_SIZES,
    C_TAIL,
    C_TOTAL,
    C_VC_FLITS,
    C_VPG,
    FABRIC_CREDIT,
    FABRIC_DELIVER,
    FABRIC_FIXED,
    LINK_BLOCKED,
    LINK_CURSOR,
    LINK_DUE,
    LINK_FLITS,
    LINK_FREE,
    LINK_FULL_FLITS,
    LINK_INPUT,
    LINK_LANES,
    LINK_MASK,
    LINK_NEXT,
    LINK_PEAK,
    LINK_PLANE,
    LINK_PS_CREDIT,
    MACK,
    MCOPY,
    NOTE,
    OUTPUT_BLOCKED,
    OUTPUT_DUE,
    OUTPUT_FLITS,
    OUTPUT_FREE,
    OUTPUT_GROUP,
    OUTPUT_HEAD,
    OUTPUT_INPUT0,
    OUTPUT_NEXT,
    OUTPUT_PS_HUB,
    OUTPUT_SENDING,
    OUTPUT_SHORT,
    OUTPUT_TAIL,
    PACKET_DUE,
    PACKET_FLITS,
    PACKET_KIND,
    PACKET_LINK,
    PACKET_NEXT,
    PACKET_NEXT2,
    PACKET_OUT_FLITS,
    PACKET_PARENT,
    PACKET_VC,
    RCOPY,
    RUN_CREDIT_READ,
    RUN_CREDITS,
    RUN_FREE,
    RUN_OUT,
    ST_CREDIT_WAITS,
    ST_HUB_WAITS,
    ST_LANE_WAITS,
)
from dysharp.uarch.tree import tree_set


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
def words_after(words, row, cursor):
    """Round robin: lowest member above `cursor` of the bit set words[row] [n_words], 64 bits each, else the lowest; -1 if empty."""
    n = words.shape[1]
    found = -1
    at = (cursor + 1) >> 6
    if at < n:
        w = words[row, at] & (-1 << ((cursor + 1) & 63))
        while w == 0 and at + 1 < n:
            at += 1
            w = words[row, at]
        if w != 0:
            found = (at << 6) + lowest(w)
    if found < 0:
        for i in range(n):
            if words[row, i] != 0:
                found = (i << 6) + lowest(words[row, i])
                break
    return found


@block
def slot_take(free, x):
    """A free packet record."""
    x[RUN_FREE] -= 1
    return free[x[RUN_FREE]]


@block
def slot_free(p, free, x):
    """Packet record p is free again."""
    free[x[RUN_FREE]] = p
    x[RUN_FREE] += 1


@block
def ring_join(r, entry, due, chain, column, agenda):
    """`entry` leaves ring r at `due`, not before any entry that joined earlier. chain[entry, column]: the next entry, -1 = none."""
    rings = agenda.rings
    chain[entry, column] = -1
    if rings[r, 0] < 0:
        rings[r, 0] = entry
        tree_set(agenda.tree, agenda.c[C_LEAF] + r, due)
    else:
        chain[rings[r, 1], column] = entry
    rings[r, 1] = entry


@block
def packet_schedule(r, p, due, column, packet, packet_time, agenda):
    """Packet p leaves ring r at `due`, not before any packet that joined earlier."""
    packet_time[p, PACKET_DUE] = due
    ring_join(r, p, due, packet, column, agenda)


@block
def link_busy(i, r, due, link, agenda):
    """Link i is free again at `due`."""
    link[i, LINK_FREE] = 0
    link[i, LINK_DUE] = due
    ring_join(r, i, due, link, LINK_NEXT, agenda)


@block
def links_free(ring, leaf, now, link, dirty_links, agenda):
    """The links of a ring that are due now are free again; those with something to send are looked at."""
    rings, tree = agenda.rings, agenda.tree
    i = rings[ring, 0]
    while i >= 0 and link[i, LINK_DUE] == now:
        link[i, LINK_FREE] = 1
        if link[i, LINK_MASK] != 0:
            dirty_mark(dirty_links, i)
        i = link[i, LINK_NEXT]
    rings[ring, 0] = i
    tree_set(tree, leaf, link[i, LINK_DUE] if i >= 0 else INF)


@block
def level_change(by, now, st, area, since, current, peak):
    """A level changes by `by`: its area, last change, value and peak are these columns of `st` (for its mean and maximum)."""
    st[area] += st[current] * (now - st[since])
    st[since] = now
    st[current] += by
    if st[current] > st[peak]:
        st[peak] = st[current]


@kernel
def vc_find(i, group, flits, occupied, c):
    """The least occupied VC of `group` at input port i if the packet fits as a whole or the VC is empty, else -1 (infinite buffers: its first)."""
    first = group * c[C_VPG]
    if c[C_VC_FLITS] == 0:
        return first
    best = first
    for v in range(first + 1, first + c[C_VPG]):
        if occupied[i, v] < occupied[i, best]:
            best = v
    if occupied[i, best] > 0 and occupied[i, best] + flits > c[C_VC_FLITS]:
        return -1
    return best


@kernel
def link_send(i, turn, p, vc, ext, late, due, packet, packet_time, link, occupied, agenda):
    """Packet p starts on link i towards VC `vc`; its head is routed `late` after, behind `ext` extension flits.

    `turn`: the egress queue that had its turn last. `due`: time from the start to the end of its last flit.
    """
    c, now = agenda.c, agenda.x[RUN_NOW]
    flits = packet[p, PACKET_FLITS]
    if link[i, LINK_BLOCKED] >= 0:
        link[i, LINK_PS_CREDIT] += now - link[i, LINK_BLOCKED]
        link[i, LINK_BLOCKED] = -1
    link[i, LINK_CURSOR] = turn
    link[i, LINK_FLITS] += flits
    packet[p, PACKET_LINK] = i
    packet[p, PACKET_VC] = vc
    occupied[i, vc] += flits
    link[i, LINK_FULL_FLITS] += flits
    if link[i, LINK_FULL_FLITS] > link[i, LINK_PEAK]:
        link[i, LINK_PEAK] = link[i, LINK_FULL_FLITS]
    link_busy(i, FABRIC_FIXED + flits, now + due, link, agenda)
    # rings of arrivals lie behind those of busy links, one per number of extension flits, first plain and then dynamic packets
    packet_schedule(FABRIC_FIXED + c[C_SIZES] + ext, p, now + late, PACKET_NEXT, packet, packet_time, agenda)


@kernel
def link_blocked(i, link, x, st):
    """Link i has something to send and no VC has room for any of it."""
    if link[i, LINK_BLOCKED] < 0:
        link[i, LINK_BLOCKED] = x[RUN_NOW]
        st[ST_CREDIT_WAITS] += 1


@kernel
def out_ask(o, p, s, packet, link, outputs, c):
    """Packet p, at input s of its plane (C_PORTS = the switch itself), asks for output o."""
    out_queues, asking, output = outputs.out_queues, outputs.asking, outputs.output
    group = packet[p, PACKET_VC] // c[C_VPG]
    at = o * c[C_GROUPS] + group
    row = at * (c[C_PORTS] + 1) + s
    packet[p, PACKET_NEXT2] = -1
    if out_queues[row, 0] < 0:
        out_queues[row, 0] = p
        asking[at, s >> 6] |= 1 << (s & 63)
        if s < c[C_PORTS]:
            j = link[o if o < c[C_TOTAL] else o - c[C_TOTAL], LINK_INPUT] * 2 + (1 if o >= c[C_TOTAL] else 0)
            outputs.asked[packet[p, PACKET_LINK], j >> 6] |= 1 << (j & 63)
    else:
        packet[out_queues[row, 1], PACKET_NEXT2] = p
    out_queues[row, 1] = p
    if output[o, OUTPUT_FREE] > 0:
        dirty_mark(outputs.dirty_outputs, o)


@block
def shares_lane(p, now, packet, packet_time):
    """Whether p is a copy of a packet of which another copy starts to cross at this instant: the buffer is read once for both."""
    return (packet[p, PACKET_KIND] == MCOPY or packet[p, PACKET_KIND] == RCOPY) and packet_time[packet[p, PACKET_PARENT], PACKET_DUE] == now


@block
def has_lane(p, packet):
    """Whether the crossing packet p holds a lane of its input (copies that started together hold one)."""
    return (packet[p, PACKET_KIND] != MCOPY and packet[p, PACKET_KIND] != RCOPY) or packet[p, PACKET_FLITS] == 1


@kernel
def out_pick(o, now, packet, packet_time, link, outputs, held, c, x, st):
    """The packet that output o begins now, or -1: groups round robin, inputs with a free lane round robin. `x[RUN_OUT]` is its input."""
    out_queues, asking, output = outputs.out_queues, outputs.asking, outputs.output
    n_groups = c[C_GROUPS]
    n_ports = c[C_PORTS]
    group = output[o, OUTPUT_GROUP]
    hub_full = False
    for _ in range(n_groups):
        group = group + 1 if group + 1 < n_groups else 0
        at = o * n_groups + group
        s = words_after(asking, at, output[o, OUTPUT_INPUT0 + group])
        first = s
        while s >= 0:
            p = out_queues[at * (n_ports + 1) + s, 0]
            ok = True
            if s < n_ports and link[packet[p, PACKET_LINK], LINK_LANES] == 0 and not shares_lane(p, now, packet, packet_time):
                st[ST_LANE_WAITS] += 1
                ok = False
            elif o < c[C_TOTAL] and held[o, group] > 0 and held[o, group] + packet[p, PACKET_OUT_FLITS] > c[C_INGRESS]:
                hub_full = True
                ok = False
            if ok:
                output[o, OUTPUT_GROUP] = group
                output[o, OUTPUT_INPUT0 + group] = s
                x[RUN_OUT] = s
                if output[o, OUTPUT_BLOCKED] >= 0:
                    output[o, OUTPUT_PS_HUB] += now - output[o, OUTPUT_BLOCKED]
                    output[o, OUTPUT_BLOCKED] = -1
                return p
            s = words_after(asking, at, s)
            if s == first:
                break
    if hub_full and output[o, OUTPUT_BLOCKED] < 0:
        output[o, OUTPUT_BLOCKED] = now
        st[ST_HUB_WAITS] += 1
    return -1


@kernel
def out_leave(o, p, s, packet, link, outputs, c):
    """The head p of output o's queue of input s has been taken."""
    out_queues, asking, asked = outputs.out_queues, outputs.asking, outputs.asked
    n_groups = c[C_GROUPS]
    at = o * n_groups + packet[p, PACKET_VC] // c[C_VPG]
    row = at * (c[C_PORTS] + 1) + s
    out_queues[row, 0] = packet[p, PACKET_NEXT2]
    if out_queues[row, 0] < 0:
        asking[at, s >> 6] &= ~(1 << (s & 63))
        if s < c[C_PORTS]:
            idle = True
            for g in range(n_groups):
                if out_queues[(o * n_groups + g) * (c[C_PORTS] + 1) + s, 0] >= 0:
                    idle = False
            if idle:
                j = link[o if o < c[C_TOTAL] else o - c[C_TOTAL], LINK_INPUT] * 2 + (1 if o >= c[C_TOTAL] else 0)
                asked[packet[p, PACKET_LINK], j >> 6] &= ~(1 << (j & 63))


@block
def line_send(o, p, now, packet, output, agenda):
    """Packet p starts on the down link o; rings of sending links lie behind those of crossings."""
    c = agenda.c
    flits = packet[p, PACKET_OUT_FLITS]
    output[o, OUTPUT_SENDING] = p
    output[o, OUTPUT_DUE] = now + agenda.flit_ps[flits]
    ring_join(FABRIC_FIXED + 2 * c[C_SIZES] + c[C_EXT] + flits, o, output[o, OUTPUT_DUE], output, OUTPUT_NEXT, agenda)


@block
def is_short(kind):
    """Whether a packet of this kind on a down link is an acknowledgement or a notification."""
    return kind == ACK or kind == MACK or kind == NOTE


@block
def line_first(o, p, behind, output):
    """Packet p waits for the busy link o after the packets that go first, before all others."""
    last = output[o, OUTPUT_SHORT]
    following = output[o, OUTPUT_HEAD] if last < 0 else behind[last]
    behind[p] = following
    if last < 0:
        output[o, OUTPUT_HEAD] = p
    else:
        behind[last] = p
    if following < 0:
        output[o, OUTPUT_TAIL] = p
    output[o, OUTPUT_SHORT] = p


@block
def out_begin(o, p, s, now, packets, link, output, held, agenda):
    """Packet p crosses to output o: a lane of its input and a lane of the output are busy; the link takes the packets in turn."""
    packet, packet_time, behind = packets.packet, packets.packet_time, packets.behind
    flit_ps, c = agenda.flit_ps, agenda.c
    flits = packet[p, PACKET_OUT_FLITS]
    output[o, OUTPUT_FREE] -= 1
    output[o, OUTPUT_FLITS] += flits
    if s < c[C_PORTS]:
        shared = shares_lane(p, now, packet, packet_time)
        if packet[p, PACKET_KIND] == MCOPY or packet[p, PACKET_KIND] == RCOPY:
            packet[p, PACKET_FLITS] = 0 if shared else 1
            packet_time[packet[p, PACKET_PARENT], PACKET_DUE] = now
        if not shared:
            link[packet[p, PACKET_LINK], LINK_LANES] -= 1
    packet_schedule(FABRIC_FIXED + c[C_SIZES] + c[C_EXT] + flits, p, now + flit_ps[flits], PACKET_NEXT2, packet, packet_time, agenda)
    if o < c[C_TOTAL]:
        held[o, packet[p, PACKET_VC] // c[C_VPG]] += flits
        behind[p] = -1
        if output[o, OUTPUT_SENDING] < 0:
            line_send(o, p, now, packet, output, agenda)
        elif c[C_FIRST] != 0 and is_short(packet[p, PACKET_KIND]):
            line_first(o, p, behind, output)
        elif output[o, OUTPUT_HEAD] < 0:
            output[o, OUTPUT_HEAD] = p
            output[o, OUTPUT_TAIL] = p
        else:
            behind[output[o, OUTPUT_TAIL]] = p
            output[o, OUTPUT_TAIL] = p


@block
def line_next(o, now, packets, output, agenda):
    """The packet on link o has left; the next one that crossed follows. Returns the one that has left."""
    p = output[o, OUTPUT_SENDING]
    following = output[o, OUTPUT_HEAD]
    output[o, OUTPUT_SENDING] = -1
    if following >= 0:
        if following == output[o, OUTPUT_SHORT]:
            output[o, OUTPUT_SHORT] = -1
        output[o, OUTPUT_HEAD] = packets.behind[following]
        line_send(o, following, now, packets.packet, output, agenda)
    return p


@block
def lane_back(i, lanes, outputs, c):
    """A crossbar lane of input i is free: outputs that passed it over try again."""
    link, asked = lanes.link, outputs.asked
    link[i, LINK_LANES] += 1
    if link[i, LINK_LANES] == 1:
        for w in range(asked.shape[1]):
            word = asked[i, w]
            while word != 0:
                j = (w << 6) + lowest(word)
                word &= word - 1
                dirty_mark(outputs.dirty_outputs, lanes.plane_links[link[i, LINK_PLANE], j >> 1] + (c[C_TOTAL] if j & 1 else 0))


@block
def credit_put(i, vc, flits, due, lanes, agenda):
    """`flits` of VC `vc` of input i are free; its link knows at `due`."""
    credit_due, x = lanes.credit_due, agenda.x
    mask = len(credit_due) - 1
    if x[RUN_CREDITS] == x[RUN_CREDIT_READ]:
        tree_set(agenda.tree, agenda.c[C_LEAF] + FABRIC_CREDIT, due)
    credit_due[x[RUN_CREDITS] & mask] = due
    lanes.credit_what[x[RUN_CREDITS] & mask] = (i << 32) | (vc << 24) | flits
    x[RUN_CREDITS] += 1


@block
def credits_take(now, lanes, agenda):
    """All credits that are due."""
    link, credit_due, x = lanes.link, lanes.credit_due, agenda.x
    mask = len(credit_due) - 1
    at = x[RUN_CREDIT_READ]
    while at < x[RUN_CREDITS] and credit_due[at & mask] <= now:
        what = lanes.credit_what[at & mask]
        i = what >> 32
        lanes.occupied[i, (what >> 24) & 255] -= what & 0xFFFFFF
        link[i, LINK_FULL_FLITS] -= what & 0xFFFFFF
        if link[i, LINK_FREE] == 1 and link[i, LINK_MASK] != 0:
            dirty_mark(lanes.dirty_links, i)
        at += 1
    x[RUN_CREDIT_READ] = at
    tree_set(agenda.tree, agenda.c[C_LEAF] + FABRIC_CREDIT, credit_due[at & mask] if at < x[RUN_CREDITS] else INF)


@block
def lines_end(r, leaf, now, packets, output, agenda, flits_by_kind):
    """Tails have left down links: the packets reach their hubs one latency later."""
    rings, c, x = agenda.rings, agenda.c, agenda.x
    packet = packets.packet
    o = rings[r, 0]
    while o >= 0 and output[o, OUTPUT_DUE] == now:
        rings[r, 0] = output[o, OUTPUT_NEXT]
        p = line_next(o, now, packets, output, agenda)
        x[RUN_EVENTS] += 1
        flits_by_kind[1, packet[p, PACKET_KIND]] += packet[p, PACKET_OUT_FLITS]
        packet_schedule(FABRIC_DELIVER, p, now + c[C_TAIL], PACKET_NEXT, packet, packets.packet_time, agenda)
        o = rings[r, 0]
    tree_set(agenda.tree, leaf, output[o, OUTPUT_DUE] if o >= 0 else INF)


@block
def ring_wait(r, leaf, packet_time, agenda):
    """Ring r of packets waits for its head."""
    p = agenda.rings[r, 0]
    tree_set(agenda.tree, leaf, packet_time[p, PACKET_DUE] if p >= 0 else INF)


@block
def ring_due(r, now, packet_time, agenda):
    """The head of ring r of packets if it is due, else -1. The caller takes it out."""
    p = agenda.rings[r, 0]
    return p if p >= 0 and packet_time[p, PACKET_DUE] == now else -1
