"""GPUs with MoE-Hub's units that exchange real packets: `st.rowsp`, ordinary stores, regions, and readiness of tiles.

Packets travel on the links of `functional/network` in any order, encoded. A store waits at the crossbar while its partition is full.

>>> machine = RowspMachine(gpus=2, seed=1)
>>> rows = machine.rowsp_malloc(gpu=1, rows=4, row_bytes=8, tile_rows=2)
>>> for row in (7, 3):
...     machine.st_rowsp(0, rows, row, 0, row.to_bytes(8, "little"))
>>> machine.announce(0, rows, 2)
>>> machine.announce(1, rows, 0)
>>> machine.run()
>>> sorted(int.from_bytes(machine.row(rows, place), "little") for place in (0, 1)), machine.ready
([3, 7], [(MallocId(gpu=1, region=0), 0, 2)])

"""

import random
from dataclasses import dataclass, replace

from dysharp.base.errors import EmulationMismatch, IsaError
from dysharp.functional.network.wires import LOCAL, PacketWires
from dysharp.functional.orders import RandomPool
from dysharp.isa.commands import Command, virtual_channel
from dysharp.isa.packets import Packet
from dysharp.protocol import aau, dam, rpm

LINE = rpm.LINE_BYTES
PLANES = 18
MEMORY, SEND = range(LOCAL + 1, LOCAL + 3)  # events beside those of the links: memory answers, a packet manager sends


def _runs(mask: int) -> list[tuple[int, int]]:
    """(first byte, number of bytes) of each run of valid bytes: a packet carries one run."""
    found, start = [], -1
    for i in range(LINE + 1):
        valid = mask >> i & 1
        if valid and start < 0:
            start = i
        if not valid and start >= 0:
            found.append((start, i - start))
            start = -1
    return found


