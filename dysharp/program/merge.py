"""`merge`: several Programs on one machine, side by side (docs/design/0022, M).

The result is an ordinary Program, so every interpreter takes it unchanged. `sections.part_of` gives a part back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.errors import ProgramError
from dysharp.program.builder import RARE
from dysharp.program.sections import HEADS, POINTS, TAILS, labelled
from dysharp.program.skew import appended, waits_for_start
from dysharp.program.tables import (
    Chains,
    Declared,
    Edges,
    Head,
    Holds,
    HubTable,
    Issuers,
    Kind,
    Members,
    Ops,
    Pools,
    Program,
    Regions,
    Section,
    Semaphores,
    Sessions,
    Tail,
    Template,
    Wires,
)

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """One Program of a merge. `label` names it in every output. `layer`, `microbatch`, `direction` say what it is."""

    label: str
    program: Program
    layer: int = 0
    microbatch: int = 0
    direction: str = "fwd"


@dataclass(frozen=True, slots=True)
class Cross:
    """Edges from ops of one part to ops of another: `ops` wait for the ends of `after_ops`, by the ids that the parts use.

    Both have one length, or one of them is a scalar.
    """

    part: str
    ops: ArrayLike
    after: str
    after_ops: ArrayLike


def merge(parts: Iterable[Part], *, streams: Sequence[Sequence[str]] = (), edges: Sequence[Cross] = ()) -> Program:
    """The Programs of `parts` as one, on common pools, memory, tables, links and networks. One part without edges is returned as it is.

    `streams`: labels of parts that run one behind the other on every GPU. `edges`: further edges between ops of parts. The order of the
    arguments has no meaning; that of labels in a stream has. Raises ProgramError for labels that occur twice or not at all, for Programs of
    different machines, and for edges that cannot be.
    """
    parts = sorted(parts, key=lambda part: part.label)
    _check(parts, streams)
    if len(parts) == 1 and not edges:
        return parts[0].program
    first = _first_ids([part.program for part in parts])
    program = _side_by_side(parts, first)
    program = _in_streams(program, parts, first, sorted(streams))
    return _with_cross(program, parts, first, edges)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _check(parts: list[Part], streams: Sequence[Sequence[str]]) -> None:
    labels = [part.label for part in parts]
    if not parts or len(set(labels)) != len(labels) or not all(labels):
        raise ProgramError(f"merge: found labels {labels}, expected at least one part, each with a label of its own")
    for part in parts:
        _check_machine(parts[0], part)
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
    kept = [t for p in (one.program, other.program) for t in p.tables if t.allocates]
    if len(set(kept)) > 1:
        raise ProgramError(f"merge: found row tables {kept[0]} and {kept[1]}, expected one (a hub has one)")
    places = {p.sessions.places for p in (one.program, other.program) if p.sessions is not None}
    if len(places) > 1:
        raise ProgramError(f"merge: found {sorted(places)} places for sums in the switch, expected one number")


# ---- ids -------------------------------------------------------------------------------------------------------------


def _sizes(p: Program) -> dict[str, int]:
    """How many ids of each sort that the merge shifts a Program has."""
    return {
        "op": p.n_ops,
        "member": p.n_members,
        "fill": len(p.members.fill_row),
        "region": p.n_regions,
        "row": p.n_rows,
        "tile": p.n_tiles,
        "template": len(p.templates),
        "framing": len(p.framings),
        "duration": len(p.durations),
        "wire": len(p.wires.up),
        "issuer": len(p.issuers.node),
        "semaphore": len(p.semaphores.node),
        "chain": 0 if p.chains is None else len(p.chains.pool),
        "session": 0 if p.sessions is None else len(p.sessions.home),
        "edge": len(p.edges.tail),
        "hold": len(p.holds.sem),
    }


def _first_ids(programs: list[Program]) -> list[dict[str, int]]:
    """The first id of each sort of every part, and as the last entry the number of all ids."""
    sizes = [_sizes(p) for p in programs]
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
