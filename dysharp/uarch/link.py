"""The server of one link direction (when does a train that starts now end), unequal links, and the memory of a node.

Unequal links: a train begins at the link that its key hashes to, and every link of a port has its own time (oracle/servers.py). The link l of a
row is busy until `base + max(y[l], floor)`, so a train changes only the links of its last round. Memory is bandwidth that tasks and transfers
promise each other in turn (docs/design/0007).
"""

from dysharp.uarch import columns as col
from dysharp.uarch.columns import (
    HARDWARE_MEMORY,
    HARDWARE_NODES,
    PORT_RATE,
    PROMISED,
    SERVER_BUSY_BYTES,
    SERVER_BUSY_START,
    SERVER_DEBT,
    SERVER_FREE,
    SERVER_WIRE,
)
from dysharp.uarch.kernel import block


@block
def server_grant(nodes, i, side, now, wire, message):
    """End time of a train of `wire` bytes granted at `now`; acknowledgement debt goes first, less what idle time has drained.

    `message`: bytes that would pass in the fixed time of a message. Rounds once per busy period: end = busy_start + ceil(busy_bytes / rate).
    """
    rate = nodes[i, PORT_RATE]
    gap = now - nodes[i, side + SERVER_FREE]
    debt = nodes[i, side + SERVER_DEBT]
    if gap > 0:
        nodes[i, side + SERVER_BUSY_START] = now
        nodes[i, side + SERVER_BUSY_BYTES] = 0
        if debt > 0:
            drained = gap * rate // 1_000_000 if gap < 1_000_000_000_000 else debt
            debt = debt - drained if drained < debt else 0
    nodes[i, side + SERVER_DEBT] = 0
    nodes[i, side + SERVER_BUSY_BYTES] += debt + wire + message
    nodes[i, side + SERVER_WIRE] += wire
    end = nodes[i, side + SERVER_BUSY_START] + (nodes[i, side + SERVER_BUSY_BYTES] * 1_000_000 + rate - 1) // rate
    nodes[i, side + SERVER_FREE] = end
    return end


@block
def server_hold(nodes, i, side, end, until):
    """Cut-through: a copy leaves no earlier than `until`. Returns the later of the two; the wait opens a new busy period."""
    if end < until:
        nodes[i, side + SERVER_BUSY_START] = until
        nodes[i, side + SERVER_BUSY_BYTES] = 0
        nodes[i, side + SERVER_FREE] = until
        end = until
    return end


@block
def server_debt(nodes, i, side, wire):
    """Wire bytes that delay the server's next train (acknowledgements, notifications)."""
    nodes[i, side + SERVER_DEBT] += wire
    nodes[i, side + SERVER_WIRE] += wire


@block
def memory_take(nodes, node, amount, m, now):
    """`amount` bytes go next at the memory of `node` (or of the node with this port).

    Returns when all that is promised will have gone; `now` if nothing shares the memory.
    """
    until = now
    if m[HARDWARE_MEMORY] > 0:
        node = node % m[HARDWARE_NODES]
        nodes[node, PROMISED] = max(nodes[node, PROMISED], now)
        nodes[node, PROMISED] += (amount * 1_000_000 + m[HARDWARE_MEMORY] - 1) // m[HARDWARE_MEMORY]
        until = nodes[node, PROMISED]
    return until


BASE, FLOOR, LATEST, LINK0 = range(4)  # LATEST: the largest y; from LINK0 on: y of each link


@block
def has_lines(i, links):
    """Whether the links of port i are unequal."""
    return i + i < len(links.lines)


@block
def lines_send(o, row, packet_ps, late, now, ops, links):
    """When the last packet of op o's train has left, on the links `row` of a port, from now on; `late`: ps that all links send other bytes first.

    `packet_ps`: one packet on one link.
    """
    lines, w = links.lines, ops.op[o, col.WIRE]
    rounds, rest = links.wires[w, col.WIRE_ROUNDS], links.wires[w, col.WIRE_REST]
    floor = max(lines[row, FLOOR], now - lines[row, BASE])
    lines[row, FLOOR] = floor
    base = lines[row, BASE] + rounds * packet_ps + late
    lines[row, BASE] = base
    last = floor
    if rest > 0:
        end = lines.shape[1]
        i = LINK0 + links.first[o]
        for _ in range(rest):
            y = max(lines[row, i], floor) + packet_ps
            lines[row, i] = y
            last = max(last, y)
            i = i + 1 if i + 1 < end else LINK0
    latest = max(lines[row, LATEST], last)
    lines[row, LATEST] = latest
    return base + (latest if rounds > 0 else last)


@block
def debt_ps(i, side, now, nodes):
    """Time that the debt of a server takes before its next train."""
    debt = nodes[i, side + col.SERVER_DEBT]
    if debt == 0:
        return 0
    rate = nodes[i, col.PORT_RATE]
    gap = now - nodes[i, side + col.SERVER_FREE]
    if gap > 0:
        drained = gap * rate // 1_000_000 if gap < 1_000_000_000_000 else debt
        debt = debt - drained if drained < debt else 0
    return (debt * 1_000_000 + rate - 1) // rate
