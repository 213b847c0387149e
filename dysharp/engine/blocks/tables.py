"""Tables of hubs and switch ports: the AL table with its TLB and pending misses, and the reduction table.

The same blocks as `protocol/al_table.py` and `protocol/reduction.py`. Keys and sessions are dense numbers, so a row of a block is found
without a search. The cached keys of a hub and the live sessions of a port are rings, least recently used row first, through a
sentinel row of their own behind the last key or session: row `n_keys + hub`, `n_sessions + port`.

The row table of a hub (MoE-Hub's RAT): rows take their places in it, the same block as `protocol/aau.py`. A row stays from its first piece to its
last one: a train at burst level, a packet at packet level. A bank is a ring, oldest row first, through a sentinel row behind the last row.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import list_push
from dysharp.engine.kernel import block, kernel

# key, int64 [n_keys + n_hubs, 6]
KEY_LAYOUT, KEY_PREV, KEY_NEXT, KEY_CACHED, KEY_FIRST, KEY_LAST = range(6)
# KEY_LAYOUT: -1 = not bound; KEY_PREV, KEY_NEXT: ring; KEY_FIRST .. KEY_LAST: packets that wait for the miss, -1 = no miss
KEY_EMPTY = (-1, -1, -1, 0, -1, -1)

# hub, int64 [n_hubs, HUB_BANK0 + banks]: from HUB_BANK0 on, when each bank of its TLB is free again
HUB_ENTRIES, HUB_CACHED, HUB_MSHRS, HUB_PENDING, HUB_ALLOCATED, HUB_BANK0 = range(6)  # HUB_ALLOCATED: whether the latest answer bound its key

# packet, int64 [n_packets, 2]
WAITER_NEXT, WAITER_ALLOCATES = range(2)  # WAITER_NEXT: the packet that waits behind, -1 = none

# answers of al_lookup and al_answer that are no layout
AL_READ = -1  # a miss: read the table in memory
AL_JOINED = -2  # a miss that is under way already
AL_FULL = -3  # no miss register is free: ask again
AL_UNBOUND = -4  # a read of a block that nobody wrote
AL_IDLE = -5  # an answer that nobody waits for

# session, int64 [n_sessions + n_ports, 6]
SESSION_LIVE, SESSION_PREV, SESSION_NEXT, SESSION_REMAINING, SESSION_COUNT, SESSION_VALUE = range(6)
SESSION_EMPTY = (0, -1, -1, 0, 0, 0)

# port, int64 [n_ports, 2]
PORT_ENTRIES, PORT_LIVE = range(2)

# answers of red_respond
RED_ADDED, RED_RESULT, RED_BYPASS = range(3)


@block
def ring_unlink(row, prev, following, ring):
    """Take `row` out; `prev` and `following` name the columns of the links."""
    ring[ring[row, prev], following] = ring[row, following]
    ring[ring[row, following], prev] = ring[row, prev]


@block
def ring_append(row, sentinel, prev, following, ring):
    """Put `row` at the most recently used end."""
    last = ring[sentinel, prev]
    ring[last, following] = row
    ring[row, prev] = last
    ring[row, following] = sentinel
    ring[sentinel, prev] = row


@kernel
def al_clear(n_keys, keys, hubs):
    """Nothing bound, nothing cached. `hubs` holds its sizes already."""
    for row in range(keys.shape[0]):
        for column in range(6):
            keys[row, column] = KEY_EMPTY[column]
    for hub in range(hubs.shape[0]):
        keys[n_keys + hub, KEY_PREV] = keys[n_keys + hub, KEY_NEXT] = n_keys + hub
        hubs[hub, HUB_CACHED] = hubs[hub, HUB_PENDING] = hubs[hub, HUB_ALLOCATED] = 0


@block
def _miss_join(key, packet, hub, keys, hubs, packets):
    """`packet` waits for the miss of `key`, or row `key`. Returns AL_READ where it is the first, else AL_JOINED; AL_FULL: it does not wait."""
    first = keys[key, KEY_FIRST]
    if first < 0 and hubs[hub, HUB_PENDING] >= hubs[hub, HUB_MSHRS]:
        return AL_FULL
    hubs[hub, HUB_PENDING] += list_push(keys, key, KEY_FIRST, KEY_LAST, packets, WAITER_NEXT, packet)
    return AL_READ if first < 0 else AL_JOINED


@block
def al_lookup(key, packet, allocates, hub, n_keys, keys, hubs, packets):
    """`packet` asks for the layout of `key`; `allocates` = 1 for Dispatch. Returns the layout on a hit, else AL_READ, AL_JOINED or AL_FULL."""
    if keys[key, KEY_CACHED] == 1:
        ring_unlink(key, KEY_PREV, KEY_NEXT, keys)
        ring_append(key, n_keys + hub, KEY_PREV, KEY_NEXT, keys)
        return keys[key, KEY_LAYOUT]
    packets[packet, WAITER_ALLOCATES] = allocates
    return _miss_join(key, packet, hub, keys, hubs, packets)


@block
def al_answer(key, expert, hub, n_keys, keys, hubs, packets, next_free, out):
    """Memory answers the miss of `key`. `next_free` [n_experts]: blocks in use. Returns the layout, AL_UNBOUND or AL_IDLE.

    `out[0]` is the first packet that goes on (-1 = none); the others follow through WAITER_NEXT.
    """
    packet = keys[key, KEY_FIRST]
    out[0] = packet
    hubs[hub, HUB_ALLOCATED] = 0
    if packet < 0:
        return AL_IDLE
    keys[key, KEY_FIRST] = keys[key, KEY_LAST] = -1
    hubs[hub, HUB_PENDING] -= 1
    if keys[key, KEY_LAYOUT] < 0:
        while packet >= 0 and packets[packet, WAITER_ALLOCATES] == 0:
            packet = packets[packet, WAITER_NEXT]
        if packet < 0:
            return AL_UNBOUND
        keys[key, KEY_LAYOUT] = next_free[expert]
        next_free[expert] += 1
        hubs[hub, HUB_ALLOCATED] = 1
    ring_append(key, n_keys + hub, KEY_PREV, KEY_NEXT, keys)
    keys[key, KEY_CACHED] = 1
    if hubs[hub, HUB_CACHED] == hubs[hub, HUB_ENTRIES]:
        victim = keys[n_keys + hub, KEY_NEXT]
        ring_unlink(victim, KEY_PREV, KEY_NEXT, keys)
        keys[victim, KEY_CACHED] = 0
    else:
        hubs[hub, HUB_CACHED] += 1
    return keys[key, KEY_LAYOUT]


@kernel
def red_clear(n_sessions, sessions, ports):
    """No session is live. `ports` holds its sizes already."""
    for row in range(sessions.shape[0]):
        for column in range(6):
            sessions[row, column] = SESSION_EMPTY[column]
    for port in range(ports.shape[0]):
        sessions[n_sessions + port, SESSION_PREV] = sessions[n_sessions + port, SESSION_NEXT] = n_sessions + port
        ports[port, PORT_LIVE] = 0


@block
def _red_drop(session, port, sessions, ports):
    """The entry of `session` goes; its count and value stay readable until its number is used again."""
    ring_unlink(session, SESSION_PREV, SESSION_NEXT, sessions)
    sessions[session, SESSION_LIVE] = 0
    ports[port, PORT_LIVE] -= 1


@block
def red_request(session, targets, port, n_sessions, sessions, ports):
    """A request opens `session`. Returns the session that left to make room, -1 = none: a partial sum if its SESSION_COUNT is above 0."""
    victim = -1
    if ports[port, PORT_LIVE] == ports[port, PORT_ENTRIES]:
        victim = sessions[n_sessions + port, SESSION_NEXT]
        _red_drop(victim, port, sessions, ports)
    ring_append(session, n_sessions + port, SESSION_PREV, SESSION_NEXT, sessions)
    ports[port, PORT_LIVE] += 1
    sessions[session, SESSION_LIVE] = 1
    sessions[session, SESSION_REMAINING] = targets
    sessions[session, SESSION_COUNT] = sessions[session, SESSION_VALUE] = 0
    return victim


@block
def red_respond(session, count, value, port, n_sessions, sessions, ports):
    """The sum over `count` targets comes up. Returns RED_BYPASS, RED_ADDED, or RED_RESULT with the total in SESSION_COUNT and SESSION_VALUE."""
    if sessions[session, SESSION_LIVE] == 0:
        return RED_BYPASS
    sessions[session, SESSION_REMAINING] -= count
    sessions[session, SESSION_COUNT] += count
    sessions[session, SESSION_VALUE] += value
    if sessions[session, SESSION_REMAINING] == 0:
        _red_drop(session, port, sessions, ports)
        return RED_RESULT
    ring_unlink(session, SESSION_PREV, SESSION_NEXT, sessions)
    ring_append(session, n_sessions + port, SESSION_PREV, SESSION_NEXT, sessions)
    return RED_ADDED


@block
def red_expire(session, port, sessions, ports):
    """The entry of `session` was idle for too long. Returns the count of the partial sum that leaves, 0 = nothing leaves."""
    if sessions[session, SESSION_LIVE] == 0:
        return 0
    _red_drop(session, port, sessions, ports)
    return sessions[session, SESSION_COUNT]


@block
def row_reads(row, places, spilled):
    """Whether the place of a row that is not in the table has to be read: a hub cannot tell a new row from one of its region in memory."""
    return spilled[places[row, col.PLACE_REGION]] > 0


@block
def row_enter(row, state, entries, places, spilled):
    """Row `row`, which is not in the table, enters its bank of `entries` rows (0 = any number) in `state`. True if the bank was full.

    A full bank spills its oldest row. spilled int64 [n_regions]: rows of each region in memory.
    """
    if places[row, col.PLACE_STATE] == col.ROW_SPILLED:
        spilled[places[row, col.PLACE_REGION]] -= 1
    bank = places[row, col.PLACE_BANK]
    places[row, col.PLACE_STATE] = state
    ring_append(row, bank, col.PLACE_PREV, col.PLACE_NEXT, places)
    if entries > 0 and places[bank, col.PLACE_STATE] == entries:
        victim = places[bank, col.PLACE_NEXT]
        ring_unlink(victim, col.PLACE_PREV, col.PLACE_NEXT, places)
        places[victim, col.PLACE_STATE] = col.ROW_SPILLED
        spilled[places[victim, col.PLACE_REGION]] += 1
        places[bank, col.PLACE_LEFT] += 1
        return True
    places[bank, col.PLACE_STATE] += 1
    return False


@block
def row_place(row, places):
    """A piece of a row in the table is placed; the last one frees the entry. True if it did."""
    places[row, col.PLACE_LEFT] -= 1
    if places[row, col.PLACE_LEFT] > 0:
        return False
    ring_unlink(row, col.PLACE_PREV, col.PLACE_NEXT, places)
    places[row, col.PLACE_STATE] = col.ROW_GONE
    places[places[row, col.PLACE_BANK], col.PLACE_STATE] -= 1
    return True


@block
def row_lookup(row, packet, hub, entries, keys, hubs, packets, places, spilled):
    """`packet` asks for the place of `row`, as `al_lookup`. Returns ROW_NEW, ROW_HELD, or AL_READ, AL_JOINED, AL_FULL.

    ROW_NEW: the row took its place by this packet. ROW_HELD: the table has it.
    """
    answer = places[row, col.PLACE_STATE]
    first = keys[row, KEY_FIRST]
    if answer != col.ROW_HELD and first < 0 and not row_reads(row, places, spilled):
        hubs[hub, HUB_CACHED] += not row_enter(row, col.ROW_HELD, entries, places, spilled)
    if places[row, col.PLACE_STATE] == col.ROW_HELD:
        hubs[hub, HUB_CACHED] -= row_place(row, places)
        return answer
    return _miss_join(row, packet, hub, keys, hubs, packets)


@block
def row_answer(row, hub, entries, keys, hubs, packets, places, spilled, out):
    """Memory answers the miss of `row`: all packets that wait are placed. out[0]: the first of them, as `al_answer`. True if the row is new."""
    packet = keys[row, KEY_FIRST]
    out[0] = packet
    if packet < 0:
        return False
    keys[row, KEY_FIRST] = keys[row, KEY_LAST] = -1
    hubs[hub, HUB_PENDING] -= 1
    new = places[row, col.PLACE_STATE] == col.ROW_NEW
    hubs[hub, HUB_CACHED] += not row_enter(row, col.ROW_HELD, entries, places, spilled)
    while packet >= 0:
        hubs[hub, HUB_CACHED] -= row_place(row, places)
        packet = packets[packet, WAITER_NEXT]
    return new
