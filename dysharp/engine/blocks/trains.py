"""The way of trains at burst level: up server, switch buffer, down server (oracle/fabric.py).

Releases: `up_end`, `arrive`, `down_end`, `credit`. Grants: `grant_up`, `grant_down`.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.acks import up_joins, up_note
from dysharp.engine.blocks.bits import pick
from dysharp.engine.blocks.bulk import hub_joined, piece_of, piece_send, turn_begin, turn_over
from dysharp.engine.blocks.fifo import fifo_push, member_schedule, mixed_pop, mixed_push, op_schedule, ring_push, ring_take
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.blocks.hub_table import rows_ask
from dysharp.engine.blocks.lines import debt_ps, has_lines, lines_send
from dysharp.engine.blocks.link import memory_take, server_grant, server_hold
from dysharp.engine.blocks.ready import delivered, mark
from dysharp.engine.blocks.switch import channel_advance, credits_apply, gates_open, output_admit, sum_of, train_expose, vc_choose
from dysharp.engine.kernel import block, prefetch

IDLE = -(1 << 40)  # SERVER_EXTRA of a down server that sends nothing


@block
def up_end(i, leaf, links, clock):
    """UP_END, CREDIT: the up server of port i may have something to send."""
    tree_set(clock.tree, leaf, col.INF)
    mark(links.dirty_up, clock.x, i)


@block
def arrive(net, ops, members, links, switch, clock):
    """ARRIVE: a train reaches its input buffer of the switch; behind no other train, its copies ask for their outputs."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    channels, m = switch.channels, clock.m
    o = ring_take(m[col.LEAF_ARRIVE] + net, col.RING_ARRIVE * m[col.HARDWARE_NETS] + net, op, col.NEXT, ot, col.SCRATCH, clock)
    if links.nodes[op[o, col.NODE], col.PORT_VC_BYTES] == 0:
        train_expose(o, ops, members.mem, links, switch, clock)
    else:
        row = (op[o, col.NODE] * m[col.HARDWARE_CLASSES] + templates[op[o, col.TEMPLATE], col.CLS]) * switch.occupied.shape[1] + op[o, col.VC]
        if fifo_push(channels, row, op, col.NEXT, o):
            channel_advance(row, ops, members.mem, links, switch, clock)
    gates_open(ops, members.mem, links, switch, clock, ops.points)


@block
def down_end(j, now, ops, members, links, switch, tables, clock):
    """DOWN_END: port j's down server has sent a copy or a result, whose room in the output buffer is free again."""
    op, templates = ops.op, ops.templates
    mem, nodes, wires = members.mem, links.nodes, links.wires
    m, x = clock.m, clock.x
    net, arrival = nodes[j, col.PORT_NET], now + nodes[j, col.PORT_LAT]
    if has_lines(j, links):
        entry = _line_end(j, now, ops, members, links, switch, clock)
        if entry == -1:
            return
    else:
        tree_set(clock.tree, m[col.LEAF_DOWN] + j, col.INF)
        mark(switch.dirty_down, x, j)
        entry = nodes[j, col.DOWN + col.SERVER_EXTRA]
        nodes[j, col.DOWN + col.SERVER_EXTRA] = IDLE
    if entry < 0:
        o = -2 - entry
        c = templates[op[o, col.TEMPLATE], col.RESPONSE_CLS]
        n_bytes = wires[op[o, col.WIRE], col.WIRE_RESULT]
        turn_over(-1, j, c, ops, mem, nodes, switch, clock, ops.points)
        op_schedule(col.RING_RESULT_DELIVERED * m[col.HARDWARE_NETS] + net, o, arrival, ops, clock)
    else:
        o = mem[entry, col.MEMBER_OP]
        c = templates[op[o, col.TEMPLATE], col.CLS]
        if turn_over(entry, j, c, ops, mem, nodes, switch, clock, ops.points):
            return
        n_bytes = wires[op[o, col.WIRE], col.WIRE_DOWN] + mem[entry, col.MEMBER_EXT]
        table = templates[op[o, col.TEMPLATE], col.TABLE]
        known = arrival if table < 0 else rows_ask(entry, table, j, arrival, members, tables)
        if known > arrival:
            _member_wait(entry, j, known, m[col.LEAF_TABLE], members, tables, clock)
        elif templates[op[o, col.TEMPLATE], col.IS_PULL]:
            member_schedule(col.RING_RESPOND * m[col.HARDWARE_NETS] + net, entry, arrival + m[col.HARDWARE_RESPONDER], members, clock)
        else:
            member_schedule(col.RING_DELIVER * m[col.HARDWARE_NETS] + net, entry, arrival, members, clock)
    switch.held[j * m[col.HARDWARE_CLASSES] + c] -= n_bytes
    output_admit(j, c, ops, mem, links, switch, clock)
    gates_open(ops, mem, links, switch, clock, ops.points)


