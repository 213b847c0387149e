"""Checks on the data of ops: declared functions, tiled regions, reads that wait for a write, sessions with equal ops."""

from operator import attrgetter

import numpy as np

from dysharp.base import Array, ProgramError
from dysharp.program.csr import spans
from dysharp.program.names import check_range, fail_where, region_name, region_of_row, region_of_tile
from dysharp.program.payload import Columns
from dysharp.program.schema import CARRIES_NOTHING
from dysharp.program.tables import ALL_COLUMNS, Alloc, ColumnRange, Kind, Program

SESSION_KINDS = (Kind.PUSH_REDUCE, Kind.MERGED_LOAD)


def check_functions(p: Program) -> None:
    """Every template does with data what the schema of the Program declares."""
    for i, t in enumerate(p.templates):
        if t.fn in CARRIES_NOTHING and (t.kind is not Kind.COMPUTE or not t.fn):
            continue
        where, function = f"template {i} ({t.name})", p.schema.function(t.fn)
        if function is None:
            known = ", ".join(one.name for one in p.schema.functions if t.kind.name in one.kinds) or "none"
            known += " (other work is a DELAY with tasks on the SM pool)" if t.kind is Kind.COMPUTE else ""
            raise ProgramError(f'{where}: found fn "{t.fn}", expected a function that the Program declares: {known}')
        for what, found, expected in (("kind", t.kind.name, function.kinds), ("src", t.src, function.reads), ("dst", t.dst, function.writes)):
            if found not in expected:
                raise ProgramError(f'{where}: found {what} "{found}" with fn "{t.fn}", expected {" or ".join(expected)}')


def check_slots(p: Program) -> None:
    """Every declared slot has one tiled region, in the order of the slots.

    Rows that arrival binds have rising keys.
    """
    r, ids = p.regions, np.flatnonzero(p.tiled_regions())
    slots = p.declared.slots
    if slots:
        if len(ids) != slots:
            raise ProgramError(f"tiled regions: found {len(ids)}, expected one for each of the {slots} declared slots")
        gpu = np.arange(slots) // max(1, slots // p.n_nodes)
        wrong = r.node[ids] != gpu
        fail_where(wrong, lambda i: f"{region_name(p, int(ids[i]))}: found it as slot {i}, expected a region of node {gpu[i]}")
    if not len(ids) or p.n_rows < 2:
        return
    by_arrival = np.zeros(p.n_regions, bool)
    by_arrival[ids] = r.alloc[ids] == Alloc.FIRST_TOUCH
    falling = r.row_key[1:] <= r.row_key[:-1]
    falling[r.row_ptr[(r.row_ptr > 0) & (r.row_ptr < p.n_rows)] - 1] = False  # the next row belongs to another region
    falling &= np.repeat(by_arrival, np.diff(r.row_ptr))[1:]

    def text(i: int) -> str:
        where = region_name(p, region_of_row(p, i + 1))
        return f"row {i + 1} of {where}: found key {r.row_key[i + 1]} behind key {r.row_key[i]}, expected rising keys (relayout needs them)"

    fail_where(falling, text)


def check_computes(c: Columns) -> None:
    """Every COMPUTE with a function runs on a tile of a tiled region of its node, where the schema has tiled regions."""
    p = c.p
    if p.schema.buffers and not p.schema.tiled:
        return
    gemm = np.array([t.kind is Kind.COMPUTE and bool(t.fn) for t in p.templates], bool)
    if not gemm.any():
        return
    ops = np.flatnonzero(c.by_template(gemm))
    holder = np.repeat(np.where(p.tiled_regions(), p.regions.node, -1), np.diff(p.regions.tile_ptr))
    holder = np.append(holder, -1)  # key -1, and keys beyond all tiles
    key = np.minimum(p.ops.key[ops], p.n_tiles)

    def text(i: int) -> str:
        op, tile = int(ops[i]), int(p.ops.key[ops[i]])
        where = region_name(p, region_of_tile(p, tile)) if 0 <= tile < p.n_tiles else "no region"
        return f"{c.name(op)}: found tile {tile} of {where} as key, expected a tile of a tiled region of its node"

    fail_where(holder[key] != p.ops.node[ops], text)


