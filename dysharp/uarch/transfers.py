"""From delivery to completion at burst level: acknowledgements, responses, results (oracle/transfers.py).

Releases: `deliver`, `respond`, `result`, `result_delivered`, `local`, `acknowledged`. Functions that may end an op return the op, else -1.
"""

from dysharp.uarch.columns import (
    ANSWERS,
    ANY_FLAG,
    DONE,
    DOWN,
    FLAGS,
    HARDWARE_NETS,
    HARDWARE_RESPONDER,
    INF,
    IS_PULL,
    LEFT,
    MEMBER,
    MEMBER_NEXT,
    MEMBER_NODE,
    MEMBER_OP,
    MEMBER_TIME,
    MEMBER_WAITS,
    NODE,
    PORT_ACK,
    PORT_NET,
    RESPONSE_HELD,
    RING_ACK,
    RING_LOCAL,
    RING_RESPOND_LATE,
    RUN_DONE,
    RUN_EVENTS,
    SUM_FIRST,
    TEMPLATE,
    UP,
    WIRE,
    WIRE_ACK_DOWN,
    WIRE_ACK_UP,
    WIRE_PAYLOAD,
)
from dysharp.uarch.fifo import fifo_pop, member_due, member_schedule, op_due, op_schedule
from dysharp.uarch.kernel import block
from dysharp.uarch.link import server_debt
from dysharp.uarch.memory import memory_take
from dysharp.uarch.points import rows_fill
from dysharp.uarch.ready import delivered
from dysharp.uarch.switch import result_out, sum_of
from dysharp.uarch.trains import response_out
from dysharp.uarch.tree import tree_set


@block
def ack_schedule(o, now, ops, nodes, clock):
    """The last acknowledgement of push o comes back to its source."""
    port = ops.op[o, NODE]
    op_schedule(RING_ACK * clock.m[HARDWARE_NETS] + nodes[port, PORT_NET], o, now + nodes[port, PORT_ACK], ops, clock)


@block
def acknowledge(o, w, now, ops, links, clock):
    """The last part of push o is visible now. `w`: its wires."""
    op, nodes = ops.op, links.nodes
    server_debt(nodes, op[o, NODE], DOWN, links.wires[w, WIRE_ACK_DOWN])
    if op[o, FLAGS] & ANY_FLAG == 0:
        ops.ot[o, DONE] = now + nodes[op[o, NODE], PORT_ACK]
        clock.x[RUN_DONE] += 1  # nothing waits for this acknowledgement: it needs no event
    else:
        ack_schedule(o, now, ops, nodes, clock)


@block
def deliver(k, now, ops, members, links, clock):
    """DELIVER: the copy of member k is visible, and the member acknowledges it."""
    op, mem, nodes = ops.op, members.mem, links.nodes
    o = mem[k, MEMBER_OP]
    w = op[o, WIRE]
    memory_take(nodes, mem[k, MEMBER_NODE], links.wires[w, WIRE_PAYLOAD], clock.m, now)
    server_debt(nodes, mem[k, MEMBER_NODE], UP, links.wires[w, WIRE_ACK_UP])
    op[o, LEFT] -= 1
    if op[o, LEFT] == 0:
        acknowledge(o, w, now, ops, links, clock)


@block
def places_known(j, leaf, now, ops, members, links, tables, clock):
    """KNOWN: node j knows the places of a copy's rows. A request goes on to its responder. Returns the member of a store, else -1."""
    mem, waits = members.mem, tables.waits
    k = fifo_pop(waits, j, mem, MEMBER_NEXT)
    head = waits[j, 0]
    tree_set(clock.tree, leaf, members.mem_time[head, MEMBER_TIME] if head >= 0 else INF)
    clock.x[RUN_EVENTS] += 1
    if ops.templates[ops.op[mem[k, MEMBER_OP], TEMPLATE], IS_PULL]:
        member_schedule(RING_RESPOND_LATE * clock.m[HARDWARE_NETS], k, now + clock.m[HARDWARE_RESPONDER], members, clock)
        return -1
    members.mem_time[k, MEMBER_TIME] = now
    deliver(k, now, ops, members, links, clock)
    return k


