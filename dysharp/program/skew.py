"""`skewed`: a Program whose nodes start at different times and run their GEMMs at different speeds.

The result is an ordinary Program, so every interpreter takes it unchanged.

| input | in the Program |
|---|---|
| start time of a node | one DELAY, template `START`, on a pool of its own; all ops of the node wait for it |
| slow node | its COMPUTE ops have templates of their own with longer tasks |

An op waits for the DELAY by an edge, or behind an op of its node that waits: its predecessor in program order, an op
for whose end it waits, or the op that makes its tile. A pull of rows of x or dy also waits for the nodes that hold them:
their layer has not begun. Rows that others push to a late node arrive, because its memory is there.
"""

from collections.abc import Iterable
from dataclasses import fields, replace

import numpy as np

from dysharp.base import F64, I32, I64, Array, Bools, ByName, Numbers, ProgramError, Reals, frozen
from dysharp.program.builder import PULLS
from dysharp.program.csr import owners
from dysharp.program.schema import LATE
from dysharp.program.tables import Discipline, Edges, Head, Issuers, Kind, Ops, Pools, Program, Tail, Template

START = "start"
"""Name of the template of start DELAYs."""
SOURCES = ("x", "dy")
"""Buffers that a node has from its start on."""


@frozen
class Skew:
    """How the nodes differ. `start_ps`: `[n_nodes]` start times, at least 0. `slow`: `[n_nodes]` factors of GEMM times, above 0."""

    start_ps: Numbers
    slow: tuple[float, ...]


def skewed(program: Program, skew: Skew) -> Program:
    """`program` under `skew`. Raises ProgramError where `skew` has not one entry per node, or a value out of range.

    `slow` multiplies the time of each task and its bytes from shared memory bandwidth, so that a GEMM alone on its node
    takes that many times as long.
    """
    n = program.n_nodes
    if (len(skew.start_ps), len(skew.slow)) != (n, n):
        raise ProgramError(f"skew: found {len(skew.start_ps)} start times and {len(skew.slow)} factors, expected {n} of each")
    if min(skew.start_ps, default=0) < 0 or min(skew.slow, default=1.0) <= 0.0:
        raise ProgramError("skew: found a negative start time or a factor of 0 or less, expected start times from 0 and factors above 0")
    return _late(_slow(program, np.array(skew.slow)), np.array(skew.start_ps, np.int64))


def _slow(program: Program, factor: F64) -> Program:
    """Slow nodes get templates and durations of their own, one set per factor."""
    templates, template = list(program.templates), program.ops.template.copy()
    durations, task_bytes = [program.durations], [program.task_bytes]
    n_durations = len(program.durations)
    computes = [i for i, t in enumerate(program.templates) if t.kind is Kind.COMPUTE]
    for value in sorted({float(f) for f in factor if f != 1.0}):
        here = (factor == value)[program.ops.node]
        for i in computes:
            t = program.templates[i]
            durations.append(_scaled(program.durations[t.duration], value))
            task_bytes.append(_scaled(program.task_bytes[t.duration], value))
            template[here & (program.ops.template == i)] = len(templates)
            templates.append(replace(t, duration=n_durations))
            n_durations += 1
    if len(templates) == len(program.templates):
        return program
    return replace(
        program, templates=tuple(templates), durations=np.vstack(durations), task_bytes=np.vstack(task_bytes),
        ops=replace(program.ops, template=template),
    )  # fmt: skip


def _scaled(column: I64, factor: float) -> I64:
    """`[1, rows]` times rounded up; 0 (no such number of rows) stays 0."""
    return np.asarray(np.ceil(column * factor).astype(np.int64)[None, :])


def _late(program: Program, start_ps: I64) -> Program:
    """Late nodes get their DELAY."""
    late = np.flatnonzero(start_ps > 0).astype(np.int32)
    if not len(late):
        return program
    delay = np.full(program.n_nodes, -1, np.int32)
    delay[late] = program.n_ops + np.arange(len(late), dtype=np.int32)
    tails, heads = waits_for_start(program, delay)
    # Column g of the duration is the start time of the g-th late node.
    columns = max(program.durations.shape[1], len(late))
    duration, no_bytes = np.zeros((1, columns), np.int64), np.zeros((1, columns), np.int64)
    duration[0, : len(late)] = start_ps[late]
    start = Template(START, Kind.DELAY, program.host_operator, LATE, tasks=1, duration=len(program.durations))
    names = tuple(f"node[{g}].{START}" for g in late.tolist())
    i, p, rows = program.issuers, program.pools, np.arange(len(late), dtype=np.int32)
    fresh_pools = len(p.node) + rows
    program = with_ops(program, start, {"node": late, "issuer": len(i.node) + rows, "rows": rows})
    return replace(
        with_edges(program, [(Tail.OP_DONE, tails, heads)]),
        durations=np.vstack([widened(program.durations, columns), duration]),
        task_bytes=np.vstack([widened(program.task_bytes, columns), no_bytes]),
        issuers=Issuers(
            node=_more(i.node, late), pool=_more(i.pool, fresh_pools),
            discipline=_more(i.discipline, np.full(len(late), int(Discipline.PROGRAM_ORDER))),
            interval_ps=np.append(i.interval_ps, np.zeros(len(late), np.int64)), name=(*i.name, *names),
            share=None if i.share is None else _more(i.share, np.full(len(late), -1)),
        ),
        pools=Pools(_more(p.node, late), _more(p.slots, np.ones(len(late))), (*p.name, *names)),
    )  # fmt: skip


