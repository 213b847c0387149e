"""Issuers: which ready op goes next, its semaphores, its gang on SM slots or its train into the hub (oracle/issue.py)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.acks import up_joins
from dysharp.engine.blocks.bulk import hub_joined
from dysharp.engine.blocks.fifo import member_schedule, mixed_push
from dysharp.engine.blocks.heap import heap_pop, heap_push, tree_set
from dysharp.engine.blocks.link import memory_take
from dysharp.engine.blocks.ready import PROGRAM_ORDER, ROUND_ROBIN, issued, mark, share_left
from dysharp.engine.kernel import block

BATCH_BITS = 12  # a batch of n < 4096 tasks of op o is the pool heap's id o << 12 | n


@block
def _holds_take(o, holds):
    """Take all semaphores of op o, or none of them (an op may hold one semaphore several times)."""
    hold_ptr, hold_sem, hold_amount, sem_left = holds.hold_ptr, holds.hold_sem, holds.hold_amount, holds.sem_left
    taken = hold_ptr[o]
    last = hold_ptr[o + 1]
    while taken < last and sem_left[hold_sem[taken]] >= hold_amount[taken]:
        sem_left[hold_sem[taken]] -= hold_amount[taken]
        taken += 1
    room = taken == last
    if not room:
        for h in range(hold_ptr[o], taken):
            sem_left[hold_sem[h]] += hold_amount[h]
    return room


@block
def train_issue(o, ops, members, links, clock):
    """A transfer enters the hub: members on its own node are served there, the rest queues for the link. True if it is done at once."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    mem, nodes, m, now = members.mem, links.nodes, clock.m, clock.x[col.RUN_NOW]
    node = op[o, col.NODE]
    t = op[o, col.TEMPLATE]
    first = op[o, col.MEMBER]
    last = first + (op[o, col.FLAGS] >> col.MEMBERS_SHIFT)
    n_local = 0
    for k in range(first, last):
        if mem[k, col.MEMBER_NODE] == node:
            n_local += 1
            member_schedule(col.RING_LOCAL * m[col.HARDWARE_NETS], k, now + m[col.HARDWARE_LOCAL], members, clock)
    n_remote = last - first - n_local
    op[o, col.COPIES] = n_remote
    op[o, col.ANSWERS] = n_remote
    if n_remote == 0:
        ot[o, col.START] = now
        ot[o, col.END] = now
        op[o, col.LEFT] = n_local
        return last == first
    op[o, col.LEFT] = n_local + 1 if templates[t, col.IS_PULL] else last - first
    c = templates[t, col.CLS]
    mixed_push(links.hub, node * m[col.HARDWARE_CLASSES] + c, op, col.NEXT, mem, o)
    up_joins(node, o, col.WIRE_UP, ops, links)
    nodes[node, col.UP + col.SERVER_MASK] |= 1 << c
    if nodes[node, col.UP + col.SERVER_FREE] <= now:
        mark(links.dirty_up, clock.x, node)
    hub_joined(o, node, ops, mem, links, clock, ops.points)
    return False


@block
def gang_start(o, p, ops, slots, nodes, clock):
    """Give op o the free slots of pool p that it can use. True when its last task has a slot.

    Where memory is shared, the batch ends when its bytes have gone, if that is later.
    """
    op, ot = ops.op, ops.ot
    pools, m, now = slots.pools, clock.m, clock.x[col.RUN_NOW]
    n = min(pools[p, col.POOL_FREE], share_left(op[o, col.ISSUER], ops.points), op[o, col.ANSWERS])
    _share_take(op[o, col.ISSUER], n, ops.points)
    if ot[o, col.START] < 0:
        ot[o, col.START] = now
    took = ops.templates[op[o, col.TEMPLATE], col.DURATION]
    end = now + slots.durations[took, op[o, col.WIRE]]
    if m[col.HARDWARE_MEMORY] > 0 and slots.task_bytes[took, op[o, col.WIRE]] > 0:
        end = max(end, memory_take(nodes, op[o, col.NODE], n * slots.task_bytes[took, op[o, col.WIRE]], m, now))
    base = pools[p, col.POOL_BASE]
    heap_push(slots.pool_keys, slots.pool_ids, base, pools[p, col.POOL_SIZE], end, (o << BATCH_BITS) | n)
    pools[p, col.POOL_SIZE] += 1
    pools[p, col.POOL_FREE] -= n
    tree_set(clock.tree, p, slots.pool_keys[base])
    op[o, col.ANSWERS] -= n
    return op[o, col.ANSWERS] == 0


@block
def _share_take(queue, n, points):
    """A queue takes n slots (below 0: gives them back)."""
    if points is not None and len(points.shares) > 0 and points.share_of[queue] >= 0:
        points.shares[points.share_of[queue], col.SHARE_HELD] += n


