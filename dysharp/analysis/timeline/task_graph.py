"""A run as a graph of few tasks: ops of one operator and GPU that lie on one level become `parts` tasks, by their start.

The level of an op is the length of the longest path to it. Tasks depend on tasks of lower levels alone, so the graph has no circle.
Rows lie in the tiles where the run has bound them.
"""

import numpy as np

from dysharp.analysis.timeline.record import Recording
from dysharp.base import I64, ConfigError, Ints, frozen
from dysharp.program import PUSHES, Head, Kind, Program, Tail
from dysharp.program.csr import chain_steps, place_in, spans

Pairs = tuple[I64, I64]


@frozen
class TaskGraph:
    """Tasks in an order in which each comes after the tasks that it waits for. Columns of tasks `[n]`, of copies `[n_copies]`, of waits `[n_waits]`.

    | column | meaning |
    |---|---|
    | `template`, `node`, `part` | the template of the task's ops, the GPU that issues them, the number of the part |
    | `ops`, `busy_ps` | ops; time of their tasks on all slots of their pool |
    | `copy_task`, `copy_to`, `copy_bytes` | payload from or (of a pull) to the task's GPU, by the GPU at the other end; its own GPU included |
    | `waits`, `on`, `at` | task `waits` starts behind task `on`; `at`: behind its copy to this GPU, -1 = behind all of the task |
    """

    template: I64
    node: I64
    part: I64
    ops: I64
    busy_ps: I64
    copy_task: I64
    copy_to: I64
    copy_bytes: I64
    waits: I64
    on: I64
    at: I64


def task_graph(run: Recording, parts: int) -> TaskGraph:
    """The graph of a run. `parts`: most tasks of one operator, GPU, receiver (of copies to one GPU) or expert (of GEMMs).

    Raises ConfigError for parts below 1, and for a merge of Programs: keys of its ops belong to one part.
    """
    if run.program.sections:
        raise ConfigError("task graph: found a merge of Programs, expected one Program (keys of ops belong to one part)")
    if parts < 1:
        raise ConfigError(f"parts: found {parts}, expected at least 1")
    p = run.program
    tile = _tile_of_row(run)
    level = _levels(p, tile)
    task, part = _tasks(run, level, parts)
    n = len(part)
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    copies, cell = np.unique(task[owner] * p.n_nodes + p.members.node, return_inverse=True)
    first = np.full(n, p.n_ops)
    np.minimum.at(first, task, np.arange(p.n_ops))
    waits, on, at = _waits(p, tile, task, n)
    return TaskGraph(
        p.ops.template[first].astype(np.int64), p.ops.node[first].astype(np.int64), part, np.bincount(task, minlength=n),
        _sums(task, _busy_ps(p), n), copies // max(1, p.n_nodes), copies % max(1, p.n_nodes),
        _sums(cell, p.ops.bytes[owner].astype(np.int64), len(copies)), waits, on, at,
    )  # fmt: skip


def _sums(index: Ints, values: I64, n: int) -> I64:
    out = np.zeros(n, np.int64)
    np.add.at(out, index, values)
    return out


