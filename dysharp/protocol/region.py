"""A row store. Rows take slots in order of first touch. A tile is ready when its rows are complete.

Source: MoE-Hub (AAU, Address Allocation Unit, and DAM, Data Availability Manager); DySHARP (arXiv 2605.05607), token tracker (TS table).
"""

from dataclasses import replace

from dysharp.base import Numbers, frozen
from dysharp.protocol.frozen import put


@frozen
class _RegionState:
    """One region. Rows and slots count from 0 inside the region."""

    row_bytes: int
    tile_rows: int
    first_touch: bool
    """False: row i has slot i from the start."""
    slot: Numbers
    """By row: its slot, -1 = not bound."""
    row_at: Numbers
    """By slot: its row. The length is the number of bound rows."""
    received: Numbers
    """By row: bytes so far."""


@frozen
class Fill:
    """The event of a step: `n_bytes` (> 0) of row `row` become visible."""

    row: int
    n_bytes: int


def empty(n_rows: int, row_bytes: int, tile_rows: int, *, first_touch: bool = True) -> _RegionState:
    """A region of `n_rows` rows without data."""
    identity = tuple(range(n_rows))
    slot, row_at = ((-1,) * n_rows, ()) if first_touch else (identity, identity)
    return _RegionState(row_bytes, tile_rows, first_touch, slot, row_at, (0,) * n_rows)


def step(state: _RegionState, fill: Fill) -> _RegionState:
    """The region after one fill. A row that is not bound takes the next free slot."""
    received = put(state.received, fill.row, state.received[fill.row] + fill.n_bytes)
    if state.slot[fill.row] >= 0:
        return replace(state, received=received)
    slot = put(state.slot, fill.row, len(state.row_at))
    return replace(state, slot=slot, row_at=(*state.row_at, fill.row), received=received)


def row_complete(state: _RegionState, row: int) -> bool:
    """Whether `row` has all its bytes."""
    return state.received[row] >= state.row_bytes


def tile_of(state: _RegionState, row: int) -> int:
    """The tile of a bound row, inside the region."""
    return state.slot[row] // state.tile_rows


def tile_slots(state: _RegionState, tile: int) -> range:
    """The slots of a tile. The last tile may be short."""
    return range(tile * state.tile_rows, min((tile + 1) * state.tile_rows, len(state.slot)))


def rows_of_tile(state: _RegionState, tile: int) -> Numbers:
    """The rows bound to a tile so far, in slot order."""
    slots = tile_slots(state, tile)
    return state.row_at[slots.start : slots.stop]


def tile_ready(state: _RegionState, tile: int) -> bool:
    """Whether every slot of the tile holds a complete row."""
    rows = rows_of_tile(state, tile)
    return len(rows) == len(tile_slots(state, tile)) and all(row_complete(state, r) for r in rows)