@dataclass(frozen=True, slots=True)
class MallocId:
    """A region: the GPU that holds it, and its number there."""

    gpu: int
    region: int


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Sizes of the units of every hub."""

    rat_entries: int = 1024
    rat_banks: int = 16
    partition_entries: int = 64
    timer: int = 256


@dataclass(slots=True)
class _Gpu:
    rpm: rpm.RpmState
    aau: aau.AauState
    dams: list[dam.DamState]
    data_bytes: list[int]
    memory: bytearray


class RowspMachine:
    """GPUs with hubs. `ready`: (region, tile, rows) in order of release; `returnable` and `reclaimed`: (region, tile).

    `plain`: `[gpus]` memory that ordinary stores write, byte by address.
    """

    def __init__(self, gpus: int, seed: int = 0, sizes: UnitSizes | None = None) -> None:
        self._sizes, self._random = sizes or UnitSizes(), random.Random(seed)
        self._wires = PacketWires(RandomPool(seed), self._arrived)
        self._wires.on(MEMORY, self._answer)
        self._wires.on(SEND, self._send_more)
        self._sending = [False] * gpus  # whether a SEND of the GPU is in the pool
        s = self._sizes
        self._gpus = [
            _Gpu(
                rpm.empty(gpus, entries=s.partition_entries, timer=s.timer),
                aau.empty((), entries=s.rat_entries, banks=s.rat_banks),
                [],
                [],
                bytearray(),
            )
            for _ in range(gpus)
        ]
        self.plain: list[dict[int, int]] = [{} for _ in range(gpus)]
        self.ready: list[tuple[MallocId, int, int]] = []
        self.returnable: list[tuple[MallocId, int]] = []
        self.reclaimed: list[tuple[MallocId, int]] = []
        self.packets = 0

    # ---- instructions ------------------------------------------------------------------------------------------------

    def rowsp_malloc(self, gpu: int, rows: int, row_bytes: int, tile_rows: int, *, record_bytes: int = 0) -> MallocId:
        """Reserve a region of at most `rows` rows on `gpu` and write its registers.

        `record_bytes`: the source record behind the `row_bytes` of a row. A consumer kernel reads tiles of `tile_rows`.
        """
        g = self._gpus[gpu]
        place = row_bytes + record_bytes
        region = aau.Region(len(g.memory), place, rows)
        g.memory += bytes(rows * place)
        g.aau = replace(g.aau, regions=(*g.aau.regions, region), pointer=(*g.aau.pointer, 0), evicted=(*g.aau.evicted, 0))
        g.dams.append(dam.empty(rows, row_bytes, tile_rows, len(self._gpus)))
        g.data_bytes.append(row_bytes)
        return MallocId(gpu, len(g.dams) - 1)

    def st_rowsp(self, source: int, to: MallocId, row: int, offset: int, data: bytes, *, nop: bool = False) -> None:
        """Store `data` into row `row` of a region, from byte `offset` on; `nop`: off the critical path.

        Raises IsaError for a GPU that does not exist, and for bytes outside the row and its source record.
        """
        if not 0 <= source < len(self._gpus):
            raise IsaError(f"st.rowsp: found source {source}, expected 0 to {len(self._gpus) - 1}")
        place = self._gpus[to.gpu].aau.regions[to.region].row_bytes
        if offset < 0 or offset + len(data) > place:
            raise IsaError(f"st.rowsp: found bytes {offset} to {offset + len(data)}, expected 0 to {place}: row {row} ends there")
        for first, piece in _lines(offset, data):
            line = (to.gpu, to.region, row, first // LINE * LINE)
            self._write(source, rpm.Write(to.gpu, line, row, first % LINE, piece, nop))

    def st(self, source: int, gpu: int, address: int, data: bytes) -> None:
        """An ordinary store to `plain[gpu]`."""
        for first, piece in _lines(address, data):
            self._write(source, rpm.Write(gpu, first // LINE * LINE, 0, first % LINE, piece))

    def announce(self, source: int, to: MallocId, rows: int) -> None:
        """Tell a region that `source` has sent `rows` rows and sends no more."""
        self._post(to.gpu, Packet(Command.ANNOUNCE, _request(Command.ANNOUNCE), source, 0, gpu=to.gpu, region=to.region, rows=rows))

    def row(self, region: MallocId, place: int) -> bytes:
        """The bytes at a place of a region: the row, then its source record."""
        g = self._gpus[region.gpu]
        at = g.aau.regions[region.region]
        return bytes(g.memory[at.base + place * at.row_bytes : at.base + (place + 1) * at.row_bytes])

    # ---- time --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Every kernel has ended: drain the packet managers and deliver all packets, in a random order."""
        for g in self._gpus:
            g.rpm = rpm.fence(g.rpm)
        while len(self._wires.pool):
            self._wires.step()
        for g in self._gpus:
            g.rpm = replace(g.rpm, draining=False)  # the start of the next kernel

    def _write(self, source: int, store: rpm.Write) -> None:
        g = self._gpus[source]
        g.rpm, taken = rpm.write(rpm.tick(g.rpm), store)
        while not taken:
            self._send(source)
            g.rpm, taken = rpm.write(rpm.tick(g.rpm), store)
        self._ask(source)
        if self._random.random() < 0.5:  # what the links do meanwhile
            self._wires.step()

    def _ask(self, source: int) -> None:
        """The packet manager of `source` sends a line at some time, if it holds one."""
        if not self._sending[source] and any(len(p) for p in self._gpus[source].rpm.partitions):
            self._sending[source] = True
            self._wires.pool.add((SEND, source))

    def _send_more(self, source: int) -> None:
        self._sending[source] = False
        self._send(source)
        self._ask(source)

    def _send(self, source: int) -> None:
        """The packet manager of `source` sends a line: one packet for each run of valid bytes."""
        g = self._gpus[source]
        g.rpm, packet = rpm.send(rpm.tick(g.rpm))
        if packet is None:
            return
        for first, n in _runs(packet.mask):
            data = bytes(packet.data[first : first + n])
            if isinstance(packet.line, tuple):
                gpu, region, row, line = packet.line
                op = Command.ST_ROWSP_NOP if packet.low else Command.ST_ROWSP
                made = Packet(op, _request(op), source, 0, gpu=gpu, region=region, row=row, offset=line + first, payload=data)
            else:
                assert isinstance(packet.line, int)
                made = Packet(Command.ST, _request(Command.ST), source, 0, address=packet.line + first, payload=data)
            self._post(packet.peer, made)

    def _post(self, gpu: int, packet: Packet) -> None:
        """Packets take the planes in turn, and so overtake each other."""
        self._wires.post(packet, gpu, plane=self.packets % PLANES, lane=self.packets)
        self.packets += 1

    def _arrived(self, gpu: int, packet: Packet) -> None:
        if packet.op is Command.ST:
            self.plain[gpu] |= {packet.address + i: byte for i, byte in enumerate(packet.payload)}
        elif packet.op is Command.ANNOUNCE:
            self._counted(gpu, packet.region, dam.Announce(packet.source, packet.rows))
        else:
            store = aau.RowPacket((packet.region, packet.row), packet.offset, len(packet.payload), packet)
            self._allocated(gpu, aau.step(self._gpus[gpu].aau, store))

    def _answer(self, what: tuple[int, aau.Key]) -> None:
        """Memory answers one read of a map."""
        gpu, key = what
        self._allocated(gpu, aau.step(self._gpus[gpu].aau, aau.MapAnswer(key)))

    def _allocated(self, gpu: int, after: tuple[aau.AauState, tuple[aau.Output, ...]]) -> None:
        g = self._gpus[gpu]
        g.aau, outputs = after
        for output in outputs:
            if isinstance(output, aau.Overflow):
                raise EmulationMismatch(f"GPU {gpu}: {output}")
            if isinstance(output, aau.ReadMap):
                self._wires.pool.add((MEMORY, (gpu, output.key)))
            if isinstance(output, aau.Placed):
                assert isinstance(output.packet, Packet)
                data = output.packet.payload
                g.memory[output.address : output.address + len(data)] = data
                record = output.packet.offset >= g.data_bytes[output.key[0]]
                event = dam.Record(output.place) if record else dam.Ack(output.place, len(data))
                self._counted(gpu, output.key[0], event)

    def _counted(self, gpu: int, region: int, event: dam.Event) -> None:
        g, here = self._gpus[gpu], MallocId(gpu, region)
        g.dams[region], outputs = dam.step(g.dams[region], event)
        for output in outputs:
            if isinstance(output, dam.Ready):
                self.ready.append((here, output.tile, output.rows))
            elif isinstance(output, dam.Returnable):
                self.returnable.append((here, output.tile))
            else:
                self.reclaimed.append((here, output.tile))


def _request(op: Command) -> int:
    return int(virtual_channel(op))


def _lines(first: int, data: bytes) -> list[tuple[int, bytes]]:
    """(first byte, bytes) of the parts of a store in each line."""
    parts, at = [], 0
    while at < len(data):
        n = min(LINE - (first + at) % LINE, len(data) - at)
        parts.append((first + at, data[at : at + n]))
        at += n
    return parts