def _tile_of_row(run: Recording) -> I64:
    """`[n_rows]` the tile of each row; -1 = the row was bound to none."""
    r = run.program.regions
    region = np.repeat(np.arange(run.program.n_regions), np.diff(r.row_ptr))
    slot = run.trace.row_slot.astype(np.int64)
    return np.where(slot < 0, -1, r.tile_ptr[region] + slot // np.maximum(1, r.tile_rows[region]))


def _fills(p: Program, tile: I64) -> Pairs:
    """(member, tile) of each row that a push fills."""
    member = np.repeat(np.arange(p.n_members), np.diff(p.members.fill_ptr))
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    filled = tile[p.members.fill_row]
    kept = np.isin(p.kinds(), PUSHES)[owner][member] & (filled >= 0)
    return member[kept], filled[kept]


def _notices(p: Program, tile: I64) -> Pairs:
    """(tile, op that its notification releases)."""
    kept = (p.regions.row_notify >= 0) & (tile >= 0)
    return tile[kept], p.regions.row_notify[kept].astype(np.int64)


def _levels(p: Program, tile: I64) -> I64:
    """`[n_ops]` the longest path to each op, over tiles that fill and tiles that notify."""
    e, n = p.edges, p.n_ops
    owner = np.repeat(np.arange(n), np.diff(p.members.ptr))
    ready, told = n, n + p.n_tiles  # vertices: ops, tiles that are ready, tiles that notify
    tail, head = e.tail.astype(np.int64), e.head.astype(np.int64)
    begin = np.select(
        [e.tail_kind == Tail.TILE_READY, e.tail_kind == Tail.ROW_COMPLETE, e.tail_kind == Tail.MEMBER_DELIVERED],
        [tail + ready, _at(tile, tail) + ready, _at(owner, tail)],
        tail,
    )
    end = np.select([e.head_kind == Head.TILE_NOTIFY, e.head_kind == Head.MEMBER_RESPOND], [head + told, _at(owner, head)], head)
    counts = e.head_kind != Head.JOIN_CANCEL
    member, filled = _fills(p, tile)
    notifying, released = _notices(p, tile)
    steps = [(begin[counts], end[counts]), (owner[member], filled + ready), (notifying + told, released), chain_steps(p.ops.chain)]
    begin, end = (np.concatenate(side) for side in zip(*steps, strict=True))
    level = np.zeros(n + 2 * p.n_tiles, np.int64)
    while True:
        raised = level.copy()
        np.maximum.at(raised, end, level[begin] + 1)
        if (raised == level).all():
            return level[:n]
        level = raised


def _at(values: I64, index: I64) -> I64:
    """`values[index]`; 0 where the index belongs to another table."""
    return values[np.where(index < len(values), index, 0)] if len(values) else np.zeros(len(index), np.int64)


def _tasks(run: Recording, level: I64, parts: int) -> tuple[I64, I64]:
    """(`[n_ops]` the task of each op, `[n]` the part of each task). Tasks are in the order of levels."""
    p = run.program
    parts = max(1, min(parts, p.n_ops))  # more change nothing
    n_members = np.diff(p.members.ptr)
    to = np.where(n_members == 1, _at(p.members.node.astype(np.int64), p.members.ptr[:-1].astype(np.int64)), -1)
    region = np.repeat(np.arange(p.n_regions), np.diff(p.regions.tile_ptr))
    tiled = (p.ops.wire < 0) & (p.ops.key >= 0) & (p.ops.key < p.n_tiles)
    expert = np.where(tiled, _at(region, p.ops.key.astype(np.int64)), -1)
    places = ((level, 0), (p.ops.template, 0), (p.ops.node, 0), (to, 1), (expert, 1))
    key = np.zeros(p.n_ops, np.int64)
    for column, shift in places:
        key = key * (int(column.max(initial=0)) + 1 + shift) + column + shift
    _, group = np.unique(key, return_inverse=True)
    order = np.lexsort((run.trace.start, group))
    size = np.bincount(group)
    part = place_in(group, order) * np.minimum(parts, size[group]) // np.maximum(1, size[group])
    found, task = np.unique(group * parts + part, return_inverse=True)
    return task, found % parts


def _busy_ps(p: Program) -> I64:
    """`[n_ops]` time of the op's tasks on all slots of its pool; 0 for ops without a duration."""
    if not p.n_ops:
        return np.zeros(0, np.int64)
    issuer = p.ops.issuer.astype(np.int64)
    pool = np.where(issuer >= 0, _at(p.issuers.pool.astype(np.int64), issuer), -1)
    slots = np.where(pool >= 0, _at(p.pools.slots.astype(np.int64), pool), 1)
    timed = np.isin(p.kinds(), (Kind.COMPUTE, Kind.DELAY))
    ps = np.zeros(p.n_ops, np.int64)
    ps[timed] = p.work_ps(np.flatnonzero(timed))
    return -(-ps // np.maximum(1, slots))


def _waits(p: Program, tile: I64, task: I64, n: int) -> tuple[I64, I64, I64]:
    """Columns `waits`, `on`, `at` of a TaskGraph."""
    e = p.edges
    owner = np.repeat(np.arange(p.n_ops), np.diff(p.members.ptr))
    tail, head = e.tail.astype(np.int64), e.head.astype(np.int64)
    place = task[owner] * (p.n_nodes + 1) + p.members.node + 1  # a task and the receiver of a copy
    whole = task * (p.n_nodes + 1)
    at_tile = np.isin(e.tail_kind, (Tail.TILE_READY, Tail.ROW_COMPLETE))
    tile_of_tail = np.where(e.tail_kind == Tail.ROW_COMPLETE, _at(tile, tail), tail)
    behind = np.where(e.tail_kind == Tail.MEMBER_DELIVERED, _at(place, tail), _at(whole, tail))
    gated = np.where(e.head_kind == Head.MEMBER_RESPOND, _at(task[owner], head), _at(task, head))
    to_op, to_tile = np.isin(e.head_kind, (Head.OP_ISSUE, Head.MEMBER_RESPOND)), e.head_kind == Head.TILE_NOTIFY
    member, filled = _fills(p, tile)
    notifying, released = _notices(p, tile)
    before, after = chain_steps(p.ops.chain)
    found = [
        (behind[to_op & ~at_tile], gated[to_op & ~at_tile]),
        (whole[before], task[after]),
        _joined((place[member], filled), (tile_of_tail[to_op & at_tile], gated[to_op & at_tile])),
        _joined((behind[to_tile & ~at_tile], head[to_tile & ~at_tile]), (notifying, task[released])),
    ]
    on, waits = (np.concatenate(side) for side in zip(*found, strict=True))
    pairs = np.unique(waits * (n * (p.n_nodes + 1)) + on)
    on = pairs % max(1, n * (p.n_nodes + 1))
    return pairs // max(1, n * (p.n_nodes + 1)), on // (p.n_nodes + 1), on % (p.n_nodes + 1) - 1


def _joined(left: Pairs, right: Pairs) -> Pairs:
    """(a, c) for all (a, b) of `left` and (b, c) of `right`, each once or more often."""
    (b, a), (c_by_b, c) = _unique(left[1], left[0]), _unique(right[0], right[1])
    first, last = np.searchsorted(c_by_b, b, "left"), np.searchsorted(c_by_b, b, "right")
    count = last - first
    return np.repeat(a, count), c[spans(first, count)]


def _unique(first: I64, second: I64) -> Pairs:
    """`first[i], second[i]` (at least 0) without repeats, sorted by `first`, then `second`."""
    size = int(second.max(initial=0)) + 1
    pairs = np.unique(first * size + second)
    return pairs // size, pairs % size