@block
def _member_wait(k, node, known, leaf, members, tables, clock):
    """Member k waits at `node` until `known`, and no shorter than the member before it."""
    mem, mem_time, waits = members.mem, members.mem_time, tables.waits
    last = waits[node, 1] if waits[node, 0] >= 0 else -1
    mem_time[k, col.MEMBER_TIME] = known if last < 0 else max(known, mem_time[last, col.MEMBER_TIME])
    if last < 0:
        tree_set(clock.tree, leaf + node, known)
    fifo_push(waits, node, mem, col.MEMBER_NEXT, k)


@block
def _sent_due(entry, ot, mem_time):
    """When all of what was sent last as `entry` (an op's result, or -2 - member) has left the down links."""
    return ot[entry, col.DONE] if entry >= 0 else mem_time[-2 - entry, col.MEMBER_TIME]


@block
def _line_end(j, now, ops, members, links, switch, clock):
    """The down server of port j is free, or its first copy or result has left all links. Returns it as SERVER_EXTRA has it, -1 = none has."""
    nodes, tree, leaf, free = links.nodes, clock.tree, clock.m[col.LEAF_DOWN] + j, links.nodes[j, col.DOWN + col.SERVER_FREE]
    if free <= now:
        mark(switch.dirty_down, clock.x, j)
    sent = -1
    head = switch.sending[j, 0]
    if head != -1 and _sent_due(head, ops.ot, members.mem_time) <= now:
        sent = -2 - mixed_pop(switch.sending, j, ops.op, col.NEXT2, members.mem)
        head = switch.sending[j, 0]
    due = _sent_due(head, ops.ot, members.mem_time) if head != -1 else col.INF
    tree_set(tree, leaf, min(due, free) if free > now and nodes[j, col.DOWN + col.SERVER_MASK] != 0 else due)
    return sent


@block
def _line_begin(entry, j, last, ops, members, links, switch, clock):
    """The server of port j has begun to send `entry` (as in FIFOs), which has left all links at `last`, not before what was sent before it."""
    nodes, leaf = links.nodes, clock.m[col.LEAF_DOWN] + j
    last = max(last, nodes[j, col.DOWN_LAST])
    nodes[j, col.DOWN_LAST] = last
    if entry >= 0:
        ops.ot[entry, col.DONE] = last
    else:
        members.mem_time[-2 - entry, col.MEMBER_TIME] = last
    mixed_push(switch.sending, j, ops.op, col.NEXT2, members.mem, entry)
    due = _sent_due(switch.sending[j, 0], ops.ot, members.mem_time)
    tree_set(clock.tree, leaf, min(due, nodes[j, col.DOWN + col.SERVER_FREE]) if nodes[j, col.DOWN + col.SERVER_MASK] != 0 else due)


@block
def _row_ahead(k, members, stores, tables):
    """Read ahead: DOWN_END of member k asks for the place of its first row, and DELIVER fills the row."""
    fill = members.mem[k, col.MEMBER_FILL]
    if fill < len(members.fill_row):
        row = members.fill_row[fill]
        if len(tables.places) > 0:
            prefetch(tables.places, row, 0)
        else:
            prefetch(tables.asked, row, 0)
        prefetch(stores.rows, row, 0)


@block
def _tail_of_sum(bound, o, lat, ot, points):
    """`bound`, or the last byte of the latest contribution if op o carries a sum, or of its response if it is a merged load."""
    if points is None:
        return bound
    s = sum_of(o, points)
    if s < 0:
        return _tail_of_load(bound, o, lat, ot, points.loads)
    return points.sums[s, col.SUM_TAIL] + lat


