"""Proofs of the other blocks of a hub."""

from typing import Any

from amaranth.hdl import Assert, Assume, Module, Mux, Signal, Value

from dysharp.silicon.rtl.al_tlb import AlTlb, TlbParameters
from dysharp.silicon.rtl.formal import constants, slots
from dysharp.silicon.rtl.readiness import DamParameters, Readiness
from dysharp.silicon.rtl.row_allocation import RowAllocation, RowParameters


class RowProof(RowAllocation):
    """Two rows of a region never get one place, no place is beyond the capacity, and a first packet traps when and only when its region is full.
    Assumed: memory gives back what it was given."""

    def __init__(self) -> None:
        super().__init__(RowParameters(1, 2, 2, 2, 3, 3, 1))
        self.constants = constants(self, first_row=2, other_row=2, region_of=1)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        pointers, registers = slots(m.submodules.pointers, m), slots(m.submodules.apt, m)
        following = Mux(self.region_of, pointers[1].next, pointers[0].next)
        capacity = Mux(self.region_of, registers[1].capacity, registers[0].capacity)
        started = Signal()  # the region is set, and not again
        with m.If(self.set):
            m.d.sync += started.eq(started | (self.set_region == self.region_of))
            m.d.comb += Assume((self.set_region != self.region_of) | ~started)
        m.d.comb += Assume(self.first_row != self.other_row)
        mine = self.region == self.region_of
        m.d.comb += Assume(~self.valid | ~mine | started)
        places = []
        for row, name in ((self.first_row, "first"), (self.other_row, "other")):
            bound, place = Signal(name=f"{name}_bound"), Signal(3, name=f"{name}_place")
            out = self.out_valid & ~self.trap & (self.out_region == self.region_of) & (self.out_row == row)
            with m.If(out & self.out_ready & self.out_first):
                m.d.sync += [bound.eq(1), place.eq(self.out_place)]
            has = bound | (out & self.out_first)
            at = Mux(bound, place, self.out_place)
            # A row that was complete and comes again would be a new row: links deliver once.
            m.d.comb += Assume(~(out & self.out_first & bound))
            m.d.comb += [Assert(~has | (at < following)), Assert(~out | self.out_first | bound | True)]
            places.append((has, at))
        m.d.comb += Assert(~(places[0][0] & places[1][0]) | (places[0][1] != places[1][1]))
        m.d.comb += [Assert(~started | (following <= capacity)), Assert(started | (~places[0][0] & ~places[1][0]))]
        full = Signal()  # when the packet that is out was taken in
        with m.If((~self.out_valid | self.out_ready) & (~self.spill_valid | self.spill_ready)):
            m.d.sync += full.eq(following >= capacity)
        out = self.out_valid & (self.out_region == self.region_of)
        m.d.comb += [Assert(~out | ~self.out_first | (self.trap == full)), Assert(~out | ~self.trap | self.out_first)]
        late = self.waits & (self.late["region"] == self.region_of)
        m.d.comb += Assert(~late | started)
        return m


class DamProof(Readiness):
    """A tile is ready at most once, and ready or reclaimed but not both. Assumed: places in range, no more bytes than a
    tile holds, no bytes for a reclaimed tile."""

    def __init__(self) -> None:
        super().__init__(DamParameters(2, 2, 2, 3, 3, 2))
        self.constants = constants(self, tile_of=1)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        words = slots(m.submodules.counters, m)
        word = Mux(self.tile_of, Value.cast(words[1]), Value.cast(words[0]))
        started = word[-2]
        ready, reclaimed = Signal(), Signal()
        out = self.out_valid & (self.out_tile == self.tile_of)
        with m.If(out & self.out_ready):
            m.d.sync += [ready.eq(ready | self.is_ready), reclaimed.eq(reclaimed | self.is_reclaim)]
        now = out & self.is_ready
        begun = self.begun  # the counters are written
        m.d.comb += [
            Assert(~(ready & now)),
            Assert(~begun | (started == (ready | now))),
            Assert(begun | ~(ready | self.out_valid | reclaimed)),
            Assert(~((ready | now) & (reclaimed | (out & self.is_reclaim)))),
            Assume(~(self.valid & (self.op == 0) & reclaimed & ((self.place >> self.shift)[0] == self.tile_of))),
            Assume(~(self.valid & (self.op == 0) & out & self.is_reclaim)),
            Assume((self.place >> self.shift) < 2),
            Assume(
                ~(self.valid & (self.op == 0))
                | (Mux((self.place >> self.shift)[0], words[1].bytes, words[0].bytes) + self.n_bytes <= self.tile_bytes)
            ),
            Assert(~(begun & (ready | now)) | (word[: self.parameters.byte_bits] != 0)),
            Assert(~(begun & (reclaimed | (out & self.is_reclaim))) | (word[: self.parameters.byte_bits] == 0)),
            Assert(begun | ~self.walks),
            Assume(self.tile_bytes != 0),
        ]
        return m


class TlbProof(AlTlb):
    """A packet leaves once for every time it asked, and none stays when memory answers: no deadlock. Assumed: a packet that is
    inside does not ask again; memory answers reads that it was sent."""

    bound = 14
    patience = 7
    """Cycles without lookups, in which memory answers and the output takes, until no packet may be inside."""

    def __init__(self) -> None:
        super().__init__(TlbParameters(2, 2, 2, 2, 1, 2, 1))
        self.constants = constants(self, packet_of=1)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        pending = m.submodules.pending
        inside, quiet, sent = Signal(), Signal(4), Signal(2)
        asks = self.valid & self.ready & (self.packet == self.packet_of)
        leaves = self.out_valid & self.out_ready & (self.out_packet == self.packet_of)
        m.d.comb += [Assume(~(asks & inside) | leaves), Assert(~leaves | inside)]
        m.d.sync += inside.eq((inside & ~leaves) | asks)
        for i in range(2):  # reads that memory has
            begins = self.read_valid & self.read_ready & (self.read_miss == i)
            ends = self.answer_valid & self.answer_ready & (self.answer_miss == i)
            m.d.sync += sent[i].eq((sent[i] | begins) & ~ends)
        m.d.comb += Assume(~self.answer_valid | (sent >> self.answer_miss)[0])
        calm = ~self.valid & self.out_ready & self.read_ready & (self.answer_valid | (sent == 0))
        m.d.sync += quiet.eq(Mux(calm, Mux(quiet == 15, 15, quiet + 1), 0))
        m.d.comb += [Assert((quiet < self.patience) | ~inside), Assert((quiet < self.patience) | ~pending.live.any())]
        return m
