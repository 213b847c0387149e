"""From delivery to completion at burst level: acknowledgements, responses, results (oracle/transfers.py).

Releases: `deliver`, `respond`, `result`, `result_delivered`, `local`, `acknowledged`. Functions that may end an op return the op, else -1.
"""

from dysharp.uarch import columns as col
from dysharp.uarch.fifo import fifo_pop, member_due, member_schedule, op_due, op_schedule
from dysharp.uarch.kernel import block
from dysharp.uarch.link import server_debt
from dysharp.uarch.memory import memory_take
from dysharp.uarch.points import rows_fill
from dysharp.uarch.ready import delivered
from dysharp.uarch.switch import load_answered, result_out, sum_of
from dysharp.uarch.trains import response_out
from dysharp.uarch.tree import tree_set


@block
def ack_schedule(o, now, ops, nodes, clock):
    """The last acknowledgement of push o comes back to its source."""
    port = ops.op[o, col.NODE]
    op_schedule(col.RING_ACK * clock.m[col.HARDWARE_NETS] + nodes[port, col.PORT_NET], o, now + nodes[port, col.PORT_ACK], ops, clock)


@block
def acknowledge(o, w, now, ops, links, clock):
    """The last part of push o is visible now. `w`: its wires."""
    op, nodes = ops.op, links.nodes
    server_debt(nodes, op[o, col.NODE], col.DOWN, links.wires[w, col.WIRE_ACK_DOWN])
    if op[o, col.FLAGS] & col.ANY_FLAG == 0:
        ops.ot[o, col.DONE] = now + nodes[op[o, col.NODE], col.PORT_ACK]
        clock.x[col.RUN_DONE] += 1  # nothing waits for this acknowledgement: it needs no event
    else:
        ack_schedule(o, now, ops, nodes, clock)


@block
def deliver(k, now, ops, members, links, clock):
    """DELIVER: the copy of member k is visible, and the member acknowledges it."""
    op, mem, nodes = ops.op, members.mem, links.nodes
    o = mem[k, col.MEMBER_OP]
    w = op[o, col.WIRE]
    memory_take(nodes, mem[k, col.MEMBER_NODE], links.wires[w, col.WIRE_PAYLOAD], clock.m, now)
    server_debt(nodes, mem[k, col.MEMBER_NODE], col.UP, links.wires[w, col.WIRE_ACK_UP])
    op[o, col.LEFT] -= 1
    if op[o, col.LEFT] == 0:
        acknowledge(o, w, now, ops, links, clock)


@block
def places_known(j, leaf, now, ops, members, links, tables, clock):
    """KNOWN: node j knows the places of a copy's rows. A request goes on to its responder. Returns the member of a store, else -1."""
    mem, waits = members.mem, tables.waits
    k = fifo_pop(waits, j, mem, col.MEMBER_NEXT)
    head = waits[j, 0]
    tree_set(clock.tree, leaf, members.mem_time[head, col.MEMBER_TIME] if head >= 0 else col.INF)
    clock.x[col.RUN_EVENTS] += 1
    if ops.templates[ops.op[mem[k, col.MEMBER_OP], col.TEMPLATE], col.IS_PULL]:
        member_schedule(col.RING_RESPOND_LATE * clock.m[col.HARDWARE_NETS], k, now + clock.m[col.HARDWARE_RESPONDER], members, clock)
        return -1
    members.mem_time[k, col.MEMBER_TIME] = now
    deliver(k, now, ops, members, links, clock)
    return k


@block
def held(k, mem, points):
    """Whether edges hold back the response of member k."""
    if points is None or mem[k, col.MEMBER_WAITS] <= 0:
        return False
    mem[k, col.MEMBER_WAITS] += col.RESPONSE_HELD
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
    results_out(op_due(ring, ops, clock), ops, mem, links, switch, clock, ops.points)


@block
def results_out(o, ops, mem, links, switch, clock, points):
    """What pull o has brought goes to its source, and to the loads that wait for it."""
    if points is None:
        result_out(o, ops.op[o, col.NODE], ops, mem, links, switch, clock)
    else:
        load_answered(o, ops, mem, links, switch, clock, points, points.loads)


@block
def sum_visible(o, now, ops, members, stores, issue, links, clock, points):
    """Whether op o carries a sum, which is visible at its home now. The home sends one acknowledgement, and every contributor gets one."""
    if points is None:
        return False
    s = sum_of(o, points)
    if s < 0:
        return False
    mem, nodes, w = members.mem, links.nodes, ops.op[o, col.WIRE]
    k = ops.op[o, col.MEMBER]
    home = mem[k, col.MEMBER_NODE]
    memory_take(nodes, home, links.wires[w, col.WIRE_PAYLOAD], clock.m, now)
    rows_fill(k, o, ops, members, stores, issue, links, clock)
    server_debt(nodes, home, col.UP, links.wires[w, col.WIRE_ACK_UP])
    points.places[home] += 1
    k = points.sums[s, col.SUM_FIRST]
    while k >= 0:
        contributor = mem[k, col.MEMBER_OP]
        members.mem_time[k, col.MEMBER_TIME] = now
        delivered(k, contributor, ops, clock.x, points)
        acknowledge(contributor, ops.op[contributor, col.WIRE], now, ops, links, clock)
        k = mem[k, col.MEMBER_NEXT]
    return True


@block
def result_delivered(ring, now, ops, members, stores, issue, links, clock):
    """RESULT_DELIVERED: the result of a pull is visible at its source. Returns the op if that was its last part, else -1."""
    op = ops.op
    o = op_due(ring, ops, clock)
    if sum_visible(o, now, ops, members, stores, issue, links, clock, ops.points):
        return -1
    memory_take(links.nodes, op[o, col.NODE], links.wires[op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
    op[o, col.LEFT] -= 1
    return o if op[o, col.LEFT] == 0 else -1


@block
def local(now, ops, members, links, clock):
    """LOCAL: a member on the op's own node was served. Returns (its member if it is a store, the op if that was its last part), -1 = not."""
    op, mem, nodes = ops.op, members.mem, links.nodes
    k = member_due(col.RING_LOCAL * clock.m[col.HARDWARE_NETS], members, clock)
    o = mem[k, col.MEMBER_OP]
    is_pull = ops.templates[op[o, col.TEMPLATE], col.IS_PULL]
    op[o, col.LEFT] -= 1
    memory_take(nodes, op[o, col.NODE], links.wires[op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
    filled = -1 if is_pull else k
    if is_pull:
        delivered(k, o, ops, clock.x, ops.points)
    done = -1
    if op[o, col.LEFT] == 0:
        if is_pull or op[o, col.ANSWERS] == 0:
            done = o
        else:
            server_debt(nodes, op[o, col.NODE], col.DOWN, links.wires[op[o, col.WIRE], col.WIRE_ACK_DOWN])
            ack_schedule(o, now, ops, nodes, clock)
    return filled, done


@block
def acknowledged(ring, ops, clock):
    """ACK: the last acknowledgement of a push is back at its source. Returns the op."""
    return op_due(ring, ops, clock)
