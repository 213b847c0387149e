"""The row table of a hub (MoE-Hub's RAT): rows take their places in it, the same block as `protocol/aau.py`.

A row stays from its first piece to its last one: a train at burst level, a packet at packet level. A bank is a ring, oldest row first,
through a sentinel row of its own behind the last row.
"""

from dysharp.uarch.columns import PLACE_BANK, PLACE_LEFT, PLACE_NEXT, PLACE_PREV, PLACE_REGION, PLACE_STATE, ROW_GONE, ROW_HELD, ROW_NEW, ROW_SPILLED
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.tables import (
    AL_FULL,
    AL_JOINED,
    AL_READ,
    HUB_CACHED,
    HUB_MSHRS,
    HUB_PENDING,
    KEY_FIRST,
    KEY_LAST,
    WAITER_NEXT,
    ring_append,
    ring_unlink,
)


@block
def row_reads(row, places, spilled):
    """Whether the place of a row that is not in the table has to be read: a hub cannot tell a new row from one of its region in memory."""
    return spilled[places[row, PLACE_REGION]] > 0


@kernel
def row_enter(row, state, entries, places, spilled):
    """Row `row`, which is not in the table, enters its bank of `entries` rows (0 = any number) in `state`. True if the bank was full.

    A full bank spills its oldest row. spilled int64 [n_regions]: rows of each region in memory.
    """
    if places[row, PLACE_STATE] == ROW_SPILLED:
        spilled[places[row, PLACE_REGION]] -= 1
    bank = places[row, PLACE_BANK]
    places[row, PLACE_STATE] = state
    ring_append(row, bank, PLACE_PREV, PLACE_NEXT, places)
    if entries > 0 and places[bank, PLACE_STATE] == entries:
        victim = places[bank, PLACE_NEXT]
        ring_unlink(victim, PLACE_PREV, PLACE_NEXT, places)
        places[victim, PLACE_STATE] = ROW_SPILLED
        spilled[places[victim, PLACE_REGION]] += 1
        places[bank, PLACE_LEFT] += 1
        return True
    places[bank, PLACE_STATE] += 1
    return False


@kernel
def row_place(row, places):
    """A piece of a row in the table is placed; the last one frees the entry. True if it did."""
    places[row, PLACE_LEFT] -= 1
    if places[row, PLACE_LEFT] > 0:
        return False
    ring_unlink(row, PLACE_PREV, PLACE_NEXT, places)
    places[row, PLACE_STATE] = ROW_GONE
    places[places[row, PLACE_BANK], PLACE_STATE] -= 1
    return True


@kernel
def row_lookup(row, packet, hub, entries, keys, hubs, packets, places, spilled):
    """`packet` asks for the place of `row`, as `al_lookup`. Returns ROW_NEW, ROW_HELD, or AL_READ, AL_JOINED, AL_FULL.

    ROW_NEW: the row took its place by this packet. ROW_HELD: the table has it.
    """
    answer = places[row, PLACE_STATE]
    first = keys[row, KEY_FIRST]
    if answer != ROW_HELD and first < 0 and not row_reads(row, places, spilled):
        hubs[hub, HUB_CACHED] += not row_enter(row, ROW_HELD, entries, places, spilled)
    if places[row, PLACE_STATE] == ROW_HELD:
        hubs[hub, HUB_CACHED] -= row_place(row, places)
        return answer
    if first < 0 and hubs[hub, HUB_PENDING] >= hubs[hub, HUB_MSHRS]:
        return AL_FULL
    packets[packet, WAITER_NEXT] = -1
    if first < 0:
        hubs[hub, HUB_PENDING] += 1
        keys[row, KEY_FIRST] = packet
    else:
        packets[keys[row, KEY_LAST], WAITER_NEXT] = packet
    keys[row, KEY_LAST] = packet
    return AL_READ if first < 0 else AL_JOINED


@kernel
def row_answer(row, hub, entries, keys, hubs, packets, places, spilled, out):
    """Memory answers the miss of `row`: all packets that wait are placed. out[0]: the first of them, as `al_answer`. True if the row is new."""
    packet = keys[row, KEY_FIRST]
    out[0] = packet
    if packet < 0:
        return False
    keys[row, KEY_FIRST] = keys[row, KEY_LAST] = -1
    hubs[hub, HUB_PENDING] -= 1
    new = places[row, PLACE_STATE] == ROW_NEW
    hubs[hub, HUB_CACHED] += not row_enter(row, ROW_HELD, entries, places, spilled)
    while packet >= 0:
        hubs[hub, HUB_CACHED] -= row_place(row, places)
        packet = packets[packet, WAITER_NEXT]
    return new
