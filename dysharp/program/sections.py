"""`part_of`: one part of a merged Program as a Program of its own (docs/design/0022, M).

Checks of data and the functional machine read a part, because a token, a buffer or an expert slot means something in its part only.
"""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from dysharp.base import Array, ByName, ProgramError, Tally, Texts
from dysharp.program.names import fail_where
from dysharp.program.tables import MergedPart, Program
from dysharp.program.trace import Trace

TAILS = ("op", "op", "member", "tile", "row")
HEADS = ("op", "member", "tile", "op")
POINTS = ("op", "op", "row", "op")
"""What an edge begins at (by `Tail`), leads to (by `Head`), and where a hold begins and ends (by `Point`)."""
ENDS = {"tail": TAILS, "head": HEADS, "acquire": POINTS, "release": POINTS}
"""Columns that are ids of what the column NAME_kind says."""
POINTERS = {"ptr": "member", "fill_ptr": "fill", "row_ptr": "row", "tile_ptr": "tile"}
OWN = {"fill_row": "row", "row_notify": "op"}
"""Columns that are ids of the part's own rows and ops."""
ENTRIES = {"ptr": "op", "fill_ptr": "member", "fill_row": "fill", "row_key": "row", "row_notify": "row"}
"""Columns with an entry for something else than their table has."""


def labelled(label: str, name: str) -> str:
    """The name of a part's operator, template, region, issuer or semaphore in the merge: "A.gemm1", "node[3].A.window"."""
    node, dot, own = name.partition("].")
    return f"{node}].{label}.{own}" if dot else f"{label}.{name}"


def _unlabelled(label: str, name: str) -> str:
    """The name that the part itself uses for `name` of the merge."""
    return name.removeprefix(f"{label}.")


def sizes_of(p: Program) -> Tally:
    """How many ids of each sort a Program has."""
    return {
        "op": p.n_ops, "member": p.n_members, "fill": len(p.members.fill_row), "region": p.n_regions, "row": p.n_rows, "tile": p.n_tiles,
        "template": len(p.templates), "framing": len(p.framings), "duration": len(p.durations), "wire": len(p.wires.up),
        "issuer": len(p.issuers.node), "semaphore": len(p.semaphores.node), "chain": 0 if p.chains is None else len(p.chains.pool),
        "session": 0 if p.sessions is None else len(p.sessions.home), "share": 0 if p.shares is None else len(p.shares.pool),
        "edge": len(p.edges.tail), "hold": len(p.holds.sem),
    }  # fmt: skip


def ids_of(program: Program, section: MergedPart) -> dict[str, range]:
    """The ids of a part's ops, members, fills, rows and tiles."""
    m, r, ops, regions = program.members, program.regions, section.ops, section.regions
    members = range(int(m.ptr[ops.start]), int(m.ptr[ops.stop]))
    return {
        "op": ops, "member": members, "fill": range(int(m.fill_ptr[members.start]), int(m.fill_ptr[members.stop])),
        "row": range(int(r.row_ptr[regions.start]), int(r.row_ptr[regions.stop])),
        "tile": range(int(r.tile_ptr[regions.start]), int(r.tile_ptr[regions.stop])),
    }  # fmt: skip


def _section_of(program: Program, label: str) -> MergedPart:
    """The section of part `label`. Raises ProgramError for an unknown label."""
    for section in program.sections:
        if section.label == label:
            return section
    raise ProgramError(f"part {label!r}: found no such part, expected one of {', '.join(s.label for s in program.sections) or 'none'}")


def trace_of_part(program: Program, label: str, trace: Trace) -> Trace:
    """What `trace` of a merge says of one part, by the ids of the part. Links are those of the merge; ops of other parts are no cause."""
    ids = ids_of(program, _section_of(program, label))
    ops, members, rows, tiles = (slice(ids[name].start, ids[name].stop) for name in ("op", "member", "row", "tile"))
    columns = {name: getattr(trace, name)[ops] for name in ("ready", "issue", "start", "end", "done")}
    cause = trace.cause[ops]
    mine = (cause >= ops.start) & (cause < ops.stop)
    cut = replace(trace, **columns, cause=np.where(mine, cause - ops.start, -1).astype(np.int32), member=trace.member[members])
    return replace(cut, row_slot=trace.row_slot[rows], tile_ready=trace.tile_ready[tiles])


def part_of(program: Program, label: str) -> Program:
    """Part `label` of a merge, with its own names and its own ids of templates, ops, members, regions, rows and tiles.

    It has the templates that it uses. Issuers, pools, semaphores, sessions and the tables of constants stay those of the merge. Raises
    ProgramError for an unknown label, and where an op, row, edge or hold of the part names another part.
    """
    section = _section_of(program, label)
    ids = ids_of(program, section) | {"region": section.regions, "edge": section.edges, "hold": section.holds}
    ops = _cut(program.ops, "op", ids, label)
    used, template = np.unique(ops.template, return_inverse=True)
    own = [program.templates[i] for i in used.tolist()]
    return replace(
        program, templates=tuple(replace(t, name=_unlabelled(label, t.name), operator=_unlabelled(label, t.operator)) for t in own),
        ops=replace(ops, template=template.astype(np.int32)), members=_cut(program.members, "member", ids, label),
        regions=_cut(program.regions, "region", ids, label), edges=_cut(program.edges, "edge", ids, label),
        holds=_cut(program.holds, "hold", ids, label), declared=section.declared, schema=section.schema,
        operators=tuple(replace(o, name=_unlabelled(label, o.name)) for o in program.operators if o.name.startswith(f"{label}.")), sections=(),
        shares=None,
    )  # fmt: skip


def _cut(table: Any, entry: str, ids: dict[str, range], label: str) -> Any:
    """The part's entries of a table, with the part's own ids. `entry`: what an entry stands for, in most columns."""
    columns: ByName = {}
    for name in (field.name for field in fields(table) if getattr(table, field.name) is not None):
        mine = ids[ENTRIES.get(name, entry)]
        column = getattr(table, name)[mine.start : mine.stop + (name in POINTERS)]
        if name in POINTERS:
            column = column - column[0]
        elif name == "name":
            column = tuple(_unlabelled(label, word) for word in column)
        elif name in OWN:
            column = _local(column, ids, (OWN[name],), label)
        elif name in ENDS:
            column = _local(column, ids, ENDS[name], label, getattr(table, f"{name}_kind")[mine.start : mine.stop])
        columns[name] = column
    return replace(table, **columns)


def _local(column: Array, ids: dict[str, range], what: Texts, label: str, kind: Array | int = 0) -> Array:
    """`column` with the part's own ids. Entry i names a thing of `what[kind[i]]`; -1 stays."""
    first, end = np.array([ids[w].start for w in what])[kind], np.array([ids[w].stop for w in what])[kind]

    def text(i: int) -> str:
        low, high = np.broadcast_to(first, column.shape)[i], np.broadcast_to(end, column.shape)[i]
        return f"part {label!r}: found {column[i]}, expected an id of the part itself, {low} .. {high - 1}"

    fail_where((column != -1) & ((column < first) | (column >= end)), text)
    return np.where(column == -1, -1, column - first).astype(np.int32)
