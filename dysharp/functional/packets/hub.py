"""Destination side: AL Table and TLB, memory, token tracker, responses. One hub per GPU (docs/design/0004, Blocks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import EmulationMismatch
from dysharp.functional.layer import UNBOUND, ExpertMemory, Layout
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.values import Format, Value
from dysharp.functional.numbers import Number
from dysharp.functional.sums import add_in_order
from dysharp.protocol import al_table, tracker

Array = NDArray[Any]
Key = tuple[int, int]  # (local expert, token)


@dataclass(slots=True)
class Arrival:
    """A packet in the hub until all its local targets are served. `places`: (local expert, row place), as they are found."""

    missing: int
    done: Callable[[list[tuple[int, int]]], None]
    places: list[tuple[int, int]] = field(default_factory=list)


class Hub:
    """The memory manager of one GPU. `miss(gpu, key)` asks memory; `tile_ready(tile)` is told once per tile of the Program."""

    def __init__(
        self,
        gpu: int,
        slots_per_gpu: int,
        layout: Layout,
        memory: ExpertMemory,
        statistics: Statistics,
        *,
        tlb_entries: int,
        ts_entries: int,
        row_bytes: int,
        miss: Callable[[int, Key], None],
        tile_ready: Callable[[int], None],
    ) -> None:
        self.gpu, self.layout, self.memory = gpu, layout, memory
        self._miss, self._tile_ready = miss, tile_ready
        regions = sorted((slot, region) for region, slot in layout.slot_of_region.items() if slot // slots_per_gpu == gpu)
        self.regions = [region for _, region in regions]
        self.row_of: dict[Key, int] = {
            (e, layout.key[row]): row for e, region in enumerate(self.regions) for row in range(*layout.row_ptr[region : region + 2])
        }
        self._start_tables(tlb_entries, ts_entries, row_bytes)
        self._al_counts = statistics.table("al_tlb", entries=tlb_entries)
        self._ts_counts = statistics.table("ts", entries=ts_entries)
        self.notices: dict[int, list[int]] = {}

    def _start_tables(self, tlb_entries: int, ts_entries: int, row_bytes: int) -> None:
        """Empty tables; with a layout given before (backward, PREFIX), tables that hold it."""
        layout, regions = self.layout, self.regions
        spans = [range(*layout.row_ptr[region : region + 2]) for region in regions]
        tile_rows = max((layout.tile_rows[region] for region in regions), default=1)
        shape = tracker.Shape(tile_rows, row_bytes, tuple(len(span) for span in spans))
        order = tuple(tuple(layout.key[layout.row_at[place]] for place in span if layout.row_at[place] != UNBOUND) for span in spans)
        if any(order):
            known = [((e, token), i) for e, tokens in enumerate(order) for i, token in enumerate(tokens)]
            self.al, self.ts = al_table.bound(len(regions), tlb_entries, known), tracker.bound(shape, ts_entries, order)
        else:
            self.al, self.ts = al_table.empty(len(regions), tlb_entries), tracker.empty(shape, ts_entries)

    # ---- addresses -------------------------------------------------------------------------------------------------------------

    def look_up(self, experts: tuple[int, ...], token: int, allocate: bool, done: Callable[[list[tuple[int, int]]], None]) -> None:
        """Translate a block for each local expert; `done` gets (local expert, place) of all, ascending, once every one is found."""
        arrival = Arrival(len(experts), done)
        for e in experts:
            self._al_counts["lookups"] += 1
            self._al_counts["hits"] += al_table.is_hit(self.al, (e, token))
            self._al_step(al_table.Lookup((e, token), _Waiting(arrival), allocate))

    def memory_answers(self, key: Key) -> None:
        """The AL Table entry of a miss is there."""
        self._al_step(al_table.MemoryAnswer(key))

    def _al_step(self, event: al_table.Event) -> None:
        self.al, outputs = al_table.step(self.al, event)
        for out in outputs:
            if isinstance(out, al_table.ReadTable):
                self._al_counts["misses"] += 1
                self._miss(self.gpu, out.key)
            elif isinstance(out, al_table.Allocated):
                self.bind(*out.key, out.layout)
            elif isinstance(out, al_table.Found):
                self._found(out.packet.arrival, out.key, out.layout)  # type: ignore[attr-defined]
            elif isinstance(out, al_table.Unbound):
                raise EmulationMismatch(f"GPU {self.gpu}: found a read of expert {out.key[0]}, token {out.key[1]}, expected one that Dispatch wrote")

    def _found(self, arrival: Arrival, key: Key, layout: int) -> None:
        arrival.places.append((key[0], self.layout.row_ptr[self.regions[key[0]]] + layout))
        arrival.missing -= 1
        if arrival.missing == 0:
            arrival.done(sorted(arrival.places))

    def bind(self, expert: int, token: int, slot: int = UNBOUND) -> int:
        """Bind a token's row of a local expert (to `slot`, or the next free one) unless it is bound; returns its place."""
        row = self.row_of.get((expert, token))
        if row is None:
            raise EmulationMismatch(f"GPU {self.gpu}: found a store of token {token} for expert {expert}, expected tokens that chose it")
        fresh = self.layout.place[row] == UNBOUND
        place = self.layout.bind(row, slot)
        if fresh:
            self._ts_step(tracker.Bind(expert, place - self.layout.row_ptr[self.regions[expert]], token))
        return place

    # ---- tracker ---------------------------------------------------------------------------------------------------------------

    def visible(self, expert: int, place: int, chunk: int, n_bytes: int) -> None:
        """`n_bytes` of a row, its chunk number `chunk`, can be read by all SMs."""
        self._ts_step(tracker.Store(expert, place - self.layout.row_ptr[self.regions[expert]], chunk, n_bytes))

    def computed(self, tile: int, *, last: bool) -> None:
        """The first or the last GEMM of a Program tile has run."""
        region = self.layout.region_of_tile[tile]
        mine = (self.regions.index(region), tile - self.layout.tile_ptr[region])
        self._ts_step(tracker.Gemm2Block(mine) if last else tracker.Gemm1Block(mine))

    def _ts_step(self, event: tracker.Event) -> None:
        self.ts, outputs = tracker.step(self.ts, event)
        for out in outputs:
            if isinstance(out, tracker.Spilled):
                self._ts_counts["spills"] += 1
            elif isinstance(out, tracker.TileReady):
                self._ts_counts["tiles"] += 1
                self._tile_ready(self.layout.tile_ptr[self.regions[out.tile[0]]] + out.tile[1])
            elif isinstance(out, tracker.Notify):
                row = self.row_of[out.expert, out.token]
                self.notices.setdefault(self.layout.tile_of(row), []).append(row)

    # ---- sums ------------------------------------------------------------------------------------------------------------------

    def add_up(self, buffer: Array, places: list[tuple[int, int]], columns: slice, number: Number) -> Value:
        """The rounded sum of a chunk over local experts' rows."""
        parts = [buffer[place, columns] for _, place in places]
        width = len(range(*columns.indices(buffer.shape[1])))
        rounded = number.load(number.store(add_in_order(parts, width, number)))
        slots = tuple(self.layout.slot_of_region[self.regions[e]] for e, _ in places)
        return Value(rounded, (("hub", self.gpu, slots),))

    def gate_grads(self, places: list[tuple[int, int]], at: list[int], n: int, fmt: Format) -> Value:
        """`[n]` with the gate gradient of each place at its index of `at`, zeros elsewhere."""
        out = np.zeros(n, self.memory.gate_grad.dtype)
        out[at] = [self.memory.gate_grad[place] for _, place in places]
        return Value(fmt.read(fmt.write(out, weights=True), weights=True), ())


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """An arrival as the opaque, hashable packet id of the AL block."""

    arrival: Arrival
