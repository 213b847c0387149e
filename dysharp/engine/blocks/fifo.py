"""Intrusive FIFOs and rings: an entry is an id, its link lives in the entry's own row, so nothing has a capacity.

A ring holds entries with a due time, pushed in time order because their delay is constant; entries of one instant are kept in
(port, id) order, the semantic key of docs/design/0001.
"""

from dysharp.engine.blocks.columns import DONE, INF, LEAF_RINGS, MEMBER_NEXT, MEMBER_NODE, MEMBER_TIME, NEXT2, NODE
from dysharp.engine.blocks.heap import tree_set
from dysharp.engine.kernel import block


@block
def fifo_push(ends, row, link, column, entry):
    """Append `entry`. ends [n, 2] (head, tail; -1 = empty), link [n_entries, k]. True if it became the head."""
    return list_push(ends, row, 0, 1, link, column, entry)


@block
def list_push(ends, row, first, last, link, column, entry):
    """As `fifo_push`, to the list whose head and tail are the columns `first` and `last` of ends[row]."""
    became_head = ends[row, first] < 0
    link[entry, column] = -1
    if became_head:
        ends[row, first] = entry
    else:
        link[ends[row, last], column] = entry
    ends[row, last] = entry
    return became_head


@block
def fifo_pop(ends, row, link, column):
    """Remove and return the head of a non-empty FIFO."""
    entry = ends[row, 0]
    ends[row, 0] = link[entry, column]
    return entry


@block
def mixed_push(ends, row, op, column, mem, entry):
    """Append to a FIFO that mixes ops (entry = op >= 0, linked in `column`) and members (entry = -2 - member)."""
    if entry >= 0:
        op[entry, column] = -1
    else:
        mem[-2 - entry, MEMBER_NEXT] = -1
    tail = ends[row, 1]
    if ends[row, 0] == -1:
        ends[row, 0] = entry
    elif tail >= 0:
        op[tail, column] = entry
    else:
        mem[-2 - tail, MEMBER_NEXT] = entry
    ends[row, 1] = entry


@block
def mixed_pop(ends, row, op, column, mem):
    """Remove and return the head of a FIFO of `mixed_push` that is not empty."""
    entry = ends[row, 0]
    ends[row, 0] = op[entry, column] if entry >= 0 else mem[-2 - entry, MEMBER_NEXT]
    return entry


@block
def precedes(a, b, due, due_column, node, node_column):
    """Whether entry a of a ring comes before entry b: by time, port, id."""
    s, t = due[a, due_column], due[b, due_column]
    if s != t:
        return s < t
    i, j = node[a, node_column], node[b, node_column]
    return i < j or (i == j and a < b)


@block
def ring_push(ends, row, link, column, due, due_column, node, node_column, entry):
    """Insert `entry`, whose due time stands in due[entry, due_column] and node in node[entry, node_column]. True if it became the head.

    ends [n, 4] int32: head, tail, the last entry that is due before the tail, and the latest entry that was put before others (-1 = none).
    An entry is placed from one of the last two: many nodes push at one instant, each a run of ids, and thousands of entries may be in the ring.
    """
    t = due[entry, due_column]
    tail = ends[row, 1]
    became_head = False
    if ends[row, 0] < 0:
        link[entry, column] = -1
        ends[row, 0] = entry
        ends[row, 1] = entry
        ends[row, 2] = -1
        ends[row, 3] = -1
        became_head = True
    elif precedes(tail, entry, due, due_column, node, node_column):
        if due[tail, due_column] < t:
            ends[row, 2] = tail
        link[entry, column] = -1
        link[tail, column] = entry
        ends[row, 1] = entry
    else:
        before = -1
        at = ends[row, 0]
        hint = ends[row, 3]
        if hint >= 0 and due[hint, due_column] == t and precedes(hint, entry, due, due_column, node, node_column):
            before = hint
            at = link[before, column]
        elif due[tail, due_column] == t and ends[row, 2] >= 0:
            before = ends[row, 2]
            at = link[before, column]
        while precedes(at, entry, due, due_column, node, node_column):
            before = at
            at = link[at, column]
        link[entry, column] = at
        if t < due[tail, due_column] and before == ends[row, 2]:
            ends[row, 2] = entry
        if before < 0:
            ends[row, 0] = entry
            became_head = True
        else:
            link[before, column] = entry
        ends[row, 3] = entry
    return became_head


@block
def ring_pop(ends, row, link, column):
    """Remove and return the head of a ring that is not empty."""
    entry = fifo_pop(ends, row, link, column)
    if entry == ends[row, 2]:
        ends[row, 2] = -1
    if entry == ends[row, 3]:
        ends[row, 3] = -1
    return entry


@block
def ring_take(leaf, ring, link, column, due, due_column, clock):
    """Remove and return the head of `ring`, which owns `leaf`; its entries are due at due[entry, due_column]."""
    entry = ring_pop(clock.rings, ring, link, column)
    head = clock.rings[ring, 0]
    tree_set(clock.tree, leaf, due[head, due_column] if head >= 0 else INF)
    return entry


@block
def op_schedule(ring, o, due, ops, clock):
    """Op o is due in `ring` at `due`."""
    ops.ot[o, DONE] = due
    if ring_push(clock.rings, ring, ops.op, NEXT2, ops.ot, DONE, ops.op, NODE, o):
        tree_set(clock.tree, clock.m[LEAF_RINGS] + ring, due)


@block
def op_due(ring, ops, clock):
    """The op that is due in `ring`, taken out."""
    return ring_take(clock.m[LEAF_RINGS] + ring, ring, ops.op, NEXT2, ops.ot, DONE, clock)


@block
def member_schedule(ring, k, due, members, clock):
    """Member k is due in `ring` at `due`."""
    members.mem_time[k, MEMBER_TIME] = due
    if ring_push(clock.rings, ring, members.mem, MEMBER_NEXT, members.mem_time, MEMBER_TIME, members.mem, MEMBER_NODE, k):
        tree_set(clock.tree, clock.m[LEAF_RINGS] + ring, due)


@block
def member_due(ring, members, clock):
    """The member that is due in `ring`, taken out."""
    return ring_take(clock.m[LEAF_RINGS] + ring, ring, members.mem, MEMBER_NEXT, members.mem_time, MEMBER_TIME, clock)
