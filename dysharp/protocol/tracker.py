"""Token tracker of a destination GPU. It tells when GEMM-1 and GEMM-2 may read a tile, and which source GPUs to notify.

The TS table is a cache over memory: entries that do not fit keep counting in memory. The TID list of a tile holds its tokens in layout order. Each
token has a bitmap of the chunks that have arrived, so a repeated store counts once. All updates happen when data is visible. Source: DySHARP (arXiv
2605.05607), token tracker. The threshold of a partial tile, the token ids and the spilling of entries: docs/design/0004, Blocks.
"""

from dataclasses import field, replace

from dysharp.base import Numbers, frozen
from dysharp.isa.sram import GPU, Sram, entry
from dysharp.protocol.frozen import Table, put

Tile = tuple[int, int]  # (local expert, index of the tile among the tiles of the expert)

TILE_STATUS = Sram(
    entry=entry("Tile Status Table", tile=32, expert=10, rows=8, rows_expected=8, address_of_notices=46), owner=GPU,
    meaning="tiles in the tracker of a GPU; no time depends on it", cluster_key="ts_entries",
)  # fmt: skip


@frozen
class _TileCounts:
    """Counts of one tile: bytes that have arrived, finished thread blocks of GEMM-1 and of GEMM-2."""

    bytes: int = 0
    gemm1: int = 0
    gemm2: int = 0


@frozen
class TileShape:
    """Sizes of tiles."""

    tile_rows: int
    row_bytes: int
    n_active: Numbers
    """By local expert: the rows that it will get. They give the size of its last tile."""
    gemm1_blocks: int = 1
    """Thread blocks of GEMM-1 per tile."""
    gemm2_blocks: int = 1
    """Thread blocks of GEMM-2 per tile."""

    def threshold_bytes(self, tile: Tile) -> int:
        """Bytes that make `tile` ready."""
        return min(self.tile_rows, self.n_active[tile[0]] - tile[1] * self.tile_rows) * self.row_bytes


@frozen
class TrackerState:
    """The TS table and the TID lists."""

    shape: TileShape
    entries: int
    """Most TS entries on chip."""
    on_chip: Table[Tile, _TileCounts] = field(default_factory=Table)
    """TS entries on chip, least recently used first."""
    memory: Table[Tile, _TileCounts] = field(default_factory=Table)
    """TS entries that spilled to memory."""
    tokens: Table[Tile, tuple[tuple[int, int], ...]] = field(default_factory=Table)
    """TID lists: (token, bitmap of the chunks that have arrived) in layout order."""


@frozen
class Bind:
    """Block `layout` of `expert` is allocated to `token`. The blocks of an expert come in order 0, 1, ..."""

    expert: int
    layout: int
    token: int


@frozen
class ChunkStore:
    """Chunk number `chunk` of a bound block is visible, with `n_bytes` bytes."""

    expert: int
    layout: int
    chunk: int
    n_bytes: int


@frozen
class Gemm1Block:
    """A thread block of GEMM-1 of `tile` has finished."""

    tile: Tile


@frozen
class Gemm2Block:
    """A thread block of GEMM-2 of `tile` has finished."""

    tile: Tile


@frozen
class TileReady:
    """All rows of `tile` are visible. GEMM-1 may read them."""

    tile: Tile


@frozen
class RowReady:
    """GEMM-1 of `tile` is done. GEMM-2 may read its output."""

    tile: Tile


@frozen
class Notify:
    """The output of local `expert` for `token` is visible. The token's source GPU gets a notice."""

    token: int
    expert: int


@frozen
class TileSpilled:
    """The TS entry of `tile` moves to memory."""

    tile: Tile


Event = Bind | ChunkStore | Gemm1Block | Gemm2Block
Output = TileReady | RowReady | Notify | TileSpilled
Stepped = tuple[TrackerState, tuple[Output, ...]]
"""The state after an event, and what leaves."""


def empty(shape: TileShape, entries: int) -> TrackerState:
    """A tracker without data. `entries` is at least 1."""
    return TrackerState(shape, entries)


def bound(shape: TileShape, entries: int, tokens: tuple[Numbers, ...]) -> TrackerState:
    """A tracker with an existing layout, for backward. `tokens[expert]`: tokens in layout order."""
    state = empty(shape, entries)
    for expert, tokens_of_expert in enumerate(tokens):
        for layout, token in enumerate(tokens_of_expert):
            state, _ = step(state, Bind(expert, layout, token))
    return state


def entry_of(state: TrackerState, tile: Tile) -> _TileCounts:
    """The counts of `tile`, on chip or in memory."""
    return state.on_chip.get(tile) or state.memory.get(tile) or _TileCounts()


def step(state: TrackerState, event: Event) -> Stepped:
    """The tables after one event. A repeated chunk changes nothing."""
    if isinstance(event, ChunkStore):
        return _store(state, event)
    if isinstance(event, Bind):
        return _bind(state, event), ()
    entry = entry_of(state, event.tile)
    if isinstance(event, Gemm1Block):
        done = entry.gemm1 + 1 == state.shape.gemm1_blocks
        return _put(state, event.tile, replace(entry, gemm1=entry.gemm1 + 1), (RowReady(event.tile),) if done else ())
    if entry.gemm2 + 1 < state.shape.gemm2_blocks:
        return _put(state, event.tile, replace(entry, gemm2=entry.gemm2 + 1), ())
    notices = tuple(Notify(token, event.tile[0]) for token, _ in state.tokens[event.tile])
    return replace(state, on_chip=state.on_chip.without(event.tile), memory=state.memory.without(event.tile)), notices


def _bind(state: TrackerState, event: Bind) -> TrackerState:
    tile = (event.expert, event.layout // state.shape.tile_rows)
    row = state.tokens.get(tile) or ()
    assert len(row) == event.layout % state.shape.tile_rows, f"block {event.layout} of expert {event.expert} is bound out of order"
    return replace(state, tokens=state.tokens.put(tile, (*row, (event.token, 0))))


def _store(state: TrackerState, event: ChunkStore) -> Stepped:
    tile, place = (event.expert, event.layout // state.shape.tile_rows), event.layout % state.shape.tile_rows
    row = state.tokens[tile]
    token, seen = row[place]
    if seen >> event.chunk & 1:
        return state, ()
    row = put(row, place, (token, seen | 1 << event.chunk))
    entry = entry_of(state, tile)
    entry = replace(entry, bytes=entry.bytes + event.n_bytes)
    ready = entry.bytes == state.shape.threshold_bytes(tile)
    return _put(replace(state, tokens=state.tokens.put(tile, row)), tile, entry, (TileReady(tile),) if ready else ())


def _put(state: TrackerState, tile: Tile, entry: _TileCounts, outputs: tuple[Output, ...]) -> Stepped:
    """The entry of `tile` comes on chip. The least recently used entry makes room and keeps counting in memory."""
    on_chip, memory = state.on_chip.last(tile, entry), state.memory
    if tile in memory:
        memory = memory.without(tile)
    if len(on_chip) > state.entries:
        victim = on_chip.first()
        memory, on_chip = memory.put(victim, on_chip[victim]), on_chip.without(victim)
        outputs = (*outputs, TileSpilled(victim))
    return replace(state, on_chip=on_chip, memory=memory), outputs