def check_slices(c: Columns) -> None:
    """Where a GEMM is cut into ranges of columns, the ranges follow each other, and every tile has every range once."""
    p = c.p
    sliced = [function.name for function in p.schema.functions if function.cut]
    for i, t in enumerate(p.templates):
        if t.columns != ALL_COLUMNS and not (t.kind is Kind.COMPUTE and t.fn in sliced):
            raise ProgramError(f"template {i} ({t.name}): found columns {t.columns}, expected all columns, or fn {' or '.join(sliced) or 'none'}")
    for fn in sliced:
        mine = [t.kind is Kind.COMPUTE and t.fn == fn for t in p.templates]
        ranges = sorted({t.columns for t, one in zip(p.templates, mine, strict=True) if one})
        if ranges not in ([], [ALL_COLUMNS]):
            _check_ranges(c, fn, np.array(mine), ranges)


def _check_ranges(c: Columns, fn: str, mine: Array, ranges: list[ColumnRange]) -> None:
    """`mine`: `[n_templates]` bool, the templates of `fn`. `ranges`: their columns, rising."""
    p, end = c.p, 0
    for one in ranges:
        if one[0] != end or one[1] <= end or one[2] != ranges[0][2]:
            raise ProgramError(f"{fn}: found columns {one}, expected columns from {end} on of {ranges[0][2]} (ranges follow each other)")
        end = one[1]
    if end != ranges[0][2]:
        raise ProgramError(f"{fn}: found columns up to {end}, expected all {ranges[0][2]}")
    place = np.array([ranges.index(t.columns) if one else 0 for t, one in zip(p.templates, mine, strict=True)])
    ops = np.flatnonzero(c.by_template(mine))
    tiles, tile = np.unique(p.ops.key[ops], return_inverse=True)
    times = np.bincount(tile * len(ranges) + place[p.ops.template[ops]], minlength=len(tiles) * len(ranges))

    def text(i: int) -> str:
        return f"{fn} of tile {tiles[i // len(ranges)]}: found columns {ranges[i % len(ranges)]} computed {times[i]} times, expected once"

    fail_where(times != 1, text)


def check_sums_of_sums(c: Columns) -> None:
    """A pull reads what other pulls left for its key only on a node where such a pull left it.

    Its members name no rows, so nothing else notices a member on another node. The source's sum over NVLink domains is such a pull.
    """
    p = c.p
    pulls = [t.kind is Kind.PULL_REDUCE for t in p.templates]
    for buffer in sorted({t.dst for t, pull in zip(p.templates, pulls, strict=True) if pull and t.dst}):
        writes, reads = (
            c.by_template(np.array([pull and name(t) == buffer for t, pull in zip(p.templates, pulls, strict=True)], bool))
            for name in (attrgetter("dst"), attrgetter("src"))
        )
        if not reads.any():
            continue
        key = p.ops.key.astype(np.int64) * p.n_nodes
        left = (key + p.ops.node)[writes]
        read = key[c.owner] + p.members.node
        missing = reads[c.owner] & ~np.isin(read, left)

        def text(m: int, buffer: str = buffer) -> str:
            op, node = int(c.owner[m]), int(p.members.node[m])
            found = f'found a read of "{buffer}" for key {p.ops.key[op]} on node {node}'
            return f"{c.name(op)}: {found}, expected a node where a pull leaves it for this key"

        fail_where(missing, text)


def check_reads(p: Program, waits: Array | None) -> None:
    """Every template that reads a buffer of another template has an op that waits for an op that writes this buffer.

    The wait may pass over other ops. An op that waits for the wrong write is not noticed. `waits`: the result of
    `startable.waits_by_kind`. None: not known, no check.
    """
    if waits is None:
        return
    in_use = np.bincount(p.ops.template, minlength=len(p.templates)) > 0
    for i, t in enumerate(p.templates):
        writers = [j for j, other in enumerate(p.templates) if in_use[j] and other.dst == t.src and j != i]
        if not t.src or not in_use[i] or not writers:
            continue
        before = _behind(waits, i)
        if not before[writers].any():
            names = ", ".join(sorted({p.templates[j].name for j in writers}))
            early_reads = f'found ops that read "{t.src}" and wait for no op that writes it'
            raise ProgramError(f"template {i} ({t.name}): {early_reads}, expected a wait for {names}")


