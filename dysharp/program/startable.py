"""Ops that can never start, for the verifier: the graph of dependencies is peeled one frontier at a time.

An op is reached when all its dependencies are reached. Ops that are left at the end wait in a circle or for an event
that never happens. If the outcome depends on arrival, the peel assumes the best case:

- Tile i of a first-touch region is ready when enough rows are complete to fill tiles 0 to i.
- The first notification of a first-touch region may release the op of any of its rows.
- A JOIN that may be cancelled, or that counts announced events, counts as reached.
"""

import numpy as np

from dysharp.base import Array
from dysharp.program.builder import PUSHES
from dysharp.program.csr import chain_steps, group, runs
from dysharp.program.stuck import stuck_text
from dysharp.program.tables import Alloc, Discipline, Head, Kind, Program, Tail

EMPTY = np.zeros(0, np.int64)
OPS_BETWEEN = 5
"""Most ops between a ready tile and its notification: a GEMM, a barrier, the start and the run of a memory kernel, a GEMM."""


def _ragged(ptr: Array, ids: Array) -> Array:
    """`[sum of lengths]` indices `ptr[i] .. ptr[i + 1]` of every i in `ids`, in order."""
    first = ptr[ids]
    counts = ptr[ids + 1] - first
    total = int(counts.sum())
    if total == 0:
        return EMPTY
    if len(ids) == len(ptr) - 1:
        return np.arange(total)  # `ids` are all rows, each once; no caller needs their order
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(total)


def waits_by_kind(p: Program) -> Array | None:
    """`[n, n]` bool: whether kind i waits for kind j.

    Kinds are templates, then readiness of tiles by name of region, then notification of tiles by name of region. Kind i
    waits for kind j if one pair of their ops, rows or tiles does. None: the Program has chains, announced thresholds,
    cancelling, or edges of members or rows, which only the peel covers.
    """
    e, r = p.edges, p.regions
    if p.ops.chain is not None or p.ops.threshold is not None or len(r.name) != p.n_regions:
        return None
    from_tile = e.tail_kind == Tail.TILE_READY
    if (e.tail_kind > Tail.OP_ISSUED).sum() > from_tile.sum() or np.isin(e.head_kind, (Head.MEMBER_RESPOND, Head.JOIN_CANCEL)).any():
        return None
    names = sorted(set(r.name))
    if len(names) > 255:
        return None
    kind = np.array([names.index(name) for name in r.name], np.int64)
    n_t, n_k = len(p.templates), len(names)
    kind_of_tile = np.repeat(kind, np.diff(r.tile_ptr))
    kind_of_row = np.repeat(kind.astype(np.uint8), np.diff(r.row_ptr))
    waits = np.zeros((n_t + 2 * n_k,) * 2, bool)
    to_op, to_tile = e.head_kind == Head.OP_ISSUE, e.head_kind == Head.TILE_NOTIFY
    tail, head = np.zeros((2, len(e.tail)), np.int64)
    tail[from_tile] = n_t + kind_of_tile[e.tail[from_tile]]
    tail[~from_tile] = p.ops.template[e.tail[~from_tile]]
    head[to_op] = p.ops.template[e.head[to_op]]
    head[to_tile] = n_t + n_k + kind_of_tile[e.head[to_tile]]
    waits[head, tail] = True
    told = r.row_notify >= 0
    if told.any():
        small = p.ops.template.astype(np.min_scalar_type(n_t))  # what is read here and there fits the cache
        pairs = small[r.row_notify[told]] * np.int64(n_k) + kind_of_row[told]
        by, of = np.divmod(np.flatnonzero(np.bincount(pairs)), n_k)
        waits[by, n_t + n_k + of] = True
    _add_fills(p, waits, kind_of_row)
    _add_issue_order(p, waits)
    return waits


