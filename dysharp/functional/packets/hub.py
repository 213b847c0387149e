"""One GPU of a Program: rows of its expert slots, tables for these rows, and payloads of packets."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dysharp.base.errors import EmulationMismatch
from dysharp.functional.layer import UNBOUND, ExpertMemory
from dysharp.functional.network.core import Network
from dysharp.functional.network.hub_tables import Place
from dysharp.functional.network.messages import Value, WireFormat, hub_sum, word_of
from dysharp.functional.network.transaction import PACKET_BYTES, Transaction
from dysharp.functional.packets.instructions import STRIDE, Decoder, Instruction
from dysharp.protocol import al_table, tracker
from dysharp.protocol.al_table import Key


class Hub:
    """A `Place` here is (local expert, place as in `Layout`). `tile_ready(tile)` is called once per tile of the Program.

    `entries`: (entries of the TLB, entries of the TS table). `row_bytes`: bytes of a complete row.
    """

    def __init__(
        self,
        gpu: int,
        network: Network[Instruction],
        memory: ExpertMemory,
        decoder: Decoder,
        entries: tuple[int, int],
        row_bytes: int,
        tile_ready: Callable[[int], None],
    ) -> None:
        self.gpu, self.memory, self.layout, self._t = gpu, memory, memory.layout, memory.t
        self._decoder, self._tile_ready = decoder, tile_ready
        self._fmt, per_gpu = WireFormat(memory.t.number), memory.t.routing.placement.slots_per_gpu
        regions = sorted((slot, region) for region, slot in self.layout.slot_of_region.items() if slot // per_gpu == gpu)
        self.regions = [region for _, region in regions]
        self.row_of: dict[Key, int] = {
            (e, self.layout.key[row]): row for e, region in enumerate(self.regions) for row in range(*self.layout.row_ptr[region : region + 2])
        }
        self.tables = network.tables(gpu, *self._start(entries, row_bytes), self)
        self.notices: dict[int, list[int]] = {}  # rows by tile whose output is visible

    def _start(self, entries: tuple[int, int], row_bytes: int) -> tuple[al_table.AlState, tracker.TrackerState]:
        """Empty tables, or tables with the layout if slots are fixed (backward pass, PREFIX)."""
        layout, regions = self.layout, self.regions
        spans = [range(*layout.row_ptr[region : region + 2]) for region in regions]
        tile_rows = max((layout.tile_rows[region] for region in regions), default=1)
        shape = tracker.TileShape(tile_rows, row_bytes, tuple(len(span) for span in spans))
        order = tuple(tuple(layout.key[layout.row_at[place]] for place in span if layout.row_at[place] != UNBOUND) for span in spans)
        if not any(order):
            return al_table.empty(len(regions), entries[0]), tracker.empty(shape, entries[1])
        known = [((e, token), i) for e, tokens in enumerate(order) for i, token in enumerate(tokens)]
        return al_table.bound(len(regions), entries[0], known), tracker.bound(shape, entries[1], order)

    # ---- calls of the tables (TablesOwner) ---------------------------------------------------------------------------

    def allocated(self, key: Key, layout: int) -> None:
        self.bind(*key, layout)

    def unbound(self, t: Transaction, key: Key) -> None:
        raise EmulationMismatch(f"GPU {self.gpu}: found a read of expert {key[0]}, token {key[1]}, expected a row that Dispatch wrote")

    def tile_ready(self, tile: tracker.Tile) -> None:
        self._tile_ready(self.layout.tile_ptr[self.regions[tile[0]]] + tile[1])

    def output_visible(self, expert: int, block: int) -> None:
        row = self.row_of[expert, block]
        self.notices.setdefault(self.layout.tile_of(row), []).append(row)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def bind(self, expert: int, token: int, slot: int = UNBOUND) -> int:
        """Give a token's row of a local expert the slot `slot`, or the next free slot, unless the row has a slot.

        Returns the place of the row.
        """
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

    def places(self, token: int) -> list[Place]:
        """Places of all rows of a token on this GPU. Raises EmulationMismatch for a row that is not written yet."""
        rows = [(e, self.row_of.get((e, token))) for e in range(len(self.regions))]
        places = [(e, self.layout.place[row]) for e, row in rows if row is not None]
        if any(place == UNBOUND for _, place in places):
            raise EmulationMismatch(f"GPU {self.gpu}: found a read of token {token}, expected one after all its rows were written")
        return places

    def slots(self, places: list[Place]) -> tuple[int, ...]:
        """The expert slots of places."""
        return tuple(self.layout.slot_of_region[self.regions[e]] for e, _ in places)

    def columns(self, token: int, places: list[Place]) -> list[int]:
        """The columns of a token's top-k that chose the experts of `places`."""
        return [self.layout.column_of[token, slot] for slot in self.slots(places)]

    def write(self, name: str, place: Place, chunk: int, payload: bytes) -> None:
        """Write a chunk into a row of buffer `name`, so that it is visible."""
        number, begin = self._t.number, chunk * PACKET_BYTES // self._t.number.bytes
        self.memory.rows(name)[place[1], begin : begin + len(payload) // number.bytes] = np.frombuffer(payload, number.stored)
        self.visible(place, chunk, len(payload))

    def write_weight(self, place: Place, chunk: int, weight: Any) -> None:
        """The gate weight of a row becomes visible."""
        self.memory.weight[place[1]] = weight
        self.visible(place, chunk, 4)

    def visible(self, place: Place, chunk: int, n_bytes: int) -> None:
        """Report that all SMs can read chunk `chunk` of a row, `n_bytes` long."""
        self.tables.track(tracker.ChunkStore(place[0], self._block(*place), chunk, n_bytes))

    def computed(self, tile: int, *, last: bool) -> None:
        """The first or the last GEMM of a Program tile has run."""
        region = self.layout.region_of_tile[tile]
        local = (self.regions.index(region), tile - self.layout.tile_ptr[region])
        self.tables.track(tracker.Gemm2Block(local) if last else tracker.Gemm1Block(local))

    # ---- loads -------------------------------------------------------------------------------------------------------

    def load(self, one: Instruction, places: list[Place], address: int) -> Value:
        """The answer to a copy of a pull: the rounded (or converted) sum of the rows at `places`, or their gate gradients.

        `address`: address of the copy. For gate gradients, its low bits hold the list position of this GPU's first target.
        """
        if not one.weights:
            return self.results(places, one.columns, word_of(one.answer))
        first = address % STRIDE
        return self._gate_grads(places, list(range(first, first + len(places))) if one.dynamic else self.columns(one.token, places))

    def results(self, places: list[Place], columns: slice, word: str = "") -> Value:
        """The sum of a chunk over local experts' results, `rounded` in the format `word`."""
        buffer = self.memory.rows("dx" if self._t.saved is not None else "y")
        width = len(range(*columns.indices(buffer.shape[1])))
        total = hub_sum([buffer[place, columns] for _, place in places], width, self._t.number, word)
        return Value(total, (("hub", self.gpu, self.slots(places), word)[: 4 if word else 3],))

    def _gate_grads(self, places: list[Place], indices: list[int]) -> Value:
        """`[topk]` with the gate gradient of each place at its index, zeros elsewhere."""
        out = np.zeros(self._t.routing.topk, self.memory.gate_grad.dtype)
        out[indices] = [self.memory.gate_grad[place] for _, place in places]
        return Value(out, ())

    # ---- stores ------------------------------------------------------------------------------------------------------

    def payload(self, one: Instruction) -> bytes:
        """The payload of a store: a chunk of a token row, gate weights, a sum, gate gradients, or a control word."""
        if one.template.fn == "control":
            return bytes(one.n_bytes)
        if one.template.fn != "copy":
            places = self.pushed(one, one.token)
            value = self._gate_grads(places, self.columns(one.token, places)) if one.weights else self.results(places, one.columns)
            return self._fmt.write(value.array, one.dtype)
        if one.weights:
            return self._weights(one)
        if one.token < 0 or one.token // self._t.routing.tokens_per_gpu != self.gpu:
            raise EmulationMismatch(f"op {one.op}: found token {one.token} read on GPU {self.gpu}, expected a token of this GPU")
        first = one.chunk * PACKET_BYTES
        row: bytes = self._t.tokens[one.token].tobytes()
        return row[first : first + one.n_bytes]

    def _weights(self, one: Instruction) -> bytes:
        """Gate weights in the order of the target list (dynamic), else in the order of the router's columns."""
        weights = self._t.weight[max(one.token, 0)]
        if one.dynamic:
            columns = [self.layout.column_of[one.token, slot] for slot in one.targets]
            weights = np.concatenate((weights[columns], np.zeros(len(weights) - len(columns), weights.dtype)))
        return self._fmt.write(weights, one.dtype)

    def pushed(self, one: Instruction, token: int) -> list[Place]:
        """Places of the rows that a push adds: all rows of `token` on this GPU, or one expert's row (fn "row")."""
        if one.template.fn != "row":
            return self.places(token)
        (partial,) = self._decoder.rows(one.members[0])
        row = self.layout.pushed(partial, token)
        region, place = self.layout.region[row], self.layout.place[row]
        if region not in self.regions:
            raise EmulationMismatch(f"row {row}: found a push from GPU {self.gpu}, expected one from GPU {self.layout.node[region]} that holds it")
        if place == UNBOUND:
            raise EmulationMismatch(f"row {row}: found a push from GPU {self.gpu} before any transfer wrote the row, expected a wait for its arrival")
        return [(self.regions.index(region), place)]
