"""What a switch does with the packet at the head of a virtual channel, and with what its reduction units finish (docs/design/0006)."""

from dysharp.uarch.columns import B_EXT, B_NODE, FLAGS, INF, MEMBER, MEMBERS_SHIFT, NODE, WIRE, X_NOW
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    ACK,
    ACKPART,
    C_ACK_GROUP,
    C_CYCLE,
    C_LEAF,
    C_LINKS,
    C_PER_PLANE,
    C_PORTS,
    C_STRIPE,
    C_TIMEOUT,
    C_TOTAL,
    C_VPG,
    CONTRIB,
    DATA,
    FR_CYCLE,
    FR_TIMEOUT,
    LK_S,
    MACK,
    MCOPY,
    MDATA,
    MREQ,
    NOTE,
    PARTIAL,
    PK_ACKS,
    PK_CHUNK,
    PK_FLITS,
    PK_KIND,
    PK_LEFT,
    PK_LINK,
    PK_MEMBER,
    PK_NEXT,
    PK_OFLITS,
    PK_OP,
    PK_OUT,
    PK_PARENT,
    PK_VC,
    PLAIN,
    PT_DUE,
    PW_AUX,
    PW_AUX_LAST,
    PW_DOWN_H,
    PW_DYNAMIC,
    PW_FULL,
    PW_LAST,
    PW_PACKETS,
    PW_PAYLOADS,
    PW_RESULT_H,
    PW_SOURCE_ACK,
    RCOPY,
    REQ,
    RESP,
    RESULT,
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
)
from dysharp.uarch.packet.links import level_change, out_ask, ring_put, slot_free, slot_take
from dysharp.uarch.tables import RED_BYPASS, RED_RESULT, S_COUNT, S_LIVE, red_expire, red_request, red_respond
from dysharp.uarch.tree import tree_set


@block
def data_flits(pw, w, chunk):
    """Data flits of packet `chunk` of a train: payload first, then what rides along, each with a shorter last packet."""
    n = pw[w, PW_PAYLOADS]
    flits = pw[w, PW_FULL]
    if chunk == n - 1:
        flits = pw[w, PW_LAST]
    elif chunk >= n:
        flits = pw[w, PW_AUX] if chunk < pw[w, PW_PACKETS] - 1 else pw[w, PW_AUX_LAST]
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
def far_link(link, key, chunk, node, lk, c):
    """The link of GPU `node` in the plane of `link` that a packet leaves by: its twin, or by another hash of the line number."""
    n = c[C_LINKS]
    j = link % n
    if c[C_STRIPE] == STRIPE_HASH and c[C_PER_PLANE] > 1:
        j += mix(key + node, chunk) % c[C_PER_PLANE] - lk[link, LK_S] % c[C_PER_PLANE]
    return node * n + j


@block
def sessions_change(by, now, st):
    """`by` more reduction sessions are live: for mean and maximum over all ports."""
    level_change(by, now, st, ST_RED_AREA, ST_RED_SINCE, ST_SESSIONS_NOW, ST_PEAK_SESSIONS)


@kernel
def partial_send(session, pk, op, pw, lk, oq, om, oc, im, do, sessions, pool, c, x, st):
    """What a session that left its table had summed goes to the source, in FP32: two packets."""
    st[ST_PARTIALS] += 1
    w = op[pk[session, PK_OP], WIRE]
    for part in range(2):
        p = slot_take(pool, x)
        pk[p, PK_KIND] = PARTIAL
        pk[p, PK_OP] = pk[session, PK_OP]
        pk[p, PK_PARENT] = session
        pk[p, PK_ACKS] = sessions[session, S_COUNT] if part == 1 else 0
        pk[p, PK_OUT] = pk[session, PK_LINK]
        pk[p, PK_VC] = c[C_ACK_GROUP] * c[C_VPG]
        pk[p, PK_OFLITS] = pw[w, PW_DOWN_H] + data_flits(pw, w, pk[session, PK_CHUNK])
        out_ask(pk[session, PK_LINK], p, c[C_PORTS], pk, lk, oq, om, oc, im, do, c)