@block
def _tail_of_load(bound, o, lat, ot, loads):
    """`bound`, or the last byte of the response that answers load o."""
    if loads is None:
        return bound
    return ot[o, col.TAIL] + lat if loads.address_of[o] >= 0 else bound


@block
def response_out(k, now, ops, mem, links, clock):
    """The response of member k queues for the up link of its node."""
    hub, nodes, dirty_up, i = links.hub, links.nodes, links.dirty_up, mem[k, col.MEMBER_NODE]
    c = ops.templates[ops.op[mem[k, col.MEMBER_OP], col.TEMPLATE], col.RESPONSE_CLS]
    mixed_push(hub, i * clock.m[col.HARDWARE_CLASSES] + c, ops.op, col.NEXT, mem, -2 - k)
    up_joins(i, mem[k, col.MEMBER_OP], col.WIRE_RESPONSE, ops, links)
    nodes[i, col.UP + col.SERVER_MASK] |= 1 << c
    if nodes[i, col.UP + col.SERVER_FREE] <= now:
        mark(dirty_up, clock.x, i)
    hub_joined(-1, i, ops, mem, links, clock, ops.points)


@block
def _class_choose(i, now, ops, links, switch, clock):
    """Round robin over the classes that wait at node i's up server. Returns (class, virtual channel, next credit).

    The class is -1 if no train finds buffer space; then `next credit` is when the earliest space comes back, INF = unknown.
    A response needs no buffer space: its place is in the reduction unit.
    """
    hub, credits, m = links.hub, switch.credits, clock.m
    room = links.nodes[i, col.PORT_VC_BYTES]
    waiting = links.nodes[i, col.UP + col.SERVER_MASK]
    c = links.nodes[i, col.UP + col.SERVER_CURSOR]
    chosen = -1
    v = 0
    wake = col.INF
    while waiting != 0:
        c = pick(waiting, c + 1)
        waiting &= ~(1 << c)
        at = i * m[col.HARDWARE_CLASSES] + c
        entry = hub[at, 0]
        if entry < 0 or room == 0:
            chosen = c
            break
        credits_apply(at, credits, ops.ot, ops.op, links.wires, switch.occupied, now)
        v = vc_choose(at, switch.occupied, links.wires[ops.op[entry, col.WIRE], col.WIRE_UP], room)
        if v >= 0:
            chosen = c
            break
        if credits[at, 0] >= 0 and ops.ot[credits[at, 0], col.SCRATCH] < wake:
            wake = ops.ot[credits[at, 0], col.SCRATCH]
    return chosen, v, wake


@block
def _turn_after(c, o, op):
    """Cursor of the classes after a train of op o of class c (o < 0: a response). A turn lasts one row, so a class keeps it
    until the last train of the row."""
    return c - 1 if o >= 0 and op[o, col.FLAGS] & col.HAS_NEXT_TRAIN else c


@block
def grant_up(i, now, ops, members, links, switch, clock):
    """The up server of node i sends its next train or response, if it is free and one may go."""
    nodes, tree, m, x = links.nodes, clock.tree, clock.m, clock.x
    if nodes[i, col.UP + col.SERVER_FREE] <= now and nodes[i, col.UP + col.SERVER_MASK] != 0:
        c, v, wake = _class_choose(i, now, ops, links, switch, clock)
        if c < 0:
            if nodes[i, col.UP + col.SERVER_EXTRA] < 0:
                nodes[i, col.UP + col.SERVER_EXTRA] = now
            tree_set(tree, m[col.LEAF_CREDIT] + i, wake)
        else:
            if nodes[i, col.UP + col.SERVER_EXTRA] >= 0:
                x[col.RUN_BLOCKED_PS] += now - nodes[i, col.UP + col.SERVER_EXTRA]
                nodes[i, col.UP + col.SERVER_EXTRA] = -1
                tree_set(tree, m[col.LEAF_CREDIT] + i, col.INF)
            entry = _hub_take(i, c, ops.op, members.mem, links, clock)
            nodes[i, col.UP + col.SERVER_CURSOR] = _turn_after(c, entry, ops.op)
            x[col.RUN_EVENTS] += 1
            if entry >= 0:
                prefetch(members.mem, ops.op[entry, col.MEMBER], 0)
                end = _op_send(entry, i, c, v, now, ops, members.mem, links, switch, clock, ops.points)
            else:
                end = _response_send(-2 - entry, i, now, ops, members, links, clock)
            tree_set(tree, m[col.LEAF_UP] + i, end)


