"""Merged loads at packet level: the table of the port that faces the home (`engine/blocks/loads.py`), an entry for every packet (docs/design/0006).

`loads`: the loads of `units`, None where none merge; an argument, so that kernels without loads are compiled apart.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.loads import ANSWERED, GOES_ON, load_look, load_responds
from dysharp.engine.kernel import block
from dysharp.engine.packet import columns as f
from dysharp.engine.packet.links import slot_free, slot_take, switch_send


@block
def load_take(p, flits, packets, link, outputs, units, loads, agenda):
    """The port of the home looks up load p. False: it goes on to the home. Otherwise its answer is a packet of its own, now or later."""
    if loads is None:
        return False
    packet, entries = packets.packet, loads.entries
    a = packet[p, f.PACKET_OP]
    row = units.chunk0[loads.address_of[a]] + packet[p, f.PACKET_CHUNK]
    q = slot_take(packets.free, agenda.x)
    look = load_look(row, q, packet[p, f.PACKET_OUT], agenda.x[col.RUN_NOW], units.places, loads, packet, f.PACKET_PARENT)
    if look == GOES_ON:
        slot_free(q, packets.free, agenda.x)
        if entries[row, col.LOAD_STATE] == col.LOAD_WAIT and entries[row, col.LOAD_OWNER] == q:
            entries[row, col.LOAD_OWNER] = p
        else:
            agenda.st[f.ST_BYPASSES] += 1
        return False
    agenda.st[f.ST_MERGED_LOADS] += 1
    for column in (f.PACKET_OP, f.PACKET_CHUNK, f.PACKET_MEMBER, f.PACKET_LINK):
        packet[q, column] = packet[p, column]
    packet[q, f.PACKET_KIND] = f.ANSWER
    packet[q, f.PACKET_OUT] = packet[p, f.PACKET_LINK]
    if look == ANSWERED:
        switch_send(q, entries[row, col.LOAD_TAIL], flits, packet, link, outputs, agenda.c)
    return True


@block
def loads_answer(p, flits, packet, link, outputs, units, loads, agenda):
    """Response p is in the switch: the loads that wait get their responses behind it, and the entry keeps its virtual channel (LOAD_TAIL)."""
    if loads is None:
        return
    session = loads.address_of[packet[p, f.PACKET_OP]]
    if session < 0:
        return
    row = units.chunk0[session] + packet[p, f.PACKET_CHUNK]
    q = load_responds(row, p, packet[p, f.PACKET_LINK], agenda.x[col.RUN_NOW], units.places, loads.entries)
    if q > -2:
        loads.entries[row, col.LOAD_TAIL] = packet[p, f.PACKET_VC]
    while q >= 0:
        following = packet[q, f.PACKET_PARENT]
        switch_send(q, packet[p, f.PACKET_VC], flits, packet, link, outputs, agenda.c)
        q = following
