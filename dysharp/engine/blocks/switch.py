"""The switch at burst level: virtual channels with credits at the inputs, the crossing, and the buffers of the outputs."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import set_after, set_empty
from dysharp.engine.blocks.bulk import asked
from dysharp.engine.blocks.fifo import fifo_pop, fifo_push, list_push, mixed_push
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.blocks.lines import has_lines
from dysharp.engine.blocks.loads import ANSWERED, GOES_ON, load_look, load_responds, room_make
from dysharp.engine.blocks.ready import delivered, mark
from dysharp.engine.kernel import block, routine


@block
def credits_apply(row, credits, ot, op, wires, occupied, now):
    """Take due credits of (node, class) `row`: buffer space that has come back by `now`."""
    while credits[row, 0] >= 0 and ot[credits[row, 0], col.SCRATCH] <= now:
        o = credits[row, 0]
        credits[row, 0] = op[o, col.NEXT]
        occupied[row, op[o, col.VC]] -= wires[op[o, col.WIRE], col.WIRE_UP]


@block
def vc_choose(row, occupied, wire, vc_bytes):
    """Least occupied VC (lowest index on a tie) if the train fits or the VC is empty, else -1."""
    best = 0
    least = occupied[row, 0]
    for v in range(1, occupied.shape[1]):
        if occupied[row, v] < least:
            least = occupied[row, v]
            best = v
    if least > 0 and least + wire > vc_bytes:
        best = -1
    return best


@block
def _has_room(at, n_bytes, held, limit):
    """Whether the output buffer of (port, class) `at` takes `n_bytes` more. An empty buffer takes any copy; `limit` 0: it is infinite."""
    return limit == 0 or held[at] == 0 or held[at] + n_bytes <= limit


@block
def _cross(entry, j, at, n_bytes, op, mem, links, switch, clock):
    """A copy (entry = -2 - member) or a result (entry = op) crosses into the output buffer `at` of node j's down link."""
    nodes = links.nodes
    switch.held[at] += n_bytes
    mixed_push(switch.crossed, at, op, col.NEXT2, mem, entry)
    nodes[j, col.DOWN + col.SERVER_MASK] |= 1 << (at - j * clock.m[col.HARDWARE_CLASSES])
    if nodes[j, col.DOWN + col.SERVER_FREE] <= clock.x[col.RUN_NOW]:
        mark(switch.dirty_down, clock.x, j)
    elif has_lines(j, links):  # the server may be free before what it sends has left all links
        leaf = clock.m[col.LEAF_DOWN] + j
        if clock.tree[(len(clock.tree) >> 1) + leaf] > nodes[j, col.DOWN + col.SERVER_FREE]:
            tree_set(clock.tree, leaf, nodes[j, col.DOWN + col.SERVER_FREE])


@block
def result_out(o, j, ops, mem, links, switch, clock):
    """The reduction unit has the result of op o for the down link of node j."""
    op, m = ops.op, clock.m
    n_nodes = links.nodes.shape[0]
    at = j * m[col.HARDWARE_CLASSES] + ops.templates[op[o, col.TEMPLATE], col.RESPONSE_CLS]
    size = links.wires[op[o, col.WIRE], col.WIRE_RESULT]
    nobody_waits = set_empty(switch.out_mask, at)
    if nobody_waits and _has_room(at, size, switch.held, links.nodes[j, col.PORT_OUTPUT]):
        _cross(o, j, at, size, op, mem, links, switch, clock)
    else:
        fifo_push(switch.out_queues, at * (n_nodes + 1) + n_nodes, op, col.NEXT2, o)
        switch.out_mask[at, n_nodes >> 6] |= 1 << (n_nodes & 63)
    asked(o, j, ops, mem, links, clock, ops.points)


@block
def sum_of(o, points):
    """The sum to which op o contributes from another node than the home, -1 = none."""
    if len(points.sum_of) == 0:
        return -1
    return points.sum_of[o]


@block
def _answer_out(o, tail, ops, mem, links, switch, clock, points, loads):
    """Load o gets the response to an equal load, whose last byte left its home at `tail`."""
    k, now = ops.op[o, col.MEMBER], clock.x[col.RUN_NOW]
    ops.ot[o, col.TAIL] = tail
    ops.ot[o, col.END] = now
    loads.mem_time[k, col.MEMBER_TIME] = now
    delivered(k, o, ops, clock.x, points)
    result_out(o, ops.op[o, col.NODE], ops, mem, links, switch, clock)


@block
def _load_merges(o, ops, mem, links, switch, clock, points, loads):
    """Whether train o is a load that does not go on: it waits for the response to an equal load, or gets it now."""
    if loads is None:
        return False
    s = loads.address_of[o]
    if s < 0:
        return False
    look = load_look(s, o, mem[ops.op[o, col.MEMBER], col.MEMBER_NODE], clock.x[col.RUN_NOW], points.places, loads, ops.op, col.NEXT2)
    if look == ANSWERED:
        _answer_out(o, loads.entries[s, col.LOAD_TAIL], ops, mem, links, switch, clock, points, loads)
    return look != GOES_ON