def with_ops(program: Program, template: Template, values: ByName) -> Program:
    """`program` with ops of a new `template` behind all others, without bytes and members.

    `values`: "node" and further columns of the new ops; others say "none".
    """
    n, ops, m = len(values["node"]), program.ops, program.members
    values = values | {"template": np.full(n, len(program.templates))}
    usual = dict.fromkeys((f.name for f in fields(Ops)), np.full(n, -1)) | dict.fromkeys(("bytes", "prio", "value", "offset"), np.zeros(n))
    grown: ByName = {}
    for name, value in usual.items():
        column = getattr(ops, name)
        grown[name] = None if column is None else _more(column, values.get(name, value))
    ptr = np.append(m.ptr, np.full(n, m.ptr[-1], np.int32))
    return replace(program, templates=(*program.templates, template), ops=Ops(**grown), members=replace(m, ptr=ptr))


def with_edges(program: Program, edges: Iterable[tuple[Tail, Array, Array]]) -> Program:
    """`program` with edges from `(tail kind, tails)` to the issue of ops `heads`."""
    e, edges = program.edges, list(edges)
    columns = [np.concatenate([np.full(len(tail), int(kind)) for kind, tail, _ in edges]), np.concatenate([tail for _, tail, _ in edges])]
    columns += [np.full(len(columns[0]), int(Head.OP_ISSUE)), np.concatenate([head for _, _, head in edges])]
    return replace(program, edges=Edges(*(_more(a, b) for a, b in zip((e.tail_kind, e.tail, e.head_kind, e.head), columns, strict=True))))


def waits_for_start(program: Program, start: I32) -> tuple[I32, I32]:
    """(op that starts a node, op that waits for it) of every edge. `start`: `[n_nodes]` such an op, -1 = the node starts at once."""
    own = start[program.ops.node]
    heads = np.flatnonzero((own >= 0) & ~_behind_own(program))
    owner = owners(program.members.ptr)
    reads = np.array([t.kind in PULLS and t.src in SOURCES for t in program.templates], np.bool_)[program.ops.template]
    held = start[program.members.node]
    pulls = np.flatnonzero(reads[owner] & (held >= 0) & (program.members.node != program.ops.node[owner]))
    return np.append(own[heads], held[pulls]), np.append(heads, owner[pulls]).astype(np.int32)


def _behind_own(program: Program) -> Bools:
    """`[n_ops]` whether an op issues only after another op of its node has issued."""
    o, e, r = program.ops, program.edges, program.regions
    behind = np.zeros(program.n_ops, np.bool_)
    of_op = np.isin(e.tail_kind, (Tail.OP_DONE, Tail.OP_ISSUED))
    edges = np.flatnonzero(of_op & (e.head_kind == Head.OP_ISSUE))
    behind[e.head[edges[o.node[e.tail[edges]] == o.node[e.head[edges]]]]] = True
    # Ops that all tiles of a region release: each tile waits for an op of the region's node.
    region = owners(r.tile_ptr)
    made = np.zeros(program.n_tiles, np.bool_)
    notes = np.flatnonzero(of_op & (e.head_kind == Head.TILE_NOTIFY))
    made[e.head[notes[o.node[e.tail[notes]] == r.node[region[e.head[notes]]]]]] = True
    whole = np.bincount(region, weights=~made, minlength=program.n_regions) == 0
    row_region = owners(r.row_ptr)
    rows = np.flatnonzero((r.row_notify >= 0) & whole[row_region])
    released = r.row_notify[rows]
    behind[released[o.node[released] == r.node[row_region[rows]]]] = True
    # Program order: all ops of an issuer but the first.
    ordered = np.flatnonzero((o.issuer >= 0) & (program.issuers.discipline[o.issuer] == Discipline.PROGRAM_ORDER))
    first = ordered[np.unique(o.issuer[ordered], return_index=True)[1]]
    follows = np.zeros(program.n_ops, np.bool_)
    follows[ordered] = True
    follows[first] = False
    return behind | follows


def _more(column: I32, new: Reals) -> I32:
    return np.append(column, new).astype(np.int32)


def widened(table: I64, columns: int) -> I64:
    """`table` with columns of zeros behind its own, `columns` in all."""
    return np.pad(table, ((0, 0), (0, columns - table.shape[1])))
