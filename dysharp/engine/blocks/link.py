"""The server of one link direction (when does a train that starts now end), and bandwidth of a node's memory (docs/design/0007)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.kernel import block


@block
def server_grant(nodes, i, side, now, wire, message):
    """End time of a train of `wire` bytes granted at `now`; acknowledgement debt goes first, less what idle time has drained.

    `message`: bytes that would pass in the fixed time of a message. Rounds once per busy period: end = busy_start + ceil(busy_bytes / rate).
    """
    rate = nodes[i, col.PORT_RATE]
    gap = now - nodes[i, side + col.SERVER_FREE]
    debt = nodes[i, side + col.SERVER_DEBT]
    if gap > 0:
        nodes[i, side + col.SERVER_BUSY_START] = now
        nodes[i, side + col.SERVER_BUSY_BYTES] = 0
        if debt > 0:
            drained = gap * rate // 1_000_000 if gap < 1_000_000_000_000 else debt
            debt = debt - drained if drained < debt else 0
    nodes[i, side + col.SERVER_DEBT] = 0
    nodes[i, side + col.SERVER_BUSY_BYTES] += debt + wire + message
    nodes[i, side + col.SERVER_WIRE] += wire
    end = nodes[i, side + col.SERVER_BUSY_START] + (nodes[i, side + col.SERVER_BUSY_BYTES] * 1_000_000 + rate - 1) // rate
    nodes[i, side + col.SERVER_FREE] = end
    return end


@block
def server_hold(nodes, i, side, end, until):
    """Cut-through: a copy leaves no earlier than `until`. Returns the later of the two; the wait opens a new busy period."""
    if end < until:
        nodes[i, side + col.SERVER_BUSY_START] = until
        nodes[i, side + col.SERVER_BUSY_BYTES] = 0
        nodes[i, side + col.SERVER_FREE] = until
        end = until
    return end


@block
def server_debt(nodes, i, side, wire):
    """Wire bytes that delay the server's next train (acknowledgements, notifications)."""
    nodes[i, side + col.SERVER_DEBT] += wire
    nodes[i, side + col.SERVER_WIRE] += wire


@block
def memory_take(nodes, node, amount, m, now):
    """`amount` bytes go next at the memory of `node` (or of the node with this port).

    Returns when all that is promised will have gone; `now` if nothing shares the memory.
    """
    until = now
    if m[col.HARDWARE_MEMORY] > 0:
        node = node % m[col.HARDWARE_NODES]
        nodes[node, col.PROMISED] = max(nodes[node, col.PROMISED], now)
        nodes[node, col.PROMISED] += (amount * 1_000_000 + m[col.HARDWARE_MEMORY] - 1) // m[col.HARDWARE_MEMORY]
        until = nodes[node, col.PROMISED]
    return until
