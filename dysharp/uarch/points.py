"""What falls when a point is passed: edges to ops, responses and tiles, announcements, and ops that never run (oracle/depend.py)."""

from dysharp.uarch.columns import (
    ANNOUNCED,
    CANCELLED,
    CANCELS,
    CHAIN_NEXT,
    DEPS,
    FLAGS,
    HAS_CHAIN,
    HAS_DELIVERED,
    HAS_EDGES,
    HAS_FIRST_EVENT,
    HAS_RELEASES,
    ISSUER,
    ISSUER_OWNER,
    MEMBER,
    MEMBER_FILL,
    MEMBER_OP,
    MEMBER_WAITS,
    MEMBERS_SHIFT,
    NEXT2,
    READY,
    RESPONSE_HELD,
    ROW_LEFT,
    ROW_POINTS,
    RUN_DONE,
    RUN_NOW,
    RUN_WORK_HEAD,
    WIRE,
    WIRE_PAYLOAD,
)
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.ready import first_event, mark, op_ready, op_release, semaphores_pass, tile_notify, work_next, work_push
from dysharp.uarch.region import row_fill
from dysharp.uarch.trains import response_out

HEAD_OP_ISSUE, HEAD_MEMBER_RESPOND, HEAD_TILE_NOTIFY, HEAD_JOIN_CANCEL, HEAD_ANNOUNCE, HEAD_EVENT = range(6)
# HEAD_ANNOUNCE, HEAD_EVENT: edges to a JOIN with a threshold, from a SIGNAL that adds to the threshold and from anything else


@block
def announce(o, signal, ops, releases, issue, x):
    """SIGNAL `signal` tells JOIN o how many further events to wait for. DEPS counts a missing announcement as more than all events."""
    op = ops.op
    if ops.ot[o, READY] < 0 and op[o, DEPS] < CANCELLED // 2:
        if op[o, FLAGS] & HAS_FIRST_EVENT:
            first_event(o, ops, releases, issue, x)
        op[o, DEPS] += releases.value[signal] - op[o, ANNOUNCED]
        if op[o, DEPS] <= 0:
            op_ready(o, signal, ops, releases, issue, x)


@block
def cancel_mark(o, rest, ops):
    """Op o never runs, unless it is ready. Puts it before `rest`, a list of such ops. Returns the head of the list."""
    op = ops.op
    if ops.ot[o, READY] >= 0 or op[o, DEPS] >= CANCELLED // 2:
        return rest
    op[o, DEPS] = CANCELLED
    op[o, NEXT2] = rest
    return o


@block
def edges_cancel(point, rest, ops, releases):
    """`cancel_mark` for every op that waits for the point. A JOIN with a threshold counts one event less."""
    for e in range(releases.edge_ptr[point], releases.edge_ptr[point + 1]):
        if releases.edge_head_kind[e] == HEAD_OP_ISSUE:
            rest = cancel_mark(releases.edge_head[e], rest, ops)
    return rest


@kernel
def op_cancel(o, ops, releases, issue, x):
    """JOIN o and what depends on it never run, unless it is ready already. Semaphores see their issue and their end."""
    op = ops.op
    n_ops = op.shape[0] - 1
    rest = cancel_mark(o, -1, ops)
    while rest >= 0:
        o = rest
        rest = op[o, NEXT2]
        x[RUN_DONE] += 1
        for h in range(releases.hold_ptr[o], releases.hold_ptr[o + 1]):
            releases.sem_left[releases.hold_sem[h]] -= releases.hold_amount[h]
        semaphores_pass(n_ops + o, releases, issue, x)
        semaphores_pass(o, releases, issue, x)
        if op[o, ISSUER] >= 0:
            mark(issue.dirty_issuers, x, issue.issuers[op[o, ISSUER], ISSUER_OWNER])  # the next one in its order may go
        rest = edges_cancel(n_ops + o, rest, ops, releases)
        rest = edges_cancel(o, rest, ops, releases)
        for k in range(op[o, MEMBER], op[o, MEMBER] + (op[o, FLAGS] >> MEMBERS_SHIFT)):
            rest = edges_cancel(2 * n_ops + k, rest, ops, releases)


@block
def member_respond(k, ops, members, links, clock):
    """One edge to the response of member k falls. It goes now if the last edge falls behind the read of the memory."""
    mem = members.mem
    mem[k, MEMBER_WAITS] -= 1
    if mem[k, MEMBER_WAITS] == RESPONSE_HELD:
        mem[k, MEMBER_WAITS] = 0
        response_out(k, clock.x[RUN_NOW], ops, mem, links, clock)


