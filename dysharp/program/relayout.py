"""`relayout`: a backward Program with the row layout of its forward run. `with_hardware`: a Program with other constants."""

from dataclasses import replace

import numpy as np

from dysharp.base import I32, ProgramError
from dysharp.program.names import fail_where
from dysharp.program.tables import Alloc, Hardware, Point, Program, Tail


def relayout(program: Program, row_slot: I32) -> Program:
    """`program` with the rows of its tiled regions in the slots that a forward run gave them.

    `row_slot`: `[rows]` `Trace.row_slot` of a forward Program with the Routing of `program`. Both Programs have their
    tiled regions first, in one order. The forward has its rows by rising keys, which `verify` checks. `program` has
    `Alloc.PREFIX`. Rows of other regions keep their slots. Raises ProgramError if `row_slot` does not fit `program`.
    """
    new = _new_ids(program, np.asarray(row_slot))
    n = len(new)
    ids = np.concatenate((new, np.arange(n, program.n_rows, dtype=np.int32)))
    r, m, e, h = program.regions, program.members, program.edges, program.holds
    key, notify = r.row_key.copy(), r.row_notify.copy()
    key[new], notify[new] = r.row_key[:n], r.row_notify[:n]
    of_row = e.tail_kind == Tail.ROW_COMPLETE
    return replace(
        program, regions=replace(r, row_key=key, row_notify=notify), members=replace(m, fill_row=ids[m.fill_row]),
        edges=replace(e, tail=np.where(of_row, ids[np.where(of_row, e.tail, 0)], e.tail)) if of_row.any() else e,
        holds=replace(h, acquire=_moved(ids, h.acquire_kind, h.acquire), release=_moved(ids, h.release_kind, h.release)),
    )  # fmt: skip


def _new_ids(program: Program, row_slot: I32) -> I32:
    """`[rows of tiled regions]` new row id of each. With PREFIX the row id gives the slot."""
    r = program.regions
    tiled = program.tiled_regions()
    n_regions = int(tiled.sum())
    if not tiled[:n_regions].all():
        raise ProgramError(f"relayout: found region {int(tiled.argmin())} before the last tiled region, expected tiled regions first")
    n = int(r.row_ptr[n_regions])
    if len(row_slot) < n:
        raise ProgramError(f"relayout: found slots of {len(row_slot)} rows, expected at least the {n} rows of tiled regions")
    fail_where(r.alloc[:n_regions] != Alloc.PREFIX, lambda i: f"relayout: found region {i} bound by arrival, expected PREFIX")
    region = np.repeat(np.arange(n_regions), np.diff(r.row_ptr[: n_regions + 1]))
    forward = np.lexsort((r.row_key[:n], region))  # row ids of `program` in the order of the forward's rows
    slot = np.asarray(row_slot[:n], np.int64)
    rows = np.diff(r.row_ptr)[region]
    outside = (slot < 0) | (slot >= rows)
    fail_where(outside, lambda i: f"relayout: found slot {slot[i]} of forward row {i}, expected 0 .. {rows[i] - 1}")
    place = r.row_ptr[region] + slot
    taken = np.bincount(place, minlength=n)
    fail_where(taken != 1, lambda i: f"relayout: found {taken[i]} rows in slot {i - r.row_ptr[region[i]]} of region {region[i]}, expected one")
    new = np.empty(n, np.int32)
    new[forward] = place
    return new


def _moved(ids: I32, kind: I32, column: I32) -> I32:
    """A column of points of holds, with new row ids."""
    rows = kind == Point.ROW_FIRST_TOUCH
    return np.where(rows, ids[np.where(rows, column, 0)], column) if rows.any() else column


def with_hardware(program: Program, hardware: Hardware) -> Program:
    """`program` with other constants, such as buffers and latencies.

    Raises ProgramError for another rate, number of links or flit size: the wire table depends on these.
    """
    old = program.hardware
    if (old.rate, old.n_links, old.flit) != (hardware.rate, hardware.n_links, hardware.flit):
        raise ProgramError("with_hardware: found another rate, link count or flit size, expected the wire table's own")
    return replace(program, hardware=hardware)
