"""When the acknowledgements of a push are back at its source: in turn with packets of rows, without an event for each (oracle/fabric.py)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import precedes
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.kernel import block

PARTS = 6  # of an acknowledgement, so that a third or a half of a packet's turn is whole


@block
def up_joins(i, o, part, ops, links):
    """A train of op o (`part` WIRE_UP) or one of its responses (WIRE_RESPONSE) joins the hub of port i."""
    if links.nodes[i, col.PORT_TURNS] == 1:
        links.nodes[i, col.UP_QUEUED] += links.wires[ops.op[o, col.WIRE], part]


@block
def up_note(i, c, n_bytes, w, now, links, clock):
    """The up server of port i sends a train of `n_bytes` of class c next: with its packets, acknowledgements leave; after an idle time, all have."""
    nodes = links.nodes
    if nodes[i, col.PORT_TURNS] == 0:
        return
    n, waiting, turns = links.wires[w, col.WIRE_PACKETS], nodes[i, col.UP + col.SERVER_MASK] | 1 << c, 0
    while waiting != 0:
        turns += waiting & 1
        waiting >>= 1
    nodes[i, col.UP_CLASS] = c
    nodes[i, col.UP_QUEUED] -= n_bytes
    links.packet[i * clock.m[col.HARDWARE_CLASSES] + c] = n_bytes // max(1, n)
    left = nodes[i, col.ACKS_WAIT] - PARTS * n // turns
    nodes[i, col.ACKS_WAIT] = left if left > 0 and nodes[i, col.UP + col.SERVER_FREE] >= now else 0


@block
def acks_leave(j, w, now, links, clock):
    """When the acknowledgements of a copy with wires w, visible at port j now, have left j's hub, behind all that wait there.

    While the up server sends, each waits for one packet of every class that sends or queues there, at most for all that sends and queues.
    """
    nodes, n_bytes = links.nodes, links.wires[w, col.WIRE_ACK_UP]
    if nodes[j, col.PORT_TURNS] == 0 or n_bytes == 0:
        return now
    rate, n = nodes[j, col.PORT_RATE], links.wires[w, col.WIRE_PACKETS]
    if nodes[j, col.UP + col.SERVER_FREE] <= now:
        nodes[j, col.ACKS_WAIT] = 0
        return now + (n_bytes * 1_000_000 + rate - 1) // rate
    turn, waiting = n_bytes // n, nodes[j, col.UP + col.SERVER_MASK] | 1 << nodes[j, col.UP_CLASS]
    for c in range(clock.m[col.HARDWARE_CLASSES]):
        if waiting >> c & 1:
            turn += links.packet[j * clock.m[col.HARDWARE_CLASSES] + c]
    nodes[j, col.ACKS_WAIT] += PARTS * n
    behind_all = PARTS * nodes[j, col.UP_QUEUED] + nodes[j, col.ACKS_WAIT] * (n_bytes // n)
    in_turn_ps = (nodes[j, col.ACKS_WAIT] * turn * 1_000_000 + PARTS * rate - 1) // (PARTS * rate)
    behind_all_ps = nodes[j, col.UP + col.SERVER_FREE] - now + (behind_all * 1_000_000 + PARTS * rate - 1) // (PARTS * rate)
    return now + min(in_turn_ps, behind_all_ps)


@block
def ack_note(o, left, ops):
    """The acknowledgements of a copy of push o have left by `left`: the latest counts. Kept below -1 where the end will be."""
    ops.ot[o, col.DONE] = min(ops.ot[o, col.DONE], -2 - left)


@block
def ack_due(o, left, now, ops, links, held, clock):
    """When push o, all of which is visible now, is acknowledged; the last acknowledgement leaves at `left`.

    It stands behind everything in the output buffers of its source's down link.
    """
    port, nodes = ops.op[o, col.NODE], links.nodes
    due = max(now, left) + nodes[port, col.PORT_ACK]
    if nodes[port, col.PORT_TURNS] == 1:
        first, rate = port * clock.m[col.HARDWARE_CLASSES], nodes[port, col.PORT_RATE]
        stands = 0
        for c in range(clock.m[col.HARDWARE_CLASSES]):
            stands += held[first + c]
        due += (stands * 1_000_000 + rate - 1) // rate
    return due


@block
def ack_push(o, leaf, ops, acks, clock):
    """Push o joins the pushes that wait for their acknowledgement, due at its DONE."""
    acks[0] += 1
    i = acks[0]
    while i > 1 and precedes(o, acks[i >> 1], ops.ot, col.DONE, ops.op, col.NODE):
        acks[i] = acks[i >> 1]
        i >>= 1
    acks[i] = o
    if i == 1:
        tree_set(clock.tree, leaf, ops.ot[o, col.DONE])


@block
def ack_pop(leaf, ops, acks, clock):
    """The push whose acknowledgement is due first, taken out."""
    first, n = acks[1], acks[0]
    last = acks[n]
    acks[0] = n - 1
    i = 1
    while 2 * i < n:
        child = 2 * i
        if child + 1 < n and precedes(acks[child + 1], acks[child], ops.ot, col.DONE, ops.op, col.NODE):
            child += 1
        if precedes(last, acks[child], ops.ot, col.DONE, ops.op, col.NODE):
            break
        acks[i] = acks[child]
        i = child
    acks[i] = last
    tree_set(clock.tree, leaf, ops.ot[acks[1], col.DONE] if n > 1 else col.INF)
    return first
