"""From delivery to completion at burst level: acknowledgements, responses, results (oracle/transfers.py).

Releases: `deliver`, `respond`, `result`, `result_delivered`, `local`, `acknowledged`. Functions that may end an op return the op, else -1.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.acks import ack_due, ack_note, ack_pop, ack_push, acks_leave
from dysharp.engine.blocks.bulk import bulk_queue, piece_of, up_cut
from dysharp.engine.blocks.fifo import fifo_pop, member_due, member_schedule, op_due, op_schedule
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.blocks.link import memory_take, server_debt
from dysharp.engine.blocks.points import rows_fill
from dysharp.engine.blocks.ready import delivered
from dysharp.engine.blocks.switch import load_answered, result_out, sum_of
from dysharp.engine.blocks.trains import response_out
from dysharp.engine.kernel import block


@block
def _acknowledge(o, left, now, ops, links, held, clock):
    """The last part of push o is visible now, and its last acknowledgement leaves its member at `left`."""
    server_debt(links.nodes, ops.op[o, col.NODE], col.DOWN, links.wires[ops.op[o, col.WIRE], col.WIRE_ACK_DOWN])
    _ack_return(o, ack_due(o, left, now, ops, links, held, clock), ops, links, clock)


@block
def _ack_return(o, due, ops, links, clock):
    """The source of push o will know at `due` that all of the op is visible."""
    if ops.op[o, col.FLAGS] & col.ANY_FLAG == 0:
        ops.ot[o, col.DONE] = due
        clock.x[col.RUN_DONE] += 1  # nothing waits for this acknowledgement: it needs no event
        return
    net = links.nodes[ops.op[o, col.NODE], col.PORT_NET]
    ring = col.RING_ACK * clock.m[col.HARDWARE_NETS] + net
    if net == 0 and len(links.acks) > 1:
        ops.ot[o, col.DONE] = due
        ack_push(o, clock.m[col.LEAF_RINGS] + ring, ops, links.acks, clock)
    else:
        op_schedule(ring, o, due, ops, clock)


@block
def deliver(k, now, ops, members, links, held, clock):
    """DELIVER: the copy of member k is visible, and the member acknowledges it. Returns the member whose rows have it now, -1 = none yet."""
    if piece_of(k, members.mem, ops.points) >= 0:
        return _piece_deliver(k, now, ops, members, links, clock, ops.points)
    op, mem, nodes = ops.op, members.mem, links.nodes
    o = mem[k, col.MEMBER_OP]
    w = op[o, col.WIRE]
    memory_take(nodes, mem[k, col.MEMBER_NODE], links.wires[w, col.WIRE_PAYLOAD], clock.m, now)
    server_debt(nodes, mem[k, col.MEMBER_NODE], col.UP, links.wires[w, col.WIRE_ACK_UP])
    left = acks_leave(mem[k, col.MEMBER_NODE], w, now, links, clock)
    if op[o, col.FLAGS] >> col.MEMBERS_SHIFT > 1:
        ack_note(o, left, ops)
        left = -2 - ops.ot[o, col.DONE]
    op[o, col.LEFT] -= 1
    if op[o, col.LEFT] == 0:
        _acknowledge(o, left, now, ops, links, held, clock)
    return k


@block
def _piece_deliver(k, now, ops, members, links, clock, points):
    """A piece is visible. The bulk op has a piece to send again. Returns the op's member if that was all of it, else -1."""
    if points is None:
        return -1
    mem, nodes, bulks, q = members.mem, links.nodes, points.bulks, piece_of(k, members.mem, points)
    b, n = points.pieces[q, col.PIECE_BULK], points.pieces[q, col.PIECE_TRAINS]
    o = bulks[b, col.BULK_OP]
    i, j, w = ops.op[o, col.NODE], mem[k, col.MEMBER_NODE], ops.op[o, col.WIRE]
    memory_take(nodes, i, n * bulks[b, col.BULK_BYTES], clock.m, now)
    memory_take(nodes, j, n * bulks[b, col.BULK_BYTES], clock.m, now)
    server_debt(nodes, j, col.UP, n * links.wires[w, col.WIRE_ACK_UP])
    server_debt(nodes, i, col.DOWN, n * links.wires[w, col.WIRE_ACK_DOWN])
    ops.op[mem[k, col.MEMBER_OP], col.NEXT2] = bulks[b, col.BULK_FREE]
    bulks[b, col.BULK_FREE] = q
    if bulk_queue(b, ops, mem, links, clock, points) and points.ports[i, col.PORT_PIECE] >= 0:
        up_cut(points.ports[i, col.PORT_PIECE], ops, mem, links, clock, points)
    bulks[b, col.BULK_DUE] -= n
    if bulks[b, col.BULK_DUE] > 0:
        return -1
    members.mem_time[ops.op[o, col.MEMBER], col.MEMBER_TIME] = now
    _ack_return(o, now + nodes[i, col.PORT_ACK], ops, links, clock)
    return ops.op[o, col.MEMBER]


