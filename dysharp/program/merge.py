"""`merge`: several Programs on one machine, side by side (docs/design/0022, M).

The result is an ordinary Program, so every interpreter takes it unchanged. `sections.part_of` gives a part back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import Array, ByName, ProgramError, Tally, Texts, frozen
from dysharp.program.builder import RARE
from dysharp.program.csr import owners
from dysharp.program.names import check_range
from dysharp.program.schema import Buffer, Schema
from dysharp.program.sections import ENDS, OWN, POINTERS, labelled, sizes_of
from dysharp.program.shares import common_shares, more_of, with_kernel_sms
from dysharp.program.skew import waits_for_start, widened, with_edges, with_ops
from dysharp.program.tables import Chains, Declared, Head, Kind, MergedPart, Pools, Program, Sessions, Shares, Tail, Template


@frozen
class Part:
    """One Program of a merge. `label` names it in every output. `layer`, `microbatch`, `direction` say what it is."""

    label: str
    program: Program
    layer: int = 0
    microbatch: int = 0
    direction: str = "fwd"


@frozen
class Cross:
    """Edges from ops of one part to ops of another: `ops` wait for the ends of `after_ops`, by the ids that the parts use.

    Both have one length, or one of them is a scalar.
    """

    part: str
    ops: ArrayLike
    after: str
    after_ops: ArrayLike


def _in_streams(program: Program, parts: list[Part], first: list[Tally], streams: list[Texts]) -> Program:
    """A JOIN per GPU behind every part that another one follows, and the edges to the first ops of the follower."""
    place = {part.label: i for i, part in enumerate(parts)}
    for stream in streams:
        before = np.zeros(0, np.int32)
        for label, follower in pairwise(stream):
            one, other = place[label], place[follower]
            for part in (parts[one], parts[other]):
                _check_counts(part)
            join = program.n_ops + np.arange(program.n_nodes, dtype=np.int32)
            ops, tiles = _last(parts[one].program)
            p = parts[one].program
            region = owners(p.regions.tile_ptr)
            edges = [
                (Tail.OP_DONE, ops + first[one]["op"], join[p.ops.node[ops]]),
                (Tail.TILE_READY, tiles + first[one]["tile"], join[p.regions.node[region[tiles]]]),
                (Tail.OP_DONE, before, join[: len(before)]),
            ]
            starts, heads = waits_for_start(parts[other].program, join)
            edges.append((Tail.OP_DONE, starts, heads + first[other]["op"]))
            program, before = with_edges(_with_joins(program, label), edges), join
    return program


def _check_counts(part: Part) -> None:
    """A further edge would change how many events a JOIN counts, and a cancelled op would cancel the parts behind it."""
    p = part.program
    if (p.edges.head_kind == Head.JOIN_CANCEL).any() or (p.ops.threshold is not None and (p.ops.threshold >= 0).any()):
        raise ProgramError(f"merge: found part {part.label!r} with announced thresholds or cancelling in a stream, expected neither")


def _last(p: Program) -> tuple[Array, Array]:
    """(ops, tiles) after which no other op of their node waits. When they are done, the part is done on every node."""
    e, r = p.edges, p.regions
    to_op = e.head_kind == Head.OP_ISSUE
    followed, read = np.zeros(p.n_ops, np.bool_), np.zeros(p.n_tiles, np.bool_)
    edges = np.flatnonzero(to_op & (e.tail_kind == Tail.OP_DONE))
    followed[e.tail[edges[p.ops.node[e.tail[edges]] == p.ops.node[e.head[edges]]]]] = True
    node = np.repeat(r.node, np.diff(r.tile_ptr))
    edges = np.flatnonzero(to_op & (e.tail_kind == Tail.TILE_READY))
    read[e.tail[edges[node[e.tail[edges]] == p.ops.node[e.head[edges]]]]] = True
    return np.flatnonzero(~followed), np.flatnonzero(~read)


def _with_joins(program: Program, label: str) -> Program:
    """A JOIN per node behind all ops, named after the part that ends there."""
    end = Template(labelled(label, "end"), Kind.JOIN, program.host_beside(labelled(label, "")))
    return with_ops(program, end, {"node": np.arange(program.n_nodes), "rows": np.ones(program.n_nodes)})


def _with_cross(program: Program, parts: list[Part], first: list[Tally], edges: Sequence[Cross]) -> Program:
    if not edges:
        return program
    place, pairs = {part.label: i for i, part in enumerate(parts)}, []
    for cross in edges:
        ends = [_ids_of(cross.after, cross.after_ops, parts, place), _ids_of(cross.part, cross.ops, parts, place)]
        if len({len(end) for end in ends} - {1}) > 1:
            raise ProgramError(f"merge: found edges of {len(ends[0])} and {len(ends[1])} ops, expected as many, or one on either side")
        tails, heads = (end + first[place[label]]["op"] for end, label in zip(ends, (cross.after, cross.part), strict=True))
        pairs.append(np.stack(np.broadcast_arrays(tails, heads)))
    tail, head = np.concatenate(pairs, axis=1)
    order = np.lexsort((head, tail))  # whatever order the arguments have
    counted = program.ops.threshold is not None and (program.ops.threshold[head] >= 0).any()
    if counted:
        raise ProgramError("merge: found an edge to a JOIN with an announced threshold, expected none (it would count as one of its events)")
    return with_edges(program, [(Tail.OP_DONE, tail[order], head[order])])


def _ids_of(label: str, ops: ArrayLike, parts: list[Part], place: Tally) -> Array:
    """Ops of a part, by its own ids."""
    ids = np.atleast_1d(np.asarray(ops, np.int64))
    if label not in place:
        raise ProgramError(f"merge: found an edge with part {label!r}, expected one of {', '.join(place)}")
    check_range(ids, 0, parts[place[label]].program.n_ops, f"merge: edge {{i}} of part {label!r}: op")
    return ids


T = TypeVar("T")


def merge(parts: Iterable[Part], *, streams: Sequence[Sequence[str]] = (), edges: Sequence[Cross] = ()) -> Program:
    """The Programs of `parts` as one, on common pools, memory, tables, links and networks. One part alone is returned as it is.

    `streams`: labels of parts that run one behind the other on every GPU. `edges`: further edges between ops of parts. The order of the arguments
    has no meaning; the order of labels in a stream has one. Raises ProgramError for labels that occur twice or not at all, for Programs of different
    machines, and for edges that cannot be.
    """
    parts = sorted(parts, key=lambda part: part.label)
    _check(parts, streams)
    if len(parts) == 1 and not edges:
        return parts[0].program
    parts = [replace(part, program=with_kernel_sms(part.program)) for part in parts]
    first = _first_ids([part.program for part in parts])
    program = _side_by_side(parts, first)
    program = _in_streams(program, parts, first, sorted(map(tuple, streams)))
    return common_shares(_with_cross(program, parts, first, edges))


# ---- refusals --------------------------------------------------------------------------------------------------------


def _check(parts: list[Part], streams: Sequence[Sequence[str]]) -> None:
    labels = [part.label for part in parts]
    if not parts or len(set(labels)) != len(labels) or not all(label.isidentifier() for label in labels):
        raise ProgramError(f"merge: found labels {labels}, expected at least one part, each with a word of its own (letters, digits, _)")
    for part in parts:
        _check_machine(parts[0], part)
    programs = [part.program for part in parts]
    row_tables = sorted({t for p in programs for t in p.tables if t.allocates}, key=repr)
    if len(row_tables) > 1:
        raise ProgramError(f"merge: found row tables {row_tables[0]} and {row_tables[1]}, expected one (a hub has one)")
    for name in ("places", "timeout_ps"):
        sizes = sorted({getattr(p.sessions, name) for p in programs if p.sessions is not None})
        if len(sizes) > 1:
            raise ProgramError(f"merge: found {sizes} for Sessions.{name}, expected one number (a switch has one)")
    listed = [label for stream in streams for label in stream]
    if len(set(listed)) != len(listed) or not set(listed) <= set(labels):
        raise ProgramError(f"merge: found streams {[list(s) for s in streams]}, expected each of {labels} in one place at most")


def _check_machine(one: Part, other: Part) -> None:
    """Both parts are for one machine."""
    for name in ("n_nodes", "hardware", "nets", "domain_nodes"):
        a, b = getattr(one.program, name), getattr(other.program, name)
        if a != b:
            raise ProgramError(f"merge: found {name} {a} in part {one.label!r} and {b} in part {other.label!r}, expected one machine")
    if other.program.sections:
        raise ProgramError(f"merge: found part {other.label!r} that is a merge, expected all parts in one call")


# ---- ids -------------------------------------------------------------------------------------------------------------


def _first_ids(programs: list[Program]) -> list[Tally]:
    """The first id of each sort of every part, and as the last entry the number of all ids."""
    sizes = [sizes_of(p) for p in programs]
    return [{name: sum(size[name] for size in sizes[:i]) for name in sizes[0]} for i in range(len(sizes) + 1)]


def _moved(column: Array, by: Array | int) -> Array:
    """Ids moved by `by`; -1 stays."""
    return np.where(column < 0, -1, column + by).astype(np.int32)


def _mapped(column: Array, new: list[int]) -> Array:
    """Ids replaced by those of the union; -1 stays."""
    return np.array([*new, -1], np.int32)[column]


def _united(lists: list[list[T]]) -> tuple[list[T], list[list[int]]]:
    """All items once, and per list the place of each of its items. Items keep the order of every list, where the lists agree."""
    out: list[T] = []
    for items in lists:
        place = 0
        for item in items:
            if item in out:
                place = max(place, out.index(item) + 1)
            else:
                out.insert(place, item)
                place += 1
    where = {item: i for i, item in enumerate(out)}
    return out, [[where[item] for item in items] for items in lists]


# ---- side by side ----------------------------------------------------------------------------------------------------


IDS = {
    "template": "template", "issuer": "issuer", "wire": "wire", "chain": "chain", "session": "session", "gate": "session",
    "share": "share", "sem": "semaphore", **OWN,
}  # fmt: skip
"""Columns that are ids, and of what."""


def _side_by_side(parts: list[Part], first: list[Tally]) -> Program:
    """All parts, without an edge between them. `first`: the first ids of every part."""
    programs = [part.program for part in parts]
    pools, pool_of = _united([_pool_items(p) for p in programs])
    classes, class_of = _united([list(p.classes) for p in programs])
    tables, table_of = _united([list(p.tables) for p in programs])
    width = max(p.durations.shape[1] for p in programs)
    own_pool = np.concatenate([_mapped(p.issuers.pool, new) for p, new in zip(programs, pool_of, strict=True)])
    plain: ByName = {name: _joined(name, parts, first) for name in ("wires", "ops", "members", "regions", "edges", "holds", "semaphores")}
    return replace(
        programs[0], **plain, templates=tuple(t for i, part in enumerate(parts) for t in _templates(part, first[i], class_of[i], table_of[i])),
        framings=tuple(f for p in programs for f in p.framings), classes=tuple(classes),
        durations=np.vstack([widened(p.durations, width) for p in programs]), task_bytes=np.vstack([widened(p.task_bytes, width) for p in programs]),
        issuers=_joined("issuers", parts, first, pool=own_pool),
        pools=Pools(np.array([p[0] for p in pools], np.int32), np.array([p[1] for p in pools], np.int32), tuple(p[2] for p in pools)),
        declared=_declared(parts), chains=_chains(programs, pool_of), sessions=_sessions(programs), shares=_own_shares(programs, first, pool_of),
        tables=tuple(tables), row_trains=max(p.row_trains for p in programs),
        operators=tuple(replace(o, name=labelled(part.label, o.name)) for part in parts for o in part.program.operators),
        schema=Schema(tuple(_labelled(part.label, buffer) for part in parts for buffer in part.program.schema.buffers)),
        sections=tuple(_section(part, *ends) for part, ends in zip(parts, pairwise(first), strict=True)),
    )  # fmt: skip


def _joined(name: str, parts: list[Part], first: list[Tally], **made: Any) -> Any:
    """Table `name` of all parts, one behind the other. `made`: columns of the merge that are known already."""
    tables = [getattr(part.program, name) for part in parts]
    columns = {f.name: made[f.name] if f.name in made else _column(f.name, tables, parts, first) for f in fields(tables[0])}
    return type(tables[0])(**columns)


def _column(name: str, tables: list[Any], parts: list[Part], first: list[Tally]) -> Any:
    """A column of all parts, one behind the other: ids shifted, names with the label of their part. None if no part has it."""
    columns = [getattr(table, name) for table in tables]
    if isinstance(columns[0], tuple):
        return tuple(labelled(part.label, word) if name == "name" else word for part, words in zip(parts, columns, strict=True) for word in words)
    if name in POINTERS:
        sort = POINTERS[name]
        begun = [column[:-1] + one[sort] for column, one in zip(columns, first, strict=False)]
        return np.append(np.concatenate(begun), first[-1][sort]).astype(np.int32)
    if all(column is None for column in columns):
        return None
    for i, (column, one) in enumerate(zip(columns, first, strict=False)):
        if column is None:
            columns[i] = np.full(len(tables[i].node), -1 if name == "share" else RARE.get(name, 0), np.int32)
        elif name in IDS:
            columns[i] = _moved(column, one[IDS[name]])
        elif name in ENDS:
            columns[i] = _moved(column, np.array([one[sort] for sort in ENDS[name]])[getattr(tables[i], f"{name}_kind")])
    return np.concatenate(columns)


def _pool_items(p: Program) -> list[tuple[int, int, str, int]]:
    """(node, slots, name, number) of every pool. A part may have several of one name and size: the first meets the first of another part."""
    items = list(zip(p.pools.node.tolist(), p.pools.slots.tolist(), p.pools.name, strict=True))
    seen: dict[tuple[int, int, str], int] = {}
    out = []
    for item in items:
        out.append((*item, seen.get(item, 0)))
        seen[item] = seen.get(item, 0) + 1
    return out


def _templates(part: Part, first: Tally, classes: list[int], tables: list[int]) -> Iterable[Template]:
    for t in part.program.templates:
        yield replace(
            t, name=labelled(part.label, t.name), operator=labelled(part.label, t.operator), cls=classes[t.cls], response_cls=classes[t.response_cls],
            framing=t.framing + first["framing"], duration=t.duration + first["duration"] if t.duration >= 0 else -1,
            table=tables[t.table] if t.table >= 0 else -1, layer=part.layer, microbatch=part.microbatch,
        )  # fmt: skip


def _chains(programs: list[Program], pool_of: list[list[int]]) -> Chains | None:
    own = [(p.chains, new) for p, new in zip(programs, pool_of, strict=True) if p.chains is not None]
    return Chains(np.concatenate([_mapped(c.pool, new) for c, new in own]), np.concatenate([c.mode for c, _ in own])) if own else None


def _sessions(programs: list[Program]) -> Sessions | None:
    own = [p.sessions for p in programs if p.sessions is not None]
    return replace(own[0], home=np.concatenate([s.home for s in own]), expected=np.concatenate([s.expected for s in own])) if own else None


def _own_shares(programs: list[Program], first: list[Tally], pool_of: list[list[int]]) -> Shares | None:
    """The shares that the parts have inside themselves."""
    own = [(p.shares, one, new) for p, one, new in zip(programs, first, pool_of, strict=False) if p.shares is not None]
    if not own:
        return None
    columns = [(_mapped(s.pool, new), s.most, s.split_op + one["op"], s.split_share + one["share"], s.split_most, more_of(s)) for s, one, new in own]
    return Shares(*(np.concatenate(column).astype(np.int32) for column in zip(*columns, strict=True)))


def _declared(parts: list[Part]) -> Declared:
    """The sums of what the parts declare. Slots of experts belong to the parts."""
    traffic: dict[str, Tally] = {}
    for part in parts:
        for side, by_operator in part.program.declared.traffic.items():
            traffic.setdefault(side, {}).update({labelled(part.label, name): moved for name, moved in by_operator.items()})
    return Declared(sum(part.program.declared.useful_rows for part in parts), traffic)


def _labelled(label: str, buffer: Buffer) -> Buffer:
    return replace(buffer, name=labelled(label, buffer.name), region=labelled(label, buffer.region) if buffer.region else "")


def _section(part: Part, first: Tally, end: Tally) -> MergedPart:
    ops, regions, edges, holds = (range(first[sort], end[sort]) for sort in ("op", "region", "edge", "hold"))
    return MergedPart(part.label, part.layer, part.microbatch, part.direction, part.program.declared, part.program.schema, ops, regions, edges, holds)