@kernel
def session_open(p, n, pk, op, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, pool, c, x, st, idle, fr, tree):
    """A request to `n` members passes: its session takes an entry, another one may have to leave."""
    st[ST_SESSIONS] += 1
    victim = red_request(p, n, pk[p, PK_LINK], n_sessions, sessions, ports)
    sessions_change(1 if victim < 0 else 0, x[X_NOW], st)
    if victim >= 0:
        st[ST_EVICTIONS] += 1
        if sessions[victim, S_COUNT] > 0:
            partial_send(victim, pk, op, pw, lk, oq, om, oc, im, do, sessions, pool, c, x, st)
    if c[C_TIMEOUT] > 0:
        idle_put(p, x[X_NOW] + c[C_TIMEOUT], 0, idle, fr, tree, c)


@block
def idle_put(p, due, count, idle, fr, tree, c):
    """Session p is looked at again at `due`; it has `count` contributions now. idle int64 [n_slots, 4]: next, due, count, 1 = looked at
    again, 2 = and its packet record is free then."""
    idle[p, 3] = 1
    idle[p, 0] = -1
    idle[p, 1] = due
    idle[p, 2] = count
    r = FR_TIMEOUT
    if fr[r, 0] < 0:
        fr[r, 0] = p
        tree_set(tree, c[C_LEAF] + r, due)
    else:
        idle[fr[r, 1], 0] = p
    fr[r, 1] = p


@kernel
def packet_expose(
    p, pk, pt, op, mem, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, pool, c, x, st, idle, fr, tree,
):  # fmt: skip
    """Packet p has reached the head of its VC: its copies ask for their outputs."""
    kind = pk[p, PK_KIND]
    i = pk[p, PK_LINK]
    s = lk[i, LK_S]
    o = pk[p, PK_OUT]
    pk[p, PK_PARENT] = p if kind != CONTRIB and kind != ACKPART else pk[p, PK_PARENT]
    pk[p, PK_LEFT] = 1
    if kind == PLAIN or kind == NOTE:
        pk[p, PK_OFLITS] = pk[p, PK_FLITS]
        out_ask(o, p, s, pk, lk, oq, om, oc, im, do, c)
        return
    a = pk[p, PK_OP]
    w = op[a, WIRE]
    chunk = pk[p, PK_CHUNK]
    if kind == ACK:
        pk[p, PK_OFLITS] = pw[w, PW_SOURCE_ACK]
        out_ask(o, p, s, pk, lk, oq, om, oc, im, do, c)
    elif kind == RESP:
        pk[p, PK_OFLITS] = pw[w, PW_RESULT_H] + data_flits(pw, w, chunk)
        out_ask(o, p, s, pk, lk, oq, om, oc, im, do, c)
    elif kind == ACKPART or kind == CONTRIB:
        pk[p, PK_OFLITS] = pk[p, PK_FLITS]
        out_ask(o + c[C_TOTAL], p, s, pk, lk, oq, om, oc, im, do, c)
    else:
        packet_copy(p, pk, pt, op, mem, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, pool, c, x, st, idle, fr, tree)


@kernel
def packet_copy(
    p, pk, pt, op, mem, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, pool, c, x, st, idle, fr, tree,
):  # fmt: skip
    """A store or request asks for the output of its member; a multicast makes one copy per member on another node."""
    kind = pk[p, PK_KIND]
    i = pk[p, PK_LINK]
    s = lk[i, LK_S]
    a = pk[p, PK_OP]
    w = op[a, WIRE]
    chunk = pk[p, PK_CHUNK]
    flits = pw[w, PW_DOWN_H]
    if kind == DATA or kind == MDATA:
        flits += data_flits(pw, w, chunk)
    first = op[a, MEMBER]
    if kind == DATA or kind == REQ:
        o = far_link(i, a, chunk, mem[first, B_NODE], lk, c)
        pk[p, PK_MEMBER] = first
        pk[p, PK_OUT] = o
        pk[p, PK_OFLITS] = flits + ext_flits(mem[first, B_EXT], pw[w, PW_PACKETS], chunk)
        out_ask(o, p, s, pk, lk, oq, om, oc, im, do, c)
        return
    last = first + (op[a, FLAGS] >> MEMBERS_SHIFT)
    n = 0
    for k in range(first, last):
        if mem[k, B_NODE] != op[a, NODE]:
            n += 1
    pk[p, PK_LEFT] = n
    pk[p, PK_ACKS] = n
    pt[p, PT_DUE] = -1  # from here on: when its latest copies started to cross
    if kind == MREQ:
        session_open(p, n, pk, op, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, pool, c, x, st, idle, fr, tree)
    for k in range(first, last):
        if mem[k, B_NODE] == op[a, NODE]:
            continue
        q = slot_take(pool, x)
        o = far_link(i, a, chunk, mem[k, B_NODE], lk, c)
        pk[q, PK_KIND] = MCOPY if kind == MDATA else RCOPY
        pk[q, PK_OP] = a
        pk[q, PK_CHUNK] = chunk
        pk[q, PK_LINK] = i
        pk[q, PK_VC] = pk[p, PK_VC]
        pk[q, PK_MEMBER] = k
        pk[q, PK_OUT] = o
        pk[q, PK_PARENT] = p
        pk[q, PK_OFLITS] = flits + ext_flits(mem[k, B_EXT], pw[w, PW_PACKETS], chunk)
        out_ask(o, q, s, pk, lk, oq, om, oc, im, do, c)


