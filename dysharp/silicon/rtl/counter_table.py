"""Counters of the token tracker: Tile Status (TS) and Output Readiness (OR). Models: `protocol.tracker`, `protocol.readiness`.

Both are one table: a key has an entry on chip, or its entry has spilled to memory, or it has none yet. An event updates the entry; a
complete entry leaves with an answer. While no entry is in memory, a miss is a new entry and no memory is read. Otherwise the table reads
memory and waits for its answer.
"""

from typing import Any, Self

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dysharp.base.values import frozen
from dysharp.silicon.rtl.parts import Cam, OrderList, check_slots, memory, slot_bits
from dysharp.specs import Cluster


class CounterTable(wiring.Component):
    """A table of counters with LRU spill.

    In: `valid`, `ready`, `key` and the pins of the event. Out, a cycle later, held until `out_ready`: `out_valid`, `out_kind`, `out_key`.
    Spill: `spill_valid`, `spill_ready`, `spill_key`, `spill_data`. Read of memory: `fetch` is 1 until `answer` (with `found`, `answer_data`);
    `taken` in that cycle: the entry is on chip or complete now, and memory drops it.
    """

    def __init__(self, entries: int, key_bits: int, shape: data.StructLayout, pins: dict[str, Any]):
        self.entries, self.key_bits, self.shape = entries, key_bits, shape
        bits = shape.size
        self.waits, self.spilled = Signal(), Signal(32)  # an event waits for memory; entries in memory
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "key": In(key_bits), **pins,
                "fetch": Out(1), "fetch_key": Out(key_bits), "answer": In(1), "found": In(1), "answer_data": In(bits), "taken": Out(1),
                "spill_valid": Out(1), "spill_ready": In(1), "spill_key": Out(key_bits), "spill_data": Out(bits),
                "out_valid": Out(1), "out_ready": In(1), "out_kind": Out(2), "out_key": Out(key_bits),
            }
        )  # fmt: skip

    def update(self, m: Module, entry: Any, held: dict[str, Any]) -> tuple[Any, Any, Value, Value]:
        """(entry after the event, out kind (0 = none), whether the entry is complete, whether the event changes nothing)."""
        raise NotImplementedError

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.cam = cam = Cam(self.entries, self.key_bits)
        m.submodules.order = order = OrderList(self.entries)
        row = data.StructLayout({"key": self.key_bits, "entry": self.shape})
        _, read, write = memory(m, "rows", row, self.entries)
        waits, spilled = self.waits, self.spilled
        # The event that waits for memory is held here, since its sender went on.
        names = [name for name, member in self.signature.members.items() if member.flow == wiring.In and name in self.event_pins]
        self.late = late = {name: Signal.like(getattr(self, name), name=f"late_{name}") for name in [*names, "key"]}
        held = {name: Mux(waits, late[name], getattr(self, name)) for name in late}
        free, start, resume, act, slot = Signal(), Signal(), Signal(), Signal(), Signal(slot_bits(self.entries))
        entry = Signal(self.shape)
        hit = cam.hit & ~waits
        m.d.comb += [
            free.eq(order.ready & (~self.out_valid | self.out_ready) & (~self.spill_valid | self.spill_ready)),
            self.ready.eq(free & ~waits),
            start.eq(self.valid & self.ready),
            resume.eq(waits & free & self.answer),
            self.fetch.eq(waits & free),
            self.fetch_key.eq(late["key"]),
            cam.key.eq(held["key"]),
            slot.eq(Mux(hit, cam.slot, order.front)),
            cam.at.eq(slot),
            read.addr.eq(slot),
            write.addr.eq(slot),
            order.slot.eq(slot),
            act.eq((start & (cam.hit | (spilled == 0))) | resume),
        ]
        m.d.comb += Value.cast(entry).eq(Mux(waits, Mux(self.found, self.answer_data, 0), Mux(hit, Value.cast(read.data.entry), 0)))
        after, kind, complete, same = self.update(m, entry, held)
        keeps, evicts = Signal(), Signal()
        m.d.comb += [
            keeps.eq(act & ~complete & ~same),
            evicts.eq(keeps & ~hit & cam.at_live),
            self.taken.eq(resume & self.found & ~same),
            cam.set.eq(keeps & ~hit),
            cam.clear.eq(act & hit & complete),
            order.move.eq(keeps | cam.clear),
            order.to_front.eq(cam.clear),
            write.en.eq(keeps),
            write.data.key.eq(held["key"]),
            Value.cast(write.data.entry).eq(Value.cast(after)),
        ]
        with m.If(start & ~act):
            m.d.sync += [waits.eq(1), *(late[name].eq(getattr(self, name)) for name in late)]
        with m.If(resume):
            m.d.sync += waits.eq(0)
        m.d.sync += spilled.eq(spilled + evicts - self.taken)
        # One output may leave while the other one still waits.
        with m.If(self.out_ready):
            m.d.sync += self.out_valid.eq(0)
        with m.If(self.spill_ready):
            m.d.sync += self.spill_valid.eq(0)
        with m.If(free):
            m.d.sync += [self.out_valid.eq(act & (kind != 0)), self.out_kind.eq(kind), self.out_key.eq(held["key"])]
            m.d.sync += [self.spill_valid.eq(evicts), self.spill_key.eq(read.data.key), self.spill_data.eq(Value.cast(read.data.entry))]
        return m

    event_pins: tuple[str, ...] = ()


