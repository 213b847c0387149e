"""The event loop of the packet level: ops of the burst engine over the packet fabric (docs/design/0006).

Releases of an instant, then grants: issuers, up links, outputs. It can be stopped and called again, with larger tables.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import bit_take, bit_take_after
from dysharp.engine.blocks.fifo import fifo_pop, fifo_push
from dysharp.engine.blocks.heap import tree_first, tree_set
from dysharp.engine.blocks.issue import compute_end
from dysharp.engine.blocks.points import work_drain
from dysharp.engine.blocks.ready import complete, op_release, tile_due
from dysharp.engine.kernel import block, by_address, kernel, routine
from dysharp.engine.packet import columns as f
from dysharp.engine.packet import links as wires
from dysharp.engine.packet.hub import egress_put, entries_answer, respond, tails_arrive
from dysharp.engine.packet.messages import message_event, message_in, message_out
from dysharp.engine.packet.ops import answered, deliver, grant_issuer, link_grant, local, result_delivered, sum_deliver
from dysharp.engine.packet.switch import crossings_end, grant_output, heads_arrive, mix, sessions_look


@kernel
def run_events(budget, state, fabric):
    """Run until `budget` more events have been counted, nothing is pending or a table has to grow. Returns True while there is more to do."""
    ops, members, stores, releases, holds, issue, slots, links, switch, tables, clock = by_address(state)
    packets, lanes, outputs, sources, units, hubs, agenda, accepted, flits_by_kind = by_address(fabric)
    op, mem, packet, cuts, link = ops.op, members.mem, packets.packet, sources.cuts, lanes.link
    dirty_issuers, dirty_nodes, dirty_links, dirty_outputs = issue.dirty_issuers, links.dirty_up, lanes.dirty_links, outputs.dirty_outputs
    tree, m, x, c = clock.tree, clock.m, clock.x, agenda.c
    leaf_rings, nets, n_nodes = m[col.LEAF_RINGS], m[col.HARDWARE_NETS], m[col.HARDWARE_NODES]
    leaf_wake = leaf_rings + col.N_RINGS * nets
    leaf_messages = leaf_wake + n_nodes
    leaf_fabric = c[f.C_LEAF]
    ring_arrive = f.FABRIC_FIXED + c[f.C_SIZES]
    ring_out = ring_arrive + c[f.C_EXT]
    ring_line = ring_out + c[f.C_SIZES]
    stop = x[col.RUN_EVENTS] + budget
    now = x[col.RUN_NOW]
    x[f.RUN_STATUS] = f.RUNNING
    while x[col.RUN_EVENTS] < stop:
        if x[col.RUN_WORK_HEAD] >= 0:
            work_drain(ops, members.mem, stores, releases, holds.sem_left, issue, links.nodes, clock)
        # ---- releases ----
        while tree[1] == now or accepted[0, 0] >= 0:
            if x[f.RUN_FREE] < c[f.C_MARGIN] or len(lanes.credit_due) - (x[f.RUN_CREDITS] - x[f.RUN_CREDIT_READ]) < c[f.C_MARGIN]:
                x[f.RUN_STATUS] = f.GROW
                return True
            leaf = tree_first(tree) if tree[1] == now else -1
            r = leaf - leaf_fabric
            if leaf < 0:
                pass
            elif leaf < leaf_rings:
                o = compute_end(leaf, now, ops, slots, issue, clock)
                if o >= 0:
                    complete(o, now, ops, x)
            elif leaf == leaf_rings + col.RING_LOCAL * nets:
                local(now, ops, members, stores, issue, links, clock)
            elif leaf == leaf_rings + col.RING_NOTIFY * nets:  # HARDWARE_NOTIFY is zero here, for notifications travel as packets
                t = tile_due(stores, clock)
                _notes_make(t, op, stores, packet, packets.free, link, sources.egress, dirty_links, c, x)
            elif leaf >= leaf_wake and leaf < leaf_messages:
                _node_wake_up(leaf - leaf_wake, leaf, sources, lanes, agenda)
            elif leaf < leaf_fabric:
                message_event(leaf, now, ops, members, stores, issue, links, switch, tables, clock)
            elif r >= ring_line:
                wires.lines_end(r, now, packets, outputs.output, agenda, flits_by_kind)
            elif r >= ring_out:
                crossings_end(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda)
            elif r >= ring_arrive:
                heads_arrive(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda, flits_by_kind)
            elif r >= f.FABRIC_FIXED:
                wires.links_free(r, now, link, dirty_links, agenda)
            elif r == f.FABRIC_CREDIT:
                wires.credits_take(now, lanes, agenda)
            elif r == f.FABRIC_CYCLE:
                _cycles_end(now, packets, link, outputs, agenda)
            elif r == f.FABRIC_DELIVER:
                tails_arrive(now, ops, members, packets, hubs, tables, accepted, agenda)
            elif r == f.FABRIC_AL:
                entries_answer(now, members, stores, packet, hubs, tables, accepted, agenda)
            elif r == f.FABRIC_RESPOND:
                respond(now, ops, packets, sources, lanes, links, m, agenda)
            else:
                sessions_look(now, packets, op, cuts, link, outputs, units, agenda)
            while accepted[0, 0] >= 0:
                p = fifo_pop(accepted, 0, packet, f.PACKET_NEXT2)
                kind = packet[p, f.PACKET_KIND]
                if kind == f.REQ or kind == f.RCOPY:
                    _request_take(p, packet, packets.packet_time, link, outputs, lanes.held, sources.requests, agenda)
                    continue
                _ingress_leave(p, packet, outputs, lanes.held, c)
                if kind == f.DATA or kind == f.MCOPY:
                    deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, c)
                elif kind == f.NOTE:
                    op_release(packet[p, f.PACKET_OP], packet[p, f.PACKET_MEMBER], ops, issue, x)
                    wires.slot_free(p, packets.free, x)
                elif kind == f.SUM:
                    sum_deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, units, agenda)
                elif kind == f.ACK or kind == f.MACK or kind == f.RESP or kind == f.ANSWER:
                    answered(p, now, c[f.C_TAIL], ops, members.mem_time, links, clock, packets)
                else:
                    result_delivered(p, now, ops, links, clock, packets, units.idle, c)
            if x[col.RUN_WORK_HEAD] >= 0:
                work_drain(ops, members.mem, stores, releases, holds.sem_left, issue, links.nodes, clock)
        # ---- grants ----
        if x[col.RUN_DIRTY] == 0 and dirty_links[0] == 0 and dirty_outputs[0] == 0:
            if tree[1] == col.INF:
                return False
            now = tree[1]
            x[col.RUN_NOW] = now
            continue
        if x[f.RUN_FREE] < c[f.C_MARGIN]:
            x[f.RUN_STATUS] = f.GROW
            return True
        if x[col.RUN_DIRTY] != 0:
            x[col.RUN_DIRTY] = 0
            for word in range(len(dirty_issuers)):
                low = bit_take_after(dirty_issuers, word, -1)
                while low >= 0:
                    grant_issuer((word << 5) + low, now, ops, members, holds, issue, slots, links, clock, sources, c)
                    low = bit_take_after(dirty_issuers, word, low)
            for word in range(len(dirty_nodes)):
                while dirty_nodes[word] != 0:
                    i = bit_take(dirty_nodes, word)
                    if i < n_nodes:
                        _node_links_update(i, links, lanes, c[f.C_LINKS])
                    else:
                        message_out(i, now, ops, members, links, switch, clock)
            for word in range(len(switch.dirty_down)):
                while switch.dirty_down[word] != 0:
                    message_in(bit_take(switch.dirty_down, word), now, ops, members, stores, links, switch, tables, clock)
        while dirty_links[0] != 0:
            _grant_link(wires.dirty_take(dirty_links), now, ops, members, links, sources, packets, lanes, accepted, leaf_wake, agenda)
        while dirty_outputs[0] != 0:
            grant_output(wires.dirty_take(dirty_outputs), now, packets, op, cuts, lanes, outputs, units, agenda)
    return True


@block
def _cycles_end(now, packets, link, outputs, agenda):
    """Dynamic sums that took a cycle more ask for their outputs."""
    packet = packets.packet
    while True:
        p = wires.due_take(f.FABRIC_CYCLE, now, packets.packet_time, f.PACKET_DUE, packet, f.PACKET_NEXT, agenda)
        if p < 0:
            break
        wires.out_ask(packet[p, f.PACKET_OUT], p, agenda.c[f.C_PORTS], packet, link, outputs, agenda.c)


@block
def _node_links_update(node, links, lanes, n_links):
    """Add the classes that became non-empty in the hub of `node` to the masks of its links. Idle links ask for a grant."""
    for i in range(node * n_links, (node + 1) * n_links):
        lanes.link[i, f.LINK_MASK] |= links.nodes[node, col.UP + col.SERVER_MASK]
        if lanes.link[i, f.LINK_FREE] == 1:
            wires.dirty_mark(lanes.dirty_links, i)
    links.nodes[node, col.UP + col.SERVER_MASK] = 0


@block
def _grant_link(i, now, ops, members, links, sources, packets, lanes, accepted, leaf_wake, agenda):
    """Link i sends its next packet, if it is free and one may go; its node may have to wait for a target list."""
    link, node_wake, tree = lanes.link, sources.node_wake, agenda.tree
    if link[i, f.LINK_FREE] == 1 and link[i, f.LINK_MASK] != 0:
        link_grant(i, now, ops, members.mem_time, links.hub, sources, packets, lanes, accepted, agenda)
        node = link[i, f.LINK_NODE]
        if node_wake[node] < tree[(len(tree) >> 1) + leaf_wake + node]:
            tree_set(tree, leaf_wake + node, node_wake[node])


@block
def _node_wake_up(node, leaf, sources, lanes, agenda):
    """A target list has come to the MultimemQ of `node`: its idle links try again."""
    tree_set(agenda.tree, leaf, col.INF)
    sources.node_wake[node] = col.INF
    n_links = agenda.c[f.C_LINKS]
    for i in range(node * n_links, (node + 1) * n_links):
        if lanes.link[i, f.LINK_FREE] == 1 and lanes.link[i, f.LINK_MASK] != 0:
            wires.dirty_mark(lanes.dirty_links, i)


@routine
def _notes_make(t, op, stores, packet, free, link, egress, dirty_links, c, x):
    """Tile t tells the owners of its rows on other nodes: one packet each."""
    tiles, slot_row, rows = stores.tiles, stores.slot_row, stores.rows
    node = tiles[t, col.TILE_NODE]
    for s in range(tiles[t, col.TILE_SLOT0], tiles[t, col.TILE_SLOT0] + tiles[t, col.TILE_ROWS]):
        row = slot_row[s]
        if row < 0 or rows[row, col.ROW_NOTIFY] < 0:
            continue
        o = rows[row, col.ROW_NOTIFY]
        owner = op[o, col.NODE] % (c[f.C_TOTAL] // c[f.C_LINKS])
        if owner == node:
            continue
        p = wires.slot_take(free, x)
        number = mix(row, 1) % c[f.C_LINKS]
        packet[p, f.PACKET_KIND] = f.NOTE
        packet[p, f.PACKET_OP] = o
        packet[p, f.PACKET_MEMBER] = tiles[t, col.TILE_CAUSE]
        packet[p, f.PACKET_FLITS] = c[f.C_NOTE_FLITS]
        packet[p, f.PACKET_OUT] = owner * c[f.C_LINKS] + number
        x[f.RUN_NOTES] += 1
        egress_put(node * c[f.C_LINKS] + number, 2 * c[f.C_CLASSES] + 1, p, packet, link, egress, dirty_links, c)


@block
def _ingress_leave(p, packet, outputs, held, c):
    """Packet p leaves the ingress buffer of its hub."""
    o = packet[p, f.PACKET_OUT]
    held[o, packet[p, f.PACKET_VC] // c[f.C_VPG]] -= packet[p, f.PACKET_OUT_FLITS]
    if outputs.output[o, f.OUTPUT_FREE] > 0:
        wires.dirty_mark(outputs.dirty_outputs, o)


@routine
def _request_take(p, packet, packet_time, link, outputs, held, requests, agenda):
    """A request may be answered, unless the answers of its link have no room: then it stays in the ingress buffer."""
    c, x, st = agenda.c, agenda.x, agenda.st
    o = packet[p, f.PACKET_OUT]
    if c[f.C_ANSWERS] > 0 and link[o, f.LINK_ANSWERS] >= c[f.C_ANSWERS]:
        st[f.ST_ANSWER_WAITS] += 1
        link[o, f.LINK_WAITS] += 1
        fifo_push(requests, o, packet, f.PACKET_NEXT, p)
        return
    link[o, f.LINK_ANSWERS] += 1
    _ingress_leave(p, packet, outputs, held, c)
    wires.packet_schedule(f.FABRIC_RESPOND, p, x[col.RUN_NOW] + c[f.C_RESPONDER], f.PACKET_NEXT, packet, packet_time, agenda)
