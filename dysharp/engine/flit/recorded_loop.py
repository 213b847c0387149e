"""Cycles of a network whose sources draw as the recorded runs did: a source draws its next packet once the last one has left it.

So the draws depend on what the network did: the streams are made before (`recorded.py`) and consumed here.
"""

from dysharp.engine.flit import columns as u
from dysharp.engine.flit.loop import network_run, source_list
from dysharp.engine.kernel import kernel

# cursor: position in `creates`, position in `ints`
AT_CREATES, AT_INTS = 0, 1


@kernel
def replay_run(until, stop_when_measured, tree, state, created, draws):
    """Run to cycle `until`, or until the last measured packet has arrived.

    Row q of `created` is the one packet that source q has drawn and not begun to send; the last row never comes.
    """
    source, packet, x, arity = state.sources.source, state.packets.packet, state.run, state.shape.arity
    creates, ints, cursor, looked, record, dest_of, cdf = draws
    n = len(looked)
    x[u.RUN_EVENT] = n
    while x[u.RUN_NOW] < until:
        now = x[u.RUN_NOW]
        for q in range(n):
            if source[q, u.SOURCE_LEFT] != 0 or source[q, u.SOURCE_HEAD] >= 0:
                continue
            while looked[q] <= now:
                at = looked[q]
                looked[q] += 1
                made = creates[cursor[AT_CREATES]]
                cursor[AT_CREATES] += 1
                if not made:
                    continue
                to = dest_of[q]
                if to < 0:
                    draw = ints[cursor[AT_INTS]] % cdf[n - 1]
                    cursor[AT_INTS] += 1
                    to = 0
                    while draw >= cdf[to]:
                        to += 1
                cursor[AT_INTS] += 1
                created.time[q] = at
                created.source[q] = q
                created.dest[q] = to
                created.next[q] = -1
                source_list(q, q, state.sources, x)
                # measured: drawn in a measured period, or created in one and drawn later
                record[q] = 1 if now >= x[u.RUN_FROM] and (now < x[u.RUN_TO] or at < x[u.RUN_TO]) else 0
                x[u.RUN_LEFT] += record[q]
                break
        network_run(now + 1, False, state, created)
        for q in range(n):
            if created.next[q] == -2:  # its head left in this cycle
                created.next[q] = -1
                slot = source[q, u.SOURCE_PACKET]
                packet[slot, u.PACKET_MEASURED] = record[q]
                if tree and created.dest[q] // arity != q // arity:
                    packet[slot, u.PACKET_SALT] = ints[cursor[AT_INTS]] % arity
                    cursor[AT_INTS] += 1
        if stop_when_measured and x[u.RUN_LEFT] == 0:
            break
    return x[u.RUN_NOW]
