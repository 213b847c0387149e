"""What a switch does with the packet at the head of a virtual channel, and with what its reduction units finish (docs/design/0006)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import fifo_push
from dysharp.engine.blocks.loads import room_make
from dysharp.engine.blocks.tables import RED_BYPASS, RED_RESULT, SESSION_COUNT, SESSION_LIVE, red_expire, red_request, red_respond
from dysharp.engine.kernel import block, routine
from dysharp.engine.packet import columns as f
from dysharp.engine.packet import links as wires
from dysharp.engine.packet.loads import load_take, loads_answer


@block
def data_flits(cuts, w, chunk, form):
    """Data flits of packet `chunk` of a train: payload first, then what rides along, each with a shorter last packet.

    `form`: CUT_FULL, or CUT_ANSWER or CUT_TOTAL of a pull, whose payload may be converted.
    """
    n = cuts[w, f.CUT_PAYLOADS]
    flits = cuts[w, form]
    if chunk == n - 1:
        flits = cuts[w, form + 1]
    elif chunk >= n:
        flits = cuts[w, f.CUT_AUX] if chunk < cuts[w, f.CUT_PACKETS] - 1 else cuts[w, f.CUT_AUX_LAST]
    return flits


@block
def _ext_flits(flits, n_packets, chunk):
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
def _far_link(up, key, chunk, node, link, c):
    """The link of GPU `node` in the plane of the up link that a packet leaves by: its twin, or by another hash of the line number."""
    n = c[f.C_LINKS]
    j = up % n
    if c[f.C_STRIPE] == f.STRIPE_HASH and c[f.C_PER_PLANE] > 1:
        j += mix(key + node, chunk) % c[f.C_PER_PLANE] - link[up, f.LINK_INPUT] % c[f.C_PER_PLANE]
    return node * n + j


@block
def sessions_change(by, now, st):
    """`by` more reduction sessions are live: for mean and maximum over all ports."""
    wires.level_change(by, now, st, f.ST_RED_AREA, f.ST_RED_SINCE, f.ST_SESSIONS_NOW, f.ST_PEAK_SESSIONS)


@block
def _partial_send(session, packets, op, cuts, link, outputs, sessions, agenda):
    """The partial sum of a session that left its table goes to the source, in FP32: two packets."""
    packet, c, x = packets.packet, agenda.c, agenda.x
    agenda.st[f.ST_PARTIALS] += 1
    w = op[packet[session, f.PACKET_OP], col.WIRE]
    for part in range(2):
        p = wires.slot_take(packets.free, x)
        packet[p, f.PACKET_KIND] = f.PARTIAL
        packet[p, f.PACKET_OP] = packet[session, f.PACKET_OP]
        packet[p, f.PACKET_PARENT] = session
        packet[p, f.PACKET_ACKS] = sessions[session, SESSION_COUNT] if part == 1 else 0
        packet[p, f.PACKET_OUT] = packet[session, f.PACKET_LINK]
        flits = cuts[w, f.CUT_DOWN_H] + data_flits(cuts, w, packet[session, f.PACKET_CHUNK], f.CUT_FULL)
        wires.switch_send(p, c[f.C_ACK_GROUP] * c[f.C_VPG], flits, packet, link, outputs, c)


@block
def _port_note(port, kind, session, count, outcome, log):
    """Somebody may listen to the table of a port: row 0 of `log` has the number of entries and the port; a full log takes no more."""
    if len(log) > 0 and log[0, 1] == port and log[0, 0] + 1 < len(log):
        n = log[0, 0] + 1
        log[n, 0], log[n, 1], log[n, 2], log[n, 3] = kind, session, count, outcome
        log[0, 0] = n


@block
def _session_open(p, n, packets, op, cuts, link, outputs, units, agenda):
    """A request to `n` members passes: its session takes an entry, another one may have to leave."""
    packet, sessions = packets.packet, units.sessions
    c, x, st = agenda.c, agenda.x, agenda.st
    st[f.ST_SESSIONS] += 1
    victim = red_request(p, n, packet[p, f.PACKET_LINK], c[f.C_SLOTS], sessions, units.ports)
    _port_note(packet[p, f.PACKET_LINK], f.LOG_REQUEST, p, n, victim, units.log)
    sessions_change(1 if victim < 0 else 0, x[col.RUN_NOW], st)
    if victim >= 0:
        st[f.ST_EVICTIONS] += 1
        if sessions[victim, SESSION_COUNT] > 0:
            _partial_send(victim, packets, op, cuts, link, outputs, sessions, agenda)
    if c[f.C_TIMEOUT] > 0:
        _idle_put(p, x[col.RUN_NOW] + c[f.C_TIMEOUT], 0, units.idle, agenda)


@block
def _idle_put(p, due, count, idle, agenda):
    """Session p, which has `count` contributions now, is looked at again at `due`."""
    idle[p, f.IDLE_LOOK] = f.LOOK_AGAIN
    idle[p, f.IDLE_DUE] = due
    idle[p, f.IDLE_COUNT] = count
    wires.ring_join(f.FABRIC_TIMEOUT, p, due, idle, f.IDLE_NEXT, agenda)


@block
def _packet_expose(p, packets, op, mem, cuts, link, outputs, units, agenda):
    """Packet p has reached the head of its VC: its copies ask for their outputs."""
    packet, c = packets.packet, agenda.c
    kind = packet[p, f.PACKET_KIND]
    i = packet[p, f.PACKET_LINK]
    s = link[i, f.LINK_INPUT]
    o = packet[p, f.PACKET_OUT]
    packet[p, f.PACKET_PARENT] = p if kind != f.CONTRIB and kind != f.ACKPART and kind != f.SUMACK else packet[p, f.PACKET_PARENT]
    packet[p, f.PACKET_LEFT] = 1
    if kind == f.PUSHED or kind == f.LOAD:
        _push_expose(p, s, packet, op, mem, cuts, link, outputs, c)
        return
    flits = packet[p, f.PACKET_FLITS]
    if kind == f.ACK:
        flits = cuts[op[packet[p, f.PACKET_OP], col.WIRE], f.CUT_SOURCE_ACK]
    elif kind == f.RESP:
        w = op[packet[p, f.PACKET_OP], col.WIRE]
        flits = cuts[w, f.CUT_RESULT_H] + data_flits(cuts, w, packet[p, f.PACKET_CHUNK], f.CUT_TOTAL)
        loads_answer(p, flits, packet, link, outputs, units, units.loads, agenda)
    elif kind == f.ACKPART or kind == f.CONTRIB or kind == f.SUMACK:
        o += c[f.C_TOTAL]
    elif kind != f.PLAIN and kind != f.NOTE:
        _packet_copy(p, packets, op, mem, cuts, link, outputs, units, agenda)
        return
    packet[p, f.PACKET_OUT_FLITS] = flits
    wires.out_ask(o, p, s, packet, link, outputs, c)


@block
def _push_expose(p, s, packet, op, mem, cuts, link, outputs, c):
    """A pushed contribution or a load that may merge asks for the unit at the port of its home, which depends on the key alone."""
    a = packet[p, f.PACKET_OP]
    w = op[a, col.WIRE]
    chunk = packet[p, f.PACKET_CHUNK]
    k = op[a, col.MEMBER]
    o = _far_link(packet[p, f.PACKET_LINK], op[a, col.KEY], chunk, mem[k, col.MEMBER_NODE], link, c)
    packet[p, f.PACKET_MEMBER] = k
    packet[p, f.PACKET_OUT] = o
    ext = _ext_flits(mem[k, col.MEMBER_EXT], cuts[w, f.CUT_PACKETS], chunk)
    data = data_flits(cuts, w, chunk, f.CUT_FULL) if packet[p, f.PACKET_KIND] == f.PUSHED else 0
    packet[p, f.PACKET_OUT_FLITS] = cuts[w, f.CUT_DOWN_H] + data + ext
    wires.out_ask(o + c[f.C_TOTAL], p, s, packet, link, outputs, c)


@block
def _push_take(p, packets, link, outputs, units, agenda):
    """The unit begins to take in pushed contribution p. A sum's first contribution takes a place of the port. False: there was none, all pass."""
    packet, chunks, places, c, st = packets.packet, units.chunks, units.places, agenda.c, agenda.st
    o = packet[p, f.PACKET_OUT]
    row = units.chunk0[units.sum_of[packet[p, f.PACKET_OP]]] + packet[p, f.PACKET_CHUNK]
    if chunks[row, f.CHUNK_STATE] == col.SUM_NEW:
        room_make(o, places, units.loads)
        chunks[row, f.CHUNK_STATE] = col.SUM_OPEN if places[o] > 0 else col.SUM_PASSES
        if places[o] > 0:
            places[o] -= 1
            st[f.ST_SESSIONS] += 1
            sessions_change(1, agenda.x[col.RUN_NOW], st)
    if chunks[row, f.CHUNK_STATE] == col.SUM_PASSES:
        st[f.ST_BYPASSES] += 1
        return False
    packet[p, f.PACKET_PARENT] = chunks[row, f.CHUNK_HEAD]
    chunks[row, f.CHUNK_HEAD] = p
    chunks[row, f.CHUNK_LEFT] -= 1
    if chunks[row, f.CHUNK_LEFT] == 0:
        st[f.ST_RESULTS] += 1
        q = wires.slot_take(packets.free, agenda.x)
        for column in (f.PACKET_OP, f.PACKET_CHUNK, f.PACKET_MEMBER, f.PACKET_OUT):
            packet[q, column] = packet[p, column]
        packet[q, f.PACKET_KIND] = f.SUM
        wires.switch_send(q, c[f.C_ACK_GROUP] * c[f.C_VPG], packet[p, f.PACKET_OUT_FLITS], packet, link, outputs, c)
        if len(units.gate_of) > 0:
            home, n_nodes = o // c[f.C_LINKS], c[f.C_TOTAL] // c[f.C_LINKS]
            s = units.sum_of[packet[p, f.PACKET_OP]]
            _gate_release(s, home, n_nodes, packet, link, outputs, units, c)
            _gate_release(s - home + (home + n_nodes - 1) % n_nodes, (home + n_nodes - 1) % n_nodes, n_nodes, packet, link, outputs, units, c)
    return True


