"""Destination side of a Program: rows of the expert slots of one GPU, and what its tables say about them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dysharp.errors import EmulationMismatch
from dysharp.functional.layer import UNBOUND, ExpertMemory, Layout, Tensors
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.tables import HubTables, Place
from dysharp.functional.network.transaction import Transaction
from dysharp.functional.network.values import Value, hub_sum
from dysharp.protocol import al_table, tracker
from dysharp.protocol.al_table import Key

Columns = dict[tuple[int, int], int]  # (token, expert slot): the column of the token's top-k that chose the slot


class Hub:
    """Rows of one GPU. A `Place` is (local expert, place), a place as in `Layout`. `tile_ready(tile)` is called once per tile."""

    def __init__(
        self,
        gpu: int,
        tensors: Tensors,
        layout: Layout,
        memory: ExpertMemory,
        columns: Columns,
        statistics: Statistics,
        *,
        tlb_entries: int,
        ts_entries: int,
        row_bytes: int,
        miss: Callable[[HubTables, Key], None],
        tile_ready: Callable[[int], None],
    ) -> None:
        self.gpu, self.layout, self.memory = gpu, layout, memory
        self._t, self._columns, self._tile_ready = tensors, columns, tile_ready
        per_gpu = tensors.routing.placement.slots_per_gpu
        regions = sorted((slot, region) for region, slot in layout.slot_of_region.items() if slot // per_gpu == gpu)
        self.regions = [region for _, region in regions]
        self.row_of: dict[Key, int] = {
            (e, layout.key[row]): row for e, region in enumerate(self.regions) for row in range(*layout.row_ptr[region : region + 2])
        }
        self.tables = HubTables(gpu, *self._start(tlb_entries, ts_entries, row_bytes), self, miss, statistics)
        self.notices: dict[int, list[int]] = {}  # rows by tile whose output is visible

    def _start(self, tlb_entries: int, ts_entries: int, row_bytes: int) -> tuple[al_table.AlState, tracker.TrackerState]:
        """Empty tables; tables that hold the layout when it is given (backward, PREFIX)."""
        layout, regions = self.layout, self.regions
        spans = [range(*layout.row_ptr[region : region + 2]) for region in regions]
        tile_rows = max((layout.tile_rows[region] for region in regions), default=1)
        shape = tracker.Shape(tile_rows, row_bytes, tuple(len(span) for span in spans))
        order = tuple(tuple(layout.key[layout.row_at[place]] for place in span if layout.row_at[place] != UNBOUND) for span in spans)
        if not any(order):
            return al_table.empty(len(regions), tlb_entries), tracker.empty(shape, ts_entries)
        known = [((e, token), i) for e, tokens in enumerate(order) for i, token in enumerate(tokens)]
        return al_table.bound(len(regions), tlb_entries, known), tracker.bound(shape, ts_entries, order)

    # ---- what the tables say (TablesOwner) ---------------------------------------------------------------------------------------

    def allocated(self, key: Key, layout: int) -> None:
        self.bind(*key, layout)

    def unbound(self, t: Transaction, key: Key) -> None:
        raise EmulationMismatch(f"GPU {self.gpu}: found a read of expert {key[0]}, token {key[1]}, expected one that Dispatch wrote")

    def tile_ready(self, tile: tracker.Tile) -> None:
        self._tile_ready(self.layout.tile_ptr[self.regions[tile[0]]] + tile[1])

    def output_visible(self, expert: int, block: int) -> None:
        row = self.row_of[expert, block]
        self.notices.setdefault(self.layout.tile_of(row), []).append(row)

    # ---- rows --------------------------------------------------------------------------------------------------------------------

    def bind(self, expert: int, token: int, slot: int = UNBOUND) -> int:
        """Bind a token's row of a local expert (to `slot`, or the next free one) unless it is bound; returns its place."""
        row = self.row_of.get((expert, token))
        if row is None:
            raise EmulationMismatch(f"GPU {self.gpu}: found a store of token {token} for expert {expert}, expected tokens that chose it")
        fresh = self.layout.place[row] == UNBOUND
        place = self.layout.bind(row, slot)
        if fresh:
            self.tables.track(tracker.Bind(expert, self._block(expert, place), token))
        return place

    def _block(self, expert: int, place: int) -> int:
        return place - self.layout.row_ptr[self.regions[expert]]

    def in_memory(self, blocks: list[Place]) -> list[Place]:
        """Layout blocks of local experts as places."""
        return [(e, self.layout.row_ptr[self.regions[e]] + block) for e, block in blocks]

    def slot(self, expert: int) -> int:
        """The expert slot of a local expert."""
        return self.layout.slot_of_region[self.regions[expert]]

    def column(self, token: int, expert: int) -> int:
        """The column of `token`'s top-k that chose a local expert."""
        return self._columns[token, self.slot(expert)]

    def places(self, token: int) -> list[Place]:
        """All rows of a token on this GPU: what software here knows. Raises EmulationMismatch for a row that is not written yet."""
        rows = [(e, self.row_of.get((e, token))) for e in range(len(self.regions))]
        places = [(e, self.layout.place[row]) for e, row in rows if row is not None]
        if any(place == UNBOUND for _, place in places):
            raise EmulationMismatch(f"GPU {self.gpu}: found a read of token {token}, expected one after all its rows were written")
        return places

    # ---- tracker -----------------------------------------------------------------------------------------------------------------

    def visible(self, expert: int, place: int, chunk: int, n_bytes: int) -> None:
        """`n_bytes` of a row, its chunk number `chunk`, can be read by all SMs."""
        self.tables.track(tracker.Store(expert, self._block(expert, place), chunk, n_bytes))

    def computed(self, tile: int, *, last: bool) -> None:
        """The first or the last GEMM of a Program tile has run."""
        region = self.layout.region_of_tile[tile]
        local = (self.regions.index(region), tile - self.layout.tile_ptr[region])
        self.tables.track(tracker.Gemm2Block(local) if last else tracker.Gemm1Block(local))

    # ---- sums --------------------------------------------------------------------------------------------------------------------

    def results(self, places: list[Place], columns: slice) -> Value:
        """The rounded sum of a chunk over local experts' results."""
        buffer = self.memory.rows("dx" if self._t.saved is not None else "y")
        width = len(range(*columns.indices(buffer.shape[1])))
        total = hub_sum([buffer[place, columns] for _, place in places], width, self._t.number)
        return Value(total, (("hub", self.gpu, tuple(self.slot(e) for e, _ in places)),))

    def gate_grads(self, places: list[Place], indices: list[int]) -> Value:
        """`[topk]` with the gate gradient of each place at its index, zeros elsewhere."""
        out = np.zeros(self._t.routing.topk, self.memory.gate_grad.dtype)
        out[indices] = [self.memory.gate_grad[place] for _, place in places]
        return Value(out, ())

    def columns(self, token: int, places: list[Place]) -> list[int]:
        """The top-k columns of a token's rows here."""
        return [self.column(token, e) for e, _ in places]
