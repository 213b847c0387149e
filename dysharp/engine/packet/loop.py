"""The event loop of the packet level: ops of the burst engine over the packet fabric (docs/design/0006).

Releases of an instant, then grants: issuers, up links, outputs. It can be stopped and called again, with larger tables.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import bit_take, bit_take_after
from dysharp.engine.blocks.fifo import fifo_pop
from dysharp.engine.blocks.heap import tree_first
from dysharp.engine.blocks.issue import compute_end
from dysharp.engine.blocks.points import work_drain
from dysharp.engine.blocks.ready import complete, op_release, tile_due
from dysharp.engine.kernel import by_address, kernel
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.hub import entries_answer, ingress_leave, request_take, respond, tails_arrive
from dysharp.engine.packet.links import credits_take, dirty_take, lines_end, links_free, slot_free
from dysharp.engine.packet.messages import message_event, message_in, message_out
from dysharp.engine.packet.ops import (
    answered,
    deliver,
    grant_issuer,
    grant_link,
    local,
    node_links_update,
    node_wake_up,
    notes_make,
    result_delivered,
    sum_deliver,
)
from dysharp.engine.packet.switch import crossings_end, cycles_end, grant_output, heads_arrive, sessions_look


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
                notes_make(t, op, stores, packet, packets.free, link, sources.egress, dirty_links, c, x)
            elif leaf >= leaf_wake and leaf < leaf_messages:
                node_wake_up(leaf - leaf_wake, leaf, sources, lanes, agenda)
            elif leaf < leaf_fabric:
                message_event(leaf, now, ops, members, stores, issue, links, switch, tables, clock)
            elif r >= ring_line:
                lines_end(r, now, packets, outputs.output, agenda, flits_by_kind)
            elif r >= ring_out:
                crossings_end(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda)
            elif r >= ring_arrive:
                heads_arrive(r, now, packets, op, mem, cuts, lanes, outputs, units, agenda, flits_by_kind)
            elif r >= f.FABRIC_FIXED:
                links_free(r, now, link, dirty_links, agenda)
            elif r == f.FABRIC_CREDIT:
                credits_take(now, lanes, agenda)
            elif r == f.FABRIC_CYCLE:
                cycles_end(now, packets, link, outputs, agenda)
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
                    request_take(p, packet, packets.packet_time, link, outputs, lanes.held, sources.requests, agenda)
                    continue
                ingress_leave(p, packet, outputs, lanes.held, c)
                if kind == f.DATA or kind == f.MCOPY:
                    deliver(p, now, ops, members, stores, issue, links, clock, packet, sources, lanes, c)
                elif kind == f.NOTE:
                    op_release(packet[p, f.PACKET_OP], packet[p, f.PACKET_MEMBER], ops, issue, x)
                    slot_free(p, packets.free, x)
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
                        node_links_update(i, links, lanes, c[f.C_LINKS])
                    else:
                        message_out(i, now, ops, members, links, switch, clock)
            for word in range(len(switch.dirty_down)):
                while switch.dirty_down[word] != 0:
                    message_in(bit_take(switch.dirty_down, word), now, ops, members, stores, links, switch, tables, clock)
        while dirty_links[0] != 0:
            grant_link(dirty_take(dirty_links), now, ops, members, links, sources, packets, lanes, accepted, leaf_wake, agenda)
        while dirty_outputs[0] != 0:
            grant_output(dirty_take(dirty_outputs), now, packets, op, cuts, lanes, outputs, units, agenda)
    return True
