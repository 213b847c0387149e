"""Stores at their destination: rows of expert slots, partial rows, control rows, and the tiles that they fill."""

from collections.abc import Callable, Sequence

import numpy as np

from dysharp.functional.layer import ExpertMemory
from dysharp.functional.network.hub_tables import Place
from dysharp.functional.network.messages import WireFormat
from dysharp.functional.packets.hub import Hub
from dysharp.functional.packets.instructions import STRIDE, Decoder, Instruction
from dysharp.functional.packets.output import Output
from dysharp.isa.packets import Packet
from dysharp.program import Program


class PacketStores:
    """Writes the memory of the GPUs. `tile_ready(tile)`: all rows of a tile without a tracker are complete.

    `row_missing[row]`: bytes that a row of such a tile lacks.
    """

    def __init__(
        self, program: Program, memory: ExpertMemory, decoder: Decoder, hubs: Sequence[Hub], output: Output, tile_ready: Callable[[int], None]
    ) -> None:
        self._t, self._layout = memory.t, memory.layout
        self._decoder, self._hubs, self._output, self._tile_ready = decoder, hubs, output, tile_ready
        self._fmt, self._op_bytes = WireFormat(memory.t.number), program.ops.bytes
        self.row_missing: list[int] = np.repeat(program.regions.row_bytes, np.diff(program.regions.row_ptr)).tolist()
        self._tile_missing = [end - first for _, first, end in map(self._layout.tile, range(program.n_tiles))]
        self._seen: set[tuple[int, int]] = set()  # (row, chunk)

    def store(self, one: Instruction, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        """Write a copy on `gpu`: at `places`, or in the rows of the op's member on `gpu`.

        `packet` None: the copy of the source GPU itself.
        """
        if one.template.fn == "copy" and one.token < 0 and packet is None:
            self._copy_free(one)
            return
        hub = self._hubs[gpu]
        if places is not None and one.weights:
            self._weights(one, hub, places, packet)
            return
        payload = self._hubs[one.source].payload(one) if packet is None else packet.payload
        if places is None:
            for row in self._decoder.rows(self._decoder.member_at(one, gpu)):
                self._plain(one, hub, row, payload)
        else:
            for place in places:
                hub.write(_buffer(one), place, one.chunk, payload)

    def _weights(self, one: Instruction, hub: Hub, places: list[Place], packet: Packet | None) -> None:
        """Write gate weights of a dynamic request.

        Low address bits of the copy hold the list position of its first target.
        """
        if packet is None:
            weights = self._t.weight[one.token, hub.columns(one.token, places)]
        else:
            weights = self._fmt.read(packet.payload, one.dtype)[packet.address % STRIDE :]
        for place, weight in zip(places, weights, strict=False):
            hub.write_weight(place, one.chunk, weight)

    def _plain(self, one: Instruction, hub: Hub, row: int, payload: bytes) -> None:
        """Write a store into `row`, which software at the receiver knows."""
        token, region = self._layout.key[row], self._layout.region[row]
        if one.template.fn == "copy" and region in self._layout.slot_of_region:
            expert = hub.regions.index(region)
            place = (expert, hub.bind(expert, token))
            if one.weights:
                hub.write_weight(place, one.chunk, self._fmt.read(payload, one.dtype)[self._layout.column[row]])
            else:
                hub.write(_buffer(one), place, one.chunk, payload)
            return
        if one.template.fn in ("sum", "row"):
            places = self._hubs[one.source].pushed(one, token)
            self._output.pushed(one, token, row, places, self._fmt.read(payload, one.dtype))
        if not one.weights and (row, one.chunk) not in self._seen:
            self._seen.add((row, one.chunk))
            self._layout.bind(row)
            self._arrived(row, one.n_bytes)

    def _arrived(self, row: int, n_bytes: int) -> None:
        self.row_missing[row] -= n_bytes
        if self.row_missing[row] == 0:
            tile = self._layout.tile_of(row)
            self._tile_missing[tile] -= 1
            if self._tile_missing[tile] == 0:
                self._tile_ready(tile)

    def _copy_free(self, one: Instruction) -> None:
        """Free communication (`ideal`): write all rows with the op's first packet."""
        hub, layout = self._hubs[one.source], self._layout
        for row in self._decoder.rows(one.local) if one.chunk == 0 else ():
            token, expert = layout.key[row], hub.regions.index(layout.region[row])
            place = hub.bind(expert, token)
            hub.memory.rows(_buffer(one))[place] = self._t.tokens[token]
            if self._t.saved is None:
                hub.memory.weight[place] = self._t.weight[token, layout.column[row]]
            hub.visible((expert, place), 0, int(self._op_bytes[one.op]))


def _buffer(one: Instruction) -> str:
    """The buffer of the expert slots that a copy writes: the name after "expert." in its template."""
    return one.template.dst.partition(".")[2]
