"""AL Table (algebraic index to layout index) of a destination GPU with its TLB: first touch allocates, misses merge.

The table lies in memory. The TLB lies on chip and evicts the least recently used entry. A lookup that misses is *pending* until memory answers. Later
lookups of that entry wait for the same answer, so one (expert, algebraic index) never gets two layout indices. Dispatch allocates entries, Combine
reads them. Source: DySHARP (arXiv 2605.05607), memory manager of the destination GPU. The paper does not describe pending misses, the replacement of
entries and the life of a table: docs/design/0004, Blocks.
"""

from collections.abc import Hashable, Iterable
from dataclasses import field, replace

from dysharp.base import frozen
from dysharp.isa.sram import GPU, Sram, entry
from dysharp.protocol.frozen import Table, put

Key = tuple[int, int]  # (local expert, algebraic index)
NO_LIMIT = 1 << 30

AL_TLB = Sram(
    entry=entry("AL TLB", expert=10, algebraic_index=32, layout_index=32, state=5), owner=GPU,
    meaning="AL TLB entries of a GPU; the packet level models its misses", cluster_key="al_tlb_entries", option="fabric.al_entries",
)  # fmt: skip

MISS_REGISTERS = Sram(
    entry=entry("miss register", expert=10, algebraic_index=32, first_waiting=8, last_waiting=8, allocates=1), owner=GPU,
    meaning="reads of the AL Table that a hub has under way: the most that a shape of the figures needs (docs/design/0023)", entries=256,
    option="fabric.al_mshrs",
)  # fmt: skip


@frozen
class AlState:
    """The table in memory, the TLB, and the misses under way."""

    tlb_entries: int
    mshrs: int
    """Most misses under way."""
    tables: tuple[Table[int, int], ...]
    """By local expert: layout index by algebraic index. The length of a table is its next free block."""
    tlb: Table[Key, int] = field(default_factory=Table)
    """Cached layout indices, least recently used first."""
    pending: Table[Key, tuple[tuple[Hashable, bool], ...]] = field(default_factory=Table)
    """Lookups that wait for a miss, in order of arrival: (packet, allocates)."""


@frozen
class Lookup:
    """A packet (an opaque id) asks for the layout index of its block.

    `allocate`: True for Dispatch, which binds the block on first touch. False for Combine, which only reads.
    """

    key: Key
    packet: Hashable
    allocate: bool


@frozen
class MemoryAnswer:
    """Memory answers the pending miss of `key`. Answers may come in any order."""

    key: Key


@frozen
class Found:
    """The packet goes on to block `layout`."""

    packet: Hashable
    key: Key
    layout: int


@frozen
class Unbound:
    """The packet reads a block that no packet has written."""

    packet: Hashable
    key: Key


@frozen
class ReadTable:
    """A miss goes to memory; `MemoryAnswer(key)` must follow."""

    key: Key


@frozen
class BlockBound:
    """`key` is bound to a new block. This output comes before the `Found` of any packet."""

    key: Key
    layout: int


@frozen
class Full:
    """All miss registers are taken. The packet waits and asks again."""

    packet: Hashable
    key: Key


Event = Lookup | MemoryAnswer
Output = Found | Unbound | ReadTable | BlockBound | Full
Stepped = tuple[AlState, tuple[Output, ...]]
"""The state after an event, and what leaves."""


def empty(n_experts: int, tlb_entries: int, mshrs: int = NO_LIMIT) -> AlState:
    """A table without blocks and an empty TLB. `tlb_entries` and `mshrs` are at least 1."""
    return AlState(tlb_entries, mshrs, (Table(),) * n_experts)


def bound(n_experts: int, tlb_entries: int, layout: Iterable[tuple[Key, int]], mshrs: int = NO_LIMIT) -> AlState:
    """A table with an existing layout: backward reuses its forward's table. Blocks of an expert are dense from 0."""
    pairs = list(layout)
    tables = tuple(Table((index, place) for (e, index), place in pairs if e == expert) for expert in range(n_experts))
    return AlState(tlb_entries, mshrs, tables)


def layout_of(state: AlState, key: Key) -> int:
    """The layout index of `key`, -1 = not allocated."""
    place = state.tables[key[0]].get(key[1])
    return -1 if place is None else place


def is_hit(state: AlState, key: Key) -> bool:
    """Whether the TLB answers a lookup of `key`."""
    return key in state.tlb


def step(state: AlState, event: Event) -> Stepped:
    """The tables after one lookup or one answer. An answer without a pending miss changes nothing."""
    if isinstance(event, Lookup):
        return _look_up(state, event)
    return _answer(state, event.key) if event.key in state.pending else (state, ())


def _look_up(state: AlState, event: Lookup) -> Stepped:
    key = event.key
    cached = state.tlb.get(key)
    if cached is not None:
        return replace(state, tlb=state.tlb.last(key, cached)), (Found(event.packet, key, cached),)
    waiting = state.pending.get(key)
    if waiting is None and len(state.pending) >= state.mshrs:
        return state, (Full(event.packet, key),)
    joined = (*(waiting or ()), (event.packet, event.allocate))
    # A lookup that joins a pending miss needs no read.
    return replace(state, pending=state.pending.put(key, joined)), () if waiting else (ReadTable(key),)


def _answer(state: AlState, key: Key) -> Stepped:
    waiting = state.pending[key]
    state = replace(state, pending=state.pending.without(key))
    layout, outputs = layout_of(state, key), []
    if layout < 0:
        if not any(allocates for _, allocates in waiting):
            return state, tuple(Unbound(packet, key) for packet, _ in waiting)
        state, layout = _allocate(state, key)
        outputs = [BlockBound(key, layout)]
    return _cache(state, key, layout), (*outputs, *(Found(packet, key, layout) for packet, _ in waiting))


def _allocate(state: AlState, key: Key) -> tuple[AlState, int]:
    """`key` takes the next free block of its expert. The table in memory is updated at once."""
    expert, index = key
    table = state.tables[expert]
    tables = put(state.tables, expert, table.put(index, len(table)))
    return replace(state, tables=tables), len(table)


def _cache(state: AlState, key: Key, layout: int) -> AlState:
    tlb = state.tlb.last(key, layout)
    # Memory has every entry, so the oldest entry of the TLB is dropped without a write.
    return replace(state, tlb=tlb.without(tlb.first()) if len(tlb) > state.tlb_entries else tlb)
