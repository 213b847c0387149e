"""Bulk ops: an op of many trains goes in pieces, each as long as nothing interrupts it (docs/design/0001, Bulk; oracle/bulk.py).

A piece has a record of an op and one of a member, as a train of its own has. `points.pieces` says how many trains it stands for.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.acks import up_joins, up_note
from dysharp.engine.blocks.fifo import ring_push
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.blocks.link import server_grant, server_hold
from dysharp.engine.blocks.ready import mark, ops_of
from dysharp.engine.kernel import block, routine


@block
def piece_of(k, mem, points):
    """The piece that member k belongs to; -1: k is the member of an op, or none."""
    if points is None:
        return -1
    return max(-1, k - (mem.shape[0] - 1 - len(points.pieces)))


@block
def _begun(start, before, size, rate, at):
    """Trains of `size` bytes, at least 1, that a server with `before` bytes since `start` in front of them has begun by `at`."""
    return max(1, ((at - start) * rate // 1_000_000 - before) // size + 1)


@block
def _train_bytes(o, i, ops, links):
    """Bytes of one train of op o on the up link of port i; a message costs bytes, too."""
    return links.wires[ops.op[o, col.WIRE], col.WIRE_UP] + links.nodes[i, col.PORT_MESSAGE]


@block
def _sent_at(q, n, size, rate, pieces):
    """When n trains of piece q have left their port."""
    return pieces[q, col.PIECE_UP_START] + ((pieces[q, col.PIECE_UP_BYTES] + n * size) * 1_000_000 + rate - 1) // rate


@block
def _turn_push(ends, row, column, entry, ops, mem, points):
    """Put `entry`, a bulk op or the member of a piece, into a FIFO of `mixed_push` behind the first entry of no bulk op and the bulk
    entries directly after it. So bulk ops and one of all others take turns. Where all entries are of bulk ops, it goes first."""
    before, at, met = -1, ends[row, 0], False
    while at != -1:
        is_bulk = points.bulk_of[at] >= 0 if at >= 0 else piece_of(-2 - at, mem, points) >= 0
        if met and not is_bulk:
            break
        met = met or not is_bulk
        before = at
        at = ops.op[at, column] if at >= 0 else mem[-2 - at, col.MEMBER_NEXT]
    if not met:
        before, at = -1, ends[row, 0]
    if entry >= 0:
        ops.op[entry, column] = at
    else:
        mem[-2 - entry, col.MEMBER_NEXT] = at
    if before == -1:
        ends[row, 0] = entry
    elif before >= 0:
        ops.op[before, column] = entry
    else:
        mem[-2 - before, col.MEMBER_NEXT] = entry
    if at == -1:
        ends[row, 1] = entry


@block
def _others_wait(i, c, ops, links, clock, points):
    """Whether anything but bulk ops of class c waits at the hub of port i."""
    if links.nodes[i, col.UP + col.SERVER_MASK] & ~(1 << c) != 0:
        return True
    at = links.hub[i * clock.m[col.HARDWARE_CLASSES] + c, 0]
    while at >= 0 and points.bulk_of[at] >= 0:
        at = ops.op[at, col.NEXT]
    return at != -1


@block
def bulk_queue(b, ops, mem, links, clock, points):
    """Bulk op b waits for its up link again, if it has trains to send and a piece for them. Returns whether it has joined the hub now."""
    bulks, op, nodes = points.bulks, ops.op, links.nodes
    if bulks[b, col.BULK_LEFT] == 0 or bulks[b, col.BULK_FREE] < 0 or bulks[b, col.BULK_WAITS] == 1:
        return False
    o = bulks[b, col.BULK_OP]
    i, c = op[o, col.NODE], ops.templates[op[o, col.TEMPLATE], col.CLS]
    bulks[b, col.BULK_WAITS] = 1
    _turn_push(links.hub, i * clock.m[col.HARDWARE_CLASSES] + c, col.NEXT, o, ops, mem, points)
    up_joins(i, o, col.WIRE_UP, ops, links)
    nodes[i, col.UP + col.SERVER_MASK] |= 1 << c
    if nodes[i, col.UP + col.SERVER_FREE] <= clock.x[col.RUN_NOW]:
        mark(links.dirty_up, clock.x, i)
    return True


@routine
def piece_send(o, b, i, c, v, now, ops, mem, links, switch, clock, points):
    """Bulk op b sends a piece from port i: all its trains if only bulk ops of its class wait here and only
    pieces of its flow have asked for its member's down link, else one.

    Returns when the up server is free again.
    """
    op, ot, nodes, m, bulks, pieces = ops.op, ops.ot, links.nodes, clock.m, points.bulks, points.pieces
    w, net = op[o, col.WIRE], nodes[i, col.PORT_NET]
    n = 1
    alone = points.ports[bulks[b, col.BULK_TO], col.PORT_ASKED] == bulks[bulks[b, col.BULK_FLOW], col.BULK_AT]
    if alone and not _others_wait(i, c, ops, links, clock, points):
        n = min(bulks[b, col.BULK_LEFT], bulks[b, col.BULK_MOST])
    q = bulks[b, col.BULK_FREE]
    p = ops_of(op, points) + q
    bulks[b, col.BULK_FREE] = op[p, col.NEXT2]
    bulks[b, col.BULK_LEFT] -= n
    bulks[b, col.BULK_WAITS] = 0
    up_note(i, c, links.wires[w, col.WIRE_UP], w, now, links, clock)
    end = server_grant(nodes, i, col.UP, now, n * links.wires[w, col.WIRE_UP], n * nodes[i, col.PORT_MESSAGE])
    pieces[q, col.PIECE_TRAINS] = pieces[q, col.PIECE_LEFT] = n
    pieces[q, col.PIECE_UP_START] = nodes[i, col.UP + col.SERVER_BUSY_START]
    pieces[q, col.PIECE_UP_BYTES] = nodes[i, col.UP + col.SERVER_BUSY_BYTES] - n * _train_bytes(o, i, ops, links)
    points.ports[i, col.PORT_PIECE] = q
    if ot[o, col.START] < 0:
        ot[o, col.START] = now
    ot[o, col.END] = end + links.wires[w, col.WIRE_STRIPE_UP]
    op[p, col.VC], op[p, col.COPIES] = v, 1
    ot[p, col.SCRATCH] = now + nodes[i, col.PORT_LAT]
    if nodes[i, col.PORT_VC_BYTES] > 0:
        switch.occupied[i * m[col.HARDWARE_CLASSES] + c, v] += links.wires[w, col.WIRE_UP]
    if ring_push(clock.rings, col.RING_ARRIVE * m[col.HARDWARE_NETS] + net, op, col.NEXT, ot, col.SCRATCH, op, col.NODE, p):
        tree_set(clock.tree, m[col.LEAF_ARRIVE] + net, ot[p, col.SCRATCH])
    bulk_queue(b, ops, mem, links, clock, points)
    return end


@routine
def _turn_cut(j, q, n, ops, links, clock, points):
    """The present turn of piece q at the down server of port j ends after its train n."""
    pieces, nodes = points.pieces, links.nodes
    o = points.bulks[pieces[q, col.PIECE_BULK], col.BULK_OP]
    i, w = ops.op[o, col.NODE], ops.op[o, col.WIRE]
    down, rate = links.wires[w, col.WIRE_DOWN], nodes[j, col.PORT_RATE]
    before = pieces[q, col.PIECE_DOWN_BYTES] + n * down
    end = pieces[q, col.PIECE_DOWN_START] + (before * 1_000_000 + rate - 1) // rate
    nodes[j, col.DOWN + col.SERVER_BUSY_START] = pieces[q, col.PIECE_DOWN_START]
    nodes[j, col.DOWN + col.SERVER_BUSY_BYTES] = before
    nodes[j, col.DOWN + col.SERVER_FREE] = end
    nodes[j, col.DOWN + col.SERVER_WIRE] -= (pieces[q, col.PIECE_TURN] - n) * down
    n_sent = pieces[q, col.PIECE_TRAINS] - pieces[q, col.PIECE_LEFT] + n
    bound = _sent_at(q, n_sent, _train_bytes(o, i, ops, links), nodes[i, col.PORT_RATE], pieces)
    end = server_hold(nodes, j, col.DOWN, end, bound + links.wires[w, col.WIRE_STRIPE_UP] + nodes[j, col.PORT_LAT])
    pieces[q, col.PIECE_TURN] = n
    tree_set(clock.tree, clock.m[col.LEAF_DOWN] + j, end)


@routine
def up_cut(q, ops, mem, links, clock, points):
    """If piece q is being sent, it ends with the train that has begun. The rest of its trains wait again."""
    pieces, bulks, nodes, now = points.pieces, points.bulks, links.nodes, clock.x[col.RUN_NOW]
    b = pieces[q, col.PIECE_BULK]
    o = bulks[b, col.BULK_OP]
    i, w, n = ops.op[o, col.NODE], ops.op[o, col.WIRE], pieces[q, col.PIECE_TRAINS]
    size, rate, free = _train_bytes(o, i, ops, links), nodes[i, col.PORT_RATE], nodes[i, col.UP + col.SERVER_FREE]
    if points.ports[i, col.PORT_PIECE] != q or free <= now or free != _sent_at(q, n, size, rate, pieces):
        return
    rest = n - _begun(pieces[q, col.PIECE_UP_START], pieces[q, col.PIECE_UP_BYTES], size, rate, now)
    if rest <= 0:
        return
    pieces[q, col.PIECE_TRAINS] -= rest
    pieces[q, col.PIECE_LEFT] -= rest
    bulks[b, col.BULK_LEFT] += rest
    nodes[i, col.UP + col.SERVER_BUSY_BYTES] -= rest * size
    nodes[i, col.UP + col.SERVER_WIRE] -= rest * links.wires[w, col.WIRE_UP]
    end = _sent_at(q, n - rest, size, rate, pieces)
    nodes[i, col.UP + col.SERVER_FREE] = end
    tree_set(clock.tree, clock.m[col.LEAF_UP] + i, end)
    ops.ot[o, col.END] = end + links.wires[w, col.WIRE_STRIPE_UP]
    bulk_queue(b, ops, mem, links, clock, points)
    j = bulks[b, col.BULK_TO]
    if piece_of(nodes[j, col.DOWN + col.SERVER_EXTRA], mem, points) == q and pieces[q, col.PIECE_TURN] > pieces[q, col.PIECE_LEFT]:
        _turn_cut(j, q, pieces[q, col.PIECE_LEFT], ops, links, clock, points)


@block
def hub_joined(o, i, ops, mem, links, clock, points):
    """Op o (-1: a response) has joined the hub of port i: a piece that is being sent there makes way, but not for a bulk op of its class."""
    if points is not None and len(points.pieces) > 0:
        q = points.ports[i, col.PORT_PIECE]
        is_bulk = o >= 0 and points.bulk_of[o] >= 0
        if is_bulk:
            points.bulks[points.bulk_of[o], col.BULK_WAITS] = 1
        if q >= 0:
            sent = ops.templates[ops.op[points.bulks[points.pieces[q, col.PIECE_BULK], col.BULK_OP], col.TEMPLATE], col.CLS]
            if not is_bulk or ops.templates[ops.op[o, col.TEMPLATE], col.CLS] != sent:
                up_cut(q, ops, mem, links, clock, points)


@routine
def _output_asked(o, j, ops, mem, links, clock, points):
    """A copy or result of op or piece o asks for the down link of port j. There and behind it, pieces of other flows make way for each other
    and for anything else after the train that has begun."""
    pieces, bulks, nodes, b = points.pieces, points.bulks, links.nodes, points.bulk_of[o]
    flow = bulks[b, col.BULK_FLOW] if b >= 0 else -1
    points.ports[j, col.PORT_ASKED] += 1
    if b >= 0:
        bulks[flow, col.BULK_AT] += 1
    q = piece_of(nodes[j, col.DOWN + col.SERVER_EXTRA], mem, points)
    if q >= 0 and bulks[pieces[q, col.PIECE_BULK], col.BULK_FLOW] != flow:
        up_cut(q, ops, mem, links, clock, points)
        _turn_yield(j, q, ops, links, clock, points)
    if b >= 0 and points.ports[j, col.PORT_ASKED] > bulks[flow, col.BULK_AT]:
        up_cut(o - ops_of(ops.op, points), ops, mem, links, clock, points)


@block
def _turn_yield(j, q, ops, links, clock, points):
    """The turn of piece q at the down server of port j ends with the train that has begun."""
    pieces, nodes, now = points.pieces, links.nodes, clock.x[col.RUN_NOW]
    o = points.bulks[pieces[q, col.PIECE_BULK], col.BULK_OP]
    i, w = ops.op[o, col.NODE], ops.op[o, col.WIRE]
    n = _begun(pieces[q, col.PIECE_DOWN_START], pieces[q, col.PIECE_DOWN_BYTES], links.wires[w, col.WIRE_DOWN], nodes[j, col.PORT_RATE], now)
    late = links.wires[w, col.WIRE_STRIPE_UP] + nodes[j, col.PORT_LAT]
    size, served = _train_bytes(o, i, ops, links), pieces[q, col.PIECE_TRAINS] - pieces[q, col.PIECE_LEFT]
    before = pieces[q, col.PIECE_UP_BYTES] + served * size
    n = min(n, _begun(pieces[q, col.PIECE_UP_START], before, size, nodes[i, col.PORT_RATE], now - late))
    if n < pieces[q, col.PIECE_TURN]:
        _turn_cut(j, q, n, ops, links, clock, points)


@block
def asked(o, j, ops, mem, links, clock, points):
    """`_output_asked`, where there are bulk ops."""
    if points is not None and len(points.pieces) > 0:
        _output_asked(o, j, ops, mem, links, clock, points)


@block
def turn_begin(k, o, j, n_bytes, ops, mem, links, points):
    """The down server of port j takes member k of op or piece o, `n_bytes` long. Returns the bytes of its turn: of a piece all its trains if
    nothing else has asked for the link, else one."""
    q = piece_of(k, mem, points)
    if points is not None and q >= 0:
        pieces, b = points.pieces, points.pieces[q, col.PIECE_BULK]
        bulk = points.bulks[b, col.BULK_OP]
        i = ops.op[o, col.NODE]
        alone = points.ports[j, col.PORT_ASKED] == points.bulks[points.bulks[b, col.BULK_FLOW], col.BULK_AT]
        n = pieces[q, col.PIECE_LEFT] if alone else 1
        pieces[q, col.PIECE_TURN] = n
        n_sent = pieces[q, col.PIECE_TRAINS] - pieces[q, col.PIECE_LEFT] + n
        end = _sent_at(q, n_sent, _train_bytes(bulk, i, ops, links), links.nodes[i, col.PORT_RATE], pieces)
        ops.ot[o, col.TAIL] = end + links.wires[ops.op[o, col.WIRE], col.WIRE_STRIPE_UP]
        return n * n_bytes
    return n_bytes


@block
def turn_over(k, j, c, ops, mem, nodes, switch, clock, points):
    """The turn of member k at the down server of port j is over. True: it is a piece with trains left, which waits for its next turn."""
    if points is not None and len(points.pieces) > 0:
        q = piece_of(k, mem, points)
        if q >= 0:
            points.pieces[q, col.PIECE_LEFT] -= points.pieces[q, col.PIECE_TURN]
            if points.pieces[q, col.PIECE_LEFT] > 0:
                _turn_push(switch.crossed, j * clock.m[col.HARDWARE_CLASSES] + c, col.NEXT2, -2 - k, ops, mem, points)
                nodes[j, col.DOWN + col.SERVER_MASK] |= 1 << c
                return True
            points.bulks[points.bulks[points.pieces[q, col.PIECE_BULK], col.BULK_FLOW], col.BULK_AT] -= 1
        points.ports[j, col.PORT_ASKED] -= 1
    return False
