"""The verifier: what no Program may contain, whoever planned it. Whole columns at a time: a layer of millions of ops in a fraction of a second.

It refuses what is certainly wrong. Waits that depend on timing (semaphores that never come back, rows of a
first-touch region in the wrong tile) are left to the watchdog of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ProgramError
from dysharp.program.builder import PULLS, PUSHES, WIRED
from dysharp.program.startable import first_that_never_starts
from dysharp.program.tables import Alloc, Head, Kind, Point, Program, Tail

Array = NDArray[Any]
MAX_PRIO = 1 << 20  # issuers order by prio and key in one 64-bit word
MAX_TASKS = 1 << 12  # a batch of a gang is one word as well
MAX_CLASSES = 32  # one bit each
SINGLE = (Kind.PUT, Kind.SIGNAL, Kind.GET, Kind.PUSH_REDUCE, Kind.MERGED_LOAD)
SESSION_KINDS = (Kind.PUSH_REDUCE, Kind.MERGED_LOAD)


def verify(program: Program) -> None:
    """Raise ProgramError (one line: where, what was found, what was expected) unless `program` is legal.

    Checked: ids and ranges of every table; who issues what; members, rows and bytes of every op; every row of
    every region filled with exactly its bytes; in regions named "expert", as many rows as declared useful ones,
    all of them read once by the Combine or none; payload bytes per operator and direction as declared (operator
    "other" and Programs that declare no traffic excepted); no op that can never start.
    """
    _check_shapes(program)
    _check_machine(program)
    _check_templates(program)
    _check_who(program)
    _check_ops(program)
    _check_regions(program)
    table = Columns(program)
    _check_members(table)
    _check_sessions(table)
    _check_edges(table)
    _check_holds(program)
    _check_rows(table)
    _check_traffic(table)
    stuck = first_that_never_starts(program)
    if stuck:
        raise ProgramError(stuck)


class Columns:
    """Columns that several checks need, computed once."""

    def __init__(self, program: Program) -> None:
        self.p = program
        self.kinds = np.array([t.kind for t in program.templates], np.int8)[program.ops.template]
        self._is_kind: dict[tuple[Kind, ...], Array] = {}
        self.per_op: Array = np.diff(program.members.ptr)
        self.op_fill_ptr: Array = program.members.fill_ptr[program.members.ptr]

    def is_kind(self, kinds: tuple[Kind, ...]) -> Array:
        """`[n_ops]` bool."""
        if kinds not in self._is_kind:
            by_template = np.array([t.kind in kinds for t in self.p.templates], bool)
            self._is_kind[kinds] = by_template[self.p.ops.template]
        return self._is_kind[kinds]

    def name(self, op: int) -> str:
        return f"op {op} ({self.p.templates[self.p.ops.template[op]].name}, node {self.p.ops.node[op]})"

    @cached_property
    def owner(self) -> Array:
        """`[n_members]` op."""
        return np.repeat(np.arange(self.p.n_ops, dtype=np.int32), self.per_op)

    @cached_property
    def n_remote(self) -> Array:
        """`[n_ops]` members on other nodes."""
        m, node = self.p.members, self.p.ops.node
        remote = m.node != np.repeat(node, self.per_op)
        total = np.zeros(self.p.n_members + 1, np.int32)
        np.cumsum(remote, out=total[1:])
        counts: Array = np.diff(total[m.ptr])
        return counts

    @cached_property
    def leads(self) -> Array:
        """`[n_ops]` False for the later members of an in-switch session: what they cause happens once."""
        leads = np.ones(self.p.n_ops, bool)
        if self.p.sessions is not None and self.p.ops.session is not None:
            ops = np.flatnonzero((self.p.ops.session >= 0) & (self.n_remote > 0))
            session = self.p.ops.session[ops]
            order = np.argsort(session, kind="stable")
            size = np.bincount(session, minlength=len(self.p.sessions.home))
            rank = np.arange(len(ops)) - np.repeat(np.cumsum(size) - size, size)
            leads[ops[order]] = rank % self.p.sessions.expected[session[order]] == 0
        return leads


def _fail_where(bad: Array, message: Callable[[int], str]) -> None:
    """Raise for the first True of `bad`."""
    if bad.any():
        raise ProgramError(message(int(bad.argmax())))


def _check_range(column: Array, low: int, high: int, what: str) -> None:
    """All of `low <= column < high`; `what` may hold "{i}" for the row."""
    if len(column) and (column.min() < low or column.max() >= high):
        i = int(((column < low) | (column >= high)).argmax())
        expected = f"{low} .. {high - 1}" if high > low else "no entries at all"
        raise ProgramError(f"{what.format(i=i)}: found {column[i]}, expected {expected}")


# ---- tables ----------------------------------------------------------------------------------------------


def _check_ptr(ptr: Array, n: int, end: int, what: str) -> None:
    if len(ptr) != n + 1 or ptr[0] != 0 or ptr[-1] != end or (n and (ptr[1:] < ptr[:-1]).any()):
        found = f"{len(ptr)} entries from {ptr[0]} to {ptr[-1]}" if len(ptr) else "none"
        raise ProgramError(f"{what}: found {found}, expected {n + 1} rising entries from 0 to {end}")


def _check_lengths(table: Any, names: tuple[str, ...], n: int, what: str) -> None:
    for name in names:
        column = getattr(table, name)
        if column is not None and len(column) != n:
            raise ProgramError(f"{what}.{name}: found {len(column)} entries, expected {n}")


def _check_shapes(p: Program) -> None:
    optional = ("chain", "session", "threshold", "value")
    _check_lengths(p.ops, ("node", "bytes", "key", "prio", "issuer", "rows", "wire", *optional), p.n_ops, "ops")
    _check_ptr(p.members.ptr, p.n_ops, p.n_members, "members.ptr")
    _check_ptr(p.members.fill_ptr, p.n_members, len(p.members.fill_row), "members.fill_ptr")
    _check_lengths(p.members, ("ext_bytes",), p.n_members, "members")
    _check_ptr(p.regions.row_ptr, p.n_regions, p.n_rows, "regions.row_ptr")
    _check_ptr(p.regions.tile_ptr, p.n_regions, p.n_tiles, "regions.tile_ptr")
    _check_lengths(p.regions, ("alloc", "tile_rows", "row_bytes"), p.n_regions, "regions")
    _check_lengths(p.regions, ("row_notify",), p.n_rows, "regions")
    _check_lengths(p.edges, ("tail_kind", "head_kind", "head"), len(p.edges.tail), "edges")
    holds = ("amount", "acquire_kind", "acquire", "release_kind", "release")
    _check_lengths(p.holds, holds, len(p.holds.sem), "holds")


def _check_machine(p: Program) -> None:
    m = p.machine
    least = {"rate": 1, "n_vcs": 1, "n_links": 1, "flit": 1, "train_bytes": 1}
    for name in ("rate", "lat", "ack", "notify", "responder", "local", "n_vcs", "vc_bytes", "n_links", "flit"):
        if getattr(m, name) < least.get(name, 0):
            raise ProgramError(f"machine.{name}: found {getattr(m, name)}, expected {least.get(name, 0)} or more")
    if p.n_nodes < 1:
        raise ProgramError(f"program: found {p.n_nodes} nodes, expected 1 or more")
    if not 1 <= len(p.classes) <= MAX_CLASSES:
        raise ProgramError(f"program: found {len(p.classes)} classes, expected 1 .. {MAX_CLASSES}")


def _check_templates(p: Program) -> None:
    for i, t in enumerate(p.templates):
        where = f"template {i} ({t.name})"
        sizes = {"cls": len(p.classes), "response_cls": len(p.classes), "framing": len(p.framings)}
        for name, n in sizes.items():
            if t.kind in WIRED and not 0 <= getattr(t, name) < n:
                raise ProgramError(f"{where}: found {name} {getattr(t, name)}, expected 0 .. {n - 1}")
        if t.kind in (Kind.COMPUTE, Kind.DELAY):
            if not 1 <= t.tasks < MAX_TASKS:
                raise ProgramError(f"{where}: found {t.tasks} tasks, expected 1 .. {MAX_TASKS - 1}")
            if not 0 <= t.duration < len(p.durations):
                raise ProgramError(f"{where}: found duration {t.duration}, expected 0 .. {len(p.durations) - 1}")


def _check_who(p: Program) -> None:
    """Issuers, pools, semaphores, chains, sessions."""
    _check_range(p.pools.node, 0, p.n_nodes, "pool {i}: node")
    _check_range(p.pools.slots, 1, 1 << 31, "pool {i}: slots")
    _check_range(p.issuers.node, 0, p.n_nodes, "issuer {i}: node")
    _check_range(p.issuers.pool, -1, len(p.pools.node), "issuer {i}: pool")
    _check_range(p.issuers.discipline, 0, 4, "issuer {i}: discipline")
    _check_range(p.issuers.interval_ps, 0, 1 << 62, "issuer {i}: interval_ps")
    pooled = np.flatnonzero(p.issuers.pool >= 0)
    elsewhere = p.pools.node[p.issuers.pool[pooled]] != p.issuers.node[pooled]
    _fail_where(elsewhere, lambda i: f"issuer {pooled[i]}: found a pool of another node, expected one of its own")
    _check_range(p.semaphores.node, 0, p.n_nodes, "semaphore {i}: node")
    _check_range(p.semaphores.capacity, 1, 1 << 31, "semaphore {i}: capacity")
    if p.chains is not None:
        _check_range(p.chains.pool, 0, len(p.pools.node), "chain {i}: pool")
    if p.sessions is not None:
        _check_range(p.sessions.home, 0, p.n_nodes, "session {i}: home")
        _check_range(p.sessions.expected, 1, 1 << 31, "session {i}: expected")


def _check_regions(p: Program) -> None:
    r = p.regions
    _check_range(r.node, 0, p.n_nodes, "region {i}: node")
    _check_range(r.alloc, 0, len(Alloc), "region {i}: alloc")
    _check_range(r.tile_rows, 1, 1 << 31, "region {i}: tile_rows")
    _check_range(r.row_bytes, 1, 1 << 31, "region {i}: row_bytes")
    _check_range(r.row_notify, -1, p.n_ops, "row {i}: notified op")
    n_tiles, expected = np.diff(r.tile_ptr), -(-np.diff(r.row_ptr) // r.tile_rows)
    _fail_where(n_tiles != expected, lambda i: f"region {i}: found {n_tiles[i]} tiles, expected {expected[i]}")


# ---- ops -------------------------------------------------------------------------------------------------


def _check_ops(p: Program) -> None:
    o = p.ops
    _check_range(o.template, 0, len(p.templates), "op {i}: template")
    _check_range(o.node, 0, p.n_nodes, "op {i}: node")
    _check_range(o.issuer, -1, len(p.issuers.node), "op {i}: issuer")
    _check_range(o.prio, 0, MAX_PRIO, "op {i}: prio")
    _check_range(o.key, -1, 1 << 31, "op {i}: key")
    _check_range(o.bytes, 0, p.machine.train_bytes + 1, "op {i}: bytes of one train")
    _check_range(o.wire, -1, len(p.wires.up), "op {i}: wire")
    if o.chain is not None:
        _check_range(o.chain, -1, 0 if p.chains is None else len(p.chains.pool), "op {i}: chain")
    # Rules per (template, issuer) pair: few pairs stand for millions of ops.
    n_issuers = len(p.issuers.node) + 1
    pair = o.template * np.int64(n_issuers) + (o.issuer + 1)
    seen = np.bincount(pair, minlength=1)
    for code in np.flatnonzero(seen).tolist():
        _check_issued_by(p, code // n_issuers, code % n_issuers - 1, lambda code=code: int((pair == code).argmax()))
    if len(p.issuers.node):
        wrong = (p.issuers.node[o.issuer] != o.node) & (o.issuer >= 0)
        _fail_where(wrong, lambda i: f"op {i}: found issuer {o.issuer[i]} of another node, expected one of node {o.node[i]}")
    _check_tasks(p)


def _check_issued_by(p: Program, template: int, issuer: int, op: Callable[[], int]) -> None:
    t = p.templates[template]
    if issuer < 0:
        if t.kind is not Kind.JOIN:
            raise ProgramError(f"op {op()} ({t.name}): found no issuer, expected one on its node")
        return
    pooled = p.issuers.pool[issuer] >= 0
    if t.kind in (Kind.COMPUTE, Kind.DELAY) and not pooled:
        raise ProgramError(f"op {op()} ({t.name}): found an issuer without a pool, expected one with slots")
    if t.kind in WIRED and pooled and p.chains is None:
        raise ProgramError(f"op {op()} ({t.name}): found an issuer of a pool, expected one without (or a chain)")


def _check_tasks(p: Program) -> None:
    """Durations exist and are at least 1 ps for every (template, rows) in use."""
    width = p.durations.shape[1]
    for i, t in enumerate(p.templates):
        if t.kind not in (Kind.COMPUTE, Kind.DELAY):
            continue
        ops = np.flatnonzero(p.ops.template == i)
        rows = p.ops.rows[ops]
        outside = (rows < 0) | (rows >= width)
        _fail_where(
            outside, lambda k: f"op {ops[k]} ({t.name}): found {rows[k]} rows, expected 0 .. {width - 1}"  # noqa: B023
        )
        took = p.durations[t.duration][rows]
        _fail_where(
            took < 1, lambda k: f"op {ops[k]} ({t.name}): found a task of {took[k]} ps, expected 1 or more"  # noqa: B023
        )


def _check_members(c: Columns) -> None:
    p, m = c.p, c.p.members
    _check_range(m.node, 0, p.n_nodes, "member {i}: node")
    _check_range(m.fill_row, 0, p.n_rows, "fill {i}: row")
    if m.ext_bytes is not None:
        _check_range(m.ext_bytes, 0, 1 << 31, "member {i}: ext_bytes")
    wired = c.is_kind(WIRED)
    _fail_where(wired != (p.ops.wire >= 0), lambda o: f"{c.name(o)}: found wire {p.ops.wire[o]}, expected a row for transfers only")
    payload = np.zeros(len(p.wires.up) + 1, np.int32)
    payload[p.ops.wire] = np.where(wired, p.ops.bytes, 0)
    _fail_where(
        wired & (payload[p.ops.wire] != p.ops.bytes),
        lambda o: f"{c.name(o)}: found {p.ops.bytes[o]} B on a wire row of {payload[p.ops.wire[o]]} B, expected one size per row",
    )
    single = c.is_kind(SINGLE)
    _fail_where(single & (c.per_op != 1), lambda o: f"{c.name(o)}: found {c.per_op[o]} members, expected exactly 1")
    _fail_where(~wired & (c.per_op != 0), lambda o: f"{c.name(o)}: found {c.per_op[o]} members, expected none")
    if p.n_members > p.n_ops or not (single | ~wired).all():
        _check_distinct(c)
    rows_of = np.repeat(p.regions.node, np.diff(p.regions.row_ptr))
    wrong = rows_of[m.fill_row] != np.repeat(m.node, np.diff(m.fill_ptr))
    _fail_where(wrong, lambda f: _fill_text(c, f, rows_of))


def _fill_text(c: Columns, fill: int, rows_of: Array) -> str:
    member = int(np.searchsorted(c.p.members.fill_ptr, fill, side="right")) - 1
    row, node = c.p.members.fill_row[fill], c.p.members.node[member]
    return f"{c.name(int(c.owner[member]))}: found row {row} of node {rows_of[row]}, expected a row of its member's node {node}"


def _check_distinct(c: Columns) -> None:
    """Members of one op are distinct nodes."""
    key = c.owner.astype(np.int64) * c.p.n_nodes + c.p.members.node
    if (key[1:] > key[:-1]).all():  # the usual order proves it
        return
    order = np.argsort(key, kind="stable")
    twice = key[order[1:]] == key[order[:-1]]
    _fail_where(
        twice,
        lambda i: f"{c.name(int(c.owner[order[i]]))}: found node {c.p.members.node[order[i]]} twice, expected distinct members",
    )


def _check_sessions(c: Columns) -> None:
    p, session = c.p, c.p.ops.session
    merging = c.is_kind(SESSION_KINDS)
    if session is None or p.sessions is None:
        _fail_where(merging, lambda o: f"{c.name(o)}: found no session, expected one")
        return
    _check_range(session, -1, len(p.sessions.home), "op {i}: session")
    _fail_where(merging != (session >= 0), lambda o: f"{c.name(o)}: found session {session[o]}, expected one for merging kinds only")
    ops = np.flatnonzero(merging)
    home, to = p.sessions.home[session[ops]], p.members.node[p.members.ptr[ops]]
    _fail_where(home != to, lambda i: f"{c.name(int(ops[i]))}: found member {to[i]}, expected the session's home {home[i]}")
    summing = c.is_kind((Kind.PUSH_REDUCE,)) & (c.n_remote > 0)
    size = np.bincount(session[summing], minlength=len(p.sessions.home))
    _fail_where(
        size % p.sessions.expected != 0,
        lambda s: f"session {s}: found {size[s]} contributions, expected a multiple of {p.sessions.expected[s]}",  # type: ignore[union-attr]
    )


# ---- edges and holds -------------------------------------------------------------------------------------


def _check_edges(c: Columns) -> None:
    p, e = c.p, c.p.edges
    _check_range(e.tail_kind, 0, len(Tail), "edge {i}: tail kind")
    _check_range(e.head_kind, 0, len(Head), "edge {i}: head kind")
    _check_ends(e.tail_kind, e.tail, (p.n_ops, p.n_ops, p.n_members, p.n_tiles, p.n_rows), Tail, "tail")
    _check_ends(e.head_kind, e.head, (p.n_ops, p.n_members, p.n_tiles, p.n_ops), Head, "head")
    cancelled = e.head[e.head_kind == Head.JOIN_CANCEL]
    _fail_where(c.kinds[cancelled] != Kind.JOIN, lambda i: f"{c.name(int(cancelled[i]))}: found it cancelled, expected a JOIN")
    answering = e.head[e.head_kind == Head.MEMBER_RESPOND]
    if len(answering):
        pulls = c.is_kind(PULLS)[c.owner[answering]]
        _fail_where(~pulls, lambda i: f"member {answering[i]}: found an edge to its response, expected a member of a pull")
    told = np.flatnonzero(p.regions.row_notify >= 0)
    if len(told) == 0:
        return
    r = p.regions
    notifies = np.zeros(p.n_tiles, bool)
    notifies[e.head[e.head_kind == Head.TILE_NOTIFY]] = True
    region = np.searchsorted(r.row_ptr, told, side="right") - 1
    tile = r.tile_ptr[region] + (told - r.row_ptr[region]) // r.tile_rows[region]
    silent = ~notifies[tile]
    if not notifies.all():  # any tile of a first-touch region may get the row
        n_silent = np.add.reduceat(np.append(~notifies, False), r.tile_ptr[:-1]) * (np.diff(r.tile_ptr) > 0)
        silent |= (r.alloc[region] == Alloc.FIRST_TOUCH) & (n_silent[region] > 0)
    _fail_where(
        silent, lambda i: f"row {told[i]}: found an op to notify in a tile without edges to its notification, expected at least one"
    )


def _check_ends(kind: Array, ids: Array, sizes: tuple[int, ...], enum: Any, side: str) -> None:
    if len(kind) == 0:
        return
    limit = np.array(sizes)[kind]
    _fail_where(
        (ids < 0) | (ids >= limit),
        lambda i: f"edge {i}: found {side} {enum(int(kind[i])).name} {ids[i]}, expected 0 .. {limit[i] - 1}",
    )


def _check_holds(p: Program) -> None:
    h = p.holds
    if len(h.sem) == 0:
        return
    _check_range(h.sem, 0, len(p.semaphores.capacity), "hold {i}: semaphore")
    _check_range(h.amount, 1, 1 << 31, "hold {i}: amount")
    for side, kind, ids in (("acquire", h.acquire_kind, h.acquire), ("release", h.release_kind, h.release)):
        _check_range(kind, 0, len(Point), f"hold {{i}}: {side} point")
        limit = np.array([p.n_ops, p.n_ops, p.n_rows, p.n_ops])[kind]
        _fail_where(
            (ids < 0) | (ids >= limit),
            lambda i: f"hold {i}: found {side} at {Point(int(kind[i])).name} {ids[i]}, expected 0 .. {limit[i] - 1}",  # noqa: B023
        )
    at_issue = np.flatnonzero(h.acquire_kind == Point.OP_ISSUED)
    ops, sems, amounts = h.acquire[at_issue].astype(np.int64), h.sem[at_issue], h.amount[at_issue]
    _, index, inverse = np.unique(ops * len(p.semaphores.capacity) + sems, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=amounts)
    over = total > p.semaphores.capacity[sems[index]]

    def text(i: int) -> str:
        s = sems[index[i]]
        found = f"op {ops[index[i]]}: found {int(total[i])} held of {p.semaphores.name[s]}"
        return f"{found}, expected at most its capacity {p.semaphores.capacity[s]}"

    _fail_where(over, text)


# ---- rows and bytes --------------------------------------------------------------------------------------


def _check_rows(c: Columns) -> None:
    p, r = c.p, c.p.regions
    per_op = np.diff(c.op_fill_ptr)
    pushed = np.where(c.is_kind(PUSHES) & c.leads, p.ops.bytes, 0)
    found = np.bincount(p.members.fill_row, weights=np.repeat(pushed, per_op), minlength=p.n_rows)
    expected = np.repeat(r.row_bytes, np.diff(r.row_ptr))
    _fail_where(
        found != expected,
        lambda i: f"row {i} of {_region_text(p, i)}: found {int(found[i])} B filled, expected exactly {expected[i]} B",
    )
    expert = np.array([name == "expert" for name in r.name], bool)
    if p.n_regions != len(expert) or not (expert.any() or p.declared.useful_rows):
        return
    useful = np.repeat(expert, np.diff(r.row_ptr))
    if useful.sum() != p.declared.useful_rows:
        raise ProgramError(f'regions "expert": found {useful.sum()} rows, expected the declared {p.declared.useful_rows} useful rows')
    combines = np.array([t.kind is Kind.PULL_REDUCE and t.operator == "combine" for t in p.templates], bool)
    if combines.any():  # a Combine that pushes says which rows it sums by what notifies it
        reads = np.bincount(p.members.fill_row, weights=np.repeat(combines[p.ops.template], per_op), minlength=p.n_rows)
        _fail_where(
            useful & (reads != reads[useful].any()),
            lambda i: f"row {i} of {_region_text(p, i)}: found {int(reads[i])} reads by the Combine, expected exactly 1",
        )


def _region_text(p: Program, row: int) -> str:
    region = int(np.searchsorted(p.regions.row_ptr, row, side="right")) - 1
    return f"region {region} (node {p.regions.node[region]})"


def moved_bytes(program: Program) -> dict[str, dict[str, int]]:
    """Payload bytes by direction ("up", "down") and operator that the ops of a legal Program put on links.

    A push goes up once if any member is remote and down once per remote member; of a pull the responses go up
    and one result comes down. What a session merges in the switch travels beyond it once.
    """
    return _moved(Columns(program))


def _moved(c: Columns) -> dict[str, dict[str, int]]:
    program = c.p
    n = len(program.templates)
    once = np.where(c.n_remote > 0, program.ops.bytes, 0)
    each = np.where(c.leads, program.ops.bytes, 0) * c.n_remote.astype(np.int64)
    # Sums stay below 2**53, where doubles are exact.
    near, far = (np.bincount(program.ops.template, weights=w, minlength=n) for w in (once, each))
    out: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    for i, t in enumerate(program.templates):
        if t.kind in WIRED:
            up, down = (far, near) if t.kind in PULLS else (near, far)
            out["up"][t.operator] = out["up"].get(t.operator, 0) + int(up[i])
            out["down"][t.operator] = out["down"].get(t.operator, 0) + int(down[i])
    return out


def _check_traffic(c: Columns) -> None:
    declared = c.p.declared.traffic
    if not declared:
        return
    for side, by_operator in _moved(c).items():
        expected = declared.get(side, {})
        for operator in sorted({*by_operator, *expected} - {"other"}):
            found, promised = by_operator.get(operator, 0), expected.get(operator, 0)
            if found != promised:
                raise ProgramError(f"traffic {side} of {operator}: found {found} B in the ops, expected the declared {promised} B")
