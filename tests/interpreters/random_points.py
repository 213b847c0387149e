"""Seeded random Programs with edges, holds and thresholds at points besides the ends of ops (docs/design/0002, Other points).

They are those of `random_program`, changed so that they still end: an edge is only made weaker, or comes from an op with a smaller id; a new
semaphore is waited for in program order only, behind the ops that give it back; an op is cancelled only if nothing but such ops needs it.
"""

from dataclasses import replace

import numpy as np

from dysharp.base.arrays import Array
from dysharp.program.builder import PULLS
from dysharp.program.tables import Alloc, Chains, Discipline, Edges, Head, Holds, Issuers, Kind, Point, Pools, Program, Semaphores, Tail
from tests.interpreters.random_programs import random_program

PARTS = ("chains", "issued", "delivered", "rows", "respond", "announced", "pace", "early", "by data", "cancelled")


class _Tables:
    """Columns of a Program that change, and what the changes ask."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self.p, self.rng = program, rng
        e, h = self.p.edges, self.p.holds
        self.kinds = self.p.kinds()
        self.edges = np.stack((e.tail_kind, e.tail, e.head_kind, e.head), 1)
        self.holds = np.stack((h.sem, h.amount, h.acquire_kind, h.acquire, h.release_kind, h.release), 1)
        self.semaphores = self.p.semaphores

    def some(self, among: Array, share: float) -> Array:
        """Each of `among` with the probability `share`."""
        return among[self.rng.random(len(among)) < share]

    def done_edges(self) -> Array:
        """Edges from the end of an op to the issue of an op."""
        e = self.edges
        return np.flatnonzero((e[:, 0] == Tail.OP_DONE) & (e[:, 2] == Head.OP_ISSUE))

    def tells(self) -> Array:
        """`[n_ops]` whether an op is before the notification of a tile: what it waits for may have bound the rows."""
        out = np.zeros(self.p.n_ops, bool)
        out[self.edges[(self.edges[:, 2] == Head.TILE_NOTIFY) & (self.edges[:, 0] != Tail.TILE_READY), 1]] = True
        return out

    def shared(self) -> Array:
        """`[n_ops]` ops for which others wait in the switch: contributions, and loads where the response of a load waits for an op."""
        answers = self.edges[self.edges[:, 2] == Head.MEMBER_RESPOND, 3]
        late = (self.kinds[np.searchsorted(self.p.members.ptr, answers, side="right") - 1] == Kind.MERGED_LOAD).any()
        out: Array = (self.kinds == Kind.PUSH_REDUCE) | (late & (self.kinds == Kind.MERGED_LOAD))
        return out

    def tail_ops(self) -> Array:
        """`[n_edges]` the op whose point is the tail of an edge, n_ops for tiles and rows."""
        kind, tail, n = self.edges[:, 0], self.edges[:, 1], self.p.n_ops
        owner = np.append(np.repeat(np.arange(n), np.diff(self.p.members.ptr)), n)
        of_op = (kind == Tail.OP_DONE) | (kind == Tail.OP_ISSUED)
        return np.where(of_op, tail, owner[np.where(kind == Tail.MEMBER_DELIVERED, tail, self.p.n_members)])

    def add_edges(self, tail_kind: int, tail: Array, head_kind: int, head: Array) -> None:
        new = np.stack((np.full(len(tail), tail_kind), tail, np.full(len(tail), head_kind), head), 1)
        self.edges = np.concatenate((self.edges, new.astype(self.edges.dtype)))

    def program(self) -> Program:
        e, h = (np.ascontiguousarray(a.T.astype(np.int32)) for a in (self.edges, self.holds))
        return replace(self.p, edges=Edges(*e), holds=Holds(*h), semaphores=self.semaphores)


def _chains(t: _Tables) -> None:
    """Some tasks and transfers of a node run in chains: one chain after the other, in program order.

    They share two or three slots with other tasks. One chain at a time waits on a slot, so the others can go on.
    """
    p, tasks = t.p, np.array([x.tasks for x in t.p.templates])
    single = ~np.isin(t.kinds, (Kind.JOIN, Kind.COMPUTE)) | ((t.kinds == Kind.COMPUTE) & (tasks[p.ops.template] == 1))
    single[t.holds[t.holds[:, 3] != t.holds[:, 5], 5]] = False  # what gives a window back must not wait for a slot
    single[t.shared()] = False  # nor what ops on other slots wait for
    chain, issuer = np.full(p.n_ops, -1, np.int32), p.ops.issuer.copy()
    pools: list[int] = []
    modes: list[int] = []
    first_pool, first_issuer = len(p.pools.node), len(p.issuers.node)
    for node in range(p.n_nodes):
        here = np.flatnonzero(single & (p.ops.node == node))
        ops = t.some(here, 0.3)
        issuer[ops] = first_issuer + node
        others = t.some(np.setdiff1d(here[np.isin(t.kinds[here], (Kind.COMPUTE, Kind.DELAY))], ops), 0.5)
        issuer[others] = first_issuer + p.n_nodes + node
        for part in np.split(ops, np.sort(t.rng.integers(0, len(ops) + 1, len(ops) // 2))):
            if len(part):
                chain[part] = len(pools)
                pools.append(first_pool + node)
                modes.append(int(t.rng.integers(0, 2)))
    nodes = np.arange(p.n_nodes, dtype=np.int32)
    slots = t.rng.integers(2, 4, p.n_nodes)
    twice, order = np.append(nodes, nodes), t.rng.integers(Discipline.READY_FIFO, Discipline.ROUND_ROBIN, p.n_nodes)
    q, s = p.pools, p.issuers
    t.p = replace(
        p,
        ops=replace(p.ops, chain=chain, issuer=issuer),
        chains=Chains(np.array(pools, np.int32), np.array(modes, np.int32)),
        pools=Pools(np.append(q.node, nodes), np.append(q.slots, slots).astype(q.slots.dtype), (*q.name, *(f"node[{i}].chains" for i in nodes))),
        issuers=Issuers(
            np.append(s.node, twice), np.append(s.pool, first_pool + twice), np.concatenate((s.discipline, 0 * nodes, order)).astype(np.int32),
            np.append(s.interval_ps, 0 * twice), (*s.name, *(f"node[{i}].chains" for i in nodes), *(f"node[{i}].beside" for i in nodes)),
            None if s.share is None else np.append(s.share, 0 * twice - 1),
        ),
    )  # fmt: skip


def _issued(t: _Tables) -> None:
    """Some edges fall when their tail is issued."""
    t.edges[t.some(t.done_edges(), 0.2), 0] = Tail.OP_ISSUED


def _delivered(t: _Tables) -> None:
    """Some edges fall when a member of their tail is delivered."""
    m = t.p.members.ptr
    edges = t.done_edges()
    edges = t.some(edges[m[t.edges[edges, 1] + 1] > m[t.edges[edges, 1]]], 0.3)
    tails = t.edges[edges, 1]
    t.edges[edges, 1] = t.rng.integers(m[tails], m[tails + 1])
    t.edges[edges, 0] = Tail.MEMBER_DELIVERED


def _rows(t: _Tables) -> None:
    """Some ops that wait for a tile wait for a row of its region, too, or instead where rows have their slots from the start."""
    r = t.p.regions
    edges = t.some(np.flatnonzero((t.edges[:, 0] == Tail.TILE_READY) & (t.edges[:, 2] == Head.OP_ISSUE)), 0.4)
    region = np.searchsorted(r.tile_ptr, t.edges[edges, 1], side="right") - 1
    rows = t.rng.integers(r.row_ptr[region], r.row_ptr[region + 1])
    instead = (r.alloc[region] == Alloc.PREFIX) & (t.rng.random(len(edges)) < 0.5)
    t.edges[edges[instead], 0], t.edges[edges[instead], 1] = Tail.ROW_COMPLETE, rows[instead]
    t.add_edges(Tail.ROW_COMPLETE, rows[~instead], Head.OP_ISSUE, t.edges[edges[~instead], 3])


def _respond(t: _Tables) -> None:
    """Some responses wait for an earlier op. Only pulls that hold nothing: the earlier op may want what they hold."""
    pulls = np.flatnonzero(np.isin(t.kinds, PULLS) & (t.kinds != Kind.MERGED_LOAD) & (np.diff(t.p.members.ptr) > 0))
    pulls = t.some(pulls[(pulls > 0) & ~np.isin(pulls, t.holds[:, [3, 5]])], 0.4)
    members = t.rng.integers(t.p.members.ptr[pulls], t.p.members.ptr[pulls + 1])
    t.add_edges(Tail.OP_DONE, t.rng.integers(0, pulls), Head.MEMBER_RESPOND, members)


def _announced(t: _Tables) -> None:
    """Some JOINs wait for announcements and for as many events as these say, at most for all there are."""
    n, signals = t.p.n_ops, np.flatnonzero(t.kinds == Kind.SIGNAL)
    joins = np.flatnonzero(t.kinds == Kind.JOIN)
    told = t.some(joins[~np.isin(joins, t.holds[:, 5])], 0.7)  # what gives a window back waits for nothing else
    told = told[told > signals[0]] if len(signals) else told[:0]
    t.add_edges(Tail.OP_DONE, signals[t.rng.integers(0, np.searchsorted(signals, told))], Head.OP_ISSUE, told)
    e = t.edges
    value = np.where(t.kinds == Kind.SIGNAL, t.rng.integers(0, 3, n), 0)
    source = t.tail_ops()
    to_op = e[:, 2] == Head.OP_ISSUE
    announces = to_op & np.append(t.kinds == Kind.SIGNAL, False)[source]
    events = np.bincount(e[to_op & ~announces, 3], minlength=n)
    events += np.bincount(t.p.regions.row_notify[t.p.regions.row_notify >= 0], minlength=n)
    told = np.bincount(e[announces, 3], weights=np.append(value, 0)[source[announces]], minlength=n).astype(np.int64)
    joins = np.flatnonzero((t.kinds == Kind.JOIN) & (events >= told) & ~t.tells())
    joins = t.some(joins, 0.7)
    threshold = np.full(n, -1, np.int32)
    threshold[joins] = t.rng.integers(0, events[joins] - told[joins] + 1)
    t.p = replace(t.p, ops=replace(t.p.ops, threshold=threshold, value=value.astype(np.int32)))


def _pace(t: _Tables) -> None:
    """Some issuers rest between two ops."""
    n = len(t.p.issuers.node)
    interval = np.where(t.rng.random(n) < 0.4, t.rng.choice((1, 700, 5000), n), 0).astype(np.int64)
    t.p = replace(t.p, issuers=replace(t.p.issuers, interval_ps=interval))


def _early(t: _Tables) -> None:
    """Some holds end when the op that gives back is issued."""
    t.holds[t.some(np.arange(len(t.holds)), 0.4), 4] = Point.OP_ISSUED


def _by_data(t: _Tables) -> None:
    """Rows and JOINs take semaphores without waiting; later transfers in program order wait until there is room."""
    joins = np.flatnonzero(t.kinds == Kind.JOIN)
    ordered = (t.p.issuers.discipline == Discipline.PROGRAM_ORDER) & (t.p.issuers.pool < 0)
    waiting = np.flatnonzero((t.p.ops.issuer >= 0) & ordered[t.p.ops.issuer] & ~t.shared())  # what it holds, others may want
    if len(joins) == 0 or len(waiting) == 0:
        return
    middle = int(t.rng.choice(joins))
    before, after = t.some(joins[joins <= middle], 0.5), t.some(waiting[waiting > middle], 0.5)
    s, first = t.semaphores, len(t.semaphores.capacity)
    t.semaphores = Semaphores(
        np.append(s.node, np.arange(t.p.n_nodes)).astype(np.int32),
        np.append(s.capacity, t.rng.integers(1, 3, t.p.n_nodes)).astype(np.int32),
        (*s.name, *(f"node[{i}].entries" for i in range(t.p.n_nodes))),
        (*s.unit, *("entries" for _ in range(t.p.n_nodes))),
    )
    points = (Point.OP_ISSUED, Point.OP_DONE)
    new = [(first + t.p.ops.node[x], 1, Point.OP_ISSUED, x, t.rng.choice(points), x) for x in after]
    for join in before:
        sem = first + t.p.ops.node[join]
        new.append((sem, 1, Point.JOIN_FIRST_EVENT, join, t.rng.choice(points), join))
        if t.p.n_rows:
            new.append((sem, 1, Point.ROW_FIRST_TOUCH, t.rng.integers(0, t.p.n_rows), t.rng.choice(points), join))
    if new:
        t.holds = np.concatenate((t.holds, np.array(new, t.holds.dtype).reshape(-1, 6)))


def _cancelled(t: _Tables) -> None:
    """Some JOINs are cancelled by an earlier op, if nothing that fills rows, notifies tiles or lets a response go depends on them."""
    n, m, e = t.p.n_ops, t.p.members, t.edges
    fills = np.diff(m.fill_ptr[m.ptr]) > 0
    needed = t.tells() | (fills & ~np.isin(t.kinds, PULLS))  # a contribution fills a row, too
    if t.p.ops.threshold is not None:
        needed |= (t.p.ops.threshold >= 0) & (t.kinds == Kind.JOIN)  # may count on every event
    source = t.tail_ops()
    needed[source[(e[:, 2] == Head.MEMBER_RESPOND) & (source < n)]] = True
    for op in range(n - 1, -1, -1):  # edges go to larger ids
        heads = e[(source == op) & (e[:, 2] == Head.OP_ISSUE), 3]
        needed[op] |= bool(needed[heads].any())
    joins = t.some(np.flatnonzero((t.kinds == Kind.JOIN) & ~needed & (np.arange(n) > 0)), 0.6)
    for _ in range(int(t.rng.integers(1, 3))):  # the last of a JOIN's cancelling edges counts
        t.add_edges(Tail.OP_DONE, t.rng.integers(0, joins), Head.JOIN_CANCEL, joins)


_CHANGES = dict(zip(PARTS, (_chains, _issued, _delivered, _rows, _respond, _announced, _pace, _early, _by_data, _cancelled), strict=True))


def random_points(seed: int, *, size: str = "tiny", parts: tuple[str, ...] = ()) -> Program:
    """A legal Program with edges, holds, thresholds and cancelling at any point, that cannot deadlock. Equal arguments give equal Programs.

    `parts`: which of PARTS it has. By default an odd seed has one of them, in turn, and an even seed each one with probability one half.
    """
    one = (PARTS[seed // 2 % len(PARTS)],) if seed % 2 else ()
    return change_points(random_program(seed, size=size), np.random.default_rng((seed, 7)), parts or one)


def change_points(program: Program, rng: np.random.Generator, parts: tuple[str, ...] = ()) -> Program:
    """`program` with `parts` of PARTS, by default each with probability one half."""
    tables = _Tables(program, rng)
    some = tuple(part for part in PARTS if rng.random() < 0.5)
    drawn = parts or some
    for part in PARTS:
        if part in drawn and not (part == "chains" and "cancelled" in drawn):  # no engine has both
            _CHANGES[part](tables)
    return tables.program()
