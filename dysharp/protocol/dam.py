"""DAM (Data Availability Manager) of a MoE-Hub: counts acknowledged bytes per tile and releases thread blocks.

A consumer kernel is launched with a grid for the largest possible number of rows. A whole tile is ready when all its
bytes are acknowledged. How many rows come is not known in advance, so every producer announces, at its end, how many
rows it has sent to the region. When all producers have announced and all announced bytes are there, ALL READY holds:
the partial last tile starts with the rows that it has, and the thread blocks of tiles without rows are reclaimed.

`fixed`: the naive scheme, which waits for a number of rows that was set at launch. It hangs where fewer rows come and stops early where more come; it
is here to be refuted. Source: MoE-Hub (arXiv 2605.05888), dependency table, status counters, global counter. Announced totals: docs/design/0013.
"""

from dataclasses import field, replace

from dysharp.base import Numbers, frozen
from dysharp.isa.sram import GPU, Sram, entry
from dysharp.protocol.frozen import Table, put

TILE_COUNTER = Sram(
    entry=entry("tile counter", bytes=25, records=8, started=1, returnable=1), owner=GPU, meaning="tiles of all worst-case grids of a GPU",
    entries=2048,
)  # fmt: skip


@frozen
class DamState:
    """One region and the kernel that reads it."""

    row_bytes: int
    tile_rows: int
    producers: int
    fixed: int | None
    """Rows for which the naive scheme waits; None: announced totals."""
    counters: Numbers
    """Acknowledged bytes by tile of the grid."""
    records: Numbers
    """Source records by tile."""
    announced: Table[int, int] = field(default_factory=Table)
    """Rows by producer."""
    started: frozenset[int] = frozenset()
    """Tiles whose thread blocks were released."""
    returnable: frozenset[int] = frozenset()
    """Tiles whose source records are all there: results may leave."""
    reclaimed: frozenset[int] = frozenset()
    all_ready: bool = False


@frozen
class Ack:
    """`n_bytes` of the row at `place` are visible."""

    place: int
    n_bytes: int


@frozen
class Record:
    """The source record of the row at `place` is visible."""

    place: int


@frozen
class Announce:
    """`producer` has sent `rows` rows to this region and sends no more."""

    producer: int
    rows: int


@frozen
class Ready:
    """The thread blocks of `tile` may start on its first `rows` rows."""

    tile: int
    rows: int


@frozen
class Returnable:
    """The source records of the first `rows` rows of `tile` are there."""

    tile: int
    rows: int


@frozen
class Reclaim:
    """No row of `tile` will come: its thread blocks end."""

    tile: int


Event = Ack | Record | Announce
Output = Ready | Returnable | Reclaim


def empty(rows: int, row_bytes: int, tile_rows: int, producers: int, *, fixed: int | None = None) -> DamState:
    """Counters of a region with a capacity of `rows` rows."""
    tiles = (0,) * -(-rows // tile_rows)
    return DamState(row_bytes, tile_rows, producers, fixed, tiles, tiles)


def step(state: DamState, event: Event) -> tuple[DamState, tuple[Output, ...]]:
    """The counters after an acknowledgement, a record or an announcement."""
    if isinstance(event, Ack):
        tile = event.place // state.tile_rows
        state = replace(state, counters=put(state.counters, tile, state.counters[tile] + event.n_bytes))
    elif isinstance(event, Record):
        tile = event.place // state.tile_rows
        state = replace(state, records=put(state.records, tile, state.records[tile] + 1))
    else:
        state = replace(state, announced=state.announced.put(event.producer, event.rows))
    if not state.all_ready and _all_there(state):
        state = replace(state, all_ready=True)
    return _release(state)


def expected_rows(state: DamState) -> int | None:
    """Rows of the region, None while it is not known."""
    if state.fixed is not None:
        return state.fixed
    return sum(rows for _, rows in state.announced.items()) if len(state.announced) == state.producers else None


def rows_of(state: DamState, tile: int) -> int:
    """Rows of `tile` that are complete as far as bytes tell."""
    return state.counters[tile] // state.row_bytes


def _all_there(state: DamState) -> bool:
    rows = expected_rows(state)
    return rows is not None and sum(state.counters) >= rows * state.row_bytes


def _release(state: DamState) -> tuple[DamState, tuple[Output, ...]]:
    """Release what can be released now, tile by tile."""
    outputs: list[Output] = []
    for tile, n_bytes in enumerate(state.counters):
        whole = n_bytes == state.tile_rows * state.row_bytes
        last = state.all_ready and n_bytes > 0
        if tile not in state.started and tile not in state.reclaimed and (whole or last):
            outputs.append(Ready(tile, rows_of(state, tile)))
            state = replace(state, started=state.started | {tile})
        if tile in state.started and tile not in state.returnable and (whole or last) and state.records[tile] == rows_of(state, tile):
            outputs.append(Returnable(tile, rows_of(state, tile)))
            state = replace(state, returnable=state.returnable | {tile})
        if state.all_ready and n_bytes == 0 and tile not in state.reclaimed:
            outputs.append(Reclaim(tile))
            state = replace(state, reclaimed=state.reclaimed | {tile})
    return state, tuple(outputs)