@kernel
def edge_fall(kind, head, o, ops, members, stores, releases, issue, links, clock):
    """An edge falls that is not a plain one to an op. `o`: the op that caused it."""
    if kind == HEAD_TILE_NOTIFY:
        tile_notify(head, o, ops, members.mem, stores, releases, issue, links.nodes, clock)
    elif kind == HEAD_EVENT:
        op_release(head, o, ops, releases, issue, clock.x)
    elif kind == HEAD_ANNOUNCE:
        announce(head, o, ops, releases, issue, clock.x)
    elif kind == HEAD_MEMBER_RESPOND:
        member_respond(head, ops, members, links, clock)
    else:
        ops.op[head, CANCELS] -= 1
        if ops.op[head, CANCELS] == 0:
            op_cancel(head, ops, releases, issue, clock.x)


@block
def edges_fall(point, o, ops, members, stores, releases, issue, links, clock):
    """The out-edges of the point fall, in the order of the table."""
    for e in range(releases.edge_ptr[point], releases.edge_ptr[point + 1]):
        if releases.edge_head_kind[e] == HEAD_OP_ISSUE:
            op_release(releases.edge_head[e], o, ops, releases, issue, clock.x)
        else:
            edge_fall(releases.edge_head_kind[e], releases.edge_head[e], o, ops, members, stores, releases, issue, links, clock)


@kernel
def row_touch(point, row, ops, releases, issue, x):
    """The first byte of the row takes its semaphores, full or not."""
    if releases.touched[row] == 0:
        releases.touched[row] = 1
        semaphores_pass(point, releases, issue, x)


@block
def member_fill(k, ops, members, stores, releases, issue, links, clock):
    """All bytes of member k are visible: its rows have received them, and edges of rows and tiles that are ready by it fall."""
    mem, fill_row, m, x = members.mem, members.fill_row, clock.m, clock.x
    o = mem[k, MEMBER_OP]
    n_bytes = links.wires[ops.op[o, WIRE], WIRE_PAYLOAD]
    n_ops = ops.op.shape[0] - 1
    if ops.op[o, FLAGS] & HAS_DELIVERED:
        work_push(ops, x, 2 * n_ops + k)
    for f in range(mem[k, MEMBER_FILL], mem[k + 1, MEMBER_FILL]):
        row = fill_row[f]
        point = 2 * n_ops + mem.shape[0] - 1 + row
        if m[ROW_POINTS] != 0 and n_bytes > 0:
            row_touch(point, row, ops, releases, issue, x)
        t = row_fill(row, n_bytes, stores, x)
        if m[ROW_POINTS] != 0 and n_bytes > 0 and stores.rows[row, ROW_LEFT] == 0:
            edges_fall(point, o, ops, members, stores, releases, issue, links, clock)
        if t >= 0:
            for e in range(stores.tile_edge_ptr[t], stores.tile_edge_ptr[t + 1]):
                if stores.tile_edge_kind[e] == HEAD_OP_ISSUE:
                    op_release(stores.tile_edge[e], o, ops, releases, issue, x)
                else:
                    edge_fall(stores.tile_edge_kind[e], stores.tile_edge[e], o, ops, members, stores, releases, issue, links, clock)


@kernel
def work_drain(ops, members, stores, releases, issue, links, clock):
    """Release what waits for the points in the worklist, first passed first."""
    op, x = ops.op, clock.x
    n_ops = op.shape[0] - 1
    while x[RUN_WORK_HEAD] >= 0:
        point = x[RUN_WORK_HEAD]
        x[RUN_WORK_HEAD] = work_next(ops, point)
        if point < n_ops:
            x[RUN_DONE] += 1
            flags = op[point, FLAGS]
            if flags & HAS_RELEASES:
                semaphores_pass(point, releases, issue, x)
            if flags & HAS_EDGES:
                edges_fall(point, point, ops, members, stores, releases, issue, links, clock)
            if flags & HAS_CHAIN and op[point, CHAIN_NEXT] >= 0:
                op_release(op[point, CHAIN_NEXT], point, ops, releases, issue, x)
        else:
            o = point - n_ops if point < 2 * n_ops else members.mem[point - 2 * n_ops, MEMBER_OP]
            edges_fall(point, o, ops, members, stores, releases, issue, links, clock)
