"""What a switch does with the packet at the head of a virtual channel, and with what its reduction units finish (docs/design/0006)."""

from dysharp.uarch.columns import (
    FLAGS,
    INF,
    KEY,
    MEMBER,
    MEMBER_EXT,
    MEMBER_NODE,
    MEMBERS_SHIFT,
    NODE,
    RUN_EVENTS,
    RUN_NOW,
    SUM_NEW,
    SUM_OPEN,
    SUM_PASSES,
    WIRE,
)
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    ACK,
    ACKPART,
    BYPASS,
    C_ACK_GROUP,
    C_CYCLE,
    C_LAT,
    C_LEAF,
    C_LINKS,
    C_PER_PLANE,
    C_PORTS,
    C_SLOTS,
    C_STRIPE,
    C_TIMEOUT,
    C_TOTAL,
    C_VC_FLITS,
    C_VPG,
    CHUNK_HEAD,
    CHUNK_LEFT,
    CHUNK_STATE,
    CONTRIB,
    CUT_AUX,
    CUT_AUX_LAST,
    CUT_DOWN_H,
    CUT_DYNAMIC,
    CUT_FULL,
    CUT_LAST,
    CUT_PACKETS,
    CUT_PAYLOADS,
    CUT_RESULT_H,
    CUT_SOURCE_ACK,
    DATA,
    FABRIC_CYCLE,
    FABRIC_TIMEOUT,
    IDLE_COUNT,
    IDLE_DUE,
    IDLE_LOOK,
    IDLE_NEXT,
    LINK_INPUT,
    LOOK_AGAIN,
    LOOK_NOT,
    LOOK_TO_FREE,
    MACK,
    MCOPY,
    MDATA,
    MREQ,
    NOTE,
    OUTPUT_FREE,
    PACKET_ACKS,
    PACKET_CHUNK,
    PACKET_DUE,
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
    PACKET_PARENT,
    PACKET_VC,
    PARTIAL,
    PLAIN,
    PUSHED,
    RCOPY,
    REQ,
    RESP,
    RESULT,
    RUN_OUT,
    ST_BYPASSES,
    ST_EVICTIONS,
    ST_PARTIALS,
    ST_PEAK_SESSIONS,
    ST_RED_AREA,
    ST_RED_SINCE,
    ST_RESULTS,
    ST_SESSIONS,
    ST_SESSIONS_NOW,
    ST_TIMEOUTS,
    STRIPE_HASH,
    SUM,
    SUMACK,
)
from dysharp.uarch.packet.links import (
    credit_put,
    dirty_mark,
    has_lane,
    lane_back,
    level_change,
    out_ask,
    out_begin,
    out_leave,
    out_pick,
    packet_schedule,
    ring_due,
    ring_join,
    ring_wait,
    slot_free,
    slot_take,
)
from dysharp.uarch.tables import RED_BYPASS, RED_RESULT, SESSION_COUNT, SESSION_LIVE, red_expire, red_request, red_respond
from dysharp.uarch.tree import tree_set


@block
def data_flits(cuts, w, chunk):
    """Data flits of packet `chunk` of a train: payload first, then what rides along, each with a shorter last packet."""
    n = cuts[w, CUT_PAYLOADS]
    flits = cuts[w, CUT_FULL]
    if chunk == n - 1:
        flits = cuts[w, CUT_LAST]
    elif chunk >= n:
        flits = cuts[w, CUT_AUX] if chunk < cuts[w, CUT_PACKETS] - 1 else cuts[w, CUT_AUX_LAST]
    return flits


@block
def ext_flits(flits, n_packets, chunk):
    """Extra flits that packet `chunk` of a copy carries, of `flits` in all: the first packets one more."""
    first = flits // n_packets
    return first + (1 if chunk < flits - first * n_packets else 0)


