"""Points of a Program where something may fall, and what kernels need at them: edges, semaphores, sums, loads, chains, shares."""

import numpy as np

from dysharp.base import Array
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.state import HoldState, Links, Loads, Points, Releases
from dysharp.engine.burst.lower_bulk import bulk_state
from dysharp.program import Chaining, Discipline, Head, Kind, Point, Program, Tail, group, owners
from dysharp.program.shares import more_of

HEAD_ANNOUNCE, HEAD_EVENT = 4, 5  # of dysharp/engine/blocks/points.py


def _first_events(p: Program) -> int:
    """The number of the first of the points "a JOIN has seen its first event" (`Releases`)."""
    return 2 * p.n_ops + p.n_members + p.n_rows


def _points(p: Program, kinds: Array) -> int:
    """Points where something may fall (`Releases`): the ends of the ops alone, where a Program has nothing at the others."""
    h = p.holds
    plain = np.isin(p.edges.tail_kind, (Tail.OP_DONE, Tail.TILE_READY)).all()
    plain &= (h.release_kind == Point.OP_DONE).all() and (h.acquire_kind == Point.OP_ISSUED).all()
    plain &= not (p.edges.head_kind == Head.JOIN_CANCEL).any()  # a cancelled op passes its points, too
    return p.n_ops if plain and not (kinds[h.acquire] == Kind.JOIN).any() else _first_events(p) + p.n_ops


def heads_of(p: Program, kinds: Array) -> Array:
    """Kinds of heads as the kernels have them: edges to a JOIN with a threshold are of two kinds of their own (`engine/blocks/points.py`)."""
    e, threshold = p.edges, p.ops.threshold
    if threshold is None:
        return e.head_kind
    waits = np.append((threshold >= 0) & (kinds == Kind.JOIN), False)
    to_join = waits[np.where(e.head_kind == Head.OP_ISSUE, e.head, p.n_ops)]
    signals = np.append(kinds == Kind.SIGNAL, False)[_tail_ops(p)]
    return np.where(to_join, np.where(signals, HEAD_ANNOUNCE, HEAD_EVENT), e.head_kind).astype(np.int32)


def _tail_ops(p: Program) -> Array:
    """`[n_edges]` the op whose point is the tail of an edge, n_ops for tiles and rows."""
    e = p.edges
    owner = np.append(owners(p.members.ptr), np.int32(p.n_ops))
    member = np.where(e.tail_kind == Tail.MEMBER_DELIVERED, e.tail, p.n_members)
    of_op = (e.tail_kind == Tail.OP_DONE) | (e.tail_kind == Tail.OP_ISSUED)
    return np.where(of_op, e.tail, owner[member])


def _point_of(kind: Array, ident: Array, first: dict[int, int]) -> Array:
    """Numbers of points (`Releases`) by their kind and id; -1 for a kind that `first` lacks."""
    start = np.full(len(Tail), -(1 << 40), np.int64)
    start[list(first)] = list(first.values())
    point: Array = np.maximum(start[kind] + ident, -1)
    return point


def releases_of(p: Program, kinds: Array) -> tuple[Releases, HoldState]:
    e, h, n, points = p.edges, p.holds, p.n_ops, _points(p, kinds)
    if points == n:
        from_point, waits = e.tail_kind == Tail.OP_DONE, np.ones(len(h.sem), bool)
        tail, changed = e.tail[from_point], h.release
    else:
        row, first = 2 * n + p.n_members, _first_events(p)
        tails = _point_of(e.tail_kind, e.tail, {Tail.OP_DONE: 0, Tail.OP_ISSUED: n, Tail.MEMBER_DELIVERED: 2 * n, Tail.ROW_COMPLETE: row})
        from_point, waits = tails >= 0, h.acquire_kind == Point.OP_ISSUED
        waits[waits] = kinds[h.acquire[waits]] != Kind.JOIN
        at: dict[int, int] = {Point.OP_DONE: 0, Point.OP_ISSUED: n, Point.ROW_FIRST_TOUCH: row, Point.JOIN_FIRST_EVENT: first}
        tail, taken = tails[from_point], _point_of(h.acquire_kind, h.acquire, at)[~waits]
        changed = np.append(taken, _point_of(h.release_kind, h.release, at))
    edge_ptr, edges = group(tail, points)
    release_ptr, order = group(changed, points)
    hold_ptr, holds = group(h.acquire[waits], n)
    pairs = np.unique(h.sem[waits].astype(np.int64) << 32 | p.ops.issuer[h.acquire[waits]]) if waits.any() else np.zeros(0, np.int64)
    sem_ptr, by_sem = group((pairs >> 32).astype(np.int32), len(p.semaphores.capacity))
    return Releases(
        edge_ptr=edge_ptr,
        edge_head_kind=heads_of(p, kinds)[from_point][edges],
        edge_head=e.head[from_point][edges],
        release_ptr=release_ptr,
        release_sem=np.append(h.sem[~waits], h.sem)[order],
        release_amount=np.append(-h.amount[~waits], h.amount)[order],
        sem_issuer_ptr=sem_ptr,
        sem_issuer=(pairs & 0xFFFFFFFF).astype(np.int32)[by_sem],
    ), HoldState(hold_ptr, h.sem[waits][holds], h.amount[waits][holds], p.semaphores.capacity.astype(np.int32))


