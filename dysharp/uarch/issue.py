"""Issuers: which ready op goes next, its semaphores, its gang on SM slots or its train into the hub."""

from dysharp.uarch.columns import (
    ANSWERS,
    B_LINK,
    B_NODE,
    B_TIME,
    CLS,
    COPIES,
    DURATION,
    END,
    FLAGS,
    HAS_HOLDS,
    I_DISCIPLINE,
    I_END,
    I_NEXT,
    I_POOL,
    I_SIZE,
    IS_PULL,
    ISSUE,
    LEFT,
    M_LOCAL,
    M_MEMORY,
    MEMBER,
    MEMBERS_SHIFT,
    NODE,
    P_BASE,
    P_FREE,
    P_SIZE,
    READY,
    RING_LOCAL,
    S_FREE,
    S_MASK,
    START,
    TEMPLATE,
    UP,
    WIRE,
    X_NOW,
)
from dysharp.uarch.fifo import hub_push, ring_push
from dysharp.uarch.heap import heap_pop, heap_push
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.memory import memory_take
from dysharp.uarch.ready import PROGRAM_ORDER, mark
from dysharp.uarch.tree import tree_set

BATCH_BITS = 12  # a batch of n < 4096 tasks of op o is the pool heap's id o << 12 | n


@block
def holds_take(o, hold_ptr, hold_sem, hold_amount, sem_left):
    """Take all semaphores of op o, or none of them (an op may hold one semaphore several times)."""
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
def train_issue(
    o, op, ot, templates, mem, mem_time, nodes, hub, dirty_up, rings, tree, leaf_rings, m, x,
    n_classes,
):  # fmt: skip
    """A transfer enters the hub: members on its own node are served there, the rest queues for the link. True if it is done at once."""
    now = x[X_NOW]
    node = op[o, NODE]
    t = op[o, TEMPLATE]
    first = op[o, MEMBER]
    last = first + (op[o, FLAGS] >> MEMBERS_SHIFT)
    n_local = 0
    for k in range(first, last):
        if mem[k, B_NODE] == node:
            n_local += 1
            mem_time[k, B_TIME] = now + m[M_LOCAL]
            if ring_push(rings, RING_LOCAL, mem, B_LINK, mem_time, B_TIME, mem, B_NODE, k):
                tree_set(tree, leaf_rings + RING_LOCAL, mem_time[k, B_TIME])
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
    hub_push(hub, node * n_classes + c, op, mem, o)
    nodes[node, UP + S_MASK] |= 1 << c
    if nodes[node, UP + S_FREE] <= now:
        mark(dirty_up, x, node)
    return False


@kernel
def gang_start(o, p, op, ot, templates, durations, task_bytes, pools, pool_keys, pool_ids, nodes, m, tree, x):
    """Give op o the free slots of pool p that it can use. True when its last task has a slot.

    Where memory is shared, the batch ends when its bytes have gone, if that is later.
    """
    now = x[X_NOW]
    n = min(pools[p, P_FREE], op[o, ANSWERS])
    if ot[o, START] < 0:
        ot[o, START] = now
    took = templates[op[o, TEMPLATE], DURATION]
    end = now + durations[took, op[o, WIRE]]
    if m[M_MEMORY] > 0 and task_bytes[took, op[o, WIRE]] > 0:
        end = max(end, memory_take(nodes, op[o, NODE], n * task_bytes[took, op[o, WIRE]], m, now))
    base = pools[p, P_BASE]
    heap_push(pool_keys, pool_ids, base, pools[p, P_SIZE], end, (o << BATCH_BITS) | n)
    pools[p, P_SIZE] += 1
    pools[p, P_FREE] -= n
    tree_set(tree, p, pool_keys[base])
    op[o, ANSWERS] -= n
    return op[o, ANSWERS] == 0


@kernel
def issuer_head(i, issuers, issuer_ops, heap_ids, ot):
    """The op issuer i would take next, -1 if none is ready."""
    at = issuers[i, I_NEXT]
    if issuers[i, I_DISCIPLINE] == PROGRAM_ORDER:
        if at < issuers[i, I_END] and ot[issuer_ops[at], READY] >= 0:
            return issuer_ops[at]
        return -1
    if issuers[i, I_SIZE] > 0:
        return heap_ids[at]
    return -1


@kernel
def issuer_drop(i, issuers, heap_keys, heap_ids):
    """The head of issuer i has gone."""
    if issuers[i, I_DISCIPLINE] == PROGRAM_ORDER:
        issuers[i, I_NEXT] += 1
    else:
        heap_pop(heap_keys, heap_ids, issuers[i, I_NEXT], issuers[i, I_SIZE])
        issuers[i, I_SIZE] -= 1


@kernel
def issuer_take(i, issuers, issuer_ops, heap_keys, heap_ids, op, ot, pools, hold_ptr, hold_sem, hold_amount, sem_left, x):
    """Next op that issuer i may put on the machine now (slots and semaphores permitting; the latter are taken), -1 if none.

    A gang stays at the head until its last task has a slot; any other op leaves the queue here.
    """
    o = issuer_head(i, issuers, issuer_ops, heap_ids, ot)
    if o < 0:
        return -1
    pooled = issuers[i, I_POOL] >= 0
    if pooled and pools[issuers[i, I_POOL], P_FREE] == 0:
        return -1
    if ot[o, ISSUE] < 0:
        if op[o, FLAGS] & HAS_HOLDS and not holds_take(o, hold_ptr, hold_sem, hold_amount, sem_left):
            return -1
        ot[o, ISSUE] = x[X_NOW]
    if not pooled:
        issuer_drop(i, issuers, heap_keys, heap_ids)
    return o