def _behind(waits: Array, start: int) -> Array:
    """`[n]` bool: all kinds for which `start` waits, directly or over other kinds."""
    behind: Array = waits[start]
    while True:
        more = behind | waits[behind].any(axis=0)
        if (more == behind).all():
            return behind
        behind = more


def check_sessions(c: Columns) -> None:
    """Merging ops have a session with as many contributions as it expects, of one kind and equal."""
    p, session = c.p, c.p.ops.session
    merging = c.is_kind(SESSION_KINDS)
    if session is None or p.sessions is None:
        fail_where(merging, lambda o: f"{c.name(o)}: found no session, expected one")
        return
    check_range(session, -1, len(p.sessions.home), "op {i}: session")
    fail_where(merging != (session >= 0), lambda o: f"{c.name(o)}: found session {session[o]}, expected one for merging kinds only")
    ops = np.flatnonzero(merging)
    home, to = p.sessions.home[session[ops]], p.members.node[p.members.ptr[ops]]
    fail_where(home != to, lambda i: f"{c.name(int(ops[i]))}: found member {to[i]}, expected the session's home {home[i]}")
    summing = c.is_kind((Kind.PUSH_REDUCE,)) & (c.n_remote > 0)
    size, expected = np.bincount(session[summing], minlength=len(p.sessions.home)), p.sessions.expected
    fail_where((size != expected) & (size > 0), lambda s: f"session {s}: found {size[s]} contributions, expected {expected[s]}")
    loads = np.bincount(session[c.is_kind((Kind.MERGED_LOAD,))], minlength=len(p.sessions.home))
    fail_where((loads > 0) & (size > 0), lambda s: f"session {s}: found {size[s]} contributions and {loads[s]} loads, expected ops of one kind")
    _check_equal(c, session)
    _check_gates(c)


def _check_gates(c: Columns) -> None:
    """A gate is a sum of pushes for every node. What waits at it is a push of one train by NVLink that adds nothing itself."""
    p, gate, s = c.p, c.p.ops.gate, c.p.sessions
    if gate is None or s is None:
        return
    check_range(gate, -1, len(s.home) - p.n_nodes + 1, "op {i}: gate")
    gated = np.flatnonzero(gate >= 0)
    single = c.is_kind((Kind.PUT, Kind.MULTICAST)) & (p.op_net() == 0) & ~np.isin(np.arange(p.n_ops), p.bulk_ops())
    fail_where(~single[gated], lambda i: f"{c.name(int(gated[i]))}: found a gate, expected it of a PUT or MULTICAST of one train by NVLink")
    homes = s.home[gate[gated][:, None] + np.arange(p.n_nodes)]
    wrong = (homes != np.arange(p.n_nodes)).any(axis=1)
    fail_where(wrong, lambda i: f"{c.name(int(gated[i]))}: found sums of nodes {homes[i]}, expected one per node in order")


def _check_equal(c: Columns, session: Array) -> None:
    """All contributions of a sum, or loads of an address, have the same rows and as many bytes."""
    p = c.p
    ops = np.flatnonzero(c.is_kind(SESSION_KINDS))
    _, first, which = np.unique(session[ops], return_index=True, return_inverse=True)
    lead = ops[first[which]]
    begin, n = c.op_fill_ptr[:-1].astype(np.int64), np.diff(c.op_fill_ptr)
    differs = (n[ops] != n[lead]) | (p.ops.bytes[ops] != p.ops.bytes[lead])
    same = np.flatnonzero(~differs)
    size = n[ops[same]]
    rows, theirs = (p.members.fill_row[spans(begin[side[same]], size)] for side in (ops, lead))
    differs[np.repeat(same, size)[rows != theirs]] = True

    def text(i: int) -> str:
        o, other = int(ops[i]), int(lead[i])
        return f"{c.name(o)}: found {p.ops.bytes[o]} B for other rows or bytes than {c.name(other)} of the same session, expected the same"

    fail_where(differs, text)
