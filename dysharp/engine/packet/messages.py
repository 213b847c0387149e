"""Networks besides NVLink at packet level: messages on the servers of the burst level (docs/design/0012-several-domains.md).

A message is one train. Its ports, rings and ends come from `engine/blocks/trains.py` and `engine/blocks/transfers.py`.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import member_due
from dysharp.engine.blocks.points import member_fill
from dysharp.engine.blocks.ready import complete
from dysharp.engine.blocks.trains import arrive, down_end, grant_down, grant_up, up_end
from dysharp.engine.blocks.transfers import acknowledged, deliver, respond, result, result_delivered
from dysharp.engine.kernel import routine


@routine
def message_event(leaf, now, ops, members, stores, issue, links, switch, tables, clock):
    """What is due at `leaf`: a port is free, a message arrives, is delivered, answered or acknowledged."""
    m = clock.m
    nets = m[col.HARDWARE_NETS]
    rings = m[col.LEAF_RINGS]
    done = -1
    filled = -1
    if leaf >= m[col.LEAF_DOWN]:
        down_end(leaf - m[col.LEAF_DOWN], now, ops, members, links, switch, tables, clock)
    elif leaf >= m[col.LEAF_ARRIVE]:
        arrive(leaf - m[col.LEAF_ARRIVE], ops, members, links, switch, clock)
    elif leaf >= m[col.LEAF_UP]:
        up_end(leaf - m[col.LEAF_UP], leaf, links, clock)
    elif leaf < rings + (col.RING_DELIVER + 1) * nets:
        filled = member_due(leaf - rings, members, clock)
        deliver(filled, now, ops, members, links, switch.held, clock)
    elif leaf < rings + (col.RING_RESPOND + 1) * nets:
        respond(leaf - rings, now, ops, members, links, clock)
    elif leaf < rings + (col.RING_RESULT + 1) * nets:
        result(leaf - rings, now, ops, members.mem, links, switch, clock)
    elif leaf < rings + (col.RING_RESULT_DELIVERED + 1) * nets:
        done = result_delivered(leaf - rings, now, ops, members, stores, issue, links, switch.held, clock)
    else:
        done = acknowledged(leaf - rings, ops, links, clock)
    if filled >= 0:
        member_fill(filled, ops, members, stores, issue, links, clock)
    if done >= 0:
        complete(done, now, ops, clock.x)


@routine
def message_out(i, now, ops, members, links, switch, clock):
    """Port i of another network sends its next message, if it is free."""
    grant_up(i, now, ops, members, links, switch, clock)


@routine
def message_in(j, now, ops, members, stores, links, switch, tables, clock):
    """Port j of another network takes in the message that came first, if it is free."""
    grant_down(j, now, ops, members, stores, links, switch, tables, clock)
