"""Names of ops, rows, tiles, regions and edges in messages, so that a reader finds them in the plan; refusals of a bad row of a column."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dysharp.base import Array, ProgramError
from dysharp.program.tables import Head, Program, Tail


def op_name(p: Program, op: int) -> str:
    """An op with its template and node, as in "op 3 (dispatch.put, node 1)"."""
    return f"op {op} ({p.templates[p.ops.template[op]].name}, node {p.ops.node[op]})"


def member_owner(p: Program, member: int) -> int:
    """The op of a member."""
    return int(np.searchsorted(p.members.ptr, member, side="right")) - 1


def region_of_row(p: Program, row: int) -> int:
    """The region of a row."""
    return int(np.searchsorted(p.regions.row_ptr, row, side="right")) - 1


def region_of_tile(p: Program, tile: int) -> int:
    """The region of a tile."""
    return int(np.searchsorted(p.regions.tile_ptr, tile, side="right")) - 1


def region_name(p: Program, region: int) -> str:
    """A region with its node, as in "region 2 (node 0)"."""
    return f"region {region} (node {p.regions.node[region]})"


def row_name(p: Program, row: int) -> str:
    """A row with its region."""
    return f"row {row} of {region_name(p, region_of_row(p, row))}"


def tile_name(p: Program, tile: int) -> str:
    """A tile with its region."""
    return f"tile {tile} of {region_name(p, region_of_tile(p, tile))}"


def edge_name(p: Program, edge: int) -> str:
    """An edge with both ends.

    Example: "edge 4 from MEMBER_DELIVERED 7, op 3 (put, node 1), to OP_ISSUE, op 5 (gemm1, node 0)".
    """
    e = p.edges
    tail, head = Tail(int(e.tail_kind[edge])), Head(int(e.head_kind[edge]))
    return f"edge {edge} from {_end_name(p, tail, int(e.tail[edge]))}, to {_end_name(p, head, int(e.head[edge]))}"


def _end_name(p: Program, kind: Tail | Head, end: int) -> str:
    if kind is Tail.TILE_READY or kind is Head.TILE_NOTIFY:
        return f"{kind.name}, {tile_name(p, end)}"
    if kind is Tail.ROW_COMPLETE:
        return f"{kind.name}, {row_name(p, end)}"
    if kind is Tail.MEMBER_DELIVERED or kind is Head.MEMBER_RESPOND:
        return f"{kind.name} {end}, {op_name(p, member_owner(p, end))}"
    return f"{kind.name}, {op_name(p, end)}"


def fail_where(bad: Array, message: Callable[[int], str]) -> None:
    """Raise ProgramError with the message of the first True in `bad`."""
    if bad.any():
        raise ProgramError(message(int(bad.argmax())))


def check_range(column: Array, low: int, high: int, what: str) -> None:
    """Raise ProgramError unless `low <= column < high` for every entry. "{i}" in `what` stands for the row."""
    if len(column) and (column.min() < low or column.max() >= high):
        i = int(((column < low) | (column >= high)).argmax())
        expected = f"{low} .. {high - 1}" if high > low else "no entries at all"
        raise ProgramError(f"{what.format(i=i)}: found {column[i]}, expected {expected}")


def check_ranges(table: Any, what: str, **columns: tuple[int, int]) -> None:
    """Raise ProgramError unless every entry of the named columns of `table` is in `low .. high - 1`. `what`: what a row is."""
    for name, (low, high) in columns.items():
        check_range(getattr(table, name), low, high, f"{what} {{i}}: {name}")