@block
def mix(a, b):
    """A hash of two numbers, at least 0 (the multiplier of a 32-bit xorshift generator)."""
    h = (int(a) * 0x9E3779B1 + int(b) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    h = ((h ^ (h >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    return h ^ (h >> 15)


@block
def far_link(up, key, chunk, node, link, c):
    """The link of GPU `node` in the plane of the up link that a packet leaves by: its twin, or by another hash of the line number."""
    n = c[C_LINKS]
    j = up % n
    if c[C_STRIPE] == STRIPE_HASH and c[C_PER_PLANE] > 1:
        j += mix(key + node, chunk) % c[C_PER_PLANE] - link[up, LINK_INPUT] % c[C_PER_PLANE]
    return node * n + j


@block
def sessions_change(by, now, st):
    """`by` more reduction sessions are live: for mean and maximum over all ports."""
    level_change(by, now, st, ST_RED_AREA, ST_RED_SINCE, ST_SESSIONS_NOW, ST_PEAK_SESSIONS)


@kernel
def partial_send(session, packets, op, cuts, link, outputs, sessions, agenda):
    """What a session that left its table had summed goes to the source, in FP32: two packets."""
    packet, c, x = packets.packet, agenda.c, agenda.x
    agenda.st[ST_PARTIALS] += 1
    w = op[packet[session, PACKET_OP], WIRE]
    for part in range(2):
        p = slot_take(packets.free, x)
        packet[p, PACKET_KIND] = PARTIAL
        packet[p, PACKET_OP] = packet[session, PACKET_OP]
        packet[p, PACKET_PARENT] = session
        packet[p, PACKET_ACKS] = sessions[session, SESSION_COUNT] if part == 1 else 0
        packet[p, PACKET_OUT] = packet[session, PACKET_LINK]
        packet[p, PACKET_VC] = c[C_ACK_GROUP] * c[C_VPG]
        packet[p, PACKET_OUT_FLITS] = cuts[w, CUT_DOWN_H] + data_flits(cuts, w, packet[session, PACKET_CHUNK])
        out_ask(packet[session, PACKET_LINK], p, c[C_PORTS], packet, link, outputs, c)


@kernel
def session_open(p, n, packets, op, cuts, link, outputs, units, agenda):
    """A request to `n` members passes: its session takes an entry, another one may have to leave."""
    packet, sessions = packets.packet, units.sessions
    c, x, st = agenda.c, agenda.x, agenda.st
    st[ST_SESSIONS] += 1
    victim = red_request(p, n, packet[p, PACKET_LINK], c[C_SLOTS], sessions, units.ports)
    sessions_change(1 if victim < 0 else 0, x[RUN_NOW], st)
    if victim >= 0:
        st[ST_EVICTIONS] += 1
        if sessions[victim, SESSION_COUNT] > 0:
            partial_send(victim, packets, op, cuts, link, outputs, sessions, agenda)
    if c[C_TIMEOUT] > 0:
        idle_put(p, x[RUN_NOW] + c[C_TIMEOUT], 0, units.idle, agenda)


@block
def idle_put(p, due, count, idle, agenda):
    """Session p, which has `count` contributions now, is looked at again at `due`."""
    idle[p, IDLE_LOOK] = LOOK_AGAIN
    idle[p, IDLE_DUE] = due
    idle[p, IDLE_COUNT] = count
    ring_join(FABRIC_TIMEOUT, p, due, idle, IDLE_NEXT, agenda)


@kernel
def packet_expose(p, packets, op, mem, cuts, link, outputs, units, agenda):
    """Packet p has reached the head of its VC: its copies ask for their outputs."""
    packet, c = packets.packet, agenda.c
    kind = packet[p, PACKET_KIND]
    i = packet[p, PACKET_LINK]
    s = link[i, LINK_INPUT]
    o = packet[p, PACKET_OUT]
    packet[p, PACKET_PARENT] = p if kind != CONTRIB and kind != ACKPART and kind != SUMACK else packet[p, PACKET_PARENT]
    packet[p, PACKET_LEFT] = 1
    if kind == PUSHED:
        push_expose(p, s, packet, op, mem, cuts, link, outputs, c)
        return
    if kind == PLAIN or kind == NOTE:
        packet[p, PACKET_OUT_FLITS] = packet[p, PACKET_FLITS]
        out_ask(o, p, s, packet, link, outputs, c)
        return
    a = packet[p, PACKET_OP]
    w = op[a, WIRE]
    chunk = packet[p, PACKET_CHUNK]
    if kind == ACK:
        packet[p, PACKET_OUT_FLITS] = cuts[w, CUT_SOURCE_ACK]
        out_ask(o, p, s, packet, link, outputs, c)
    elif kind == RESP:
        packet[p, PACKET_OUT_FLITS] = cuts[w, CUT_RESULT_H] + data_flits(cuts, w, chunk)
        out_ask(o, p, s, packet, link, outputs, c)
    elif kind == ACKPART or kind == CONTRIB or kind == SUMACK:
        packet[p, PACKET_OUT_FLITS] = packet[p, PACKET_FLITS]
        out_ask(o + c[C_TOTAL], p, s, packet, link, outputs, c)
    else:
        packet_copy(p, packets, op, mem, cuts, link, outputs, units, agenda)


@block
def push_expose(p, s, packet, op, mem, cuts, link, outputs, c):
    """A pushed contribution asks for the reduction unit at the port of its sum's home, which depends on the key alone."""
    a = packet[p, PACKET_OP]
    w = op[a, WIRE]
    chunk = packet[p, PACKET_CHUNK]
    k = op[a, MEMBER]
    o = far_link(packet[p, PACKET_LINK], op[a, KEY], chunk, mem[k, MEMBER_NODE], link, c)
    packet[p, PACKET_MEMBER] = k
    packet[p, PACKET_OUT] = o
    packet[p, PACKET_OUT_FLITS] = cuts[w, CUT_DOWN_H] + data_flits(cuts, w, chunk) + ext_flits(mem[k, MEMBER_EXT], cuts[w, CUT_PACKETS], chunk)
    out_ask(o + c[C_TOTAL], p, s, packet, link, outputs, c)


@kernel
def push_take(p, packets, link, outputs, units, agenda):
    """The unit begins to take in pushed contribution p. The first of a sum takes a place of the port. False: there was none, all pass."""
    packet, chunks, places, c, st = packets.packet, units.chunks, units.places, agenda.c, agenda.st
    o = packet[p, PACKET_OUT]
    row = units.chunk0[units.sum_of[packet[p, PACKET_OP]]] + packet[p, PACKET_CHUNK]
    if chunks[row, CHUNK_STATE] == SUM_NEW:
        chunks[row, CHUNK_STATE] = SUM_OPEN if places[o] > 0 else SUM_PASSES
        if places[o] > 0:
            places[o] -= 1
            st[ST_SESSIONS] += 1
            sessions_change(1, agenda.x[RUN_NOW], st)
    if chunks[row, CHUNK_STATE] == SUM_PASSES:
        st[ST_BYPASSES] += 1
        return False
    packet[p, PACKET_PARENT] = chunks[row, CHUNK_HEAD]
    chunks[row, CHUNK_HEAD] = p
    chunks[row, CHUNK_LEFT] -= 1
    if chunks[row, CHUNK_LEFT] == 0:
        st[ST_RESULTS] += 1
        q = slot_take(packets.free, agenda.x)
        for column in (PACKET_OP, PACKET_CHUNK, PACKET_MEMBER, PACKET_OUT, PACKET_OUT_FLITS):
            packet[q, column] = packet[p, column]
        packet[q, PACKET_KIND] = SUM
        packet[q, PACKET_VC] = c[C_ACK_GROUP] * c[C_VPG]
        out_ask(o, q, c[C_PORTS], packet, link, outputs, c)
    return True


@kernel
def sum_acknowledge(p, packet, cuts, op, link, outputs, units, c):
    """The home's acknowledgement p of a sum is back: every contributor gets one."""
    q = units.chunks[units.chunk0[units.sum_of[packet[p, PACKET_OP]]] + packet[p, PACKET_CHUNK], CHUNK_HEAD]
    while q >= 0:
        following = packet[q, PACKET_PARENT]
        packet[q, PACKET_KIND] = MACK
        packet[q, PACKET_PARENT] = q
        packet[q, PACKET_OUT] = packet[q, PACKET_LINK]
        packet[q, PACKET_VC] = c[C_ACK_GROUP] * c[C_VPG]
        packet[q, PACKET_OUT_FLITS] = cuts[op[packet[q, PACKET_OP], WIRE], CUT_SOURCE_ACK]
        out_ask(packet[q, PACKET_OUT], q, c[C_PORTS], packet, link, outputs, c)
        q = following


@kernel
def packet_copy(p, packets, op, mem, cuts, link, outputs, units, agenda):
    """A store or request asks for the output of its member; a multicast makes one copy per member on another node."""
    packet, c, x = packets.packet, agenda.c, agenda.x
    kind = packet[p, PACKET_KIND]
    i = packet[p, PACKET_LINK]
    s = link[i, LINK_INPUT]
    a = packet[p, PACKET_OP]
    w = op[a, WIRE]
    chunk = packet[p, PACKET_CHUNK]
    flits = cuts[w, CUT_DOWN_H]
    if kind == DATA or kind == MDATA:
        flits += data_flits(cuts, w, chunk)
    first = op[a, MEMBER]
    if kind == DATA or kind == REQ:
        o = far_link(i, a, chunk, mem[first, MEMBER_NODE], link, c)
        packet[p, PACKET_MEMBER] = first
        packet[p, PACKET_OUT] = o
        packet[p, PACKET_OUT_FLITS] = flits + ext_flits(mem[first, MEMBER_EXT], cuts[w, CUT_PACKETS], chunk)
        out_ask(o, p, s, packet, link, outputs, c)
        return
    last = first + (op[a, FLAGS] >> MEMBERS_SHIFT)
    n = 0
    for k in range(first, last):
        if mem[k, MEMBER_NODE] != op[a, NODE]:
            n += 1
    packet[p, PACKET_LEFT] = n
    packet[p, PACKET_ACKS] = n
    packets.packet_time[p, PACKET_DUE] = -1  # from here on: when its latest copies started to cross
    if kind == MREQ:
        session_open(p, n, packets, op, cuts, link, outputs, units, agenda)
    for k in range(first, last):
        if mem[k, MEMBER_NODE] == op[a, NODE]:
            continue
        q = slot_take(packets.free, x)
        o = far_link(i, a, chunk, mem[k, MEMBER_NODE], link, c)
        packet[q, PACKET_KIND] = MCOPY if kind == MDATA else RCOPY
        packet[q, PACKET_OP] = a
        packet[q, PACKET_CHUNK] = chunk
        packet[q, PACKET_LINK] = i
        packet[q, PACKET_VC] = packet[p, PACKET_VC]
        packet[q, PACKET_MEMBER] = k
        packet[q, PACKET_OUT] = o
        packet[q, PACKET_PARENT] = p
        packet[q, PACKET_OUT_FLITS] = flits + ext_flits(mem[k, MEMBER_EXT], cuts[w, CUT_PACKETS], chunk)
        out_ask(o, q, s, packet, link, outputs, c)


@kernel
def finish_send(p, kind, flits, packet, packet_time, cuts, op, link, outputs, agenda):
    """The reduction unit has finished what packet p asked for: it asks for its output, a dynamic sum one cycle later."""
    c, x = agenda.c, agenda.x
    packet[p, PACKET_KIND] = kind
    packet[p, PACKET_OUT] = packet[p, PACKET_LINK]
    packet[p, PACKET_VC] = c[C_ACK_GROUP] * c[C_VPG]
    packet[p, PACKET_OUT_FLITS] = flits
    if kind == RESULT and cuts[op[packet[p, PACKET_OP], WIRE], CUT_DYNAMIC] and c[C_CYCLE] > 0:
        packet_schedule(FABRIC_CYCLE, p, x[RUN_NOW] + c[C_CYCLE], PACKET_NEXT, packet, packet_time, agenda)
    else:
        out_ask(packet[p, PACKET_OUT], p, c[C_PORTS], packet, link, outputs, c)


@kernel
def unit_take(p, packets, op, cuts, link, outputs, units, agenda):
    """The reduction unit begins to take in packet p (a contribution or an acknowledgement). False: it has no session and must go on."""
    packet, packet_time = packets.packet, packets.packet_time
    sessions = units.sessions
    c, x, st = agenda.c, agenda.x, agenda.st
    if packet[p, PACKET_KIND] == PUSHED:
        return push_take(p, packets, link, outputs, units, agenda)
    if packet[p, PACKET_KIND] == SUMACK:
        sum_acknowledge(p, packet, cuts, op, link, outputs, units, c)
        return True
    parent = packet[p, PACKET_PARENT]
    w = op[packet[p, PACKET_OP], WIRE]
    if packet[p, PACKET_KIND] == ACKPART:
        packet[parent, PACKET_ACKS] -= 1
        if packet[parent, PACKET_ACKS] == 0:
            finish_send(parent, MACK, cuts[w, CUT_SOURCE_ACK], packet, packet_time, cuts, op, link, outputs, agenda)
        return True
    answer = red_respond(parent, 1, 0, packet[parent, PACKET_LINK], c[C_SLOTS], sessions, units.ports)
    if answer == RED_BYPASS:
        st[ST_BYPASSES] += 1
        return False
    if answer == RED_RESULT:
        st[ST_RESULTS] += 1
        sessions_change(-1, x[RUN_NOW], st)
        packet[parent, PACKET_MEMBER] = sessions[parent, SESSION_COUNT]
        flits = cuts[w, CUT_RESULT_H] + data_flits(cuts, w, packet[parent, PACKET_CHUNK])
        finish_send(parent, RESULT, flits, packet, packet_time, cuts, op, link, outputs, agenda)
    return True


@kernel
def sessions_look(now, packets, op, cuts, link, outputs, units, agenda):
    """Sessions that are due: one that has received nothing since its last look leaves the table."""
    packet, free, sessions, ports, idle = packets.packet, packets.free, units.sessions, units.ports, units.idle
    rings, c, x, st = agenda.rings, agenda.c, agenda.x, agenda.st
    p = rings[FABRIC_TIMEOUT, 0]
    while p >= 0 and idle[p, IDLE_DUE] == now:
        rings[FABRIC_TIMEOUT, 0] = idle[p, IDLE_NEXT]
        again = False
        if idle[p, IDLE_LOOK] == LOOK_TO_FREE:
            slot_free(p, free, x)
        elif sessions[p, SESSION_LIVE] == 1:
            again = sessions[p, SESSION_COUNT] != idle[p, IDLE_COUNT]
            if not again:
                st[ST_TIMEOUTS] += 1
                sessions_change(-1, now, st)
                if red_expire(p, packet[p, PACKET_LINK], sessions, ports) > 0:
                    partial_send(p, packets, op, cuts, link, outputs, sessions, agenda)
        idle[p, IDLE_LOOK] = LOOK_NOT
        if again:
            idle_put(p, now + c[C_TIMEOUT], sessions[p, SESSION_COUNT], idle, agenda)
        p = rings[FABRIC_TIMEOUT, 0]
    tree_set(agenda.tree, c[C_LEAF] + FABRIC_TIMEOUT, idle[p, IDLE_DUE] if p >= 0 else INF)


@block
def session_end(p, free, idle, c, x):
    """All contributions of session p have reached its source."""
    if c[C_TIMEOUT] > 0 and idle[p, IDLE_LOOK] == LOOK_AGAIN:
        idle[p, IDLE_LOOK] = LOOK_TO_FREE
    else:
        slot_free(p, free, x)


@block
def heads_arrive(r, leaf, now, packets, op, mem, cuts, lanes, outputs, units, agenda, flits_by_kind):
    """Heads reach the switch: a packet that is the first of its VC asks for its outputs."""
    packet, packet_time, channels = packets.packet, packets.packet_time, lanes.channels
    p = ring_due(r, now, packet_time, agenda)
    while p >= 0:
        agenda.rings[r, 0] = packet[p, PACKET_NEXT]
        packet[p, PACKET_NEXT] = -1
        agenda.x[RUN_EVENTS] += 1
        flits_by_kind[0, packet[p, PACKET_KIND]] += packet[p, PACKET_FLITS]
        first = True
        if agenda.c[C_VC_FLITS] > 0:
            row = packet[p, PACKET_LINK] * lanes.occupied.shape[1] + packet[p, PACKET_VC]
            first = channels[row, 0] < 0
            if first:
                channels[row, 0] = p
            else:
                packet[channels[row, 1], PACKET_NEXT] = p
            channels[row, 1] = p
        if first:
            packet_expose(p, packets, op, mem, cuts, lanes.link, outputs, units, agenda)
        p = ring_due(r, now, packet_time, agenda)
    ring_wait(r, leaf, packet_time, agenda)


@block
def crossings_end(r, leaf, now, packets, op, mem, cuts, lanes, outputs, units, agenda):
    """Packets have crossed to their outputs: lanes are free; the last copy of a packet frees its buffer, and the next packet asks."""
    packet, packet_time = packets.packet, packets.packet_time
    c, x = agenda.c, agenda.x
    p = ring_due(r, now, packet_time, agenda)
    while p >= 0:
        following = packet[p, PACKET_NEXT2]
        kind = packet[p, PACKET_KIND]
        x[RUN_EVENTS] += 1
        o = packet[p, PACKET_OUT] + (c[C_TOTAL] if kind == CONTRIB or kind == ACKPART or kind == PUSHED or kind == SUMACK else 0)
        outputs.output[o, OUTPUT_FREE] += 1
        dirty_mark(outputs.dirty_outputs, o)
        if kind < MACK or kind == BYPASS or (kind >= NOTE and kind != SUM):  # it came through an input port
            i = packet[p, PACKET_LINK]
            if has_lane(p, packet):
                lane_back(i, lanes, outputs, c)
            parent = packet[p, PACKET_PARENT] if kind == MCOPY or kind == RCOPY else p
            packet[parent, PACKET_LEFT] -= 1
            if packet[parent, PACKET_LEFT] == 0 and c[C_VC_FLITS] > 0:
                head = buffer_leave(parent, i, now, packet, lanes, agenda)
                if head >= 0:
                    packet_expose(head, packets, op, mem, cuts, lanes.link, outputs, units, agenda)
        agenda.rings[r, 0] = following
        if o >= c[C_TOTAL] and kind != PUSHED:  # records of contributions become acknowledgements
            slot_free(p, packets.free, x)
        p = ring_due(r, now, packet_time, agenda)
    ring_wait(r, leaf, packet_time, agenda)


@block
def buffer_leave(p, i, now, packet, lanes, agenda):
    """Packet p, the head of its VC, leaves the buffer of input i; its credit is back one latency later. Returns the next head, -1 = none."""
    vc = packet[p, PACKET_VC]
    row = i * lanes.occupied.shape[1] + vc
    lanes.channels[row, 0] = packet[p, PACKET_NEXT]
    credit_put(i, vc, packet[p, PACKET_FLITS], now + agenda.c[C_LAT], lanes, agenda)
    return lanes.channels[row, 0]


@block
def cycles_end(leaf, now, packets, link, outputs, agenda):
    """Dynamic sums that took a cycle more ask for their outputs."""
    packet, packet_time = packets.packet, packets.packet_time
    p = ring_due(FABRIC_CYCLE, now, packet_time, agenda)
    while p >= 0:
        agenda.rings[FABRIC_CYCLE, 0] = packet[p, PACKET_NEXT]
        out_ask(packet[p, PACKET_OUT], p, agenda.c[C_PORTS], packet, link, outputs, agenda.c)
        p = ring_due(FABRIC_CYCLE, now, packet_time, agenda)
    ring_wait(FABRIC_CYCLE, leaf, packet_time, agenda)


@block
def grant_output(o, now, packets, op, cuts, lanes, outputs, units, agenda):
    """Output o begins packets as long as a lane into it is free and one may cross."""
    packet, packet_time, link, output = packets.packet, packets.packet_time, lanes.link, outputs.output
    c, x = agenda.c, agenda.x
    while output[o, OUTPUT_FREE] > 0:
        p = out_pick(o, now, packet, packet_time, link, outputs, lanes.held, c, x, agenda.st)
        if p < 0:
            break
        s = x[RUN_OUT]
        out_leave(o, p, s, packet, link, outputs, c)
        if o >= c[C_TOTAL] and not unit_take(p, packets, op, cuts, link, outputs, units, agenda):
            packet[p, PACKET_KIND] = DATA if packet[p, PACKET_KIND] == PUSHED else BYPASS
            out_ask(o - c[C_TOTAL], p, s, packet, link, outputs, c)
        else:
            out_begin(o, p, s, now, packets, link, output, lanes.held, agenda)
