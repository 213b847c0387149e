"""Proofs of the counters of the token tracker (TS, OR)."""

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib import data

from dysharp.silicon.rtl.counter_table import CounterTable, OutputReadiness, ReadinessParameters, TileParameters, TileStatus
from dysharp.silicon.rtl.formal import constants, live_slots, slots


def kept_in_memory(m: Module, table: CounterTable, key: Any) -> tuple[Any, Any, Any]:
    """What memory holds of `key`: (whether it does, the data, whether the spill is under way). Memory gives back what it was given."""
    in_memory, stored, spilling = Signal(), Signal(table.shape.size), Signal()
    m.d.comb += spilling.eq(table.spill_valid & (table.spill_key == key))
    with m.If(spilling & table.spill_ready):
        m.d.sync += [in_memory.eq(1), stored.eq(table.spill_data)]
    with m.If(table.taken & (table.fetch_key == key)):
        m.d.sync += in_memory.eq(0)
    there, given = in_memory | spilling, Mux(spilling, table.spill_data, stored)  # memory sees a spill before a read of its cycle
    with m.If(table.fetch & table.answer):
        m.d.comb += Assume(Mux(table.fetch_key == key, table.found == there, ~table.found | (table.spilled > in_memory + spilling)))
        m.d.comb += Assume((table.fetch_key != key) | ~table.found | (table.answer_data == given))
    m.d.comb += [Assert(~(in_memory & spilling)), Assert(table.spilled >= in_memory + spilling), Assert(table.spilled < 4), Assume(table.spilled < 3)]
    return in_memory, stored, spilling


class NoticeProof(OutputReadiness):
    """A token is ready once, and exactly when all its notices have come. Assumed: a notice comes once; memory gives back what it was given."""

    def __init__(self) -> None:
        super().__init__(ReadinessParameters(2, 2, 2))
        self.constants = constants(self, token=2)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, cam, words = self.parameters, m.submodules.cam, slots(m.submodules.rows, m)
        topk, full = p.topk, (1 << p.topk) - 1
        came, waits_for, ready = Signal(topk), Signal(topk), Signal()  # notices that were taken in; the one that waits for memory
        mine = self.valid & self.ready & (self.key == self.token)
        bit = Signal(topk)
        m.d.comb += [bit.eq(1 << self.place), Assume(self.expected == topk), Assume(~mine | ((came & bit) == 0)), Assume(self.place < topk)]
        with m.If(mine):
            m.d.sync += came.eq(came | bit)
        in_memory, stored, spilling = kept_in_memory(m, self, self.token)
        with m.If(self.out_valid & self.out_ready & (self.out_key == self.token)):
            m.d.sync += ready.eq(1)
        leaving = self.out_valid & (self.out_key == self.token)
        held = self.waits & (self.late["key"] == self.token)
        m.d.comb += waits_for.eq(Mux(held, 1 << self.late["place"], 0))
        live = live_slots(m, cam, words, self.token)
        on_chip = Mux(live[0], words[0].entry.notices, 0) | Mux(live[1], words[1].entry.notices, 0)
        m.d.comb += [
            Assert(~(ready & leaving)),  # once
            Assert(~(ready | leaving) | (came == full)),  # not too early
            Assert((came != full) | ready | leaving | held),  # and not too late
            Assert(ready | leaving | ((on_chip | Mux(in_memory, stored, 0) | Mux(spilling, self.spill_data, 0) | waits_for) == came)),
            Assert(~live[0] | ~live[1]),
            Assert(~(Cat(live).any() & (in_memory | spilling | held | ready | leaving))),
            Assert(~((ready | leaving) & (in_memory | spilling | held))),
            Assert(
                ~held | ((waits_for & (stored & in_memory.replicate(topk))) == 0) & ((waits_for & self.spill_data & spilling.replicate(topk)) == 0)
            ),
            Assert(~held | ((waits_for & came) == waits_for)),
            Assert(~held | (self.late["expected"] == topk)),
            Assert(~held | (self.late["place"] < topk)),
            Assert(~in_memory | (stored != full)),
            Assert(~spilling | (self.spill_data != full)),
        ]
        for i in range(p.entries):
            m.d.comb += Assert(~live[i] | (words[i].entry.notices != full))
        return m


