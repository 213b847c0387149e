"""The event loop of the burst level: releases of an instant, then its grants (docs/design/0001), over the kernels of `engine/blocks`.

It can be stopped after `budget` events and called again. docs/follow-an-op.md follows one op through it.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.bits import bit_take, bit_take_after
from dysharp.engine.blocks.fifo import member_due
from dysharp.engine.blocks.heap import tree_first, tree_set
from dysharp.engine.blocks.issue import compute_end, gang_start, issuer_drop, train_issue
from dysharp.engine.blocks.points import member_fill, work_drain
from dysharp.engine.blocks.ready import complete, mark, notified, op_ready
from dysharp.engine.blocks.trains import arrive, down_end, grant_down, grant_up, up_end
from dysharp.engine.blocks.transfers import acknowledged, deliver, local, places_known, respond, result, result_delivered
from dysharp.engine.burst.chains import chain_leave, is_gang, next_take, starts
from dysharp.engine.kernel import block, by_address, kernel


@kernel
def run_start(state):
    """Time zero: ops without dependencies become ready, in id order."""
    there = by_address(state)
    ops, issue, x = there.ops, there.issue, there.clock.x
    for o in range(ops.op.shape[0] - 1):
        if ops.op[o, col.DEPS] == 0:
            op_ready(o, -1, ops, issue, x)


@block
def paced(leaf, i, issue, clock):
    """PACE: issuer i may issue again."""
    tree_set(clock.tree, leaf, col.INF)
    clock.x[col.RUN_EVENTS] += 1
    mark(issue.dirty_issuers, clock.x, i)


@block
def grant_issuer(i, now, ops, members, holds, issue, slots, links, clock):
    """Issuer i puts on the machine whatever it may: tasks on free slots, transfers into the hub."""
    pool = issue.issuers[i, col.ISSUER_POOL]
    while True:
        o = next_take(i, ops, holds, issue, slots.pools, clock.x, ops.points)
        if o < 0:
            break
        if starts(o, i, pool, ops, slots, links.nodes, clock, ops.points):
            continue
        if is_gang(o, pool, ops, ops.points):
            if gang_start(o, pool, ops, slots, links.nodes, clock):
                issuer_drop(i, issue)
        elif train_issue(o, ops, members, links, clock):
            complete(o, now, ops, clock.x)
            clock.x[col.RUN_DIRTY] = 1
            chain_leave(o, ops, issue, slots, clock.x, ops.points)


@kernel
def run_loop(budget, state):
    """Run until `budget` more events have been counted or nothing is pending. Returns True while there is more to do."""
    ops, members, stores, releases, holds, issue, slots, links, switch, tables, clock = by_address(state)
    dirty_issuers, dirty_up, dirty_down = issue.dirty_issuers, links.dirty_up, switch.dirty_down
    tree, m, x = clock.tree, clock.m, clock.x
    leaf_up, leaf_arrive, leaf_down, leaf_rings = m[col.LEAF_UP], m[col.LEAF_ARRIVE], m[col.LEAF_DOWN], m[col.LEAF_RINGS]
    leaf_credit, leaf_table = m[col.LEAF_CREDIT], m[col.LEAF_TABLE]
    nets = m[col.HARDWARE_NETS]
    after_down = leaf_rings + nets
    stop = x[col.RUN_EVENTS] + budget
    now = x[col.RUN_NOW]
    while x[col.RUN_EVENTS] < stop:
        # what the last grants completed at once (transfers without members)
        if x[col.RUN_WORK_HEAD] >= 0:
            work_drain(ops, members.mem, stores, releases, holds.sem_left, issue, links.nodes, clock)
        # ---- releases ----
        while tree[1] == now:
            leaf = tree_first(tree)
            done = -1  # an op that this event completes
            filled = -1  # a member whose rows this event fills
            if leaf < leaf_up:
                done = compute_end(leaf, now, ops, slots, issue, clock)
            elif leaf < leaf_arrive:
                up_end(leaf - leaf_up, leaf, links, clock)
            elif leaf < leaf_down:
                arrive(leaf - leaf_arrive, ops, members, links, switch, clock)
            elif leaf < after_down:
                down_end(leaf - leaf_down, now, ops, members, links, switch, tables, clock)
            elif leaf < leaf_rings + (col.RING_DELIVER + 1) * nets:
                filled = deliver(member_due(leaf - leaf_rings, members, clock), now, ops, members, links, switch.held, clock)
            elif leaf < leaf_rings + (col.RING_RESPOND + 1) * nets:
                respond(leaf - leaf_rings, now, ops, members, links, clock)
            elif leaf < leaf_rings + (col.RING_RESULT + 1) * nets:
                result(leaf - leaf_rings, now, ops, members.mem, links, switch, clock)
            elif leaf < leaf_rings + (col.RING_RESULT_DELIVERED + 1) * nets:
                done = result_delivered(leaf - leaf_rings, now, ops, members, stores, issue, links, switch.held, clock)
            elif leaf < leaf_rings + (col.RING_LOCAL + 1) * nets:
                filled, done = local(now, ops, members, links, switch.held, clock)
            elif leaf < leaf_rings + (col.RING_ACK + 1) * nets:
                done = acknowledged(leaf - leaf_rings, ops, links, clock)
            elif leaf < leaf_rings + (col.RING_NOTIFY + 1) * nets:
                notified(ops, members, stores, issue, clock)
            elif leaf < leaf_credit:  # RESPOND_LATE
                respond(leaf - leaf_rings, now, ops, members, links, clock)
            elif leaf < leaf_table:
                up_end(leaf - leaf_credit, leaf, links, clock)
            elif leaf >= m[col.LEAF_PACE]:
                paced(leaf, leaf - m[col.LEAF_PACE], issue, clock)
            else:
                filled = places_known(leaf - leaf_table, leaf, now, ops, members, links, switch.held, tables, clock)
            if filled >= 0:
                member_fill(filled, ops, members, stores, issue, links, clock)
            if done >= 0:
                complete(done, now, ops, x)
                chain_leave(done, ops, issue, slots, x, ops.points)
            if x[col.RUN_WORK_HEAD] >= 0:
                work_drain(ops, members.mem, stores, releases, holds.sem_left, issue, links.nodes, clock)
        # ---- grants ----
        if x[col.RUN_DIRTY] == 0:
            if tree[1] == col.INF:
                return False
            now = tree[1]
            x[col.RUN_NOW] = now
            continue
        x[col.RUN_DIRTY] = 0
        for word in range(len(dirty_issuers)):
            low = bit_take_after(dirty_issuers, word, -1)
            while low >= 0:
                grant_issuer((word << 5) + low, now, ops, members, holds, issue, slots, links, clock)
                low = bit_take_after(dirty_issuers, word, low)
        for word in range(len(dirty_up)):
            while dirty_up[word] != 0:
                grant_up(bit_take(dirty_up, word), now, ops, members, links, switch, clock)
        for word in range(len(dirty_down)):
            while dirty_down[word] != 0:
                grant_down(bit_take(dirty_down, word), now, ops, members, stores, links, switch, tables, clock)
    return True