@kernel
def finish_send(p, kind, flits, pk, pt, pw, op, lk, oq, om, oc, im, do, fr, tree, c, x):
    """The reduction unit has finished what packet p asked for: it asks for its output, a dynamic sum one cycle later."""
    pk[p, PK_KIND] = kind
    pk[p, PK_OUT] = pk[p, PK_LINK]
    pk[p, PK_VC] = c[C_ACK_GROUP] * c[C_VPG]
    pk[p, PK_OFLITS] = flits
    if kind == RESULT and pw[op[pk[p, PK_OP], WIRE], PW_DYNAMIC] and c[C_CYCLE] > 0:
        ring_put(FR_CYCLE, p, x[X_NOW] + c[C_CYCLE], PK_NEXT, pk, pt, fr, tree, c)
    else:
        out_ask(pk[p, PK_OUT], p, c[C_PORTS], pk, lk, oq, om, oc, im, do, c)


@kernel
def unit_take(p, pk, pt, op, pw, lk, oq, om, oc, im, do, sessions, ports, n_sessions, c, x, st, fr, tree):
    """The reduction unit begins to take in packet p (a contribution or an acknowledgement). False: it has no session and must go on."""
    parent = pk[p, PK_PARENT]
    w = op[pk[p, PK_OP], WIRE]
    if pk[p, PK_KIND] == ACKPART:
        pk[parent, PK_ACKS] -= 1
        if pk[parent, PK_ACKS] == 0:
            finish_send(parent, MACK, pw[w, PW_SOURCE_ACK], pk, pt, pw, op, lk, oq, om, oc, im, do, fr, tree, c, x)
        return True
    answer = red_respond(parent, 1, 0, pk[parent, PK_LINK], n_sessions, sessions, ports)
    if answer == RED_BYPASS:
        st[ST_BYPASSES] += 1
        return False
    if answer == RED_RESULT:
        st[ST_RESULTS] += 1
        sessions_change(-1, x[X_NOW], st)
        pk[parent, PK_MEMBER] = sessions[parent, S_COUNT]
        flits = pw[w, PW_RESULT_H] + data_flits(pw, w, pk[parent, PK_CHUNK])
        finish_send(parent, RESULT, flits, pk, pt, pw, op, lk, oq, om, oc, im, do, fr, tree, c, x)
    return True


@kernel
def sessions_look(now, pk, op, pw, lk, oq, om, oc, im, do, sessions, ports, pool, idle, fr, tree, c, x, st):
    """Sessions that are due: one that has received nothing since its last look leaves the table."""
    p = fr[FR_TIMEOUT, 0]
    while p >= 0 and idle[p, 1] == now:
        fr[FR_TIMEOUT, 0] = idle[p, 0]
        again = False
        if idle[p, 3] == 2:
            slot_free(p, pool, x)
        elif sessions[p, S_LIVE] == 1:
            again = sessions[p, S_COUNT] != idle[p, 2]
            if not again:
                st[ST_TIMEOUTS] += 1
                sessions_change(-1, now, st)
                if red_expire(p, pk[p, PK_LINK], sessions, ports) > 0:
                    partial_send(p, pk, op, pw, lk, oq, om, oc, im, do, sessions, pool, c, x, st)
        idle[p, 3] = 0
        if again:
            idle_put(p, now + c[C_TIMEOUT], sessions[p, S_COUNT], idle, fr, tree, c)
        p = fr[FR_TIMEOUT, 0]
    tree_set(tree, c[C_LEAF] + FR_TIMEOUT, idle[p, 1] if p >= 0 else INF)


@block
def session_end(p, pool, idle, c, x):
    """All contributions of session p have reached its source."""
    if c[C_TIMEOUT] > 0 and idle[p, 3] == 1:
        idle[p, 3] = 2
    else:
        slot_free(p, pool, x)
