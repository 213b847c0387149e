"""The verifier: rules for every Program.

It checks whole columns, so that a layer of millions of ops takes a fraction of a second. It refuses certain faults
only. Faults that depend on times (semaphores that no op gives back, rows of a first-touch region in the wrong tile) are
left to the deadlock check of the run.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from dysharp.base import Array, Numbers, ProgramError
from dysharp.program.builder import PULLS, WIRED
from dysharp.program.csr import owners, starts
from dysharp.program.domains import check_domains, check_nets, train_bytes_of
from dysharp.program.meaning import check_computes, check_functions, check_reads, check_sessions, check_slices, check_slots, check_sums_of_sums
from dysharp.program.names import check_range, check_ranges, fail_where
from dysharp.program.payload import Columns, check_rows, check_traffic
from dysharp.program.schema import Nature
from dysharp.program.sections import ENTRIES, POINTERS, part_of, sizes_of
from dysharp.program.shares import check_shares
from dysharp.program.startable import first_that_never_starts, waits_by_kind
from dysharp.program.tables import Alloc, Head, Kind, Point, Program, Tail

SOME = (1, 1 << 31)  # what is at least 1, in 31 bits
MAX_PRIO = 1 << 20  # issuers order by prio and key in one 64-bit word
MAX_TASKS = 1 << 12  # a batch of a gang is one 64-bit word
MAX_CLASSES = 32  # a class is one bit of a 32-bit mask
NO_ISSUER, NO_POOL, POOL = 1, 2, 4
SINGLE = (Kind.PUT, Kind.SIGNAL, Kind.GET, Kind.PUSH_REDUCE, Kind.MERGED_LOAD)


def verify(program: Program) -> None:
    """Raise ProgramError unless `program` is legal. Its one line names the place, the value found and the one expected.

    - Ids and values of every table are in range. Ops have an issuer of their node and of a fitting kind.
    - Members, rows and bytes of every op fit its kind.
    - Every row of every region is filled with exactly its bytes.
    - Templates name functions and buffers that the schema declares.
    - Tiled regions are as many as the declared slots, in order of the slots. Rows that arrival binds have rising keys.
    - Tiled regions have as many rows as declared useful rows. Pulls read all of them once, or none.
    - NVLink joins nodes of one domain only. Other networks join any nodes.
    - Operators are declared once each, one of them is a host operator, and every template names one of them.
    - Payload bytes per operator and direction are as declared. Host operators and Programs without declared traffic
      are exempt.
    - Every COMPUTE with a function runs on a tile of a tiled region. Column ranges of a function cover every tile once.
    - A pull of what other pulls left reads on a node where such a pull left it.
    - Every op can start.
    - Every template that reads a buffer waits for one of its writers.

    Parts of a merge name ids of their own only, and each of them keeps the rules about data by itself.
    """
    _check_shapes(program)
    _check_hardware(program)
    check_nets(program)
    _check_tables(program)
    _check_operators(program)
    _check_templates(program)
    _check_who(program)
    _check_ops(program)
    _check_regions(program)
    table = Columns(program)
    _check_issuers(table)
    _check_members(table)
    check_domains(table)
    check_sessions(table)
    _check_edges(table)
    _check_holds(program)
    parts = [Columns(part_of(program, section.label)) for section in program.sections] or [table]
    for part in parts:
        check_functions(part.p)
        check_slots(part.p)
        check_computes(part)
        check_slices(part)
        check_sums_of_sums(part)
        check_rows(part)
        check_traffic(part)
    waits = waits_by_kind(program)
    stuck = first_that_never_starts(program, waits)
    if stuck:
        raise ProgramError(stuck)
    for part in parts:
        check_reads(part.p, waits_by_kind(part.p) if program.sections else waits)


# ---- tables ----------------------------------------------------------------------------------------------


def _check_ptr(ptr: Array, n: int, end: int, what: str) -> None:
    if len(ptr) != n + 1 or ptr[0] != 0 or ptr[-1] != end or (n and (ptr[1:] < ptr[:-1]).any()):
        entries = f"{len(ptr)} entries from {ptr[0]} to {ptr[-1]}" if len(ptr) else "none"
        raise ProgramError(f"{what}: found {entries}, expected {n + 1} rising entries from 0 to {end}")


def _check_shapes(p: Program) -> None:
    """Every column has an entry for each of what it is about (`sections.ENTRIES`), and pointers rise to the end of what they point into."""
    sizes = sizes_of(p)
    for name, entry in (("ops", "op"), ("members", "member"), ("regions", "region"), ("edges", "edge"), ("holds", "hold")):
        table = getattr(p, name)
        for field in fields(table):
            column, n = getattr(table, field.name), sizes[ENTRIES.get(field.name, entry)]
            if field.name in POINTERS:
                _check_ptr(column, n, sizes[POINTERS[field.name]], f"{name}.{field.name}")
            elif column is not None and field.name != "name" and len(column) != n:
                raise ProgramError(f"{name}.{field.name}: found {len(column)} entries, expected {n}")


def _check_hardware(p: Program) -> None:
    m = p.hardware
    least = {"rate": 1, "n_vcs": 1, "n_links": 1, "flit": 1}
    for name in ("rate", "lat", "ack", "notify", "responder", "local", "n_vcs", "vc_bytes", "n_links", "flit"):
        if getattr(m, name) < least.get(name, 0):
            raise ProgramError(f"hardware.{name}: found {getattr(m, name)}, expected {least.get(name, 0)} or more")
    if p.n_nodes < 1:
        raise ProgramError(f"program: found {p.n_nodes} nodes, expected 1 or more")
    if not 1 <= len(p.classes) <= MAX_CLASSES:
        raise ProgramError(f"program: found {len(p.classes)} classes, expected 1 .. {MAX_CLASSES}")


def _check_tables(p: Program) -> None:
    for table in p.tables:
        for name in ("entries", "misses", "miss_ps"):
            if getattr(table, name) < 0:
                raise ProgramError(f"table {table.name!r}: found {name} {getattr(table, name)}, expected 0 or more")
        if table.banks < 1 or table.entries % table.banks:
            raise ProgramError(f"table {table.name!r}: found {table.entries} entries in {table.banks} banks, expected as many in each")
        if table.banks > 1 and not table.allocates:
            raise ProgramError(f"table {table.name!r}: found {table.banks} banks, expected 1 where rows do not take their places")
    if sum(table.allocates for table in p.tables) > 1:
        raise ProgramError("tables: found several in which rows take their places, expected at most 1")


def _check_operators(p: Program) -> None:
    names = p.operator_names
    twice = next((name for i, name in enumerate(names) if name in names[:i]), "")
    if twice:
        raise ProgramError(f'operators: found "{twice}" twice, expected distinct names')
    blank = next((name for name in names if name.split() != [name]), None)
    if blank is not None:
        raise ProgramError(f"operators: found the name {blank!r}, expected a word without blanks")
    if not p.with_nature(Nature.HOST):
        raise ProgramError(f"operators: found {', '.join(names) or 'none'}, expected at least one whose nature is host (launches, flags, late ranks)")
    for i, t in enumerate(p.templates):
        if t.operator not in names:
            raise ProgramError(f'template {i} ({t.name}): found operator "{t.operator}", expected one that the Program declares: {", ".join(names)}')


def _check_templates(p: Program) -> None:
    for i, t in enumerate(p.templates):
        where = f"template {i} ({t.name})"
        if not -1 <= t.table < len(p.tables):
            raise ProgramError(f"{where}: found table {t.table}, expected -1 .. {len(p.tables) - 1}")
        if t.table >= 0 and p.tables[t.table].allocates and t.kind not in (Kind.PUT, Kind.MULTICAST):
            raise ProgramError(f"{where}: found a {t.kind.name} that asks table {p.tables[t.table].name!r} for new places, expected a store")
        if t.table >= 0 and t.kind is Kind.PUSH_REDUCE:
            raise ProgramError(f"{where}: found table {t.table}, expected none: a sum asks no table")
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
    node, pool = (0, p.n_nodes), len(p.pools.node)
    check_ranges(p.pools, "pool", node=node, slots=SOME)
    check_ranges(p.issuers, "issuer", node=node, pool=(-1, pool), discipline=(0, 4), interval_ps=(0, 1 << 62))
    pooled = np.flatnonzero(p.issuers.pool >= 0)
    elsewhere = p.pools.node[p.issuers.pool[pooled]] != p.issuers.node[pooled]
    fail_where(elsewhere, lambda i: f"issuer {pooled[i]}: found a pool of another node, expected one of its own")
    check_shares(p)
    check_ranges(p.semaphores, "semaphore", node=node, capacity=SOME)
    if p.chains is not None:
        check_ranges(p.chains, "chain", pool=(0, pool))
    if p.sessions is not None:
        check_ranges(p.sessions, "session", home=node, expected=SOME)
        for name in ("places", "timeout_ps"):
            if getattr(p.sessions, name) < 0:
                raise ProgramError(f"sessions: found {name} {getattr(p.sessions, name)}, expected 0 or more")


def _check_regions(p: Program) -> None:
    r = p.regions
    check_ranges(r, "region", node=(0, p.n_nodes), alloc=(0, len(Alloc)), tile_rows=SOME, row_bytes=SOME)
    check_range(r.row_notify, -1, p.n_ops, "row {i}: notified op")
    n_tiles, expected = np.diff(r.tile_ptr), -(-np.diff(r.row_ptr) // r.tile_rows)
    fail_where(n_tiles != expected, lambda i: f"region {i}: found {n_tiles[i]} tiles, expected {expected[i]}")


# ---- ops -------------------------------------------------------------------------------------------------


def _check_ops(p: Program) -> None:
    o = p.ops
    check_ranges(o, "op", template=(0, len(p.templates)), node=(0, p.n_nodes), issuer=(-1, len(p.issuers.node)), prio=(0, MAX_PRIO))
    check_ranges(o, "op", key=(-1, 1 << 31), bytes=(0, 1 << 31), wire=(-1, len(p.wires.up)))
    check_ranges(p.wires, "wire", trains=SOME)
    size, most = o.bytes, train_bytes_of(p)[p.ops.template]
    if (p.wires.trains > 1).any():
        trains = np.append(p.wires.trains, 1)[o.wire]
        size = -(-o.bytes // trains)
        _check_bulk(p, np.flatnonzero(trains > 1))
    fail_where(size > most, lambda i: f"op {i}: bytes of one train: found {size[i]}, expected 0 .. {most[i]}")
    if o.chain is not None:
        check_range(o.chain, -1, 0 if p.chains is None else len(p.chains.pool), "op {i}: chain")
    if o.offset is not None:
        _check_trains(p, o.offset)
    if len(p.issuers.node):
        wrong = (p.issuers.node[o.issuer] != o.node) & (o.issuer >= 0)
        fail_where(wrong, lambda i: f"op {i}: found issuer {o.issuer[i]} of another node, expected one of node {o.node[i]}")
    _check_tasks(p)
    if o.chain is not None:
        _check_chains(p, o.chain)


def _check_bulk(p: Program, ops: Array) -> None:
    """An op of several trains is a PUT that asks no table, is no part of a row in trains, and has one size of train."""
    o, m = p.ops, p.members
    plain = np.array([t.kind is Kind.PUT and t.table < 0 for t in p.templates])[o.template[ops]]
    plain &= p.wires.aux[o.wire[ops]] == 0
    for column, usual in ((o.chain, -1), (o.offset, 0)):
        plain &= True if column is None else column[ops] == usual
    plain &= True if o.offset is None else np.append(o.offset, 0)[ops + 1] == 0
    plain &= True if m.ext_bytes is None else np.append(m.ext_bytes, 0)[m.ptr[ops]] == 0

    def text(i: int) -> str:
        op = int(ops[i])
        found = f"{p.wires.trains[o.wire[op]]} trains of a {Kind(p.kinds()[op]).name}"
        return f"op {op} ({p.templates[o.template[op]].name}): found {found}, expected a PUT without table, chain, offset and further bytes"

    fail_where(~plain, text)


def _check_chains(p: Program, chain: Array) -> None:
    """An op of a chain is a transfer or a single task of an issuer with the chain's slots."""
    assert p.chains is not None
    ops, kinds, tasks = np.flatnonzero(chain >= 0), p.kinds(), np.array([t.tasks for t in p.templates] or [0])
    mine = kinds[ops]
    fail_where(mine == Kind.JOIN, lambda i: f"op {ops[i]}: found a JOIN in chain {chain[ops[i]]}, expected a task or a transfer")
    many = tasks[p.ops.template[ops]]
    is_task = (mine == Kind.COMPUTE) | (mine == Kind.DELAY)
    fail_where(is_task & (many != 1), lambda i: f"op {ops[i]}: found {many[i]} tasks in chain {chain[ops[i]]}, expected 1")
    pool = np.append(p.issuers.pool, -1)[p.ops.issuer[ops]]
    expected = p.chains.pool[chain[ops]]
    fail_where(pool != expected, lambda i: f"op {ops[i]}: found an issuer of pool {pool[i]}, expected pool {expected[i]} of chain {chain[ops[i]]}")


