"""Cycles of a network whose sources draw as the recorded runs did: a source draws its next packet once the last one has left it.

So what is drawn depends on what the network did, and the streams are consumed here; they are made before (`streams.py`).
"""

from dysharp.engine.flit.loop import network_run
from dysharp.uarch.flit.columns import (
    K_MEASURED,
    K_SALT,
    P_ARITY,
    Q_HEAD,
    Q_LEFT,
    Q_LISTED,
    Q_PACKET,
    Q_TAIL,
    X_EVENT,
    X_FROM,
    X_LEFT,
    X_LISTED,
    X_NOW,
    X_TO,
)
from dysharp.uarch.kernel import kernel

# cursor: position in `creates`, position in `ints`
AT_CREATES, AT_INTS = 0, 1


@kernel
def replay_run(
    until, stop_when_measured, tree, state, ev_time, ev_src, ev_dest, ev_salt, ev_next, creates, ints, cursor, looked, record, dest_of, cdf
):
    """Run to cycle `until`, or until the last measured packet has arrived.

    Row q of the event columns is the one packet that source q has drawn and not begun to send; the last row never comes. `creates`: does
    this draw make a packet; `ints`: draws of destination, of a number nobody uses, and of the way up, in the order they are asked for;
    `looked [n]`: cycle that a source has drawn up to; `record [n]`: is its packet measured; `dest_of [n]`: its fixed target or -1;
    `cdf`: cumulative weights of the destinations.
    """
    src, listed, pk, p, x = state.src, state.listed, state.pk, state.p, state.x
    n = len(looked)
    arity = p[P_ARITY]
    x[X_EVENT] = n
    while x[X_NOW] < until:
        now = x[X_NOW]
        for q in range(n):
            if src[q, Q_LEFT] != 0 or src[q, Q_HEAD] >= 0:
                continue
            while looked[q] <= now:
                created = looked[q]
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
                ev_time[q] = created
                ev_src[q] = q
                ev_dest[q] = to
                ev_next[q] = -1
                src[q, Q_HEAD] = q
                src[q, Q_TAIL] = q
                if src[q, Q_LISTED] == 0:
                    src[q, Q_LISTED] = 1
                    listed[x[X_LISTED]] = q
                    x[X_LISTED] += 1
                # measured: drawn in a measured period, or created in one and drawn later
                record[q] = 1 if now >= x[X_FROM] and (now < x[X_TO] or created < x[X_TO]) else 0
                x[X_LEFT] += record[q]
                break
        network_run(now + 1, False, state, ev_time, ev_src, ev_dest, ev_salt, ev_next)
        for q in range(n):
            if ev_next[q] == -2:  # its head left in this cycle
                ev_next[q] = -1
                slot = src[q, Q_PACKET]
                pk[slot, K_MEASURED] = record[q]
                if tree and ev_dest[q] // arity != q // arity:
                    pk[slot, K_SALT] = ints[cursor[AT_INTS]] % arity
                    cursor[AT_INTS] += 1
        if stop_when_measured and x[X_LEFT] == 0:
            break
    return x[X_NOW]
