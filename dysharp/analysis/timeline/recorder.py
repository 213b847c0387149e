"""Runs a Program on the burst engine and logs what a Trace does not hold: every train of a link, and the hubs' tables.

The engine's loop is called for one grant pass at a time. Every grant of a link is an event, so a call ends with the pass that made
it, and the log finds it by the time at which the server is free again. The loop itself is unchanged, so the Trace equals the Trace of
`engine.burst.run.run_burst`; tests hold the digests equal.
"""

from dysharp.engine.blocks.columns import DOWN, HUB_CACHED_ROWS, HUB_MISSES, RUN_NOW, SERVER_DEBT, SERVER_EXTRA, SERVER_FREE, SERVER_WIRE, UP
from dysharp.engine.burst.loop import run_loop
from dysharp.engine.kernel import block, kernel

# column of a log: time of the event, when the server is free again, what was sent, wire bytes with acknowledgements, node or hub
AT, UNTIL, WHAT, COUNT, WHERE = range(5)
# column of the last known state of one server
SEEN_FREE, SEEN_DEBT, SEEN_WIRE = range(3)
# counts of logged events: up links, down links, hubs; then the time of the next sample of the hubs, and the time between two
N_UP, N_DOWN, N_HUB, NEXT_SAMPLE, SAMPLE_PS = range(5)


@block
def _links_log(now, side, nodes, seen, log, count):
    """Log each server of one direction that was granted in the last pass. Returns the new number of entries."""
    for i in range(len(nodes)):
        free = nodes[i, side + SERVER_FREE]
        if free != seen[i, SEEN_FREE]:
            log[count, AT] = now
            log[count, UNTIL] = free
            log[count, WHAT] = nodes[i, side + SERVER_EXTRA]
            log[count, COUNT] = seen[i, SEEN_DEBT] + nodes[i, side + SERVER_WIRE] - seen[i, SEEN_WIRE]
            log[count, WHERE] = i
            count += 1
            seen[i, SEEN_FREE] = free
        seen[i, SEEN_DEBT] = nodes[i, side + SERVER_DEBT]
        seen[i, SEEN_WIRE] = nodes[i, side + SERVER_WIRE]
    return count


@kernel
def run_logged(state, up_seen, down_seen, up_log, down_log, hub_log, counts):
    """Run until everything is done or a log is full. Returns True while there is more to do."""
    nodes, hubs, x = state.links.nodes, state.tables.hubs, state.clock.x
    more = True
    while more:
        if counts[N_UP] + len(nodes) > len(up_log) or counts[N_DOWN] + len(nodes) > len(down_log) or counts[N_HUB] + len(hubs) > len(hub_log):
            return True
        more = run_loop(1, state)
        now = x[RUN_NOW]
        counts[N_UP] = _links_log(now, UP, nodes, up_seen, up_log, counts[N_UP])
        counts[N_DOWN] = _links_log(now, DOWN, nodes, down_seen, down_log, counts[N_DOWN])
        if now >= counts[NEXT_SAMPLE]:
            counts[NEXT_SAMPLE] = now - now % counts[SAMPLE_PS] + counts[SAMPLE_PS]
            for h in range(len(hubs)):
                at = counts[N_HUB]
                hub_log[at, AT] = now
                hub_log[at, WHAT] = hubs[h, HUB_CACHED_ROWS]
                hub_log[at, COUNT] = hubs[h, HUB_MISSES]
                hub_log[at, WHERE] = h
                counts[N_HUB] = at + 1
    return False