@block
def _sum_complete(s, units):
    """Whether all packets of sum s have met."""
    end = units.chunk0[s + 1] if s + 1 < len(units.chunk0) else len(units.chunks)
    left = 0
    for row in range(units.chunk0[s], end):
        left += units.chunks[row, f.CHUNK_LEFT]
    return left == 0


@block
def _gate_open(g, node, n_nodes, units):
    """Whether every node is ready: the sums of the gate's node and of the node behind it are complete."""
    return _sum_complete(g, units) and _sum_complete(g - node + (node + 1) % n_nodes, units)


@block
def _gate_release(g, node, n_nodes, packet, link, outputs, units, c):
    """If gate g is open, packets that waited at it ask for their outputs in their order."""
    q = units.gates[g, 0] if 0 <= g < len(units.gates) else -1  # a sum that is no gate has no gate before it
    if q < 0 or not _gate_open(g, node, n_nodes, units):
        return
    units.gates[g, 0] = -1
    while q >= 0:
        following = packet[q, f.PACKET_NEXT2]
        wires.out_ask(packet[q, f.PACKET_OUT], q, link[packet[q, f.PACKET_LINK], f.LINK_INPUT], packet, link, outputs, c)
        q = following


@block
def _copy_ask(p, s, packet, link, outputs, units, c):
    """Copy p of a store asks for its output, or waits at its gate."""
    o, a = packet[p, f.PACKET_OUT], packet[p, f.PACKET_OP]
    if len(units.gate_of) > 0 and units.gate_of[a] >= 0:
        node = o // c[f.C_LINKS]
        if not _gate_open(units.gate_of[a] + node, node, c[f.C_TOTAL] // c[f.C_LINKS], units):
            fifo_push(units.gates, units.gate_of[a] + node, packet, f.PACKET_NEXT2, p)
            return
    wires.out_ask(o, p, s, packet, link, outputs, c)


@block
def _sum_acknowledge(p, packet, cuts, op, link, outputs, units, c):
    """The home's acknowledgement p of a sum is back: every contributor gets one."""
    q = units.chunks[units.chunk0[units.sum_of[packet[p, f.PACKET_OP]]] + packet[p, f.PACKET_CHUNK], f.CHUNK_HEAD]
    while q >= 0:
        following = packet[q, f.PACKET_PARENT]
        packet[q, f.PACKET_KIND] = f.MACK
        packet[q, f.PACKET_PARENT] = q
        packet[q, f.PACKET_OUT] = packet[q, f.PACKET_LINK]
        flits = cuts[op[packet[q, f.PACKET_OP], col.WIRE], f.CUT_SOURCE_ACK]
        wires.switch_send(q, c[f.C_ACK_GROUP] * c[f.C_VPG], flits, packet, link, outputs, c)
        q = following


@block
def _packet_copy(p, packets, op, mem, cuts, link, outputs, units, agenda):
    """A store or request asks for the output of its member; a multicast makes one copy per member on another node."""
    packet, c, x = packets.packet, agenda.c, agenda.x
    kind = packet[p, f.PACKET_KIND]
    i = packet[p, f.PACKET_LINK]
    s = link[i, f.LINK_INPUT]
    a = packet[p, f.PACKET_OP]
    w = op[a, col.WIRE]
    chunk = packet[p, f.PACKET_CHUNK]
    flits = cuts[w, f.CUT_DOWN_H]
    if kind == f.DATA or kind == f.MDATA:
        flits += data_flits(cuts, w, chunk, f.CUT_FULL)
    first = op[a, col.MEMBER]
    if kind == f.DATA or kind == f.REQ:
        o = _far_link(i, a, chunk, mem[first, col.MEMBER_NODE], link, c)
        packet[p, f.PACKET_MEMBER] = first
        packet[p, f.PACKET_OUT] = o
        packet[p, f.PACKET_OUT_FLITS] = flits + _ext_flits(mem[first, col.MEMBER_EXT], cuts[w, f.CUT_PACKETS], chunk)
        _copy_ask(p, s, packet, link, outputs, units, c)
        return
    last = first + (op[a, col.FLAGS] >> col.MEMBERS_SHIFT)
    n = 0
    for k in range(first, last):
        if mem[k, col.MEMBER_NODE] != op[a, col.NODE]:
            n += 1
    packet[p, f.PACKET_LEFT] = n
    packet[p, f.PACKET_ACKS] = n
    packets.packet_time[p, f.PACKET_DUE] = -1  # from here on: when its latest copies started to cross
    if kind == f.MREQ:
        _session_open(p, n, packets, op, cuts, link, outputs, units, agenda)
    for k in range(first, last):
        if mem[k, col.MEMBER_NODE] == op[a, col.NODE]:
            continue
        q = wires.slot_take(packets.free, x)
        o = _far_link(i, a, chunk, mem[k, col.MEMBER_NODE], link, c)
        packet[q, f.PACKET_KIND] = f.MCOPY if kind == f.MDATA else f.RCOPY
        for column in (f.PACKET_OP, f.PACKET_CHUNK, f.PACKET_LINK, f.PACKET_VC):
            packet[q, column] = packet[p, column]
        packet[q, f.PACKET_MEMBER] = k
        packet[q, f.PACKET_OUT] = o
        packet[q, f.PACKET_PARENT] = p
        packet[q, f.PACKET_OUT_FLITS] = flits + _ext_flits(mem[k, col.MEMBER_EXT], cuts[w, f.CUT_PACKETS], chunk)
        _copy_ask(q, s, packet, link, outputs, units, c)


@block
def _finish_send(p, kind, flits, packet, packet_time, cuts, op, link, outputs, agenda):
    """The reduction unit has finished the work of packet p: the result asks for its output, a dynamic sum one cycle later."""
    c, x = agenda.c, agenda.x
    packet[p, f.PACKET_KIND] = kind
    packet[p, f.PACKET_OUT] = packet[p, f.PACKET_LINK]
    packet[p, f.PACKET_VC] = c[f.C_ACK_GROUP] * c[f.C_VPG]
    packet[p, f.PACKET_OUT_FLITS] = flits
    if kind == f.RESULT and cuts[op[packet[p, f.PACKET_OP], col.WIRE], f.CUT_DYNAMIC] and c[f.C_CYCLE] > 0:
        wires.packet_schedule(f.FABRIC_CYCLE, p, x[col.RUN_NOW] + c[f.C_CYCLE], f.PACKET_NEXT, packet, packet_time, agenda)
    else:
        wires.out_ask(packet[p, f.PACKET_OUT], p, c[f.C_PORTS], packet, link, outputs, c)


@block
def _unit_take(p, packets, op, cuts, link, outputs, units, agenda):
    """The reduction unit begins to take in packet p (a contribution or an acknowledgement). False: it has no session and must go on."""
    packet, packet_time = packets.packet, packets.packet_time
    sessions = units.sessions
    c, x, st = agenda.c, agenda.x, agenda.st
    if packet[p, f.PACKET_KIND] == f.PUSHED:
        return _push_take(p, packets, link, outputs, units, agenda)
    if packet[p, f.PACKET_KIND] == f.LOAD:
        w = op[packet[p, f.PACKET_OP], col.WIRE]
        flits = cuts[w, f.CUT_RESULT_H] + data_flits(cuts, w, packet[p, f.PACKET_CHUNK], f.CUT_TOTAL)
        return load_take(p, flits, packets, link, outputs, units, units.loads, agenda)
    if packet[p, f.PACKET_KIND] == f.SUMACK:
        _sum_acknowledge(p, packet, cuts, op, link, outputs, units, c)
        return True
    parent = packet[p, f.PACKET_PARENT]
    w = op[packet[p, f.PACKET_OP], col.WIRE]
    if packet[p, f.PACKET_KIND] == f.ACKPART:
        packet[parent, f.PACKET_ACKS] -= 1
        if packet[parent, f.PACKET_ACKS] == 0:
            _finish_send(parent, f.MACK, cuts[w, f.CUT_SOURCE_ACK], packet, packet_time, cuts, op, link, outputs, agenda)
        return True
    answer = red_respond(parent, 1, 0, packet[parent, f.PACKET_LINK], c[f.C_SLOTS], sessions, units.ports)
    _port_note(packet[parent, f.PACKET_LINK], f.LOG_RESPONSE, parent, 1, answer, units.log)
    if answer == RED_BYPASS:
        st[f.ST_BYPASSES] += 1
        return False
    if answer == RED_RESULT:
        st[f.ST_RESULTS] += 1
        sessions_change(-1, x[col.RUN_NOW], st)
        packet[parent, f.PACKET_MEMBER] = sessions[parent, SESSION_COUNT]
        flits = cuts[w, f.CUT_RESULT_H] + data_flits(cuts, w, packet[parent, f.PACKET_CHUNK], f.CUT_TOTAL)
        _finish_send(parent, f.RESULT, flits, packet, packet_time, cuts, op, link, outputs, agenda)
    return True


@routine
def sessions_look(now, packets, op, cuts, link, outputs, units, agenda):
    """Sessions that are due: one that has received nothing since its last look leaves the table."""
    packet, free, sessions, ports, idle = packets.packet, packets.free, units.sessions, units.ports, units.idle
    c, x, st = agenda.c, agenda.x, agenda.st
    while True:
        p = wires.due_take(f.FABRIC_TIMEOUT, now, idle, f.IDLE_DUE, idle, f.IDLE_NEXT, agenda)
        if p < 0:
            break
        again = False
        if idle[p, f.IDLE_LOOK] == f.LOOK_TO_FREE:
            wires.slot_free(p, free, x)
        elif sessions[p, SESSION_LIVE] == 1:
            again = sessions[p, SESSION_COUNT] != idle[p, f.IDLE_COUNT]
            if not again:
                st[f.ST_TIMEOUTS] += 1
                sessions_change(-1, now, st)
                _port_note(packet[p, f.PACKET_LINK], f.LOG_EXPIRE, p, 0, 0, units.log)
                if red_expire(p, packet[p, f.PACKET_LINK], sessions, ports) > 0:
                    _partial_send(p, packets, op, cuts, link, outputs, sessions, agenda)
        idle[p, f.IDLE_LOOK] = f.LOOK_NOT
        if again:
            _idle_put(p, now + c[f.C_TIMEOUT], sessions[p, SESSION_COUNT], idle, agenda)


@block
def heads_arrive(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda, flits_by_kind):
    """Heads reach the switch: a packet that is the first of its VC asks for its outputs."""
    packet, packet_time, channels = packets.packet, packets.packet_time, lanes.channels
    while True:
        p = wires.due_take(r, now, packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        agenda.x[col.RUN_EVENTS] += 1
        flits_by_kind[0, packet[p, f.PACKET_KIND]] += packet[p, f.PACKET_FLITS]
        first = True
        if agenda.c[f.C_VC_FLITS] > 0:
            row = packet[p, f.PACKET_LINK] * lanes.occupied.shape[1] + packet[p, f.PACKET_VC]
            first = fifo_push(channels, row, packet, f.PACKET_NEXT, p)
        if first:
            _packet_expose(p, packets, op, mem, cuts, lanes.link, outputs, units, agenda)


@block
def crossings_end(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda):
    """Packets have crossed to their outputs: lanes are free; the last copy of a packet frees its buffer, and the next packet asks."""
    packet, packet_time = packets.packet, packets.packet_time
    c, x = agenda.c, agenda.x
    while True:
        p = wires.due_take(r, now, packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT2, agenda)
        if p < 0:
            break
        kind = packet[p, f.PACKET_KIND]
        x[col.RUN_EVENTS] += 1
        to_unit = kind == f.CONTRIB or kind == f.ACKPART or kind == f.LOAD or kind == f.PUSHED or kind == f.SUMACK
        o = packet[p, f.PACKET_OUT] + (c[f.C_TOTAL] if to_unit else 0)
        outputs.output[o, f.OUTPUT_FREE] += 1
        wires.dirty_mark(outputs.dirty_outputs, o)
        if kind < f.MACK or kind == f.BYPASS or (kind >= f.NOTE and kind != f.SUM and kind != f.ANSWER):  # it came through an input port
            i = packet[p, f.PACKET_LINK]
            if wires.has_lane(p, packet):
                wires.lane_back(i, lanes, outputs, c)
            parent = packet[p, f.PACKET_PARENT] if kind == f.MCOPY or kind == f.RCOPY else p
            packet[parent, f.PACKET_LEFT] -= 1
            if packet[parent, f.PACKET_LEFT] == 0 and c[f.C_VC_FLITS] > 0:
                head = _buffer_leave(parent, i, now, packet, lanes, agenda)
                if head >= 0:
                    _packet_expose(head, packets, op, mem, cuts, lanes.link, outputs, units, agenda)
        if o >= c[f.C_TOTAL] and kind != f.PUSHED:  # records of contributions become acknowledgements
            wires.slot_free(p, packets.free, x)


@block
def _buffer_leave(p, i, now, packet, lanes, agenda):
    """Packet p, the head of its VC, leaves the buffer of input i; its credit is back one latency later. Returns the next head, -1 = none."""
    vc = packet[p, f.PACKET_VC]
    row = i * lanes.occupied.shape[1] + vc
    lanes.channels[row, 0] = packet[p, f.PACKET_NEXT]
    wires.credit_put(i, vc, packet[p, f.PACKET_FLITS], now + agenda.c[f.C_LAT], lanes, agenda)
    return lanes.channels[row, 0]


@block
def grant_output(o, now, packets, op, cuts, lanes, outputs, units, agenda):
    """Output o begins packets as long as a lane into it is free and one may cross."""
    packet, packet_time, link, output = packets.packet, packets.packet_time, lanes.link, outputs.output
    c, x = agenda.c, agenda.x
    while output[o, f.OUTPUT_FREE] > 0:
        p = wires.out_pick(o, now, packet, packet_time, link, outputs, lanes.held, c, x, agenda.st)
        if p < 0:
            break
        s = x[f.RUN_OUT]
        wires.out_leave(o, p, s, packet, link, outputs, c)
        if o >= c[f.C_TOTAL] and not _unit_take(p, packets, op, cuts, link, outputs, units, agenda):
            kind = packet[p, f.PACKET_KIND]
            packet[p, f.PACKET_KIND] = f.DATA if kind == f.PUSHED else f.REQ if kind == f.LOAD else f.BYPASS
            wires.out_ask(o - c[f.C_TOTAL], p, s, packet, link, outputs, c)
        else:
            wires.out_begin(o, p, s, now, packets, link, output, lanes.held, agenda)
