"""Chains: ops that follow each other on one SM slot (oracle/issue.py)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import fifo_pop
from dysharp.engine.blocks.heap import heap_push, tree_set
from dysharp.engine.blocks.issue import BATCH_BITS, issuer_drop, issuer_head, issuer_take, op_issue, rests
from dysharp.engine.blocks.link import memory_take
from dysharp.engine.blocks.ready import mark, share_left
from dysharp.engine.kernel import block

KIND_DELAY = 1


@block
def chain_leave(o, ops, issue, slots, x, points):
    """Op o is done. If the op belongs to a chain, the chain may give its slot back."""
    if points is not None and ops.op[o, col.FLAGS] & col.HAS_CHAIN:
        _slot_leave(ops.op[o, col.CHAIN], points.chains, issue, slots, x)


@block
def _slot_leave(c, chains, issue, slots, x):
    """Chain c has one op less. The chain gives its slot back if it is over, or if it gives the slot back at every end."""
    chains[c, col.CHAIN_LEFT] -= 1
    if chains[c, col.CHAIN_ON] == 1 and (chains[c, col.CHAIN_LEFT] == 0 or chains[c, col.CHAIN_YIELD] == 1):
        chains[c, col.CHAIN_ON] = 0
        p = chains[c, col.CHAIN_POOL]
        slots.pools[p, col.POOL_FREE] += 1
        for k in range(slots.pool_issuer_ptr[p], slots.pool_issuer_ptr[p + 1]):
            mark(issue.dirty_issuers, x, slots.pool_issuer[k])


@block
def _task_start(o, p, ops, slots, nodes, clock):
    """Op o of a chain starts its task on the slot that the chain has in pool p."""
    m, now = clock.m, clock.x[col.RUN_NOW]
    took = ops.templates[ops.op[o, col.TEMPLATE], col.DURATION]
    n_bytes = slots.task_bytes[took, ops.op[o, col.WIRE]]
    end = now + slots.durations[took, ops.op[o, col.WIRE]]
    ops.ot[o, col.START] = now
    if m[col.HARDWARE_MEMORY] > 0 and n_bytes > 0:
        end = max(end, memory_take(nodes, ops.op[o, col.NODE], n_bytes, m, now))
    base = slots.pools[p, col.POOL_BASE]
    heap_push(slots.pool_keys, slots.pool_ids, base, slots.pools[p, col.POOL_SIZE], end, (o << BATCH_BITS) | 1)
    slots.pools[p, col.POOL_SIZE] += 1
    tree_set(clock.tree, p, slots.pool_keys[base])


@block
def _chain_take(i, ops, holds, issue, pools, x, points):
    """As `issuer_take`, where there are chains. An op whose chain has a slot passes the queue and needs no slot."""
    if rests(i, x, points):
        return -1
    o = points.resident[i, 0]
    passes = o >= 0
    if not passes:
        o = issuer_head(i, issue, ops)
    if o < 0:
        return -1
    pool = issue.issuers[i, col.ISSUER_POOL]
    chained = ops.op[o, col.FLAGS] & col.HAS_CHAIN != 0
    is_task = ops.templates[ops.op[o, col.TEMPLATE], col.KIND] <= KIND_DELAY
    if (is_task or chained) and not passes and (pools[pool, col.POOL_FREE] == 0 or share_left(i, points) == 0):
        return -1
    if ops.ot[o, col.ISSUE] < 0 and not op_issue(o, ops, holds, issue, x):
        return -1
    if passes:
        fifo_pop(points.resident, i, ops.op, col.NEXT2)
        ops.op[o, col.DEPS] = col.CANCELLED  # no place in the program order any more
    elif chained:
        points.chains[ops.op[o, col.CHAIN], col.CHAIN_ON] = 1
        pools[pool, col.POOL_FREE] -= 1
        issuer_drop(i, issue)
    elif not is_task:
        issuer_drop(i, issue)
    return o


@block
def next_take(i, ops, holds, issue, pools, x, points):
    """`issuer_take`, or `_chain_take` where there are chains."""
    if points is not None and len(points.chains) > 0:
        return _chain_take(i, ops, holds, issue, pools, x, points)
    return issuer_take(i, ops, holds, issue, pools, x)


@block
def starts(o, i, pool, ops, slots, nodes, clock, points):
    """Issuer i rests behind op o if it is paced. Whether op o is a task of a chain, which starts on the chain's slot."""
    if points is None:
        return False
    _pace(i, o, ops.ot, points.pace, clock)
    if ops.op[o, col.FLAGS] & col.HAS_CHAIN == 0 or ops.templates[ops.op[o, col.TEMPLATE], col.KIND] > KIND_DELAY:
        return False
    _task_start(o, pool, ops, slots, nodes, clock)
    return True


@block
def _pace(i, o, ot, issuer_pace, clock):
    """Issuer i, if it is paced and has just issued op o, rests."""
    if len(issuer_pace) > 0 and issuer_pace[i, col.PACE_PS] > 0 and ot[o, col.START] < 0:
        issuer_pace[i, col.PACE_NEXT] = clock.x[col.RUN_NOW] + issuer_pace[i, col.PACE_PS]
        tree_set(clock.tree, clock.m[col.LEAF_PACE] + i, issuer_pace[i, col.PACE_NEXT])


@block
def is_gang(o, pool, ops, points):
    """Whether op o, of an issuer with this pool, runs as tasks on its slots. A transfer of a chain has an issuer with a pool, too."""
    if points is not None:
        return pool >= 0 and ops.templates[ops.op[o, col.TEMPLATE], col.KIND] <= KIND_DELAY
    return pool >= 0