def _add_fills(p: Program, waits: Array, kind_of_row: Array) -> None:
    """Readiness of tiles waits for the pushes that fill their rows. Ops come in long runs of one template."""
    n_t = len(p.templates)
    starts, _ = runs(p.ops.template)
    ptr = p.members.fill_ptr[p.members.ptr[np.append(starts, p.n_ops)]]
    other_kind = np.flatnonzero(kind_of_row[1:] != kind_of_row[:-1]) + 1
    for start, first, end in zip(starts.tolist(), ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        template, rows = p.ops.template[start], p.members.fill_row[first:end]
        if len(rows) == 0 or p.templates[template].kind not in PUSHES:
            continue
        low, high = np.searchsorted(other_kind, (rows.min(), rows.max()), side="right")
        kinds = kind_of_row[rows[:1]] if low == high else np.flatnonzero(np.bincount(kind_of_row[rows]))
        waits[n_t + kinds.astype(np.int64), template] = True


def _add_issue_order(p: Program, waits: Array) -> None:
    """Templates that share a program-order issuer wait for each other, in whatever order their ops come."""
    one = np.full(len(p.issuers.node) + 1, -1, np.int32)
    one[p.ops.issuer] = p.ops.template
    other = np.flatnonzero(one[p.ops.issuer] != p.ops.template)
    other = other[p.issuers.discipline[p.ops.issuer[other]] == Discipline.PROGRAM_ORDER] if len(other) else other
    other = other[p.ops.issuer[other] >= 0]
    a, b = p.ops.template[other], one[p.ops.issuer[other]]
    waits[a, b] = waits[b, a] = True


def starts_by_kind(p: Program) -> bool:
    """Whether the kinds of `waits_by_kind` wait for each other without a circle, so that every op can start.

    False decides nothing, and the peel has to run. False is also the result if ops of one template wait for each other, if
    a program-order issuer has several templates, or if `waits_by_kind` is None.
    """
    return _glance(p, waits_by_kind(p))


def _glance(p: Program, waits: Array | None) -> bool:
    return waits is not None and _no_circle(waits) and _told_after_ready(p)


def _no_circle(waits: Array) -> bool:
    """Whether `waits` has no circle. `waits`: `[n, n]` bool, row waits for column."""
    left = np.ones(len(waits), bool)
    while left.any():
        free = left & ~(waits & left).any(axis=1)
        if not free.any():
            return False
        left &= ~free
    return True


def _told_after_ready(p: Program) -> bool:
    """Whether every notification of a first-touch tile waits for a tile, directly or over at most five ops."""
    e, r = p.edges, p.regions
    first_touch = np.repeat(r.alloc == Alloc.FIRST_TOUCH, np.diff(r.tile_ptr))
    from_tile, from_op = e.tail_kind == Tail.TILE_READY, e.tail_kind <= Tail.OP_ISSUED
    after = np.zeros(p.n_ops, bool)
    after[e.head[from_tile & (e.head_kind == Head.OP_ISSUE)]] = True
    step = from_op & (e.head_kind == Head.OP_ISSUE)
    into = e.head_kind == Head.TILE_NOTIFY
    open_tile = np.zeros(p.n_tiles, bool)
    open_tile[e.head[into]] = True
    open_tile[e.head[into & from_tile]] = False
    open_tile &= first_touch
    told = into & from_op
    for _ in range(OPS_BETWEEN):
        open_tile[e.head[told][after[e.tail[told]]]] = False
        if not open_tile.any():
            return True
        after[e.head[step][after[e.tail[step]]]] = True
    return False


class _Out:
    """Edges by tail, with heads of kind OP_ISSUE and TILE_NOTIFY. Edges to responses do not hold back ops."""

    def __init__(self, tail: Array, head_kind: Array, head: Array, n: int) -> None:
        self.empty = len(tail) == 0
        if not self.empty:
            self.ptr, order = group(tail, n)
            self.kind, self.head = head_kind[order], head[order]

    def of(self, ids: Array) -> tuple[Array, Array]:
        """Heads (ops, tiles) of the edges that leave `ids`."""
        if self.empty or len(ids) == 0:
            return EMPTY, EMPTY
        edges = _ragged(self.ptr, ids)
        kind, head = self.kind[edges], self.head[edges]
        return head[kind == Head.OP_ISSUE], head[kind == Head.TILE_NOTIFY]


class Peel:
    """Counters of dependencies that are left, and the steps that lower them."""

    def __init__(self, p: Program) -> None:
        self.p, r = p, p.regions
        kinds = np.array([t.kind for t in p.templates], np.int8)[p.ops.template]
        op_fill_ptr = p.members.fill_ptr[p.members.ptr]
        pushes = np.zeros(len(Kind), bool)
        pushes[list(PUSHES)] = True
        self.fill_ptr = op_fill_ptr
        self.fills = pushes[kinds] & (op_fill_ptr[1:] > op_fill_ptr[:-1])
        filling = np.repeat(self.fills, np.diff(op_fill_ptr))
        rows = p.members.fill_row if filling.all() else p.members.fill_row[filling]
        self.row_left = np.bincount(rows, minlength=p.n_rows)
        self.region_of_row = np.repeat(np.arange(p.n_regions, dtype=np.int32), np.diff(r.row_ptr))
        self.region_of_tile = np.repeat(np.arange(p.n_regions, dtype=np.int32), np.diff(r.tile_ptr))
        self.first_touch = r.alloc == Alloc.FIRST_TOUCH
        self.complete_rows = np.zeros(p.n_regions, np.int64)
        self.ready_tiles = np.zeros(p.n_regions, np.int64)
        self.tile_left, _ = self._tile_sizes()
        self._edges(kinds)
        self._issue_order()
        self.reached = np.zeros(p.n_ops, bool)
        self.notified = np.zeros(p.n_tiles, bool)

    def _tile_sizes(self) -> tuple[Array, Array]:
        r = self.p.regions
        index = np.arange(self.p.n_tiles) - r.tile_ptr[:-1][self.region_of_tile]
        first = index * r.tile_rows[self.region_of_tile]
        size = np.minimum(r.tile_rows[self.region_of_tile], np.diff(r.row_ptr)[self.region_of_tile] - first)
        return size, r.row_ptr[:-1][self.region_of_tile] + first

    def _edges(self, kinds: Array) -> None:
        p, e = self.p, self.p.edges
        keep = np.ones(len(e.tail), bool)
        free = np.zeros(p.n_ops, bool)
        free[e.head[e.head_kind == Head.JOIN_CANCEL]] = True
        if p.ops.threshold is not None:
            free |= (p.ops.threshold >= 0) & (kinds == Kind.JOIN)
        if free.any():
            keep = ~((e.head_kind == Head.OP_ISSUE) & free[np.where(e.head_kind == Head.OP_ISSUE, e.head, 0)])
        self.row_notify = p.regions.row_notify
        if free.any():
            self.row_notify = np.where(free[self.row_notify] & (self.row_notify >= 0), -1, self.row_notify)
        tail, head = e.tail, e.head
        from_op = keep & ((e.tail_kind == Tail.OP_DONE) | (e.tail_kind == Tail.OP_ISSUED))
        from_member = keep & (e.tail_kind == Tail.MEMBER_DELIVERED)
        if from_member.any():
            tail = tail.copy()
            tail[from_member] = np.searchsorted(p.members.ptr, tail[from_member], side="right") - 1
            from_op |= from_member
        op_tail, op_kind, op_head = tail[from_op], e.head_kind[from_op], head[from_op]
        before, after = chain_steps(p.ops.chain)
        if len(before):
            op_tail, op_head = np.append(op_tail, before), np.append(op_head, after)
            op_kind = np.append(op_kind, np.full(len(before), Head.OP_ISSUE, np.int32))
        from_tile = keep & (e.tail_kind == Tail.TILE_READY)
        from_row = keep & (e.tail_kind == Tail.ROW_COMPLETE)
        self.op_out = _Out(op_tail, op_kind, op_head, p.n_ops)
        self.tile_out = _Out(tail[from_tile], e.head_kind[from_tile], head[from_tile], p.n_tiles)
        self.row_out = _Out(tail[from_row], e.head_kind[from_row], head[from_row], p.n_rows)
        self.has_edges = np.zeros(p.n_ops, bool)
        self.has_edges[op_tail] = True
        waited = np.append(head[keep & (e.head_kind == Head.OP_ISSUE)], after)
        told = self.row_notify[self.row_notify >= 0]
        self.waits = np.bincount(waited, minlength=p.n_ops).astype(np.int32)
        if len(told):
            self.waits += np.bincount(told, minlength=p.n_ops).astype(np.int32)
        self.notify_left = np.bincount(head[keep & (e.head_kind == Head.TILE_NOTIFY)], minlength=p.n_tiles)

    def _issue_order(self) -> None:
        """Ops of program-order issuers by issuer and id, without ops of chains: their issuer does not order them."""
        p = self.p
        in_order = np.append(p.issuers.discipline == Discipline.PROGRAM_ORDER, False)
        self.ordered = in_order[p.ops.issuer]
        if p.ops.chain is not None:
            self.ordered &= p.ops.chain < 0
        ops = np.flatnonzero(self.ordered)
        self.queue_ptr, order = group(p.ops.issuer[ops], len(p.issuers.node))
        self.queue = ops[order]
        self.queue_at = self.queue_ptr[:-1].tolist()
        self.free = np.zeros(p.n_ops, bool)

    # ---- one step ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Peel to the end. The first part leaves out ops that fill rows: a tile that notifies then is too early."""
        held = []
        frontier = np.flatnonzero(self.waits == 0)
        while len(frontier):
            filling = self.fills[frontier]
            held.append(frontier[filling])
            frontier = self._step(self._issuable(frontier[~filling]))
        self.too_early = self.notified & self.first_touch[self.region_of_tile]
        frontier = self._issuable(np.concatenate(held)) if held else EMPTY
        while len(frontier):
            frontier = self._issuable(self._step(frontier))

    def _issuable(self, ops: Array) -> Array:
        """Ops that can issue: `ops` (without dependencies) that are next in their issuer, and free ops behind them."""
        ordered = self.ordered[ops]
        if not ordered.any():
            return ops
        queued = ops[ordered]
        self.free[queued] = True
        parts = [ops[~ordered]]
        touched = np.flatnonzero(np.bincount(self.p.ops.issuer[queued], minlength=len(self.queue_at)))
        for issuer in touched.tolist():
            place, end = self.queue_at[issuer], int(self.queue_ptr[issuer + 1])
            chunk, start = 64, place
            while place < end:
                free = self.free[self.queue[place : min(place + chunk, end)]]
                n = len(free) if free.all() else int(free.argmin())
                place += n
                if n < len(free):
                    break
                chunk *= 2
            self.queue_at[issuer] = place
            parts.append(self.queue[start:place])
        return np.concatenate(parts)

    def _step(self, ops: Array) -> Array:
        """`ops` are done. Returns the ops whose last dependency falls with them."""
        self.reached[ops] = True
        heads, tiles = self.op_out.of(ops[self.has_edges[ops]])
        rows = self._completed(ops[self.fills[ops]])
        row_heads, row_tiles = self.row_out.of(rows)
        tile_heads, tile_tiles = self.tile_out.of(self._ready(rows))
        told = self._notified(np.concatenate((tiles, row_tiles, tile_tiles)))
        fallen = np.concatenate((heads, row_heads, tile_heads, told))
        if len(fallen) == 0:
            return EMPTY
        return _take(self.waits, fallen)

    def _completed(self, ops: Array) -> Array:
        if len(ops) == 0:
            return EMPTY
        return _take(self.row_left, self.p.members.fill_row[_ragged(self.fill_ptr, ops)])

    def _ready(self, rows: Array) -> Array:
        """Tiles that these complete rows make ready."""
        if len(rows) == 0:
            return EMPTY
        r = self.p.regions
        region = self.region_of_row[rows]
        bound = ~self.first_touch[region]
        tiles = EMPTY
        if bound.any():
            bound_rows, of_rows = rows[bound], region[bound]
            tiles = _take(self.tile_left, r.tile_ptr[of_rows] + (bound_rows - r.row_ptr[of_rows]) // r.tile_rows[of_rows])
            if bound.all():
                return tiles
        counts = np.bincount(region[~bound], minlength=self.p.n_regions)
        regions = np.flatnonzero(counts)
        self.complete_rows[regions] += counts[regions]
        complete, before = self.complete_rows[regions], self.ready_tiles[regions]
        everything = complete == r.row_ptr[regions + 1] - r.row_ptr[regions]
        now = np.where(everything, r.tile_ptr[regions + 1] - r.tile_ptr[regions], complete // r.tile_rows[regions])
        self.ready_tiles[regions] = now
        n = now - before
        ends = np.cumsum(n)
        more = np.repeat(r.tile_ptr[regions] + before - (ends - n), n) + np.arange(int(n.sum()))
        return np.concatenate((tiles, more))

    def _notified(self, tiles: Array) -> Array:
        """Ops that the notifications of tiles release. An edge to the notification of each of `tiles` falls."""
        if len(tiles) == 0:
            return EMPTY
        done = _take(self.notify_left, tiles)
        region = self.region_of_tile[done]
        firsts = self.first_touch[region]
        seen = np.zeros(self.p.n_regions, bool)
        seen[self.region_of_tile[self.notified]] = True
        self.notified[done] = True
        size, row = self._tile_sizes()
        bound = done[~firsts]
        ends = np.cumsum(size[bound])
        rows = np.repeat(row[bound] - (ends - size[bound]), size[bound]) + np.arange(int(size[bound].sum()))
        fresh = np.unique(region[firsts])
        fresh = fresh[~seen[fresh]]
        if len(fresh):
            rows = np.concatenate((rows, _ragged(self.p.regions.row_ptr, fresh)))
        told = self.row_notify[rows]
        return told[told >= 0]


def _take(left: Array, ids: Array) -> Array:
    """Lower `left` by one for each of `ids` (repeats count). Returns the distinct ids that reached zero."""
    if len(ids) * 4 > len(left):
        counts = np.bincount(ids, minlength=len(left))
        left -= counts.astype(left.dtype)
        return np.flatnonzero((counts > 0) & (left == 0))
    np.subtract.at(left, ids, 1)
    zero = np.sort(ids[left[ids] == 0])  # sorting is much faster than the hash table of np.unique
    return zero[np.append(True, zero[1:] > zero[:-1])] if len(zero) else zero


def first_that_never_starts(program: Program, waits: Array | None) -> str | None:
    """One line about the first op that can never start, or the first tile that can never notify. None: all can.

    `program`: all ids are in range. `waits`: its `waits_by_kind`. Semaphores are not checked: whether an op gives one
    back depends on times.
    """
    if program.n_ops == 0 or _glance(program, waits):
        return None
    peel = Peel(program)
    peel.run()
    if not peel.reached.all():
        return stuck_text(program, peel.reached, peel.notified)
    if peel.too_early.any():
        tile = int(peel.too_early.argmax())
        early = "found a notification that waits for none of its rows"
        return f"tile {tile}: {early}, expected its first-touch rows to be there"
    silent = (peel.notify_left > 0) & ~peel.notified
    if silent.any():
        tile = int(silent.argmax())
        left = peel.notify_left[tile]
        return f"tile {tile}: found {left} edges to its notification that never fall, expected none"
    return None
