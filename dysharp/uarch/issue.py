"""Issuers: which ready op goes next, its semaphores, its gang on SM slots or its train into the hub (oracle/issue.py)."""

from dysharp.uarch.columns import (
    ANSWERS,
    CANCELLED,
    CLS,
    COPIES,
    DEPS,
    DURATION,
    END,
    FLAGS,
    HARDWARE_CLASSES,
    HARDWARE_LOCAL,
    HARDWARE_MEMORY,
    HARDWARE_NETS,
    HAS_CHAIN,
    HAS_HOLDS,
    INF,
    IS_PULL,
    ISSUE,
    ISSUER_DISCIPLINE,
    ISSUER_END,
    ISSUER_NEXT,
    ISSUER_POOL,
    ISSUER_SEQ,
    ISSUER_SIZE,
    LEFT,
    MEMBER,
    MEMBER_NODE,
    MEMBERS_SHIFT,
    NEXT,
    NODE,
    PACE_NEXT,
    POOL_BASE,
    POOL_FREE,
    POOL_SIZE,
    READY,
    RING_LOCAL,
    RUN_EVENTS,
    RUN_NOW,
    SERVER_FREE,
    SERVER_MASK,
    START,
    TEMPLATE,
    UP,
    WIRE,
)
from dysharp.uarch.fifo import member_schedule, mixed_push
from dysharp.uarch.heap import heap_pop, heap_push
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.memory import memory_take
from dysharp.uarch.ready import PROGRAM_ORDER, ROUND_ROBIN, issued, mark
from dysharp.uarch.tree import tree_set

BATCH_BITS = 12  # a batch of n < 4096 tasks of op o is the pool heap's id o << 12 | n


@block
def holds_take(o, holds):
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


@kernel
def train_issue(o, ops, members, links, clock):
    """A transfer enters the hub: members on its own node are served there, the rest queues for the link. True if it is done at once."""
    op, ot, templates = ops.op, ops.ot, ops.templates
    mem, nodes, m, now = members.mem, links.nodes, clock.m, clock.x[RUN_NOW]
    node = op[o, NODE]
    t = op[o, TEMPLATE]
    first = op[o, MEMBER]
    last = first + (op[o, FLAGS] >> MEMBERS_SHIFT)
    n_local = 0
    for k in range(first, last):
        if mem[k, MEMBER_NODE] == node:
            n_local += 1
            member_schedule(RING_LOCAL * m[HARDWARE_NETS], k, now + m[HARDWARE_LOCAL], members, clock)
    n_remote = last - first - n_local
    op[o, COPIES] = n_remote
    op[o, ANSWERS] = n_remote
    if n_remote == 0:
        ot[o, START] = now
        ot[o, END] = now
        op[o, LEFT] = n_local
        return last == first
    op[o, LEFT] = n_local + 1 if templates[t, IS_PULL] else last - first
    c = templates[t, CLS]
    mixed_push(links.hub, node * m[HARDWARE_CLASSES] + c, op, NEXT, mem, o)
    nodes[node, UP + SERVER_MASK] |= 1 << c
    if nodes[node, UP + SERVER_FREE] <= now:
        mark(links.dirty_up, clock.x, node)
    return False


@kernel
def gang_start(o, p, ops, slots, nodes, clock):
    """Give op o the free slots of pool p that it can use. True when its last task has a slot.

    Where memory is shared, the batch ends when its bytes have gone, if that is later.
    """
    op, ot = ops.op, ops.ot
    pools, m, now = slots.pools, clock.m, clock.x[RUN_NOW]
    n = min(pools[p, POOL_FREE], op[o, ANSWERS])
    if ot[o, START] < 0:
        ot[o, START] = now
    took = ops.templates[op[o, TEMPLATE], DURATION]
    end = now + slots.durations[took, op[o, WIRE]]
    if m[HARDWARE_MEMORY] > 0 and slots.task_bytes[took, op[o, WIRE]] > 0:
        end = max(end, memory_take(nodes, op[o, NODE], n * slots.task_bytes[took, op[o, WIRE]], m, now))
    base = pools[p, POOL_BASE]
    heap_push(slots.pool_keys, slots.pool_ids, base, pools[p, POOL_SIZE], end, (o << BATCH_BITS) | n)
    pools[p, POOL_SIZE] += 1
    pools[p, POOL_FREE] -= n
    tree_set(clock.tree, p, slots.pool_keys[base])
    op[o, ANSWERS] -= n
    return op[o, ANSWERS] == 0