@routine
def load_answered(o, ops, mem, links, switch, clock, points, loads):
    """The response to op o is in the switch; if it is a load, all that wait for it get it behind op o."""
    result_out(o, ops.op[o, col.NODE], ops, mem, links, switch, clock)
    if loads is None:
        return
    s = loads.address_of[o]
    if s < 0:
        return
    tail = ops.ot[o, col.END]
    ops.ot[o, col.TAIL] = tail
    w = load_responds(s, o, mem[ops.op[o, col.MEMBER], col.MEMBER_NODE], clock.x[col.RUN_NOW], points.places, loads.entries)
    if w > -2:
        loads.entries[s, col.LOAD_TAIL] = tail
    while w >= 0:
        following = ops.op[w, col.NEXT2]
        _answer_out(w, tail, ops, mem, links, switch, clock, points, loads)
        w = following


@block
def _contributed(o, ops, mem, links, switch, clock, points):
    """Whether train o has ended in the switch: a contribution to a sum that has a place, or a load that merges (oracle/transfers.py)."""
    if points is None:
        return False
    if _load_merges(o, ops, mem, links, switch, clock, points, points.loads):
        return True
    s = sum_of(o, points)
    if s < 0:
        return False
    sums, k = points.sums, ops.op[o, col.MEMBER]
    home = mem[k, col.MEMBER_NODE]
    if sums[s, col.SUM_STATE] == col.SUM_NEW:
        room_make(home, points.places, points.loads)
        sums[s, col.SUM_STATE] = col.SUM_OPEN if points.places[home] > 0 else col.SUM_PASSES
        points.places[home] -= sums[s, col.SUM_STATE] == col.SUM_OPEN
    if sums[s, col.SUM_STATE] == col.SUM_PASSES:
        return False
    sums[s, col.SUM_TAIL] = max(sums[s, col.SUM_TAIL], ops.ot[o, col.TAIL])
    sums[s, col.SUM_LEFT] -= 1
    list_push(sums, s, col.SUM_FIRST, col.SUM_LAST, mem, col.MEMBER_NEXT, k)
    if sums[s, col.SUM_LEFT] == 0:
        result_out(o, home, ops, mem, links, switch, clock)
        _gates_note(s, home, clock.m[col.HARDWARE_NODES], points)
    return True


@block
def _gates_note(s, home, n_nodes, points):
    """The sum s of node `home` is complete: its gate and the one before it may open."""
    if len(points.gate_of) > 0:
        last = len(points.gates) - 1
        w = points.gates[last, 0]
        points.opening[w] = s
        points.opening[w + 1] = s - home + (home + n_nodes - 1) % n_nodes
        points.gates[last, 0] = w + 2


@block
def _gate_open(g, node, n_nodes, sums):
    """Whether every node is ready: the sums of the gate's node and of the node behind it are complete."""
    return sums[g, col.SUM_LEFT] == 0 and sums[g - node + (node + 1) % n_nodes, col.SUM_LEFT] == 0


@block
def _gate_waits(o, k, j, mem, clock, points):
    """Whether the copy of member k on node j waits at its gate from now on."""
    if points is None:
        return False
    if len(points.gate_of) == 0 or points.gate_of[o] < 0:
        return False
    g = points.gate_of[o] + j
    if _gate_open(g, j, clock.m[col.HARDWARE_NODES], points.sums):
        return False
    fifo_push(points.gates, g, mem, col.MEMBER_NEXT, k)
    return True


@block
def _copy_ask(o, k, ops, mem, links, switch, clock):
    """The copy of member k of train o crosses to its output, or waits there for room."""
    op, m = ops.op, clock.m
    i, j = op[o, col.NODE], mem[k, col.MEMBER_NODE]
    at = j * m[col.HARDWARE_CLASSES] + ops.templates[op[o, col.TEMPLATE], col.CLS]
    n_bytes = links.wires[op[o, col.WIRE], col.WIRE_DOWN] + mem[k, col.MEMBER_EXT]
    if set_empty(switch.out_mask, at) and _has_room(at, n_bytes, switch.held, links.nodes[j, col.PORT_OUTPUT]):
        _cross(-2 - k, j, at, n_bytes, op, mem, links, switch, clock)
        op[o, col.COPIES] -= 1
    else:
        fifo_push(switch.out_queues, at * (links.nodes.shape[0] + 1) + i, mem, col.MEMBER_NEXT, k)
        switch.out_mask[at, i >> 6] |= 1 << (i & 63)
    asked(o, j, ops, mem, links, clock, ops.points)