def _check_trains(p: Program, offset: Array) -> None:
    """A train that begins inside its row follows the op with the bytes before it: same template, node, key and members."""
    o, alone = p.ops, offset > 0
    check_range(offset, 0, 1 << 31, "op {i}: offset")
    first = int(alone.argmax()) if alone.any() else -1
    follows = offset[:-1] + o.bytes[:-1] == offset[1:]
    for column in (o.template, o.node, o.key, np.diff(p.members.ptr)):
        follows &= column[:-1] == column[1:]
    alone[1:] &= ~follows
    fail_where(alone, lambda i: f"op {i}: found a train from byte {offset[i]} of its row on, expected the bytes up to there in the op before it")
    if p.row_trains < 2 and first >= 0:
        raise ProgramError(f"row_trains: found {p.row_trains} with op {first} as a further train of its row, expected at least 2")


def _check_issuers(c: Columns) -> None:
    """Tasks have an issuer with a pool, transfers one without (or any, with chains), JOINs any issuer or none."""
    p = c.p
    free = NO_POOL | POOL if p.chains is not None else NO_POOL
    allowed = {Kind.COMPUTE: POOL, Kind.DELAY: POOL, Kind.JOIN: NO_ISSUER | NO_POOL | POOL}
    may = c.by_template(np.array([allowed.get(t.kind, free) for t in p.templates], np.uint8))
    what = np.append(np.where(p.issuers.pool >= 0, POOL, NO_POOL), NO_ISSUER).astype(np.uint8)
    has = what[p.ops.issuer]

    def text(o: int) -> str:
        where = f"op {o} ({p.templates[p.ops.template[o]].name})"
        if has[o] == NO_ISSUER:
            return f"{where}: found no issuer, expected one on its node"
        if has[o] == NO_POOL:
            return f"{where}: found an issuer without a pool, expected one with slots"
        return f"{where}: found an issuer of a pool, expected one without (or a chain)"

    fail_where(may & has == 0, text)


