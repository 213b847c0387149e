"""Tile Status (TS): packets and thread blocks per tile. Model: `protocol.tracker`; a packet counts one byte of it."""

from random import Random
from typing import Any, Self

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import tracker
from dysharp.silicon.rtl import Block, OrderProof, Proof, Values, check_slots, drive, live_slots, memory, slot_bits, slots, wire
from dysharp.silicon.rtl.counter_table import CounterModel, CounterTable
from dysharp.specs import Cluster


@frozen
class _TileParameters:
    """`entries` tiles on chip; bits of a tile's number; `experts` of the GPU; bits of a count of packets and of thread blocks."""

    entries: int
    tile_bits: int = 14
    experts: int = 16
    packet_bits: int = 16
    block_bits: int = 8

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        check_slots("tile-status", cluster, "ts_entries")
        return cls(cluster.ts_entries)


class TileStatus(CounterTable):
    """TS: counts packets of a tile and the thread blocks that have finished.

    `key`: expert (high) and tile. `op`: 0 = a packet is visible, 1 = a block of GEMM-1 has finished, 2 = of GEMM-2. Out kinds: 1 = all rows of
    the tile are visible, 2 = GEMM-1 is done, 3 = GEMM-2 is done: notify the tile's tokens, the entry is free. Registers, written by `set`:
    `set_last`, `set_packets` = the last tile of `set_expert` and its packets. Constant pins: `tile_packets` of a whole tile, `blocks1`, `blocks2`.
    """

    def counted(self, p: _TileParameters) -> tuple[int, Tally, Tally, Tally]:
        expert = slot_bits(p.experts)
        constant = {"tile_packets": p.packet_bits, "blocks1": p.block_bits, "blocks2": p.block_bits}
        register = {"set": 1, "set_expert": expert, "set_last": p.tile_bits, "set_packets": p.packet_bits}
        return expert + p.tile_bits, {"packets": p.packet_bits, "gemm1": p.block_bits, "gemm2": p.block_bits}, {"op": 2}, constant | register

    def update(self, m: Module, entry: Any, held: ByName) -> tuple[Any, Any, Value, Value]:
        comb = m.d.comb
        p = self.parameters
        _, read, write = memory(m, "last", data.StructLayout({"tile": p.tile_bits, "packets": p.packet_bits}), p.experts)
        comb += drive(write, en=self.set, addr=self.set_expert)
        comb += drive(write.data, tile=self.set_last, packets=self.set_packets)
        key, after = held["key"], Signal(self.shape)
        kind = Signal(2)
        comb += read.addr.eq(key >> p.tile_bits)
        goal = wire(m, Mux((key & ((1 << p.tile_bits) - 1)) == read.data.tile, read.data.packets, self.tile_packets), p.packet_bits)
        packet, one, two = held["op"] == 0, held["op"] == 1, held["op"] == 2
        comb += drive(after, packets=entry.packets + packet, gemm1=entry.gemm1 + one, gemm2=entry.gemm2 + two)
        with m.If(packet & (after.packets == goal)):
            comb += kind.eq(1)
        with m.Elif(one & (after.gemm1 == self.blocks1)):
            comb += kind.eq(2)
        with m.Elif(two & (after.gemm2 >= self.blocks2)):
            comb += kind.eq(3)
        return after, kind, kind == 3, Const(0, 1)