@block
def compute_end(p, now, ops, slots, issue, clock):
    """COMPUTE_END: the earliest batch of pool p has finished its tasks. Returns the op if that was its last batch, else -1."""
    op, ot = ops.op, ops.ot
    pools, pool_keys, pool_ids, x = slots.pools, slots.pool_keys, slots.pool_ids, clock.x
    base = pools[p, POOL_BASE]
    batch = pool_ids[base]
    heap_pop(pool_keys, pool_ids, base, pools[p, POOL_SIZE])
    pools[p, POOL_SIZE] -= 1
    tree_set(clock.tree, p, pool_keys[base] if pools[p, POOL_SIZE] > 0 else INF)
    o = batch >> BATCH_BITS
    n = batch & ((1 << BATCH_BITS) - 1)
    if frees_slots(o, op, ops.points):
        pools[p, POOL_FREE] += n
    for k in range(slots.pool_issuer_ptr[p], slots.pool_issuer_ptr[p + 1]):
        mark(issue.dirty_issuers, x, slots.pool_issuer[k])
    op[o, LEFT] -= n
    x[RUN_EVENTS] += 1
    done = -1
    if op[o, LEFT] == 0:
        ot[o, END] = now
        done = o
    return done


@block
def frees_slots(o, op, points):
    """Whether the slots of op o are free when its tasks end. A chain keeps its slot."""
    if points is not None:
        return op[o, FLAGS] & HAS_CHAIN == 0
    return True


@kernel
def issuer_queue(i, issue):
    """The queue from which issuer i takes its next op: of a round-robin issuer the first one with a ready op after the last served, else i."""
    issuers = issue.issuers
    if issuers[i, ISSUER_DISCIPLINE] == ROUND_ROBIN:
        first = issuers[i, ISSUER_NEXT]
        n = issuers[i, ISSUER_END] - first
        for k in range(1, n + 1):
            queue = first + (issuers[i, ISSUER_SEQ] + k) % n
            if issuers[queue, ISSUER_SIZE] > 0:
                return queue
    return i


@block
def skip(i, issuers, issuer_ops, op, points):
    """Ops at the head of the program order that are cancelled, or have passed the queue, lose their place."""
    if points is not None:
        while issuers[i, ISSUER_NEXT] < issuers[i, ISSUER_END] and op[issuer_ops[issuers[i, ISSUER_NEXT]], DEPS] >= CANCELLED // 2:
            issuers[i, ISSUER_NEXT] += 1


@kernel
def issuer_head(i, issue, ops):
    """The op issuer i would take next, -1 if none is ready."""
    issuers, issuer_ops = issue.issuers, issue.issuer_ops
    if issuers[i, ISSUER_DISCIPLINE] == PROGRAM_ORDER:
        skip(i, issuers, issuer_ops, ops.op, ops.points)
        at = issuers[i, ISSUER_NEXT]
        if at < issuers[i, ISSUER_END] and ops.ot[issuer_ops[at], READY] >= 0:
            return issuer_ops[at]
        return -1
    queue = issuer_queue(i, issue)
    if issuers[queue, ISSUER_SIZE] > 0:
        return issue.heap_ids[issuers[queue, ISSUER_NEXT]]
    return -1


@kernel
def issuer_drop(i, issue):
    """The head of issuer i has gone."""
    issuers = issue.issuers
    if issuers[i, ISSUER_DISCIPLINE] == PROGRAM_ORDER:
        issuers[i, ISSUER_NEXT] += 1
    else:
        queue = issuer_queue(i, issue)
        heap_pop(issue.heap_keys, issue.heap_ids, issuers[queue, ISSUER_NEXT], issuers[queue, ISSUER_SIZE])
        issuers[queue, ISSUER_SIZE] -= 1
        if queue != i:
            issuers[i, ISSUER_SEQ] = queue - issuers[i, ISSUER_NEXT]


@block
def rests(i, x, points):
    """Whether issuer i is paced and its next op may not go yet."""
    if points is not None:
        return len(points.pace) > 0 and x[RUN_NOW] < points.pace[i, PACE_NEXT]
    return False


@block
def op_issue(o, ops, holds, issue, x):
    """Op o is issued now, if its semaphores have room. Returns whether they had."""
    if ops.op[o, FLAGS] & HAS_HOLDS and not holds_take(o, holds):
        return False
    ops.ot[o, ISSUE] = x[RUN_NOW]
    issued(o, ops, issue, x, ops.points)
    return True


@kernel
def issuer_take(i, ops, holds, issue, pools, x):
    """Next op that issuer i may put on the machine now (slots and semaphores permitting; the latter are taken), -1 if none.

    A gang stays at the head until its last task has a slot; any other op leaves the queue here.
    """
    if rests(i, x, ops.points):
        return -1
    o = issuer_head(i, issue, ops)
    if o < 0:
        return -1
    pool = issue.issuers[i, ISSUER_POOL]
    if pool >= 0 and pools[pool, POOL_FREE] == 0:
        return -1
    if ops.ot[o, ISSUE] < 0 and not op_issue(o, ops, holds, issue, x):
        return -1
    if pool < 0:
        issuer_drop(i, issue)
    return o