def _check_tasks(p: Program) -> None:
    """Every (template, rows) in use has a duration of at least 1 ps."""
    for i, t in enumerate(p.templates):
        if t.kind in (Kind.COMPUTE, Kind.DELAY):
            _check_durations(p, t.name, np.flatnonzero(p.ops.template == i), p.durations[t.duration])
    if p.task_bytes.shape != p.durations.shape:
        raise ProgramError(f"task_bytes: found shape {p.task_bytes.shape}, expected that of durations, {p.durations.shape}")
    if p.task_bytes.min(initial=0) < 0:
        raise ProgramError(f"task_bytes: found {p.task_bytes.min()} B, expected 0 or more")


def _check_durations(p: Program, name: str, ops: Array, took: Array) -> None:
    rows = p.ops.rows[ops]
    outside = (rows < 0) | (rows >= len(took))
    fail_where(outside, lambda k: f"op {ops[k]} ({name}): found {rows[k]} rows, expected 0 .. {len(took) - 1}")
    too_short = took[rows] < 1
    fail_where(too_short, lambda k: f"op {ops[k]} ({name}): found a task of {took[rows[k]]} ps, expected 1 or more")


def _check_members(c: Columns) -> None:
    p, m = c.p, c.p.members
    check_range(m.node, 0, p.n_nodes, "member {i}: node")
    check_range(m.fill_row, 0, p.n_rows, "fill {i}: row")
    if m.ext_bytes is not None:
        check_range(m.ext_bytes, 0, 1 << 31, "member {i}: ext_bytes")
    wired = c.is_kind(WIRED)
    fail_where(wired != (p.ops.wire >= 0), lambda o: f"{c.name(o)}: found wire {p.ops.wire[o]}, expected a row for transfers only")
    new = np.flatnonzero(starts(p.ops.wire, p.ops.bytes) & wired)  # ops come in long runs of one size
    payload, wire, sizes = np.zeros(len(p.wires.up) + 1, np.int32), p.ops.wire[new], p.ops.bytes[new]
    payload[wire] = sizes
    fail_where(
        payload[wire] != sizes,
        lambda i: f"{c.name(int(new[i]))}: found {sizes[i]} B on a wire row of {payload[wire[i]]} B, expected one size per row",
    )
    single = c.is_kind(SINGLE)
    fail_where(single & (c.per_op != 1), lambda o: f"{c.name(o)}: found {c.per_op[o]} members, expected exactly 1")
    fail_where(~wired & (c.per_op != 0), lambda o: f"{c.name(o)}: found {c.per_op[o]} members, expected none")
    if p.n_members > p.n_ops or not (single | ~wired).all():
        _check_distinct(c)
    small = np.min_scalar_type(p.n_nodes)  # what is read here and there fits the cache
    rows_of = np.repeat(p.regions.node.astype(small), np.diff(p.regions.row_ptr))
    fills = np.diff(m.fill_ptr)
    filled = m.node.astype(small) if (fills == 1).all() else np.repeat(m.node.astype(small), fills)
    fail_where(rows_of[m.fill_row] != filled, lambda f: _fill_text(c, f, rows_of))


