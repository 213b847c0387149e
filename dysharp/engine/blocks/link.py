"""The server of one link direction (when does a train that starts now end), and bandwidth of a node's memory (docs/design/0007)."""

from dysharp.engine.blocks.columns import (
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
from dysharp.engine.kernel import block


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
