"""Token tracker of a destination GPU: which tile can feed GEMM-1, which row of GEMM-1 can feed GEMM-2, who is told when GEMM-2 is done.

The TS table is a cache over memory: what does not fit keeps counting there. The TID list beside it holds the tokens of a tile in layout
order, each with a bitmap of the chunks that have arrived, so that a store that comes twice counts once. All updates happen when data is
visible. Source: spec/dysharp.md section 8, decisions 17, 19 and 20 of section 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dysharp.protocol.frozen import Table

Tile = tuple[int, int]  # (local expert, tile row): the rows from tile row x tile_rows on


@dataclass(frozen=True, slots=True)
class Entry:
    """One tile: bytes that have arrived, finished thread blocks of GEMM-1 and GEMM-2."""

    bytes: int = 0
    gemm1: int = 0
    gemm2: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """`n_active[expert]`: rows the expert will get, so that its last tile knows how many are its own; thread blocks per tile."""

    tile_rows: int
    row_bytes: int
    n_active: tuple[int, ...]
    gemm1_blocks: int = 1
    gemm2_blocks: int = 1

    def threshold_bytes(self, tile: Tile) -> int:
        """Bytes that make `tile` ready."""
        return min(self.tile_rows, self.n_active[tile[0]] - tile[1] * self.tile_rows) * self.row_bytes


@dataclass(frozen=True, slots=True)
class TrackerState:
    """`on_chip`: TS entries, least recently used first, at most `entries`; `memory`: those that did not fit.

    `tokens[tile]`: the TID list, (token, chunks that have arrived) in layout order.
    """

    shape: Shape
    entries: int
    on_chip: Table[Tile, Entry] = field(default_factory=Table)
    memory: Table[Tile, Entry] = field(default_factory=Table)
    tokens: Table[Tile, tuple[tuple[int, int], ...]] = field(default_factory=Table)


@dataclass(frozen=True, slots=True)
class Bind:
    """The next block of `expert`, `layout`, was allocated to `token` (blocks come in order 0, 1, ...)."""

    expert: int
    layout: int
    token: int


@dataclass(frozen=True, slots=True)
class Store:
    """`n_bytes` of a bound block, its chunk number `chunk`, are visible."""

    expert: int
    layout: int
    chunk: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Gemm1Block:
    """A thread block of GEMM-1 of `tile` has finished."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class Gemm2Block:
    """A thread block of GEMM-2 of `tile` has finished."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class TileReady:
    """All rows of `tile` are visible: GEMM-1 may read them."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class RowReady:
    """GEMM-1 of `tile` is done: GEMM-2 may read it."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class Notify:
    """The output of local `expert` for `token` is visible: tell the token's source GPU."""

    token: int
    expert: int


@dataclass(frozen=True, slots=True)
class Spilled:
    """The TS entry of `tile` went to memory."""

    tile: Tile


Event = Bind | Store | Gemm1Block | Gemm2Block
Output = TileReady | RowReady | Notify | Spilled


def empty(shape: Shape, entries: int) -> TrackerState:
    """Nothing has arrived. `entries` is at least 1."""
    return TrackerState(shape, entries)


def bound(shape: Shape, entries: int, tokens: tuple[tuple[int, ...], ...]) -> TrackerState:
    """With a layout given before (backward): `tokens[expert]` in layout order."""
    state = empty(shape, entries)
    for expert, row in enumerate(tokens):
        for layout, token in enumerate(row):
            state, _ = step(state, Bind(expert, layout, token))
    return state


def entry_of(state: TrackerState, tile: Tile) -> Entry:
    """The counts of `tile`, wherever they are."""
    return state.on_chip.get(tile) or state.memory.get(tile) or Entry()


def step(state: TrackerState, event: Event) -> tuple[TrackerState, tuple[Output, ...]]:
    """The tables after one event. A chunk that comes again changes nothing."""
    if isinstance(event, Store):
        return _store(state, event)
    if isinstance(event, Bind):
        return _bind(state, event), ()
    entry = entry_of(state, event.tile)
    if isinstance(event, Gemm1Block):
        done = entry.gemm1 + 1 == state.shape.gemm1_blocks
        return _put(state, event.tile, replace(entry, gemm1=entry.gemm1 + 1), (RowReady(event.tile),) if done else ())
    if entry.gemm2 + 1 < state.shape.gemm2_blocks:
        return _put(state, event.tile, replace(entry, gemm2=entry.gemm2 + 1), ())
    told = tuple(Notify(token, event.tile[0]) for token, _ in state.tokens[event.tile])
    return _free(state, event.tile), told


def _bind(state: TrackerState, event: Bind) -> TrackerState:
    tile = (event.expert, event.layout // state.shape.tile_rows)
    row = state.tokens.get(tile) or ()
    assert len(row) == event.layout % state.shape.tile_rows, f"block {event.layout} of expert {event.expert} is bound out of order"
    return replace(state, tokens=state.tokens.put(tile, (*row, (event.token, 0))))


def _store(state: TrackerState, event: Store) -> tuple[TrackerState, tuple[Output, ...]]:
    tile, at = (event.expert, event.layout // state.shape.tile_rows), event.layout % state.shape.tile_rows
    row = state.tokens[tile]
    token, seen = row[at]
    if seen >> event.chunk & 1:
        return state, ()
    row = (*row[:at], (token, seen | 1 << event.chunk), *row[at + 1 :])
    entry = entry_of(state, tile)
    entry = replace(entry, bytes=entry.bytes + event.n_bytes)
    ready = entry.bytes == state.shape.threshold_bytes(tile)
    return _put(replace(state, tokens=state.tokens.put(tile, row)), tile, entry, (TileReady(tile),) if ready else ())


def _put(state: TrackerState, tile: Tile, entry: Entry, outputs: tuple[Output, ...]) -> tuple[TrackerState, tuple[Output, ...]]:
    """The entry comes on chip; the least recently used one makes room and keeps counting in memory."""
    on_chip, memory = state.on_chip.last(tile, entry), state.memory
    if tile in memory:
        memory = memory.without(tile)
    if len(on_chip) > state.entries:
        victim = on_chip.first()
        memory, on_chip = memory.put(victim, on_chip[victim]), on_chip.without(victim)
        outputs = (*outputs, Spilled(victim))
    return replace(state, on_chip=on_chip, memory=memory), outputs


def _free(state: TrackerState, tile: Tile) -> TrackerState:
    """The entry goes; the TID list stays, for late duplicates and for backward."""
    return replace(state, on_chip=state.on_chip.without(tile), memory=state.memory.without(tile))
