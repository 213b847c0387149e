"""`part_of`: one part of a merged Program as a Program of its own (docs/design/0022, M).

Checks of data and the functional machine read a part, because a token, a buffer or an expert slot means something in its part only.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import ProgramError
from dysharp.program.names import fail_where
from dysharp.program.tables import Edges, Holds, MergedPart, Ops, Program
from dysharp.program.trace import Trace

TAILS = ("op", "op", "member", "tile", "row")
HEADS = ("op", "member", "tile", "op")
POINTS = ("op", "op", "row", "op")
"""What an edge begins at (by `Tail`), leads to (by `Head`), and where a hold begins and ends (by `Point`)."""


def labelled(label: str, name: str) -> str:
    """The name of a part's operator, template, region, issuer or semaphore in the merge: "A.gemm1", "node[3].A.window"."""
    node, dot, own = name.partition("].")
    return f"{node}].{label}.{own}" if dot else f"{label}.{name}"


def _unlabelled(label: str, name: str) -> str:
    """The name that the part itself uses for `name` of the merge."""
    return name.removeprefix(f"{label}.")


def ids_of(program: Program, section: MergedPart) -> dict[str, range]:
    """The ids of a part's ops, members, fills, rows and tiles."""
    m, r, ops, regions = program.members, program.regions, section.ops, section.regions
    members = range(int(m.ptr[ops.start]), int(m.ptr[ops.stop]))
    return {
        "op": ops,
        "member": members,
        "fill": range(int(m.fill_ptr[members.start]), int(m.fill_ptr[members.stop])),
        "row": range(int(r.row_ptr[regions.start]), int(r.row_ptr[regions.stop])),
        "tile": range(int(r.tile_ptr[regions.start]), int(r.tile_ptr[regions.stop])),
    }


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
    ids = ids_of(program, section)
    o, m, r = program.ops, program.members, program.regions
    ops, members, fills, rows = (slice(ids[name].start, ids[name].stop) for name in ("op", "member", "fill", "row"))
    regions = slice(section.regions.start, section.regions.stop)
    used, template = np.unique(o.template[ops], return_inverse=True)
    own = [program.templates[i] for i in used.tolist()]
    cut: dict[str, Any] = {name: None if (column := getattr(o, name)) is None else column[ops] for name in Ops.__annotations__}
    return replace(
        program,
        templates=tuple(replace(t, name=_unlabelled(label, t.name), operator=_unlabelled(label, t.operator)) for t in own),
        ops=replace(o, **cut | {"template": template.astype(np.int32)}),
        members=replace(
            m,
            ptr=m.ptr[ops.start : ops.stop + 1] - m.ptr[ops.start],
            node=m.node[members],
            fill_ptr=m.fill_ptr[members.start : members.stop + 1] - m.fill_ptr[members.start],
            fill_row=_local(m.fill_row[fills], ids, ("row",), label),
            ext_bytes=None if m.ext_bytes is None else m.ext_bytes[members],
        ),
        regions=replace(
            r,
            **{name: getattr(r, name)[regions] for name in ("node", "alloc", "tile_rows", "row_bytes")},
            row_ptr=r.row_ptr[regions.start : regions.stop + 1] - r.row_ptr[regions.start],
            tile_ptr=r.tile_ptr[regions.start : regions.stop + 1] - r.tile_ptr[regions.start],
            row_key=r.row_key[rows],
            row_notify=_local(r.row_notify[rows], ids, ("op",), label),
            name=tuple(_unlabelled(label, name) for name in r.name[regions]),
        ),
        edges=_edges(program.edges, section, ids),
        holds=_holds(program.holds, section, ids),
        declared=section.declared,
        schema=section.schema,
        operators=tuple(replace(o, name=_unlabelled(label, o.name)) for o in program.operators if o.name.startswith(f"{label}.")),
        sections=(),
        shares=None,
    )


def _edges(e: Edges, section: MergedPart, ids: dict[str, range]) -> Edges:
    mine = slice(section.edges.start, section.edges.stop)
    tail_kind, head_kind = e.tail_kind[mine], e.head_kind[mine]
    tail, head = _local(e.tail[mine], ids, TAILS, section.label, tail_kind), _local(e.head[mine], ids, HEADS, section.label, head_kind)
    return Edges(tail_kind, tail, head_kind, head)


def _holds(h: Holds, section: MergedPart, ids: dict[str, range]) -> Holds:
    mine = slice(section.holds.start, section.holds.stop)
    acquire_kind, release_kind = h.acquire_kind[mine], h.release_kind[mine]
    acquire = _local(h.acquire[mine], ids, POINTS, section.label, acquire_kind)
    release = _local(h.release[mine], ids, POINTS, section.label, release_kind)
    return Holds(h.sem[mine], h.amount[mine], acquire_kind, acquire, release_kind, release)


def _local(column: Array, ids: dict[str, range], what: tuple[str, ...], label: str, kind: Array | int = 0) -> Array:
    """`column` with the part's own ids. Entry i names a thing of `what[kind[i]]`; -1 stays."""
    first, end = np.array([ids[w].start for w in what])[kind], np.array([ids[w].stop for w in what])[kind]

    def text(i: int) -> str:
        low, high = np.broadcast_to(first, column.shape)[i], np.broadcast_to(end, column.shape)[i]
        return f"part {label!r}: found {column[i]}, expected an id of the part itself, {low} .. {high - 1}"

    fail_where((column != -1) & ((column < first) | (column >= end)), text)
    return np.where(column == -1, -1, column - first).astype(np.int32)
