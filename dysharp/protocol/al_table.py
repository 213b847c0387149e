"""Algebraic-layout table of a destination GPU with its TLB: first touch allocates, misses merge.

The table lives in memory, the TLB on chip (least recently used entry out). A lookup that misses becomes *pending* until memory answers;
lookups of the same entry meanwhile wait for that answer, so one (expert, algebraic index) can never get two layout indices. Dispatch
allocates, Combine reads what Dispatch bound. Source: spec/dysharp.md section 6, decisions 12, 13 and 15 of section 14.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from dysharp.protocol.frozen import Table

Key = tuple[int, int]  # (local expert, algebraic index)
NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class AlState:
    """`tables[expert]`: layout index by algebraic index; its length is the next free block. `tlb`: cached keys, least recently used first.

    `pending`: what waits for a miss, in order of arrival: (packet, allocates); at most `mshrs` misses at a time.
    """

    tlb_entries: int
    mshrs: int
    tables: tuple[Table[int, int], ...]
    tlb: Table[Key, int] = field(default_factory=Table)
    pending: Table[Key, tuple[tuple[Hashable, bool], ...]] = field(default_factory=Table)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A packet (an opaque id) asks where its block lies. `allocate`: Dispatch, which binds on first touch; Combine only reads."""

    key: Key
    packet: Hashable
    allocate: bool


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Memory answers the pending miss of `key`, in any order among misses."""

    key: Key


@dataclass(frozen=True, slots=True)
class Found:
    """The packet goes on to block `layout`."""

    packet: Hashable
    key: Key
    layout: int


@dataclass(frozen=True, slots=True)
class Unbound:
    """The packet only reads, and nobody has written the block."""

    packet: Hashable
    key: Key


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A miss goes to memory; `MemoryAnswer(key)` must follow."""

    key: Key


@dataclass(frozen=True, slots=True)
class Allocated:
    """`key` was bound to a new block, before any packet is told."""

    key: Key
    layout: int


@dataclass(frozen=True, slots=True)
class Full:
    """All miss registers are taken: the packet stays where it is and asks again."""

    packet: Hashable
    key: Key


Event = Lookup | MemoryAnswer
Output = Found | Unbound | ReadTable | Allocated | Full


def empty(n_experts: int, tlb_entries: int, mshrs: int = NO_LIMIT) -> AlState:
    """No block allocated, nothing cached. `tlb_entries` and `mshrs` are at least 1."""
    return AlState(tlb_entries, mshrs, (Table(),) * n_experts)


def bound(n_experts: int, tlb_entries: int, layout: Iterable[tuple[Key, int]], mshrs: int = NO_LIMIT) -> AlState:
    """With a layout given before: backward reuses the table of its forward. Blocks of an expert are dense from 0."""
    pairs = list(layout)
    tables = tuple(Table((index, place) for (e, index), place in pairs if e == expert) for expert in range(n_experts))
    return AlState(tlb_entries, mshrs, tables)


def layout_of(state: AlState, key: Key) -> int:
    """The block of `key`, -1 = not allocated."""
    place = state.tables[key[0]].get(key[1])
    return -1 if place is None else place


def is_hit(state: AlState, key: Key) -> bool:
    """Whether a lookup of `key` is answered at once."""
    return key in state.tlb


def step(state: AlState, event: Event) -> tuple[AlState, tuple[Output, ...]]:
    """The tables after one lookup or one answer. An answer nobody waits for changes nothing."""
    if isinstance(event, Lookup):
        return _look_up(state, event)
    return _answer(state, event.key) if event.key in state.pending else (state, ())


def _look_up(state: AlState, event: Lookup) -> tuple[AlState, tuple[Output, ...]]:
    key = event.key
    cached = state.tlb.get(key)
    if cached is not None:
        return replace(state, tlb=state.tlb.last(key, cached)), (Found(event.packet, key, cached),)
    waiting = state.pending.get(key)
    if waiting is None and len(state.pending) >= state.mshrs:
        return state, (Full(event.packet, key),)
    joined = (*(waiting or ()), (event.packet, event.allocate))
    # Whoever joins a miss needs no read of its own.
    return replace(state, pending=state.pending.put(key, joined)), () if waiting else (ReadTable(key),)


def _answer(state: AlState, key: Key) -> tuple[AlState, tuple[Output, ...]]:
    waiting = state.pending[key]
    state = replace(state, pending=state.pending.without(key))
    layout, outputs = layout_of(state, key), []
    if layout < 0:
        if not any(allocates for _, allocates in waiting):
            return state, tuple(Unbound(packet, key) for packet, _ in waiting)
        state, layout = _allocate(state, key)
        outputs = [Allocated(key, layout)]
    return _cache(state, key, layout), (*outputs, *(Found(packet, key, layout) for packet, _ in waiting))


def _allocate(state: AlState, key: Key) -> tuple[AlState, int]:
    """`key` takes the next free block of its expert; the table in memory is written through."""
    expert, index = key
    table = state.tables[expert]
    tables = (*state.tables[:expert], table.put(index, len(table)), *state.tables[expert + 1 :])
    return replace(state, tables=tables), len(table)


def _cache(state: AlState, key: Key, layout: int) -> AlState:
    tlb = state.tlb.last(key, layout)
    # Entries are written through, so the oldest one can be dropped without a trace.
    return replace(state, tlb=tlb.without(tlb.first()) if len(tlb) > state.tlb_entries else tlb)
