"""The AL TLB of a hub with its miss registers and waiting packets. Model: `protocol.al_table`; the table itself lies in memory."""

from typing import Any, Self

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from dysharp.base.values import frozen
from dysharp.silicon.rtl.parts import Cam, OrderList, check_slots, lowest, memory, slot_bits
from dysharp.specs import Cluster, choice_int


@frozen
class TlbParameters:
    """`entries` of the TLB; `misses` under way; `waiters`: packets that wait; `experts` of the GPU; bits of the indices and of a packet's name."""

    entries: int
    misses: int = 128
    waiters: int = 256
    experts: int = 16
    index_bits: int = 20
    layout_bits: int = 20
    packet_bits: int = 10

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        check_slots("al-tlb", cluster, "al_tlb_entries")
        return cls(cluster.al_tlb_entries, choice_int("hub.al_misses") or cls(2).misses)


class AlTlb(wiring.Component):
    """Algebraic to layout index. Hits take one cycle. Packets that miss wait in a list of their entry and leave in order of arrival.

    Lookup: `valid`, `ready`, `expert`, `index`, `packet`, `allocate` (Dispatch). A lookup waits at the door while memory answers, while packets
    leave a list, and when it needs a miss register or a place to wait and there is none.
    Memory: `read_valid`, `read_ready`, `read_expert`, `read_index`, `read_miss`; `answer_valid`, `answer_ready`, `answer_miss`, `answer_bound`,
    `answer_layout` in any order. `write_valid` with `write_expert`, `write_index`, `write_layout`: a block is bound; memory takes it at once.
    Out, held until `out_ready`: `out_valid`, `out_packet`, `out_layout`, `out_unbound`.
    """

    def __init__(self, parameters: TlbParameters):
        self.parameters = p = parameters
        self.expert_bits = e = slot_bits(p.experts)
        miss = slot_bits(p.misses)
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "expert": In(e), "index": In(p.index_bits), "packet": In(p.packet_bits), "allocate": In(1),
                "read_valid": Out(1), "read_ready": In(1), "read_expert": Out(e), "read_index": Out(p.index_bits), "read_miss": Out(miss),
                "answer_valid": In(1), "answer_ready": Out(1), "answer_miss": In(miss), "answer_bound": In(1), "answer_layout": In(p.layout_bits),
                "write_valid": Out(1), "write_expert": Out(e), "write_index": Out(p.index_bits), "write_layout": Out(p.layout_bits),
                "out_valid": Out(1), "out_ready": In(1), "out_packet": Out(p.packet_bits), "out_layout": Out(p.layout_bits), "out_unbound": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m, p = Module(), self.parameters
        key_bits, miss_bits, wait_bits = self.expert_bits + p.index_bits, slot_bits(p.misses), slot_bits(p.waiters)
        m.submodules.cam = cam = Cam(p.entries, key_bits)
        m.submodules.order = order = OrderList(p.entries)
        m.submodules.pending = pending = Cam(p.misses, key_bits)
        _, layout_read, layout_write = memory(m, "layouts", p.layout_bits, p.entries)
        _, block_read, block_write = memory(m, "next_block", p.layout_bits, p.experts)
        miss_shape = data.StructLayout({"key": key_bits, "first": wait_bits, "last": wait_bits, "allocates": 1})
        _, miss_read, miss_write = memory(m, "registers", miss_shape, p.misses)
        _, name_read, name_write = memory(m, "names", p.packet_bits, p.waiters)
        _, behind_read, behind_write = memory(m, "behind", wait_bits, p.waiters)
        _, place_read, place_write = memory(m, "places", wait_bits, p.waiters)  # free places of the waiting room, a stack

        n_free, fill, fresh = Signal(bits_for(p.waiters)), Signal(bits_for(p.waiters)), Signal(bits_for(p.experts))
        start = Signal()  # links, places and block counters are written
        m.d.comb += start.eq(order.ready & (fill == p.waiters) & (fresh == p.experts))
        leaving, at, last, layout, unbound = Signal(), Signal(wait_bits), Signal(wait_bits), Signal(p.layout_bits), Signal()
        out_free, read_free = Signal(), Signal()
        m.d.comb += [out_free.eq(~self.out_valid | self.out_ready), read_free.eq(~self.read_valid | self.read_ready)]

        key, free_miss, has_miss = Signal(key_bits), Signal(miss_bits), Signal()
        m.d.comb += [
            key.eq(Cat(self.index, self.expert)),
            cam.key.eq(key),
            pending.key.eq(key),
            has_miss.eq(~pending.live.all()),
            free_miss.eq(lowest(~pending.live)),
        ]
        lookup, answer, hit, joins, opens = Signal(), Signal(), Signal(), Signal(), Signal()
        waits = pending.hit | has_miss
        m.d.comb += [
            self.answer_ready.eq(start & ~leaving),
            answer.eq(self.answer_valid & self.answer_ready),
            self.ready.eq(start & ~leaving & ~self.answer_valid & out_free & read_free & (cam.hit | ((n_free != 0) & waits))),
            lookup.eq(self.valid & self.ready),
            hit.eq(lookup & cam.hit),
            joins.eq(lookup & ~cam.hit & pending.hit),
            opens.eq(lookup & ~cam.hit & ~pending.hit),
        ]
        # The miss register that this cycle reads: of the answer, or the one that the lookup joins.
        chosen = Signal(miss_bits)
        m.d.comb += [chosen.eq(Mux(answer, self.answer_miss, Mux(pending.hit, pending.slot, free_miss))), miss_read.addr.eq(chosen)]
        m.d.comb += [pending.at.eq(chosen), pending.set.eq(opens), pending.clear.eq(answer)]
        old = miss_read.data
        m.d.comb += [
            place_read.addr.eq(n_free - 1),
            miss_write.addr.eq(chosen),
            miss_write.en.eq(joins | opens),
            miss_write.data.key.eq(key),
            miss_write.data.first.eq(Mux(joins, old.first, place_read.data)),
            miss_write.data.last.eq(place_read.data),
            miss_write.data.allocates.eq(self.allocate | (joins & old.allocates)),
            name_write.addr.eq(place_read.data),
            name_write.data.eq(self.packet),
            name_write.en.eq(joins | opens),
            behind_write.addr.eq(old.last),
            behind_write.data.eq(place_read.data),
            behind_write.en.eq(joins),
        ]
        with m.If(joins | opens):
            m.d.sync += n_free.eq(n_free - 1)
        # An answer fills the TLB and starts the list of its register.
        expert = old.key[p.index_bits :]
        binds, known = Signal(), Signal(p.layout_bits)
        m.d.comb += [
            block_read.addr.eq(expert),
            binds.eq(answer & ~self.answer_bound & old.allocates),
            known.eq(Mux(self.answer_bound, self.answer_layout, block_read.data)),
            layout_read.addr.eq(cam.slot),
            layout_write.addr.eq(order.front),
            layout_write.data.eq(known),
            layout_write.en.eq(answer & (self.answer_bound | old.allocates)),
            order.move.eq(hit | layout_write.en),
            order.slot.eq(Mux(answer, order.front, cam.slot)),
            cam.at.eq(order.front),
            cam.set.eq(layout_write.en),
        ]
        with m.If(answer):
            m.d.comb += cam.key.eq(old.key)
            m.d.sync += [leaving.eq(1), at.eq(old.first), last.eq(old.last), layout.eq(known), unbound.eq(~layout_write.en)]
        m.d.comb += [block_write.addr.eq(Mux(start, expert, fresh)), block_write.data.eq(Mux(start, block_read.data + 1, 0))]
        m.d.comb += block_write.en.eq(binds | (fresh != p.experts))
        with m.If(fresh != p.experts):
            m.d.sync += fresh.eq(fresh + 1)
        m.d.sync += [self.write_valid.eq(binds), self.write_expert.eq(expert), self.write_index.eq(old.key[: p.index_bits])]
        m.d.sync += self.write_layout.eq(known)
        with m.If(read_free):
            m.d.sync += [self.read_valid.eq(opens), self.read_expert.eq(self.expert), self.read_index.eq(self.index), self.read_miss.eq(chosen)]
        # Waiting packets leave one per cycle, and their places become free.
        m.d.comb += [name_read.addr.eq(at), behind_read.addr.eq(at)]
        go = leaving & out_free
        with m.If(out_free):
            m.d.sync += [self.out_valid.eq(hit | leaving), self.out_packet.eq(Mux(leaving, name_read.data, self.packet))]
            m.d.sync += [self.out_layout.eq(Mux(leaving, layout, layout_read.data)), self.out_unbound.eq(leaving & unbound)]
        with m.If(go):
            m.d.sync += [at.eq(behind_read.data), leaving.eq(at != last), n_free.eq(n_free + 1)]
        filling = fill != p.waiters
        m.d.comb += [place_write.addr.eq(Mux(filling, fill, n_free)), place_write.data.eq(Mux(filling, fill, at)), place_write.en.eq(filling | go)]
        with m.If(filling):
            m.d.sync += [fill.eq(fill + 1), n_free.eq(fill + 1)]
        return m