def others_of(p: Program, releases: Releases, holds: HoldState, links: Links, mem: Array, of_piece: Array) -> Points | None:
    """What a Program has besides ends of ops, or None."""
    n, passed, announced = p.n_ops, len(releases.edge_ptr) - 1 - p.n_ops, p.ops.threshold is not None
    paced = (p.issuers.interval_ps > 0).any()
    plain = passed == 0 and not paced and not announced and p.ops.chain is None and p.ops.session is None and not len(of_piece) and p.shares is None
    if plain and not (p.edges.head_kind == Head.MEMBER_RESPOND).any():
        return None
    pace = np.zeros((len(p.issuers.node) if paced else 0, 2), np.int64)
    pace[:, col.PACE_PS] = p.issuers.interval_ps[: len(pace)]
    return Points(
        passed=np.empty(passed, np.int32),
        value=p.ops.value if p.ops.value is not None else np.zeros(n if announced else 0, np.int32),
        touched=np.zeros(p.n_rows if passed else 0, np.int8),
        pace=pace,
        chains=_chains(p),
        **_sums(p, len(of_piece)),
        loads=_loads(p, mem, len(of_piece)),
        **bulk_state(p, of_piece),
        **_shares(p),
        resident=np.full((len(p.issuers.node) if p.chains is not None else 0, 2), -1, np.int32),
        releases=releases,
        holds=holds,
        links=links,
    )


def _shares(p: Program) -> dict[str, Array]:
    """The columns of `Points` for shares of pools."""
    s, own = p.shares, p.issuers.share
    if s is None or own is None:
        none = np.zeros(0, np.int32)
        return {"share_of": none, "shares": np.zeros((0, 2), np.int64), "splits": np.zeros((0, 4), np.int64), "split_of": none}
    splits = np.stack((s.split_op, s.split_share, s.split_most, more_of(s)), 1).astype(np.int64)
    split_of = np.full(p.n_ops, -1, np.int32)
    split_of[s.split_op[::-1]] = np.arange(len(splits), dtype=np.int32)[::-1]
    shares = np.stack((s.most, np.zeros_like(s.most)), 1).astype(np.int64)
    return {"share_of": own[queues_of(p)[1]].astype(np.int32), "shares": shares, "splits": splits, "split_of": split_of}


def _sums(p: Program, n_pieces: int) -> dict[str, Array]:
    """The columns of `Points` for sums in the switch."""
    if p.sessions is None or p.ops.session is None:
        none = np.zeros(0, np.int64)
        return {"sum_of": none.astype(np.int32), "sums": np.zeros((0, 5), np.int64), "places": none, **_gates(p, n_pieces)}
    sums = np.full((len(p.sessions.home), 5), -1, np.int64)
    sums[:, col.SUM_LEFT], sums[:, col.SUM_STATE], sums[:, col.SUM_TAIL] = p.sessions.expected, col.SUM_NEW, 0
    places = np.full(p.n_nodes, p.sessions.places or 1 << 40, np.int64)
    return {"sum_of": _far_sessions(p, Kind.PUSH_REDUCE, n_pieces), "sums": sums, "places": places, **_gates(p, n_pieces)}


