"""Unequal links: a train begins at the link that its key hashes to, and every link of a port has its own time (oracle/servers.py).

The link l of a row is busy until `base + max(y[l], floor)`, so a train changes only the links of its last round.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.kernel import block

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
