"""Tables of hubs and switch ports: the AL table with its TLB and pending misses, and the reduction table.

The same blocks as `protocol/al_table.py` and `protocol/reduction.py`. Keys and sessions are dense numbers, so a row of a block is found
without a search. The cached keys of a hub and the live sessions of a port are rings, least recently used row first, through a
sentinel row of their own behind the last key or session: row `n_keys + hub`, `n_sessions + port`.
"""

from dysharp.uarch.kernel import block, kernel

# key, int64 [n_keys + n_hubs, 6]
K_LAYOUT, K_PREV, K_NEXT, K_CACHED, K_FIRST, K_LAST = range(6)
# K_LAYOUT: -1 = not bound; K_PREV, K_NEXT: ring; K_FIRST .. K_LAST: packets that wait for the miss, -1 = no miss
KEY_EMPTY = (-1, -1, -1, 0, -1, -1)

# hub, int64 [n_hubs, H_BANK0 + banks]: from H_BANK0 on, when each bank of its TLB is free again
H_ENTRIES, H_CACHED, H_MSHRS, H_PENDING, H_ALLOCATED, H_BANK0 = range(6)  # H_ALLOCATED: whether the latest answer bound its key

# packet, int64 [n_packets, 2]
W_NEXT, W_ALLOCATES = range(2)  # W_NEXT: the packet that waits behind, -1 = none

# answers of al_lookup and al_answer that are no layout
AL_READ = -1  # a miss: read the table in memory
AL_JOINED = -2  # a miss that is under way already
AL_FULL = -3  # no miss register is free: ask again
AL_UNBOUND = -4  # a read of a block that nobody wrote
AL_IDLE = -5  # an answer that nobody waits for

# session, int64 [n_sessions + n_ports, 6]
S_LIVE, S_PREV, S_NEXT, S_REMAINING, S_COUNT, S_VALUE = range(6)
SESSION_EMPTY = (0, -1, -1, 0, 0, 0)

# port, int64 [n_ports, 2]
P_ENTRIES, P_LIVE = range(2)

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
        keys[n_keys + hub, K_PREV] = keys[n_keys + hub, K_NEXT] = n_keys + hub
        hubs[hub, H_CACHED] = hubs[hub, H_PENDING] = hubs[hub, H_ALLOCATED] = 0


@kernel
def al_lookup(key, packet, allocates, hub, n_keys, keys, hubs, packets):
    """`packet` asks for the layout of `key`; `allocates` = 1 for Dispatch. Returns the layout on a hit, else AL_READ, AL_JOINED or AL_FULL."""
    if keys[key, K_CACHED] == 1:
        ring_unlink(key, K_PREV, K_NEXT, keys)
        ring_append(key, n_keys + hub, K_PREV, K_NEXT, keys)
        return keys[key, K_LAYOUT]
    first = keys[key, K_FIRST]
    if first < 0 and hubs[hub, H_PENDING] >= hubs[hub, H_MSHRS]:
        return AL_FULL
    packets[packet, W_NEXT] = -1
    packets[packet, W_ALLOCATES] = allocates
    if first < 0:
        hubs[hub, H_PENDING] += 1
        keys[key, K_FIRST] = packet
    else:
        packets[keys[key, K_LAST], W_NEXT] = packet
    keys[key, K_LAST] = packet
    return AL_READ if first < 0 else AL_JOINED


@kernel
def al_answer(key, expert, hub, n_keys, keys, hubs, packets, next_free, out):
    """Memory answers the miss of `key`. `next_free` [n_experts]: blocks in use. Returns the layout, AL_UNBOUND or AL_IDLE.

    `out[0]` is the first packet that goes on (-1 = none); the others follow through W_NEXT.
    """
    packet = keys[key, K_FIRST]
    out[0] = packet
    hubs[hub, H_ALLOCATED] = 0
    if packet < 0:
        return AL_IDLE
    keys[key, K_FIRST] = keys[key, K_LAST] = -1
    hubs[hub, H_PENDING] -= 1
    if keys[key, K_LAYOUT] < 0:
        while packet >= 0 and packets[packet, W_ALLOCATES] == 0:
            packet = packets[packet, W_NEXT]
        if packet < 0:
            return AL_UNBOUND
        keys[key, K_LAYOUT] = next_free[expert]
        next_free[expert] += 1
        hubs[hub, H_ALLOCATED] = 1
    ring_append(key, n_keys + hub, K_PREV, K_NEXT, keys)
    keys[key, K_CACHED] = 1
    if hubs[hub, H_CACHED] == hubs[hub, H_ENTRIES]:
        victim = keys[n_keys + hub, K_NEXT]
        ring_unlink(victim, K_PREV, K_NEXT, keys)
        keys[victim, K_CACHED] = 0
    else:
        hubs[hub, H_CACHED] += 1
    return keys[key, K_LAYOUT]


@kernel
def red_clear(n_sessions, sessions, ports):
    """No session is live. `ports` holds its sizes already."""
    for row in range(sessions.shape[0]):
        for column in range(6):
            sessions[row, column] = SESSION_EMPTY[column]
    for port in range(ports.shape[0]):
        sessions[n_sessions + port, S_PREV] = sessions[n_sessions + port, S_NEXT] = n_sessions + port
        ports[port, P_LIVE] = 0


@block
def red_drop(session, port, sessions, ports):
    """The entry of `session` goes; its count and value stay readable until its number is used again."""
    ring_unlink(session, S_PREV, S_NEXT, sessions)
    sessions[session, S_LIVE] = 0
    ports[port, P_LIVE] -= 1


@kernel
def red_request(session, targets, port, n_sessions, sessions, ports):
    """A request opens `session`. Returns the session that left to make room, -1 = none: a partial sum if its S_COUNT is above 0."""
    victim = -1
    if ports[port, P_LIVE] == ports[port, P_ENTRIES]:
        victim = sessions[n_sessions + port, S_NEXT]
        red_drop(victim, port, sessions, ports)
    ring_append(session, n_sessions + port, S_PREV, S_NEXT, sessions)
    ports[port, P_LIVE] += 1
    sessions[session, S_LIVE] = 1
    sessions[session, S_REMAINING] = targets
    sessions[session, S_COUNT] = sessions[session, S_VALUE] = 0
    return victim


@kernel
def red_respond(session, count, value, port, n_sessions, sessions, ports):
    """The sum over `count` targets comes up. Returns RED_BYPASS, RED_ADDED, or RED_RESULT with the total in S_COUNT and S_VALUE."""
    if sessions[session, S_LIVE] == 0:
        return RED_BYPASS
    sessions[session, S_REMAINING] -= count
    sessions[session, S_COUNT] += count
    sessions[session, S_VALUE] += value
    if sessions[session, S_REMAINING] == 0:
        red_drop(session, port, sessions, ports)
        return RED_RESULT
    ring_unlink(session, S_PREV, S_NEXT, sessions)
    ring_append(session, n_sessions + port, S_PREV, S_NEXT, sessions)
    return RED_ADDED


@kernel
def red_expire(session, port, sessions, ports):
    """The entry of `session` was idle for too long. Returns the count of the partial sum that leaves, 0 = nothing leaves."""
    if sessions[session, S_LIVE] == 0:
        return 0
    red_drop(session, port, sessions, ports)
    return sessions[session, S_COUNT]
