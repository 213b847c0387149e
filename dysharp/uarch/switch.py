"""Switch input buffers: virtual channels with credits, exposure of trains to the outputs, and the output queues."""

from dysharp.uarch.columns import (
    CLS,
    DOWN,
    FLAGS,
    HARDWARE_CLASSES,
    MEMBER,
    MEMBER_NEXT,
    MEMBER_NODE,
    MEMBERS_SHIFT,
    NEXT,
    NODE,
    RUN_NOW,
    SCRATCH,
    SERVER_FREE,
    SERVER_MASK,
    TEMPLATE,
    VC,
    WIRE,
    WIRE_UP,
)
from dysharp.uarch.fifo import fifo_push
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.ready import mark


@block
def credits_apply(row, credits, ot, op, wires, occupied, now):
    """Take due credits of (node, class) `row`: buffer space that has come back by `now`."""
    while credits[row, 0] >= 0 and ot[credits[row, 0], SCRATCH] <= now:
        o = credits[row, 0]
        credits[row, 0] = op[o, NEXT]
        occupied[row, op[o, VC]] -= wires[op[o, WIRE], WIRE_UP]


@block
def vc_choose(row, occupied, wire, vc_bytes):
    """Least occupied VC (lowest index on a tie) if the train fits or the VC is empty, else -1."""
    best = 0
    least = occupied[row, 0]
    for v in range(1, occupied.shape[1]):
        if occupied[row, v] < least:
            least = occupied[row, v]
            best = v
    if least > 0 and least + wire > vc_bytes:
        best = -1
    return best


@kernel
def train_expose(o, ops, mem, nodes, switch, clock):
    """The copies of train o ask for their outputs."""
    op, m, x = ops.op, clock.m, clock.x
    i = op[o, NODE]
    c = ops.templates[op[o, TEMPLATE], CLS]
    n_sources = nodes.shape[0] + 1
    first = op[o, MEMBER]
    for k in range(first, first + (op[o, FLAGS] >> MEMBERS_SHIFT)):
        j = mem[k, MEMBER_NODE]
        if j == i:
            continue
        at = j * m[HARDWARE_CLASSES] + c
        fifo_push(switch.out_queues, at * n_sources + i, mem, MEMBER_NEXT, k)
        switch.out_mask[at, i >> 5] |= 1 << (i & 31)
        nodes[j, DOWN + SERVER_MASK] |= 1 << c
        if nodes[j, DOWN + SERVER_FREE] <= x[RUN_NOW]:
            mark(switch.dirty_down, x, j)