@block
def _hub_take(i, c, op, mem, links, clock):
    """Remove and return the head of class c's FIFO in the hub of node i."""
    hub = links.hub
    at = i * clock.m[col.HARDWARE_CLASSES] + c
    entry = mixed_pop(hub, at, op, col.NEXT, mem)
    if hub[at, 0] >= 0:  # read ahead: the next train's record has been out of cache since its issue
        prefetch(op, hub[at, 0], 0)
        prefetch(op, hub[at, 0], col.TOUCH_LINE_2)
    if hub[at, 0] == -1:
        links.nodes[i, col.UP + col.SERVER_MASK] &= ~(1 << c)
    return entry


@block
def _op_send(o, i, c, v, now, ops, mem, links, switch, clock, points):
    """Op o's train, or a piece of it, goes up into virtual channel v. Returns when the up server is free again."""
    if points is not None and len(points.pieces) > 0 and points.bulk_of[o] >= 0:
        return piece_send(o, points.bulk_of[o], i, c, v, now, ops, mem, links, switch, clock, points)
    return train_send(o, i, c, v, now, ops, links, switch, clock)


@block
def train_send(o, i, c, v, now, ops, links, switch, clock):
    """Op o's train goes up into virtual channel v. Returns when the up server is free again."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    m = clock.m
    w = op[o, col.WIRE]
    n_bytes = links.wires[w, col.WIRE_UP]
    nodes = links.nodes
    net = nodes[i, col.PORT_NET]
    up_note(i, c, n_bytes, w, now, links, clock)
    late = debt_ps(i, col.UP, now, nodes) if has_lines(i, links) else 0
    end = server_grant(nodes, i, col.UP, now, n_bytes, nodes[i, col.PORT_MESSAGE])
    ot[o, col.START] = now
    ot[o, col.TAIL] = end + links.wires[w, col.WIRE_STRIPE_UP]
    if has_lines(i, links):
        ot[o, col.TAIL] = lines_send(o, 2 * i, links.wires[w, col.WIRE_LINK_UP], late, now, ops, links)
    ot[o, col.END] = ot[o, col.TAIL]
    ot[o, col.SCRATCH] = now + nodes[i, col.PORT_LAT]
    op[o, col.VC] = v
    if not templates[op[o, col.TEMPLATE], col.IS_PULL]:
        memory_take(nodes, i, links.wires[w, col.WIRE_PAYLOAD], m, now)
    if nodes[i, col.PORT_VC_BYTES] > 0:
        switch.occupied[i * m[col.HARDWARE_CLASSES] + c, v] += n_bytes
    if ring_push(clock.rings, col.RING_ARRIVE * m[col.HARDWARE_NETS] + net, op, col.NEXT, ot, col.SCRATCH, op, col.NODE, o):
        tree_set(clock.tree, m[col.LEAF_ARRIVE] + net, ot[o, col.SCRATCH])
    return end


@block
def _response_send(k, i, now, ops, members, links, clock):
    """The response of member k goes up; the last response of a pull makes its result. Returns when the up server is free again."""
    op, ot = ops.op, ops.ot
    m, x = clock.m, clock.x
    o = members.mem[k, col.MEMBER_OP]
    w = op[o, col.WIRE]
    nodes = links.nodes
    up_note(i, ops.templates[op[o, col.TEMPLATE], col.RESPONSE_CLS], links.wires[w, col.WIRE_RESPONSE], w, now, links, clock)
    late = debt_ps(i, col.UP, now, nodes) if has_lines(i, links) else 0
    end = server_grant(nodes, i, col.UP, now, links.wires[w, col.WIRE_RESPONSE], nodes[i, col.PORT_MESSAGE])
    members.mem_time[k, col.MEMBER_TIME] = now
    delivered(k, o, ops, x, ops.points)
    memory_take(nodes, i, links.wires[w, col.WIRE_PAYLOAD], m, now)
    end_tail = end + links.wires[w, col.WIRE_STRIPE_RESPONSE]
    if has_lines(i, links):
        end_tail = lines_send(o, 2 * i, links.wires[w, col.WIRE_LINK_RESPONSE], late, now, ops, links)
    ot[o, col.END] = max(ot[o, col.END], end_tail)
    op[o, col.ANSWERS] -= 1
    x[col.RUN_EVENTS] += 1
    if op[o, col.ANSWERS] == 0:
        op_schedule(col.RING_RESULT * m[col.HARDWARE_NETS] + nodes[i, col.PORT_NET], o, now + nodes[i, col.PORT_LAT], ops, clock)
    return end


@block
def grant_down(j, now, ops, members, stores, links, switch, tables, clock):
    """The down server of node j sends what crossed first in the next class, if it is free. Classes take turns."""
    op, ot, mem = ops.op, ops.ot, members.mem
    nodes, m = links.nodes, clock.m
    if nodes[j, col.DOWN + col.SERVER_FREE] <= now and nodes[j, col.DOWN + col.SERVER_MASK] != 0:
        clock.x[col.RUN_EVENTS] += 1
        c = pick(nodes[j, col.DOWN + col.SERVER_MASK], nodes[j, col.DOWN + col.SERVER_CURSOR] + 1)
        at = j * m[col.HARDWARE_CLASSES] + c
        entry = mixed_pop(switch.crossed, at, op, col.NEXT2, mem)
        if switch.crossed[at, 0] == -1:
            nodes[j, col.DOWN + col.SERVER_MASK] &= ~(1 << c)
        nodes[j, col.DOWN + col.SERVER_CURSOR] = c
        if entry >= 0:
            o, packet_ps, extra = entry, links.wires[op[entry, col.WIRE], col.WIRE_LINK_RESULT], 0
            n_bytes = links.wires[op[entry, col.WIRE], col.WIRE_RESULT]
            bound = ot[entry, col.END] + nodes[j, col.PORT_LAT]
            bound = _tail_of_sum(bound, entry, nodes[j, col.PORT_LAT], ot, ops.points)
            nodes[j, col.DOWN + col.SERVER_EXTRA] = -2 - entry
        else:
            k = -2 - entry
            o = mem[k, col.MEMBER_OP]
            _row_ahead(k, members, stores, tables)
            n_bytes = links.wires[op[o, col.WIRE], col.WIRE_DOWN] + mem[k, col.MEMBER_EXT]
            packet_ps, extra = links.wires[op[o, col.WIRE], col.WIRE_LINK_DOWN], mem[k, col.MEMBER_EXT]
            n_bytes = turn_begin(k, o, j, n_bytes, ops, mem, links, ops.points)
            bound = ot[o, col.TAIL] + nodes[j, col.PORT_LAT]
            nodes[j, col.DOWN + col.SERVER_EXTRA] = k
            nodes[j, col.DOWN + col.SERVER_CURSOR] = _turn_after(c, o, op)
        if has_lines(j, links):
            late = debt_ps(j, col.DOWN, now, nodes)
            if extra > 0:
                late += (extra * 1_000_000 + nodes[j, col.PORT_RATE] - 1) // nodes[j, col.PORT_RATE]
            server_grant(nodes, j, col.DOWN, now, n_bytes, 0)
            last = lines_send(o, 2 * j + 1, packet_ps, late, now, ops, links)
            _line_begin(entry, j, max(last, bound), ops, members, links, switch, clock)
            return
        end = server_grant(nodes, j, col.DOWN, now, n_bytes, 0)
        _turn_note(nodes[j, col.DOWN + col.SERVER_EXTRA], j, n_bytes, mem, nodes, ops.points)
        end = server_hold(nodes, j, col.DOWN, end, bound)
        tree_set(clock.tree, m[col.LEAF_DOWN] + j, end)


@block
def _turn_note(k, j, n_bytes, mem, nodes, points):
    """The state of port j's down server before the turn of `n_bytes`, for a turn that is cut."""
    q = piece_of(k, mem, points)
    if points is not None and q >= 0:
        points.pieces[q, col.PIECE_DOWN_START] = nodes[j, col.DOWN + col.SERVER_BUSY_START]
        points.pieces[q, col.PIECE_DOWN_BYTES] = nodes[j, col.DOWN + col.SERVER_BUSY_BYTES] - n_bytes
