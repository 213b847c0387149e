"""AAU (Address Allocation Unit) of a MoE-Hub: from (region, row id) to the place of a row, bound on first touch.

The RAT (Row Allocation Table) lies on chip, in banks. A full bank evicts its oldest entry (FIFO) to a map in memory. An
entry whose row has all its bytes is dead and leaves without a write. The APT (Allocation Pointer Table) has the next
free place and the capacity of every region; a row beyond the capacity is a trap.

A miss is a row never seen or an evicted one. While a region has no evicted entry, every miss is a first touch and no
memory is read. Otherwise the unit reads the map; packets of that row wait for one answer.
Source: MoE-Hub (arXiv 2605.05888). The paper names RAT, APT, FIFO and the spill; docs/design/0013 lists what is assumed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace

from dysharp.base import Numbers, frozen
from dysharp.isa.sram import GPU, Sram, entry
from dysharp.protocol.frozen import Table, put

Key = tuple[int, int]  # (region, row id)
Entry = tuple[int, int]  # (place, bytes so far)

RAT = Sram(
    entry=entry("RAT", region=10, row=32, place=20, bytes=17, valid=1), owner=GPU, meaning="rows in all banks of the row table (RAT) of a GPU",
    option="rat_bank_entries",
)  # fmt: skip
APT = Sram(entry=entry("APT", base=48, row_bytes=17, next_place=20, capacity=20), owner=GPU, meaning="regions of a GPU", entries=64)


@frozen
class Region:
    """Registers of one region, which `rowspMalloc` writes."""

    base: int
    row_bytes: int
    capacity: int
    """Most rows."""


@frozen
class AauState:
    """RAT, APT, the map in memory, and the reads of the map under way."""

    regions: tuple[Region, ...]
    entries: int
    """Entries of one bank."""
    banks: tuple[Table[Key, Entry], ...]
    """RAT by bank, oldest entry first."""
    pointer: Numbers
    """APT: next free place by region."""
    evicted: Numbers
    """Entries of each region that are in memory."""
    memory: Table[Key, Entry] = field(default_factory=Table)
    waiting: Table[Key, tuple[RowPacket, ...]] = field(default_factory=Table)
    """Packets that wait for the map, in order of arrival."""


@frozen
class RowPacket:
    """A packet with `n_bytes` of a row, from byte `offset` on. `packet` is an opaque id."""

    key: Key
    offset: int
    n_bytes: int
    packet: Hashable


@frozen
class MapAnswer:
    """Memory answers the read of `key`. Answers may come in any order."""

    key: Key


@frozen
class Placed:
    """The packet goes on to `address`, in the row at `place` of its region."""

    packet: Hashable
    key: Key
    place: int
    address: int


@frozen
class Allocated:
    """`key` is bound to `place`. This output comes before the `Placed` of any packet of the row."""

    key: Key
    place: int


@frozen
class ReadMap:
    """The unit reads the map in memory; `MapAnswer(key)` must follow."""

    key: Key


@frozen
class Spilled:
    """The entry of `key` went to the map in memory."""

    key: Key


@frozen
class Overflow:
    """A trap: the region has no place for one more row."""

    region: int
    row: int
    capacity: int

    def __str__(self) -> str:
        return f"region {self.region}: found row {self.row} beyond its capacity, expected at most {self.capacity} rows"


Event = RowPacket | MapAnswer
Output = Placed | Allocated | ReadMap | Spilled | Overflow
Outputs = tuple[Output, ...]
Stepped = tuple[AauState, Outputs]
"""The state after an event, and what leaves."""


def empty(regions: tuple[Region, ...], *, entries: int, banks: int = 1) -> AauState:
    """A unit without rows. `entries` (of a bank) and `banks` are at least 1."""
    none = (0,) * len(regions)
    return AauState(regions, entries, (Table(),) * banks, none, none)


def _bank_of(state: AauState, key: Key) -> int:
    """The bank that holds `key`."""
    return (key[0] + key[1]) % len(state.banks)


def step(state: AauState, event: Event) -> Stepped:
    """The unit after a packet or an answer of memory. An answer that nobody waits for changes nothing."""
    if isinstance(event, RowPacket):
        return _store(state, event)
    return _answer(state, event.key) if event.key in state.waiting else (state, ())


def _store(state: AauState, store: RowPacket) -> Stepped:
    key = store.key
    cached = state.banks[_bank_of(state, key)].get(key)
    if cached is not None:
        return _place(state, store, cached)
    waiting = state.waiting.get(key)
    if waiting is not None:
        return replace(state, waiting=state.waiting.put(key, (*waiting, store))), ()
    if state.evicted[key[0]]:
        return replace(state, waiting=state.waiting.put(key, (store,))), (ReadMap(key),)
    return _touch(state, (store,))


def _answer(state: AauState, key: Key) -> Stepped:
    stores = state.waiting[key]
    state = replace(state, waiting=state.waiting.without(key))
    stored = state.memory.get(key)
    if stored is None:
        return _touch(state, stores)
    state = replace(state, memory=state.memory.without(key), evicted=put(state.evicted, key[0], state.evicted[key[0]] - 1))
    state, spilled = _insert(state, key, stored)
    return _all(state, stores, spilled)


def _touch(state: AauState, stores: tuple[RowPacket, ...]) -> Stepped:
    """The row of `stores` takes the next free place."""
    key = stores[0].key
    place, region = state.pointer[key[0]], state.regions[key[0]]
    if place >= region.capacity:
        return state, (Overflow(key[0], key[1], region.capacity),)
    state, spilled = _insert(replace(state, pointer=put(state.pointer, key[0], place + 1)), key, (place, 0))
    return _all(state, stores, (Allocated(key, place), *spilled))


def _all(state: AauState, stores: tuple[RowPacket, ...], outputs: Outputs) -> Stepped:
    """Place `stores`, which have one key with an entry."""
    key = stores[0].key
    for store in stores:
        state, placed = _place(state, store, state.banks[_bank_of(state, key)][key])
        outputs = (*outputs, *placed)
    return state, outputs


def _place(state: AauState, store: RowPacket, entry: Entry) -> Stepped:
    key, place = store.key, entry[0]
    region, received = state.regions[key[0]], entry[1] + store.n_bytes
    state = _keep(state, key, (place, received), complete=received >= region.row_bytes)
    return state, (Placed(store.packet, key, place, region.base + place * region.row_bytes + store.offset),)


def _keep(state: AauState, key: Key, entry: Entry, *, complete: bool) -> AauState:
    """Write the entry back. A complete row has no further packet, so its entry is free."""
    b = _bank_of(state, key)
    bank = state.banks[b].without(key) if complete else state.banks[b].put(key, entry)
    return replace(state, banks=put(state.banks, b, bank))


def _insert(state: AauState, key: Key, entry: Entry) -> Stepped:
    b = _bank_of(state, key)
    bank, outputs = state.banks[b], Outputs()
    if len(bank) >= state.entries:
        victim = bank.first()
        memory = state.memory.put(victim, bank[victim])
        state = replace(state, memory=memory, evicted=put(state.evicted, victim[0], state.evicted[victim[0]] + 1))
        bank, outputs = bank.without(victim), (Spilled(victim),)
    return replace(state, banks=put(state.banks, b, bank.put(key, entry))), outputs
