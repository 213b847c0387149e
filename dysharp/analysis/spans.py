"""Intervals of ops and of the rows that they send, by group, merged while they are read (`analysis.waiting`).

A Program has millions of intervals, and their unions have thousands. One pass over the ops in order of their start merges most of the
intervals, so that few have to be sorted.
"""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from dysharp.engine.kernel import block, kernel

Array = NDArray[Any]


class Columns(NamedTuple):
    """What the pass reads: times in ps.

    `operator`, `counted`, `pushed`: [n_templates]. `hops`, `ack`: [n_templates], latencies of a push on its way, and of its acknowledgement.
    `template`, `node`: [n_ops]. `member_ptr`: [n_ops + 1]. `member_node`, `member`: [n_members]. `ready`: [n_ops] of `ready_in_turn`.
    `start`, `end`, `done`: [n_ops] of the Trace.
    """

    operator: Array
    counted: Array
    pushed: Array
    hops: Array
    ack: Array
    template: Array
    node: Array
    member_ptr: Array
    member_node: Array
    member: Array
    ready: Array
    start: Array
    end: Array
    done: Array


class Unions(NamedTuple):
    """Intervals of groups. `last`: [n_groups, 2, 2] int64, (start, end) of two intervals that grow, end -1 = none.

    `group`: [n] int32. `times`: [n, 2] int64, start and end of intervals that no longer grow. `written`: [1] int64, how many of them.
    """

    last: Array
    group: Array
    times: Array
    written: Array


@block
def _union_keep(unions, g, start, end):
    """Write down an interval of group g."""
    n = unions.written[0]
    unions.group[n] = g
    unions.times[n, 0] = start
    unions.times[n, 1] = end
    unions.written[0] = n + 1


@block
def _union_add(unions, g, which, start, end):
    """Add [start, end] to group g: into one of its intervals that grow where they touch, else in its place."""
    end = max(start, end)
    low = unions.last[g, which, 0]
    high = unions.last[g, which, 1]
    if high >= 0 and start <= high and end >= low:
        start = min(start, low)
        end = max(end, high)
    elif high >= 0:
        _union_keep(unions, g, low, high)
    unions.last[g, which, 0] = start
    unions.last[g, which, 1] = end


@block
def _union_close(unions):
    """Write down the intervals that grew."""
    last = unions.last
    for g in range(last.shape[0]):
        for which in range(2):
            if last[g, which, 1] >= 0:
                _union_keep(unions, g, last[g, which, 0], last[g, which, 1])


@block
def _moving_add(moving, g, start, leaves, lands, done):
    """A train moves from its start until it leaves the up link, and again from the end of its queue in the switch."""
    if lands > leaves:
        _union_add(moving, g, 0, start, leaves)
        _union_add(moving, g, 1, lands, done)
    else:
        _union_add(moving, g, 0, start, done)


@kernel
def ready_in_turn(issuer, in_order, ready, latest, out):
    """out [n_ops]: `ready`; of an op in program order not before the ops in front of it. `latest`: [n_issuers] int64, all -1."""
    for o in range(len(issuer)):
        since = ready[o]
        i = issuer[o]
        if i >= 0 and in_order[i]:
            since = max(since, latest[i])
            latest[i] = since
        out[o] = since


@kernel
def spans_read(columns, order, n_operators, present, moving):
    """The intervals in which an operator waits or moves on a node (`present`), and in which it moves (`moving`).

    Group: node * n_operators + operator. `order`: [n_ops] ids of ops. A push leaves its up link at `end`. What its way takes beyond the
    fixed latencies is a queue in the switch.
    """
    operator, counted, pushed, hops, ack, template, node, ptr, member_node, member, ready, start, end, done = columns
    for at in range(len(order)):
        o = order[at]
        t = template[o]
        leaves = end[o]
        if counted[t] and start[o] >= 0:
            g = node[o] * n_operators + operator[t]
            _union_add(present, g, 0, ready[o], done[o])
            _moving_add(moving, g, start[o], leaves, max(leaves, done[o] - hops[t] - ack[t]) if pushed[t] else leaves, done[o])
        if pushed[t]:
            for k in range(ptr[o], ptr[o + 1]):
                if member_node[k] != node[o] and member[k] >= 0:
                    g = member_node[k] * n_operators + operator[t]
                    _union_add(present, g, 1, start[o], member[k])
                    _moving_add(moving, g, start[o], leaves, max(leaves, member[k] - hops[t]), member[k])
    _union_close(present)
    _union_close(moving)