@block
def places_known(j, leaf, now, ops, members, links, held, tables, clock):
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
    deliver(k, now, ops, members, links, held, clock)
    return k


@block
def _held_back(k, mem, points):
    """Whether edges hold back the response of member k."""
    if points is None or mem[k, col.MEMBER_WAITS] <= 0:
        return False
    mem[k, col.MEMBER_WAITS] += col.RESPONSE_HELD
    return True


@block
def respond(ring, now, ops, members, links, clock):
    """RESPOND: a responder has read its memory; its response queues for the up link, or waits for edges. `ring`: where it was due."""
    k = member_due(ring, members, clock)
    if not _held_back(k, members.mem, ops.points):
        response_out(k, now, ops, members.mem, links, clock)


@block
def result(ring, now, ops, mem, links, switch, clock):
    """RESULT: all contributions of a pull have met in the reduction unit, which asks for the down link."""
    _results_out(op_due(ring, ops, clock), ops, mem, links, switch, clock, ops.points)


@block
def _results_out(o, ops, mem, links, switch, clock, points):
    """What pull o has brought goes to its source, and to the loads that wait for it."""
    if points is None:
        result_out(o, ops.op[o, col.NODE], ops, mem, links, switch, clock)
    else:
        load_answered(o, ops, mem, links, switch, clock, points, points.loads)


@block
def _sum_visible(o, now, ops, members, stores, issue, links, held, clock, points):
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
    left = acks_leave(home, w, now, links, clock)
    points.places[home] += 1
    k = points.sums[s, col.SUM_FIRST]
    while k >= 0:
        contributor = mem[k, col.MEMBER_OP]
        members.mem_time[k, col.MEMBER_TIME] = now
        delivered(k, contributor, ops, clock.x, points)
        _acknowledge(contributor, left, now, ops, links, held, clock)
        k = mem[k, col.MEMBER_NEXT]
    return True


@block
def result_delivered(ring, now, ops, members, stores, issue, links, held, clock):
    """RESULT_DELIVERED: the result of a pull is visible at its source. Returns the op if that was its last part, else -1."""
    op = ops.op
    o = op_due(ring, ops, clock)
    if _sum_visible(o, now, ops, members, stores, issue, links, held, clock, ops.points):
        return -1
    memory_take(links.nodes, op[o, col.NODE], links.wires[op[o, col.WIRE], col.WIRE_PAYLOAD], clock.m, now)
    op[o, col.LEFT] -= 1
    return o if op[o, col.LEFT] == 0 else -1


@block
def local(now, ops, members, links, held, clock):
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
            _acknowledge(o, -2 - ops.ot[o, col.DONE], now, ops, links, held, clock)
    return filled, done


@block
def acknowledged(ring, ops, links, clock):
    """ACK: the last acknowledgement of a push is back at its source. Returns the op."""
    if ring == col.RING_ACK * clock.m[col.HARDWARE_NETS] and len(links.acks) > 1:
        return ack_pop(clock.m[col.LEAF_RINGS] + ring, ops, links.acks, clock)
    return op_due(ring, ops, clock)