@frozen
class ReadinessParameters:
    """`entries` tokens on chip; `token_bits` of a token id; `topk`: most notices of a token."""

    entries: int
    token_bits: int = 32
    topk: int = 8

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        check_slots("output-readiness", cluster, "or_entries")
        return cls(cluster.or_entries)


class OutputReadiness(CounterTable):
    """OR: a notice sets bit `place` (which of the token's experts) of the token's map; a full map (`expected` bits) is ready, kind 1.

    A repeated notice of a token that is not ready counts once. A notice after the last one would begin a new entry: links deliver once.
    """

    event_pins = ("place", "expected")

    def __init__(self, parameters: ReadinessParameters):
        self.parameters = p = parameters
        pins = {"place": In(slot_bits(p.topk)), "expected": In(p.topk.bit_length())}
        super().__init__(p.entries, p.token_bits, data.StructLayout({"notices": p.topk}), pins)

    def update(self, m: Module, entry: Any, held: dict[str, Any]) -> tuple[Any, Any, Value, Value]:
        notice, after = Signal(self.parameters.topk), Signal(self.shape)
        m.d.comb += [notice.eq(1 << held["place"]), after.notices.eq(entry.notices | notice)]
        full = Signal(self.parameters.topk)
        m.d.comb += full.eq((1 << held["expected"]) - 1)
        same, complete = (entry.notices & notice).any(), after.notices == full
        return after, Mux(complete & ~same, Const(1, 2), Const(0, 2)), complete & ~same, same


@frozen
class TileParameters:
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

    event_pins = ("op",)

    def __init__(self, parameters: TileParameters):
        self.parameters = p = parameters
        expert = slot_bits(p.experts)
        pins = {
            "op": In(2), "tile_packets": In(p.packet_bits), "blocks1": In(p.block_bits), "blocks2": In(p.block_bits),
            "set": In(1), "set_expert": In(expert), "set_last": In(p.tile_bits), "set_packets": In(p.packet_bits),
        }  # fmt: skip
        shape = data.StructLayout({"packets": p.packet_bits, "gemm1": p.block_bits, "gemm2": p.block_bits})
        super().__init__(p.entries, expert + p.tile_bits, shape, pins)

    def update(self, m: Module, entry: Any, held: dict[str, Any]) -> tuple[Any, Any, Value, Value]:
        p = self.parameters
        _, read, write = memory(m, "last", data.StructLayout({"tile": p.tile_bits, "packets": p.packet_bits}), p.experts)
        m.d.comb += [
            write.en.eq(self.set),
            write.addr.eq(self.set_expert),
            write.data.tile.eq(self.set_last),
            write.data.packets.eq(self.set_packets),
        ]
        key, after = held["key"], Signal(self.shape)
        goal, kind = Signal(p.packet_bits), Signal(2)
        m.d.comb += [
            read.addr.eq(key >> p.tile_bits),
            goal.eq(Mux((key & ((1 << p.tile_bits) - 1)) == read.data.tile, read.data.packets, self.tile_packets)),
        ]
        packet, one, two = held["op"] == 0, held["op"] == 1, held["op"] == 2
        m.d.comb += [after.packets.eq(entry.packets + packet), after.gemm1.eq(entry.gemm1 + one), after.gemm2.eq(entry.gemm2 + two)]
        with m.If(packet & (after.packets == goal)):
            m.d.comb += kind.eq(1)
        with m.Elif(one & (after.gemm1 == self.blocks1)):
            m.d.comb += kind.eq(2)
        with m.Elif(two & (after.gemm2 >= self.blocks2)):
            m.d.comb += kind.eq(3)
        return after, kind, kind == 3, Const(0, 1)