@routine
def gates_open(ops, mem, links, switch, clock, points):
    """Gates whose sums this event completed let their copies out, in the order in which the copies came."""
    if points is None:
        return
    if len(points.gate_of) == 0:
        return
    op, m, gates, last = ops.op, clock.m, points.gates, len(points.gates) - 1
    while gates[last, 1] < gates[last, 0]:
        g = points.opening[gates[last, 1]]
        gates[last, 1] += 1
        k = gates[g, 0] if 0 <= g < last else -1  # a sum that is no gate has no gate before it
        if k < 0 or not _gate_open(g, mem[k, col.MEMBER_NODE], m[col.HARDWARE_NODES], points.sums):
            continue
        gates[g, 0] = -1
        while k >= 0:
            following, o = mem[k, col.MEMBER_NEXT], mem[k, col.MEMBER_OP]
            _copy_ask(o, k, ops, mem, links, switch, clock)
            i = op[o, col.NODE]
            if op[o, col.COPIES] == 0 and links.nodes[i, col.PORT_VC_BYTES] > 0:
                row = (i * m[col.HARDWARE_CLASSES] + ops.templates[op[o, col.TEMPLATE], col.CLS]) * switch.occupied.shape[1] + op[o, col.VC]
                _train_leave(row, ops, links.nodes, switch.channels, switch.credits, clock)
                channel_advance(row, ops, mem, links, switch, clock)
            k = following


@block
def train_expose(o, ops, mem, links, switch, clock):
    """The copies of train o cross to their outputs. A copy that finds no room waits for room. True: all copies have crossed."""
    if _contributed(o, ops, mem, links, switch, clock, ops.points):
        return True
    op, first = ops.op, ops.op[o, col.MEMBER]
    for k in range(first, first + (op[o, col.FLAGS] >> col.MEMBERS_SHIFT)):
        j = mem[k, col.MEMBER_NODE]
        if j != op[o, col.NODE] and not _gate_waits(o, k, j, mem, clock, ops.points):
            _copy_ask(o, k, ops, mem, links, switch, clock)
    return op[o, col.COPIES] == 0


@block
def _train_leave(row, ops, nodes, channels, credits, clock):
    """The head of virtual channel `row` has crossed with all copies: its space is back at the source one latency later."""
    op, ot, m = ops.op, ops.ot, clock.m
    o = fifo_pop(channels, row, op, col.NEXT)
    i = op[o, col.NODE]
    ot[o, col.SCRATCH] = clock.x[col.RUN_NOW] + nodes[i, col.PORT_LAT]
    fifo_push(credits, i * m[col.HARDWARE_CLASSES] + ops.templates[op[o, col.TEMPLATE], col.CLS], op, col.NEXT, o)
    leaf = m[col.LEAF_CREDIT] + i
    if nodes[i, col.UP + col.SERVER_EXTRA] >= 0 and clock.tree[(len(clock.tree) >> 1) + leaf] > ot[o, col.SCRATCH]:
        tree_set(clock.tree, leaf, ot[o, col.SCRATCH])


@block
def channel_advance(row, ops, mem, links, switch, clock):
    """Expose the trains of virtual channel `row`, up to the first with a copy that has to wait. Trains before it leave."""
    channels = switch.channels
    while channels[row, 0] >= 0 and train_expose(channels[row, 0], ops, mem, links, switch, clock):
        _train_leave(row, ops, links.nodes, switch.channels, switch.credits, clock)


@block
def output_admit(j, c, ops, mem, links, switch, clock):
    """Room in the output buffer of (node j, class c): what waits for it crosses, sources round robin."""
    op, m = ops.op, clock.m
    n_nodes = links.nodes.shape[0]
    at = j * m[col.HARDWARE_CLASSES] + c
    while not set_empty(switch.out_mask, at):
        s = set_after(switch.out_mask, at, switch.out_cursor[at])
        queue = at * (n_nodes + 1) + s
        k = switch.out_queues[queue, 0]  # an op where s is the reduction unit
        o = k if s == n_nodes else mem[k, col.MEMBER_OP]
        w = op[o, col.WIRE]
        n_bytes = links.wires[w, col.WIRE_RESULT] if s == n_nodes else links.wires[w, col.WIRE_DOWN] + mem[k, col.MEMBER_EXT]
        if not _has_room(at, n_bytes, switch.held, links.nodes[j, col.PORT_OUTPUT]):
            break
        switch.out_cursor[at] = s
        if s == n_nodes:
            fifo_pop(switch.out_queues, queue, op, col.NEXT2)
        else:
            fifo_pop(switch.out_queues, queue, mem, col.MEMBER_NEXT)
        if switch.out_queues[queue, 0] < 0:
            switch.out_mask[at, s >> 6] &= ~(1 << (s & 63))
        _cross(o if s == n_nodes else -2 - k, j, at, n_bytes, op, mem, links, switch, clock)
        if s < n_nodes:
            op[o, col.COPIES] -= 1
            if op[o, col.COPIES] == 0 and links.nodes[j, col.PORT_VC_BYTES] > 0:
                row = (op[o, col.NODE] * m[col.HARDWARE_CLASSES] + c) * switch.occupied.shape[1] + op[o, col.VC]
                _train_leave(row, ops, links.nodes, switch.channels, switch.credits, clock)
                channel_advance(row, ops, mem, links, switch, clock)