class TileProof(TileStatus):
    """No packet and no thread block of a tile is lost or counted twice, and each of its three answers comes once, when the last one has come.

    Assumed: no more packets and blocks than the tile has; blocks of a GEMM finish after the answer that starts them; the register of an expert is
    set once, before its packets; memory gives back what it was given.
    """

    def __init__(self) -> None:
        super().__init__(TileParameters(2, 1, 2, 2, 2))
        self.constants = constants(self, tile=2, whole=2, first_gemm=2, second_gemm=2)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, cam, words, lasts = self.parameters, m.submodules.cam, slots(m.submodules.rows, m), slots(m.submodules.last, m)
        in_memory, stored, spilling = kept_in_memory(m, self, self.tile)
        mine = self.valid & self.ready & (self.key == self.tile)
        held = self.waits & (self.late["key"] == self.tile)
        live = live_slots(m, cam, words, self.tile)
        # The goal of the tile, from the register of its expert.
        is_set, goal = Signal(), Signal(p.packet_bits)
        sets = self.set & (self.set_expert == self.tile[1])
        number = Mux(self.tile[1], lasts[1].tile, lasts[0].tile)
        packets = Mux(self.tile[1], lasts[1].packets, lasts[0].packets)
        with m.If(sets):
            m.d.sync += [is_set.eq(1), goal.eq(Mux(self.set_last == self.tile[0], self.set_packets, self.whole))]
        m.d.comb += Assume(~sets | (~is_set & (self.set_packets != 0)))
        m.d.comb += [Assume((self.whole != 0) & (self.first_gemm != 0) & (self.second_gemm != 0))]
        m.d.comb += [Assume(self.tile_packets == self.whole), Assume(self.blocks1 == self.first_gemm), Assume(self.blocks2 == self.second_gemm)]
        m.d.comb += [Assume(self.op != 3), Assume(~mine | is_set)]
        m.d.comb += Assert(~is_set | ((goal != 0) & (Mux(number == self.tile[0], packets, self.whole) == goal)))
        # What has come and what was counted, by event, and the answers.
        event_of, all_of = ("packets", "gemm1", "gemm2"), (goal, self.first_gemm, self.second_gemm)
        kept, counted, gone = data.View(self.shape, Mux(spilling, self.spill_data, Mux(in_memory, stored, 0))), [], []
        before = is_set
        for i, name in enumerate(event_of):
            came, given, waits = Signal(2, name=f"came_{i}"), Signal(name=f"given_{i}"), held & (self.late["op"] == i)
            leaving = self.out_valid & (self.out_key == self.tile) & (self.out_kind == i + 1)
            with m.If(mine & (self.op == i)):
                m.d.sync += came.eq(came + 1)
                m.d.comb += Assume((came < all_of[i]) & before)
            with m.If(leaving & self.out_ready):
                m.d.sync += given.eq(1)
            inside = Mux(live[0], words[0].entry[name], Mux(live[1], words[1].entry[name], kept[name]))
            counted.append((inside, (came - waits)[:2]))
            gone.append(given | leaving)
            m.d.comb += [
                Assert(~(given & leaving)),  # once
                Assert(gone[i] == (is_set & (counted[i][1] == all_of[i]))),  # not too early and not too late
                Assert(came >= waits),
                Assert((came <= all_of[i]) & (before | (came == 0))),
            ]
            before = given
        done = gone[-1]
        m.d.comb += [Assert(done | (inside == n)) for inside, n in counted]
        m.d.comb += [
            Assert(~live[0] | ~live[1]),
            Assert(~(Cat(live).any() & (in_memory | spilling | held | done))),
            Assert(~(done & (in_memory | spilling | held))),
            Assert(~held | (is_set & (self.late["op"] != 3))),
            Assert(~self.out_valid | (self.out_key != self.tile) | (self.out_kind != 0)),
        ]
        return m