def _gates(p: Program, n_pieces: int) -> dict[str, Array]:
    """The columns of `Points` for gates."""
    n = 0 if p.ops.gate is None or p.sessions is None else len(p.sessions.home)
    gates = np.full((n + 1, 2), -1, np.int64)
    gates[n] = 0
    own = np.zeros(0, np.int32) if p.ops.gate is None or not n else np.append(p.ops.gate, np.full(n_pieces, -1)).astype(np.int32)
    return {"gate_of": own, "gates": gates, "opening": np.zeros(2 * n, np.int64)}


def _far_sessions(p: Program, kind: Kind, n_pieces: int) -> Array:
    """`[n_ops + n_pieces]` int32 sessions of the ops of `kind` on another node than their home, -1 = none."""
    assert p.ops.session is not None
    first = np.minimum(p.members.ptr[:-1], max(0, p.n_members - 1))
    far = np.append(p.members.node, -1)[first] != p.ops.node
    own = np.where(far & (p.kinds() == kind), p.ops.session, -1)
    return np.append(own, np.full(n_pieces, -1)).astype(np.int32)


def _loads(p: Program, mem: Array, n_pieces: int) -> Loads | None:
    """Loads that merge, or None. `mem`: the records of the members."""
    if p.sessions is None or p.ops.session is None or not (p.kinds() == Kind.MERGED_LOAD).any():
        return None
    entries = load_entries(p.sessions.expected, p.n_nodes)
    return Loads(_far_sessions(p, Kind.MERGED_LOAD, n_pieces), entries, np.array([p.sessions.timeout_ps], np.int64), mem.view(np.int64))


def load_entries(expected: Array, n_lists: int) -> Array:
    """`[n + n_lists, 10]` int64 columns LOAD_*: an idle entry for each of `expected` loads, and empty lists."""
    entries = np.zeros((len(expected) + n_lists, 10), np.int64)
    entries[: len(expected), col.LOAD_EXPECTED] = expected
    lists = np.arange(len(expected), len(entries))
    entries[lists, col.LOAD_PREV] = entries[lists, col.LOAD_NEXT] = lists
    return entries


def _falls(releases: Releases, first: int, n: int) -> Array:
    """`[n]` edges and changes of semaphores at the points from `first` on."""
    part = slice(first, first + n + 1)
    out: Array = np.diff(releases.edge_ptr[part]) + np.diff(releases.release_ptr[part])
    return out


def queues_of(p: Program) -> tuple[Array, Array]:
    """(queue of each op, issuer of each queue). A round-robin issuer has a queue per destination, behind all issuers."""
    n, queue = len(p.issuers.node), p.ops.issuer.copy()
    turns = p.issuers.discipline == Discipline.ROUND_ROBIN
    if not turns.any():
        return queue, np.arange(n)
    mine = np.flatnonzero((queue >= 0) & turns[queue])
    first = p.members.ptr[mine]
    to = p.ops.node[mine].astype(np.int64)
    sends = p.members.ptr[mine + 1] > first
    to[sends] = p.members.node[first[sends]]
    streams, number = np.unique(queue[mine].astype(np.int64) << 32 | to, return_inverse=True)
    queue[mine] = n + number
    return queue, np.append(np.arange(n), streams >> 32)


def _chains(p: Program) -> Array:
    """`[n_chains, 4]` int32: the columns CHAIN_*."""
    if p.chains is None or p.ops.chain is None:
        return np.zeros((0, 4), np.int32)
    chains = np.zeros((len(p.chains.pool), 4), np.int32)
    chains[:, col.CHAIN_POOL], chains[:, col.CHAIN_YIELD] = p.chains.pool, p.chains.mode == Chaining.YIELD
    chains[:, col.CHAIN_LEFT] = np.bincount(p.ops.chain[p.ops.chain >= 0], minlength=len(chains))
    return chains


def point_flags(p: Program, releases: Releases) -> Array:
    """`[n_ops]` uint8 bits of FLAGS for points besides the ends of the ops."""
    n = p.n_ops
    flags = (_falls(releases, n, n) > 0) * np.uint8(col.HAS_ISSUED)
    flags |= (_falls(releases, _first_events(p), n) > 0) * np.uint8(col.HAS_FIRST_EVENT)
    flags[owners(p.members.ptr)[_falls(releases, 2 * n, p.n_members) > 0]] |= np.uint8(col.HAS_DELIVERED)
    return flags