def _fill_text(c: Columns, fill: int, rows_of: Array) -> str:
    member = int(np.searchsorted(c.p.members.fill_ptr, fill, side="right")) - 1
    row, node = c.p.members.fill_row[fill], c.p.members.node[member]
    op = c.name(int(c.owner[member]))
    return f"{op}: found row {row} of node {rows_of[row]}, expected a row of its member's node {node}"


def _check_distinct(c: Columns) -> None:
    """Members of one op are distinct nodes."""
    key = c.owner.astype(np.int64) * c.p.n_nodes + c.p.members.node
    if (key[1:] > key[:-1]).all():  # keys in rising order are distinct
        return
    order = np.argsort(key, kind="stable")
    twice = key[order[1:]] == key[order[:-1]]
    fail_where(twice, lambda i: f"{c.name(int(c.owner[order[i]]))}: found node {c.p.members.node[order[i]]} twice, expected distinct members")


# ---- edges and holds -------------------------------------------------------------------------------------


def _check_edges(c: Columns) -> None:
    p, e = c.p, c.p.edges
    check_range(e.tail_kind, 0, len(Tail), "edge {i}: tail kind")
    check_range(e.head_kind, 0, len(Head), "edge {i}: head kind")
    _check_ends(e.tail_kind, e.tail, (p.n_ops, p.n_ops, p.n_members, p.n_tiles, p.n_rows), Tail, "edge {i}: found tail")
    _check_ends(e.head_kind, e.head, (p.n_ops, p.n_members, p.n_tiles, p.n_ops), Head, "edge {i}: found head")
    cancelled = e.head[e.head_kind == Head.JOIN_CANCEL]
    fail_where(c.kinds[cancelled] != Kind.JOIN, lambda i: f"{c.name(int(cancelled[i]))}: found it cancelled, expected a JOIN")
    answering = e.head[e.head_kind == Head.MEMBER_RESPOND]
    if len(answering):
        pulls = c.is_kind(PULLS)[c.owner[answering]]
        fail_where(~pulls, lambda i: f"member {answering[i]}: found an edge to its response, expected a member of a pull")
    r, told = p.regions, p.regions.row_notify >= 0
    if not told.any():
        return
    silent = np.ones(p.n_tiles, bool)
    silent[e.head[e.head_kind == Head.TILE_NOTIFY]] = False
    region_of_tile = owners(r.tile_ptr)
    n_silent = np.bincount(region_of_tile[silent], minlength=p.n_regions)
    silent |= ((r.alloc == Alloc.FIRST_TOUCH) & (n_silent > 0))[region_of_tile]  # any tile of a first-touch region may get the row
    first = r.row_ptr[region_of_tile] + (np.arange(p.n_tiles) - r.tile_ptr[region_of_tile]) * r.tile_rows[region_of_tile]
    bad = np.flatnonzero(silent)
    bad = bad[np.logical_or.reduceat(told, first)[bad]]
    if len(bad):
        row = first[bad[0]] + int(told[first[bad[0]] :].argmax())
        raise ProgramError(f"row {row}: found an op to notify in a tile without edges to its notification, expected at least one")


