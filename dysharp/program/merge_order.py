"""Parts of a merge, and what one part waits for in another: streams and edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base.arrays import Array
from dysharp.base.errors import ProgramError
from dysharp.program.csr import owners
from dysharp.program.names import check_range
from dysharp.program.sections import labelled
from dysharp.program.skew import waits_for_start, with_edges, with_ops
from dysharp.program.tables import Head, Kind, Program, Tail, Template


@dataclass(frozen=True, slots=True)
class Part:
    """One Program of a merge. `label` names it in every output. `layer`, `microbatch`, `direction` say what it is.

    `share`: most slots that the part holds at once, by the name of a pool ("sm": on every node). Without an entry the part takes what is free.
    """

    label: str
    program: Program
    layer: int = 0
    microbatch: int = 0
    direction: str = "fwd"
    share: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cross:
    """Edges from ops of one part to ops of another: `ops` wait for the ends of `after_ops`, by the ids that the parts use.

    Both have one length, or one of them is a scalar.
    """

    part: str
    ops: ArrayLike
    after: str
    after_ops: ArrayLike


def in_streams(program: Program, parts: list[Part], first: list[dict[str, int]], streams: list[tuple[str, ...]]) -> Program:
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


def with_cross(program: Program, parts: list[Part], first: list[dict[str, int]], edges: Sequence[Cross]) -> Program:
    if not edges:
        return program
    place, pairs = {part.label: i for i, part in enumerate(parts)}, []
    for cross in edges:
        ends = [ids_of(cross.after, cross.after_ops, parts, place), ids_of(cross.part, cross.ops, parts, place)]
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


def ids_of(label: str, ops: ArrayLike, parts: list[Part], place: dict[str, int]) -> Array:
    """Ops of a part, by its own ids."""
    ids = np.atleast_1d(np.asarray(ops, np.int64))
    if label not in place:
        raise ProgramError(f"merge: found an edge with part {label!r}, expected one of {', '.join(place)}")
    check_range(ids, 0, parts[place[label]].program.n_ops, f"merge: edge {{i}} of part {label!r}: op")
    return ids