@block
def held(k, mem, points):
    """Whether edges hold back the response of member k."""
    if points is None or mem[k, MEMBER_WAITS] <= 0:
        return False
    mem[k, MEMBER_WAITS] += RESPONSE_HELD
    return True


@block
def respond(ring, now, ops, members, links, clock):
    """RESPOND: a responder has read its memory; its response queues for the up link, or waits for edges. `ring`: where it was due."""
    k = member_due(ring, members, clock)
    if not held(k, members.mem, ops.points):
        response_out(k, now, ops, members.mem, links.hub, links.nodes, links.dirty_up, clock)


@block
def result(ring, now, ops, mem, links, switch, clock):
    """RESULT: all contributions of a pull have met in the reduction unit, which asks for the down link."""
    o = op_due(ring, ops, clock)
    result_out(o, ops.op[o, NODE], ops, mem, links, switch, clock)


@block
def sum_visible(o, now, ops, members, stores, issue, links, clock, points):
    """Whether op o carries a sum, which is visible at its home now. The home sends one acknowledgement, and every contributor gets one."""
    if points is None:
        return False
    s = sum_of(o, points)
    if s < 0:
        return False
    mem, nodes, w = members.mem, links.nodes, ops.op[o, WIRE]
    k = ops.op[o, MEMBER]
    home = mem[k, MEMBER_NODE]
    memory_take(nodes, home, links.wires[w, WIRE_PAYLOAD], clock.m, now)
    rows_fill(k, o, ops, members, stores, issue, links, clock)
    server_debt(nodes, home, UP, links.wires[w, WIRE_ACK_UP])
    points.places[home] += 1
    k = points.sums[s, SUM_FIRST]
    while k >= 0:
        contributor = mem[k, MEMBER_OP]
        members.mem_time[k, MEMBER_TIME] = now
        delivered(k, contributor, ops, clock.x, points)
        acknowledge(contributor, ops.op[contributor, WIRE], now, ops, links, clock)
        k = mem[k, MEMBER_NEXT]
    return True


@block
def result_delivered(ring, now, ops, members, stores, issue, links, clock):
    """RESULT_DELIVERED: the result of a pull is visible at its source. Returns the op if that was its last part, else -1."""
    op = ops.op
    o = op_due(ring, ops, clock)
    if sum_visible(o, now, ops, members, stores, issue, links, clock, ops.points):
        return -1
    memory_take(links.nodes, op[o, NODE], links.wires[op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
    op[o, LEFT] -= 1
    return o if op[o, LEFT] == 0 else -1


@block
def local(now, ops, members, links, clock):
    """LOCAL: a member on the op's own node was served. Returns (its member if it is a store, the op if that was its last part), -1 = not."""
    op, mem, nodes = ops.op, members.mem, links.nodes
    k = member_due(RING_LOCAL * clock.m[HARDWARE_NETS], members, clock)
    o = mem[k, MEMBER_OP]
    is_pull = ops.templates[op[o, TEMPLATE], IS_PULL]
    op[o, LEFT] -= 1
    memory_take(nodes, op[o, NODE], links.wires[op[o, WIRE], WIRE_PAYLOAD], clock.m, now)
    filled = -1 if is_pull else k
    if is_pull:
        delivered(k, o, ops, clock.x, ops.points)
    done = -1
    if op[o, LEFT] == 0:
        if is_pull or op[o, ANSWERS] == 0:
            done = o
        else:
            server_debt(nodes, op[o, NODE], DOWN, links.wires[op[o, WIRE], WIRE_ACK_DOWN])
            ack_schedule(o, now, ops, nodes, clock)
    return filled, done


@block
def acknowledged(ring, ops, clock):
    """ACK: the last acknowledgement of a push is back at its source. Returns the op."""
    return op_due(ring, ops, clock)