@block
def compute_end(p, now, ops, slots, issue, clock):
    """COMPUTE_END: the earliest batch of pool p has finished its tasks. Returns the op if that was its last batch, else -1."""
    op, ot = ops.op, ops.ot
    pools, pool_keys, pool_ids, x = slots.pools, slots.pool_keys, slots.pool_ids, clock.x
    base = pools[p, col.POOL_BASE]
    batch = pool_ids[base]
    heap_pop(pool_keys, pool_ids, base, pools[p, col.POOL_SIZE])
    pools[p, col.POOL_SIZE] -= 1
    tree_set(clock.tree, p, pool_keys[base] if pools[p, col.POOL_SIZE] > 0 else col.INF)
    o = batch >> BATCH_BITS
    n = batch & ((1 << BATCH_BITS) - 1)
    if _frees_slots(o, op, ops.points):
        pools[p, col.POOL_FREE] += n
        _share_take(op[o, col.ISSUER], -n, ops.points)
    for k in range(slots.pool_issuer_ptr[p], slots.pool_issuer_ptr[p + 1]):
        mark(issue.dirty_issuers, x, slots.pool_issuer[k])
    op[o, col.LEFT] -= n
    x[col.RUN_EVENTS] += 1
    done = -1
    if op[o, col.LEFT] == 0:
        ot[o, col.END] = now
        done = o
    return done


@block
def _frees_slots(o, op, points):
    """Whether the slots of op o are free when its tasks end. A chain keeps its slot."""
    if points is not None:
        return op[o, col.FLAGS] & col.HAS_CHAIN == 0
    return True


@block
def _issuer_queue(i, issue):
    """The queue from which issuer i takes its next op: of a round-robin issuer the first one with a ready op after the last served, else i."""
    issuers = issue.issuers
    if issuers[i, col.ISSUER_DISCIPLINE] == ROUND_ROBIN:
        first = issuers[i, col.ISSUER_NEXT]
        n = issuers[i, col.ISSUER_END] - first
        for k in range(1, n + 1):
            queue = first + (issuers[i, col.ISSUER_SEQ] + k) % n
            if issuers[queue, col.ISSUER_SIZE] > 0:
                return queue
    return i


@block
def _skip(i, issuers, issuer_ops, op, points):
    """Ops at the head of the program order that are cancelled, or have passed the queue, lose their place."""
    if points is not None:
        gone = col.CANCELLED // 2
        while issuers[i, col.ISSUER_NEXT] < issuers[i, col.ISSUER_END] and op[issuer_ops[issuers[i, col.ISSUER_NEXT]], col.DEPS] >= gone:
            issuers[i, col.ISSUER_NEXT] += 1


@block
def issuer_head(i, issue, ops):
    """The op issuer i would take next, -1 if none is ready."""
    issuers, issuer_ops = issue.issuers, issue.issuer_ops
    if issuers[i, col.ISSUER_DISCIPLINE] == PROGRAM_ORDER:
        _skip(i, issuers, issuer_ops, ops.op, ops.points)
        at = issuers[i, col.ISSUER_NEXT]
        if at < issuers[i, col.ISSUER_END] and ops.ot[issuer_ops[at], col.READY] >= 0:
            return issuer_ops[at]
        return -1
    queue = _issuer_queue(i, issue)
    if issuers[queue, col.ISSUER_SIZE] > 0:
        return issue.heap_ids[issuers[queue, col.ISSUER_NEXT]]
    return -1


@block
def issuer_drop(i, issue):
    """The head of issuer i has gone."""
    issuers = issue.issuers
    if issuers[i, col.ISSUER_DISCIPLINE] == PROGRAM_ORDER:
        issuers[i, col.ISSUER_NEXT] += 1
    else:
        queue = _issuer_queue(i, issue)
        heap_pop(issue.heap_keys, issue.heap_ids, issuers[queue, col.ISSUER_NEXT], issuers[queue, col.ISSUER_SIZE])
        issuers[queue, col.ISSUER_SIZE] -= 1
        if queue != i:
            issuers[i, col.ISSUER_SEQ] = queue - issuers[i, col.ISSUER_NEXT]


@block
def rests(i, x, points):
    """Whether issuer i is paced and its next op may not go yet."""
    if points is not None:
        return len(points.pace) > 0 and x[col.RUN_NOW] < points.pace[i, col.PACE_NEXT]
    return False


@block
def op_issue(o, ops, holds, issue, x):
    """Op o is issued now, if its semaphores have room. Returns whether they had."""
    if ops.op[o, col.FLAGS] & col.HAS_HOLDS and not _holds_take(o, holds):
        return False
    ops.ot[o, col.ISSUE] = x[col.RUN_NOW]
    issued(o, ops, issue, x, ops.points)
    return True


@block
def issuer_take(i, ops, holds, issue, pools, x):
    """Next op that issuer i may put on the machine now (slots and semaphores permitting; the latter are taken), -1 if none.

    A gang stays at the head until its last task has a slot; any other op leaves the queue here.
    """
    if rests(i, x, ops.points):
        return -1
    o = issuer_head(i, issue, ops)
    if o < 0:
        return -1
    pool = issue.issuers[i, col.ISSUER_POOL]
    if pool >= 0 and (pools[pool, col.POOL_FREE] == 0 or share_left(i, ops.points) == 0):
        return -1
    if ops.ot[o, col.ISSUE] < 0 and not op_issue(o, ops, holds, issue, x):
        return -1
    if pool < 0:
        issuer_drop(i, issue)
    return o
