"""Proofs of the blocks of a switch."""

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal

from dysharp.silicon.rtl.formal import WatchedList, constants, live_slots, slots
from dysharp.silicon.rtl.merge_unit import MergeParameters, MergeUnit
from dysharp.silicon.rtl.reduction_table import ReductionParameters, ReductionTable, Send
from dysharp.silicon.rtl.target_logic import ID_BITS, TargetLogic, TargetParameters


class ReductionProof(ReductionTable):
    """No contribution of a session is lost or counted twice. Assumed: a session has one request at a time, and no more answers than targets."""

    def __init__(self) -> None:
        super().__init__(ReductionParameters(2, 2, 3))
        self.constants = constants(self, key_of=2)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, cam = self.parameters, m.submodules.cam
        words = slots(m.submodules.entries, m)
        owed, came, went = Signal(p.count_bits), Signal(8), Signal(8)
        taken = self.valid & self.ready & (self.key == self.key_of)
        leaves = self.out_valid & (self.out_key == self.key_of) & (self.send >= Send.BYPASS)
        with m.If(taken & self.is_request):
            m.d.sync += owed.eq(self.count)
        with m.Elif(taken):
            m.d.sync += [owed.eq(owed - self.count), came.eq(came + self.count)]
        with m.If(leaves & self.out_ready):
            m.d.sync += went.eq(went + self.out_count)
        m.d.comb += Assume(self.count != 0)
        with m.If(taken):
            m.d.comb += Assume(Mux(self.is_request, owed == 0, self.count <= owed))
        live = live_slots(m, cam, words, self.key_of)
        inside = sum(Mux(live[i], words[i].count, 0) for i in range(p.entries))
        m.d.comb += Assert((came - went - inside - Mux(leaves, self.out_count, 0))[:8] == 0)  # nothing lost, nothing twice
        m.d.comb += Assert(~Cat(live).all())  # one entry of a session
        for i in range(p.entries):
            with m.If(live[i]):
                m.d.comb += [Assert(words[i].remaining == owed), Assert(owed != 0), Assert(words[i].count + words[i].remaining < 1 << p.count_bits)]
        return m


class TargetProof(TargetLogic):
    """A target is in the copies of a good packet as often as in its list: once, or not at all. No assumption."""

    def __init__(self) -> None:
        super().__init__(TargetParameters(3, 2, 2))
        self.constants = constants(self, target=3)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p = self.parameters
        listed, last, twice = Signal(), Signal(), Signal()
        is_it = [(self.ids[ID_BITS * i : ID_BITS * (i + 1)] == self.target) & (i < self.n_ids) for i in range(p.ids)]
        m.d.comb += Assume(self.target < self.experts)
        with m.If(self.valid & self.ready):
            m.d.sync += [listed.eq((listed | Cat(is_it).any()) & ~self.last), last.eq(listed | Cat(is_it).any())]
            m.d.sync += twice.eq((twice | (listed & Cat(is_it).any()) | Cat(is_it).all()) & ~self.last)
        chosen = (self.out_replicas >> self.target)[0]
        port = (self.out_ports >> (self.target >> self.shift))[0]
        with m.If(self.out_valid):
            m.d.comb += [Assert(chosen == last), Assert(port | ~chosen)]
        for i in range(p.ports):
            replica = self.out_replicas[i * p.experts_per_gpu : (i + 1) * p.experts_per_gpu]
            m.d.comb += Assert(~self.out_valid | (self.out_ports[i] == replica.any()))  # no empty copy
        m.d.comb += [Assert((self.taken >> self.target)[0] == listed), Assert(~twice | self.broken)]
        return m


class MergeProof(MergeUnit):
    """A load that waits is answered once, and places never exceed the table. Assumed: a GPU asks once; a sum gives back what it took."""

    order_list = WatchedList

    def __init__(self) -> None:
        super().__init__(MergeParameters(2, 2, 1))
        self.constants = constants(self, line_of=1, asker_of=1)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, cam, words = self.parameters, m.submodules.cam, slots(m.submodules.entries, m)
        taken = self.valid & self.ready
        live = [cam.live[i] & (cam.keys[i] == self.line_of) for i in range(p.places)]
        hit = Cat(live).any()
        cached = Cat(live[i] & words[i].cached for i in range(p.places)).any()
        waits = Signal()  # the load of the asker waits in the table
        mine = taken & (self.line == self.line_of)
        m.d.comb += Assume(~(mine & (self.op == 1)) | (hit & ~cached))  # one response to the load that merges
        m.d.comb += Assume(~(mine & (self.op == 0) & (self.asker == self.asker_of)) | ~waits)
        m.d.comb += Assume(~(taken & (self.op == 3)) | (self.n_sums != 0))
        answered = Signal()
        with m.If(mine & (self.op == 1)):
            m.d.sync += [waits.eq(0), answered.eq(waits)]
        with m.Elif(mine & (self.op == 0) & (self.asker == self.asker_of)):
            m.d.sync += [waits.eq(Mux(hit, ~cached, self.room)), answered.eq(hit & cached)]
        with m.Elif(self.ready):
            m.d.sync += answered.eq(0)
        n_live = cam.live[0] + cam.live[1]
        order = m.submodules.order
        head, tail = order.head, order.tail
        live_head, live_tail = Mux(head[0], cam.live[1], cam.live[0]), Mux(tail[0], cam.live[1], cam.live[0])
        after, before = order.links
        m.d.comb += [
            Assert(head != tail),
            Assert((self.n_loads != 1) | ((self.oldest == tail) & live_tail & ~live_head)),
            Assert((self.n_loads != 2) | (self.oldest == head)),
            Assert(order.ready | ((self.n_loads == 0) & ~self.out_valid & ~head[0])),
            Assert(~order.ready | ((Mux(head[0], after[1], after[0]) == tail) & (Mux(tail[0], before[1], before[0]) == head))),
            Assert(order.fill <= 2),
            Assert(order.ready | (order.fill == 0) | (after[0] == 1)),
        ]
        m.d.comb += [
            Assert(~(self.out_valid & answered) | (self.answers >> self.asker_of)[0]),
            Assert(~live[0] | ~live[1]),
            Assert(self.n_loads == n_live),
            Assert(self.n_loads + self.n_sums <= p.places),
            Assert(~answered | self.out_valid),
        ]
        bits = [(words[i].waiting >> self.asker_of)[0] for i in range(p.places)]
        m.d.comb += Assert(waits == Cat(live[i] & ~words[i].cached & bits[i] for i in range(p.places)).any())
        for i in range(p.places):
            m.d.comb += Assert(~(live[i] & words[i].cached) | ~bits[i])
        return m