def _check_ends(kind: Array, ids: Array, sizes: Numbers, enum: Any, found: str) -> None:
    """Every id of a point is below the size of its kind. "{i}" in `found` stands for the row."""
    if len(kind) == 0:
        return
    limit = np.array(sizes)[kind]
    wrong = (ids < 0) | (ids >= limit)
    fail_where(wrong, lambda i: f"{found.format(i=i)} {enum(int(kind[i])).name} {ids[i]}, expected 0 .. {limit[i] - 1}")


def _check_points(p: Program, side: str, kind: Array, ids: Array) -> None:
    check_range(kind, 0, len(Point), f"hold {{i}}: {side} point")
    _check_ends(kind, ids, (p.n_ops, p.n_ops, p.n_rows, p.n_ops), Point, f"hold {{i}}: found {side} at")


def _check_holds(p: Program) -> None:
    h = p.holds
    if len(h.sem) == 0:
        return
    check_range(h.sem, 0, len(p.semaphores.capacity), "hold {i}: semaphore")
    check_ranges(h, "hold", amount=SOME)
    _check_points(p, "acquire", h.acquire_kind, h.acquire)
    _check_points(p, "release", h.release_kind, h.release)
    at_issue = np.flatnonzero(h.acquire_kind == Point.OP_ISSUED)
    ops, sems, amounts = h.acquire[at_issue].astype(np.int64), h.sem[at_issue], h.amount[at_issue]
    if np.bincount(ops, weights=amounts).max(initial=0) <= p.semaphores.capacity[h.sem].min():
        return  # what an op holds of all semaphores together fits each of them
    _, index, inverse = np.unique(ops * len(p.semaphores.capacity) + sems, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=amounts)
    over = total > p.semaphores.capacity[sems[index]]

    def text(i: int) -> str:
        s = sems[index[i]]
        held = f"op {ops[index[i]]}: found {int(total[i])} held of {p.semaphores.name[s]}"
        return f"{held}, expected at most its capacity {p.semaphores.capacity[s]}"

    fail_where(over, text)