class _TileModel(CounterModel):
    """Experts with whole tiles and a partial last one; packets in random order, then the blocks of both GEMMs."""

    p: _TileParameters

    def __init__(self, parameters: _TileParameters, random: Random):
        super().__init__(parameters, random)
        rows = tuple(random.randint(1, 6) for _ in range(parameters.experts))
        self.shape = tracker.TileShape(2, random.randint(1, 2), rows, random.randint(1, 2), random.randint(1, 2))
        tokens = tuple(tuple(range(n)) for n in rows)
        self.state = tracker.bound(self.shape, parameters.entries, tokens)
        self.todo = [(e, row, chunk) for e, n in enumerate(rows) for row in range(n) for chunk in range(self.shape.row_bytes)]
        random.shuffle(self.todo)
        self.blocks: list[tuple[int, int]] = []  # (event, key) of blocks that may finish
        self.registers = list(range(parameters.experts))

    def key(self, tile: tracker.Tile) -> int:
        return tile[0] << self.p.tile_bits | tile[1]

    def tile(self, key: int) -> tracker.Tile:
        return key >> self.p.tile_bits, key & ((1 << self.p.tile_bits) - 1)

    def draw(self, random: Random) -> Tally:
        pins = {"tile_packets": self.shape.tile_rows * self.shape.row_bytes, "blocks1": self.shape.gemm1_blocks, "blocks2": self.shape.gemm2_blocks}
        pins |= {"valid": 0, "set": 0, "key": 0, "op": 0, "chosen": -1} | self.answers(random)
        if self.registers:  # before the first packet
            e = self.registers.pop()
            last = (self.shape.n_active[e] - 1) // self.shape.tile_rows
            pins |= {"set": 1, "set_expert": e, "set_last": last, "set_packets": self.shape.threshold_bytes((e, last))}
        elif random.random() < self.load and (self.blocks or self.todo):
            if self.blocks and (not self.todo or random.random() < 0.5):
                pins["chosen"] = random.randrange(len(self.blocks))
                pins["op"], pins["key"] = self.blocks[pins["chosen"]]
            else:
                expert, row, _ = self.todo[0]
                pins["key"] = self.key((expert, row // self.shape.tile_rows))
            pins["valid"] = 1
        self.chosen = pins.pop("chosen")
        return pins

    def sent(self, pins: Values) -> None:
        if self.chosen >= 0:
            self.blocks.pop(self.chosen)
        else:
            self.todo.pop(0)

    def cycle(self, pins: Values) -> Values:
        self.first = self.todo[0] if self.todo else (0, 0, 0)
        return super().cycle(dict(pins) | {"row": self.first[1], "chunk": self.first[2]})

    def step(self, event: Values) -> int:
        tile = self.tile(event["key"])
        name = ("packet", "GEMM-1 block", "GEMM-2 block")[event["op"]]
        self.seen[name] += 1
        step: tracker.Event = tracker.ChunkStore(tile[0], event["row"], event["chunk"], 1)
        if event["op"]:
            step = (tracker.Gemm1Block if event["op"] == 1 else tracker.Gemm2Block)(tile)
        self.state, outputs = tracker.step(self.state, step)
        kinds = {tracker.TileReady: 1, tracker.RowReady: 2, tracker.Notify: 3}
        kind = max((kinds.get(type(output), 0) for output in outputs), default=0)
        if kind in (1, 2):
            self.blocks += [(kind, event["key"])] * (self.shape.gemm1_blocks if kind == 1 else self.shape.gemm2_blocks)
        return kind

    def data(self, tile: tracker.Tile) -> int:
        e = tracker.entry_of(self.state, tile)
        return e.bytes | e.gemm1 << self.p.packet_bits | e.gemm2 << self.p.packet_bits + self.p.block_bits


class _TileProof(Proof, TileStatus, of=_TileParameters(2, 1, 2, 2, 2), tile=2, whole=2, first_gemm=2, second_gemm=2):
    """No packet and no thread block of a tile is lost or counted twice, and each of its three answers comes once, when the last one has come.

    Assumed: no more packets and blocks than the tile has; blocks of a GEMM finish after the answer that starts them; the register of an expert is
    set once, before its packets; memory gives back what it was given.
    """

    def watch(self, m: Module, p: _TileParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        cam, words, lasts = m.submodules.cam, slots(m.submodules.rows, m), slots(m.submodules.last, m)
        in_memory, stored, spilling = self.kept_in_memory(m, self.tile)
        mine = self.valid & self.ready & (self.key == self.tile)
        held = self.waits & (self.late["key"] == self.tile)
        live = live_slots(m, cam, words, self.tile)
        # The goal of the tile, from the register of its expert.
        is_set, goal = Signal(), Signal(p.packet_bits)
        sets = self.set & (self.set_expert == self.tile[1])
        number = Mux(self.tile[1], lasts[1].tile, lasts[0].tile)
        packets = Mux(self.tile[1], lasts[1].packets, lasts[0].packets)
        with m.If(sets):
            sync += [is_set.eq(1), goal.eq(Mux(self.set_last == self.tile[0], self.set_packets, self.whole))]
        comb += Assume(~sets | (~is_set & (self.set_packets != 0)))
        comb += Assume((self.whole != 0) & (self.first_gemm != 0) & (self.second_gemm != 0))
        comb += [Assume(self.tile_packets == self.whole), Assume(self.blocks1 == self.first_gemm), Assume(self.blocks2 == self.second_gemm)]
        comb += [Assume(self.op != 3), Assume(~mine | is_set)]
        comb += Assert(~is_set | ((goal != 0) & (Mux(number == self.tile[0], packets, self.whole) == goal)))
        # What has come and what was counted, by event, and the answers.
        event_of, all_of = ("packets", "gemm1", "gemm2"), (goal, self.first_gemm, self.second_gemm)
        kept, counted, gone = data.View(self.shape, Mux(spilling, self.spill_data, Mux(in_memory, stored, 0))), [], []
        before = is_set
        for i, name in enumerate(event_of):
            came, given, waits = Signal(2, name=f"came_{i}"), Signal(name=f"given_{i}"), held & (self.late["op"] == i)
            leaving = self.out_valid & (self.out_key == self.tile) & (self.out_kind == i + 1)
            with m.If(mine & (self.op == i)):
                sync += came.eq(came + 1)
                comb += Assume((came < all_of[i]) & before)
            with m.If(leaving & self.out_ready):
                sync += given.eq(1)
            inside = Mux(live[0], words[0].entry[name], Mux(live[1], words[1].entry[name], kept[name]))
            counted.append((inside, (came - waits)[:2]))
            gone.append(given | leaving)
            comb += self.promise(
                ~(given & leaving),  # once
                gone[i] == (is_set & (counted[i][1] == all_of[i])),  # not too early and not too late
                came >= waits,
                (came <= all_of[i]) & (before | (came == 0)),
            )
            before = given
        done = gone[-1]
        comb += [Assert(done | (inside == n)) for inside, n in counted]
        comb += self.promise(
            ~live[0] | ~live[1],
            ~(Cat(live).any() & (in_memory | spilling | held | done)),
            ~(done & (in_memory | spilling | held)),
            ~held | (is_set & (self.late["op"] != 3)),
            ~self.out_valid | (self.out_key != self.tile) | (self.out_kind != 0),
        )


BLOCK = Block(
    "tile-status", "packets and thread blocks per tile, spill", _TileParameters, TileStatus, _TileModel,
    small=(_TileParameters(2, 2, 2, 4, 2), _TileParameters(3, 2, 3, 4, 2), _TileParameters(4, 2, 4, 4, 2)),
    proofs=(OrderProof, _TileProof),
)  # fmt: skip
