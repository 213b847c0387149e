"""Proofs: what a block promises, for all inputs at all times, by induction over cycles (Yosys `sat -tempinduct`) on small parameters.

A proof is the block with ghost registers beside it. It follows one key, row, target, tile or line that the solver chooses (`constants`).
Assumptions are what links and memory promise; the docstring of each proof lists them. Invariants are proven together with the promise.
"""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from dysharp.errors import SimulationError
from dysharp.silicon.rtl.al_tlb import AlTlb, TlbParameters
from dysharp.silicon.rtl.counter_table import OutputReadiness, ReadinessParameters
from dysharp.silicon.rtl.merge_unit import MergeParameters, MergeUnit
from dysharp.silicon.rtl.parts import OrderList
from dysharp.silicon.rtl.readiness import DamParameters, Readiness
from dysharp.silicon.rtl.reduction_table import ReductionParameters, ReductionTable, Send
from dysharp.silicon.rtl.row_allocation import RowAllocation, RowParameters
from dysharp.silicon.rtl.target_logic import ID_BITS, TargetLogic, TargetParameters
from dysharp.silicon.rtl.yosys import rtlil_of, run_yosys

_SCRIPT = """hierarchy -top top
proc
flatten
memory_map
opt_clean
async2sync
chformal -lower
opt -full
tee -o out.txt sat {kind} -prove-asserts -set-assumes -seq 1 -maxsteps {steps} -set rst 0 top
"""


class Wrapped(wiring.Component):
    """A block with proof inside; the solver chooses its constants once."""

    def __init__(self, dut: Any):
        self.dut = dut
        pins = {name: In(member.shape) for name, member in dut.signature.members.items() if member.flow == wiring.In}
        super().__init__(pins | {name: In(len(signal)) for name, signal in dut.constants.items()})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.dut = self.dut
        m.d.comb += [getattr(self.dut, n).eq(getattr(self, n)) for n, member in self.dut.signature.members.items() if member.flow == wiring.In]
        later = Signal()
        m.d.sync += later.eq(1)
        for name, signal in self.dut.constants.items():
            chosen, before = getattr(self, name), Signal.like(signal, name=f"before_{name}")
            m.d.sync += before.eq(chosen)
            m.d.comb += [signal.eq(chosen), Assume(~later | (chosen == before))]
        return m


def slots(memory: Any, m: Module) -> list[Any]:
    """Every word of a small memory, for invariants."""
    words = []
    for i in range(memory.depth):
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(i)
        words.append(port.data)
    return words


def proves(dut: Any, steps: int = 4) -> bool:
    """Whether all assertions of a proof hold always: from reset, and from any state in which they held for up to `steps` cycles.

    A proof with `bound` is checked for that many cycles from reset only.
    """
    bound = getattr(dut, "bound", 0)
    script = _SCRIPT.format(kind="-tempinduct-baseonly" if bound else "-tempinduct", steps=bound or steps)
    text = run_yosys(script, rtlil_of(Wrapped(dut), "top"), ("out.txt",))[1]["out.txt"]
    if "Import proof for assert" not in text:
        raise SimulationError(f"{type(dut).__name__}: found no assertion, expected at least one")
    return "SUCCESS!" in text


class OrderProof(OrderList):
    """The links are a list of all slots, in the order of a plain queue. No assumption."""

    def __init__(self) -> None:
        super().__init__(3)
        self.constants: dict[str, Signal] = {}

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        after, before = slots(m.submodules.following, m), slots(m.submodules.previous, m)
        n = self.n
        queue = [Signal(self.width, name=f"queue_{i}", init=i) for i in range(n)]  # slots in order; one leaves and goes to an end
        at = [queue[i] == self.slot for i in range(n)]
        with m.If(self.ready & self.move & (self.slot < n)):
            for i in range(n):
                passed = Cat(at[: i + 1]).any()
                m.d.sync += queue[i].eq(
                    Mux(self.to_front, self.slot if i == 0 else Mux(Cat(at[i:]).any(), queue[i - 1], queue[i]),
                        self.slot if i == n - 1 else Mux(passed, queue[i + 1], queue[i]))
                )  # fmt: skip
        m.d.comb += Assume(self.slot < n)
        for i in range(n):
            m.d.comb += Assert(Cat(q == i for q in queue).any())  # each slot once
        with m.If(self.ready):
            m.d.comb += [Assert(self.head == queue[0]), Assert(self.tail == queue[-1])]
            for a, b in pairwise(queue):
                for i in range(n):
                    with m.If(a == i):
                        m.d.comb += Assert(after[i] == b)
                    with m.If(b == i):
                        m.d.comb += Assert(before[i] == a)
        with m.Else():
            m.d.comb += [Assert(self.head == 0), Assert(self.tail == n - 1), *(Assert(queue[i] == i) for i in range(n))]
            for i in range(n):
                m.d.comb += [Assert(~(self.fill > i) | (after[i][: self.width] == (i + 1) % (1 << self.width)))]
                m.d.comb += [Assert(~(self.fill > i) | (before[i] == (i - 1) % (1 << self.width)))]
        m.d.comb += Assert(self.fill <= n)
        return m


class WatchedList(OrderList):
    """An order list whose links an invariant of a larger block may read: `links` = (following, previous) by slot."""

    def __init__(self, n: int):
        super().__init__(n)
        self.links = tuple([Signal(self.width, name=f"{name}_{i}") for i in range(n)] for name in ("after", "before"))

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        for memory, seen in zip((m.submodules.following, m.submodules.previous), self.links, strict=True):
            m.d.comb += [signal.eq(word) for signal, word in zip(seen, slots(memory, m), strict=True)]
        return m


class ReductionProof(ReductionTable):
    """No contribution of a session is lost or counted twice. Assumed: a session has one request at a time, and no more answers than targets."""

    def __init__(self) -> None:
        super().__init__(ReductionParameters(2, 2, 3))
        self.key_of = Signal(2)
        self.constants = {"key_of": self.key_of}

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
        live = [cam.live[i] & (cam.keys[i] == self.key_of) for i in range(p.entries)]
        inside = sum(Mux(live[i], words[i].count, 0) for i in range(p.entries))
        m.d.comb += Assert((came - went - inside - Mux(leaves, self.out_count, 0))[:8] == 0)  # nothing lost, nothing twice
        m.d.comb += Assert(~Cat(live).all())  # one entry of a session
        for i in range(p.entries):
            with m.If(live[i]):
                m.d.comb += [Assert(words[i].remaining == owed), Assert(owed != 0), Assert(words[i].count + words[i].remaining < 1 << p.count_bits)]
            with m.If(cam.live[i]):
                m.d.comb += Assert(words[i].key == cam.keys[i])
        return m


class TargetProof(TargetLogic):
    """A target is in the copies of a good packet as often as in its list: once, or not at all. No assumption."""

    def __init__(self) -> None:
        super().__init__(TargetParameters(3, 2, 2))
        self.target = Signal(3)
        self.constants = {"target": self.target}

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


class NoticeProof(OutputReadiness):
    """A token is ready once, and exactly when all its notices have come. Assumed: a notice comes once; memory gives back what it was given."""

    def __init__(self) -> None:
        super().__init__(ReadinessParameters(2, 2, 2))
        self.token = Signal(2)
        self.constants = {"token": self.token}

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
        in_memory, stored = Signal(), Signal(topk)
        with m.If(self.spill_valid & self.spill_ready & (self.spill_key == self.token)):
            m.d.sync += [in_memory.eq(1), stored.eq(self.spill_data)]
        with m.If(self.taken & (self.fetch_key == self.token)):
            m.d.sync += in_memory.eq(0)
        spilling = self.spill_valid & (self.spill_key == self.token)
        there, given = in_memory | spilling, Mux(spilling, self.spill_data, stored)  # memory sees a spill before a read of its cycle
        with m.If(self.fetch & self.answer):
            m.d.comb += Assume(Mux(self.fetch_key == self.token, self.found == there, ~self.found | (self.spilled > in_memory + spilling)))
            m.d.comb += Assume((self.fetch_key != self.token) | ~self.found | (self.answer_data == given))
        with m.If(self.out_valid & self.out_ready & (self.out_key == self.token)):
            m.d.sync += ready.eq(1)
        leaving = self.out_valid & (self.out_key == self.token)
        held = self.waits & (self.late["key"] == self.token)
        m.d.comb += waits_for.eq(Mux(held, 1 << self.late["place"], 0))
        live = [cam.live[i] & (cam.keys[i] == self.token) for i in range(p.entries)]
        on_chip = Mux(live[0], words[0].entry.notices, 0) | Mux(live[1], words[1].entry.notices, 0)
        m.d.comb += [
            Assert(~(ready & leaving)),  # once
            Assert(~(ready | leaving) | (came == full)),  # not too early
            Assert((came != full) | ready | leaving | held),  # and not too late
            Assert(ready | leaving | ((on_chip | Mux(in_memory, stored, 0) | Mux(spilling, self.spill_data, 0) | waits_for) == came)),
            Assert(~live[0] | ~live[1]),
            Assert(~(in_memory & spilling)),
            Assert(~(Cat(live).any() & (in_memory | spilling | held | ready | leaving))),
            Assert(~((ready | leaving) & (in_memory | spilling | held))),
            Assert(
                ~held | ((waits_for & (stored & in_memory.replicate(topk))) == 0) & ((waits_for & self.spill_data & spilling.replicate(topk)) == 0)
            ),
            Assert(~held | ((waits_for & came) == waits_for)),
            Assert(self.spilled >= in_memory + spilling),
            Assert(~held | (self.late["expected"] == topk)),
            Assert(~held | (self.late["place"] < topk)),
            Assert(~in_memory | (stored != full)),
            Assert(~spilling | (self.spill_data != full)),
            Assert(self.spilled < 4),
            Assume(self.spilled < 3),
        ]
        for i in range(p.entries):
            m.d.comb += Assert(~cam.live[i] | (words[i].key == cam.keys[i]))
            m.d.comb += Assert(~live[i] | (words[i].entry.notices != full))
        return m


class RowProof(RowAllocation):
    """Two rows of a region never get one place, and no place is beyond the capacity. Assumed: memory gives back what it was given."""

    def __init__(self) -> None:
        super().__init__(RowParameters(1, 2, 2, 2, 3, 3, 1))
        self.first_row, self.other_row, self.region_of = Signal(2), Signal(2), Signal(1)
        self.constants = {"first_row": self.first_row, "other_row": self.other_row, "region_of": self.region_of}

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
        late = self.waits & (self.late["region"] == self.region_of)
        m.d.comb += Assert(~late | started)
        return m


class DamProof(Readiness):
    """A tile is ready at most once, and ready or reclaimed but not both. No assumption beyond tile numbers in range."""

    def __init__(self) -> None:
        super().__init__(DamParameters(2, 2, 2, 3, 3, 2))
        self.tile_of = Signal(1)
        self.constants = {"tile_of": self.tile_of}

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
            Assume(~(self.valid & (self.event == 0) & reclaimed & ((self.place >> self.shift)[0] == self.tile_of))),
            Assume(~(self.valid & (self.event == 0) & out & self.is_reclaim)),
            Assume((self.place >> self.shift) < 2),
            Assume(
                ~(self.valid & (self.event == 0))
                | (Mux((self.place >> self.shift)[0], words[1].bytes, words[0].bytes) + self.n_bytes <= self.tile_bytes)
            ),
            Assert(~(begun & (ready | now)) | (word[: self.parameters.byte_bits] != 0)),
            Assert(~(begun & (reclaimed | (out & self.is_reclaim))) | (word[: self.parameters.byte_bits] == 0)),
            Assert(begun | ~self.walks),
            Assume(self.tile_bytes != 0),
        ]
        return m


class MergeProof(MergeUnit):
    """A load that waits is answered once, and places never exceed the table. Assumed: a GPU asks once; a sum gives back what it took."""

    order_list = WatchedList

    def __init__(self) -> None:
        super().__init__(MergeParameters(2, 2, 1))
        self.line_of, self.asker_of = Signal(1), Signal(1)
        self.constants = {"line_of": self.line_of, "asker_of": self.asker_of}

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, cam, words = self.parameters, m.submodules.cam, slots(m.submodules.entries, m)
        taken = self.valid & self.ready
        live = [cam.live[i] & (cam.keys[i] == self.line_of) for i in range(p.places)]
        hit = Cat(live).any()
        cached = Cat(live[i] & words[i].cached for i in range(p.places)).any()
        waits = Signal()  # the load of the asker waits in the table
        mine = taken & (self.line == self.line_of)
        m.d.comb += Assume(~(mine & (self.event == 1)) | (hit & ~cached))  # one response to the load that merges
        m.d.comb += Assume(~(mine & (self.event == 0) & (self.asker == self.asker_of)) | ~waits)
        m.d.comb += Assume(~(taken & (self.event == 3)) | (self.n_sums != 0))
        answered = Signal()
        with m.If(mine & (self.event == 1)):
            m.d.sync += [waits.eq(0), answered.eq(waits)]
        with m.Elif(mine & (self.event == 0) & (self.asker == self.asker_of)):
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


class TlbProof(AlTlb):
    """A packet leaves once for every time it asked, and none stays when memory answers: no deadlock. Bounded, from reset. Assumed: a packet that is
    inside does not ask again; memory answers reads that it was sent."""

    bound = 14
    patience = 7
    """Cycles without lookups, in which memory answers and the output takes, until no packet may be inside."""

    def __init__(self) -> None:
        super().__init__(TlbParameters(2, 2, 2, 2, 1, 2, 1))
        self.packet_of = Signal(1)
        self.constants = {"packet_of": self.packet_of}

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


PROOFS: dict[str, tuple[type, ...]] = {
    "reduction-table": (OrderProof, ReductionProof),
    "target-logic": (TargetProof,),
    "output-readiness": (NoticeProof,),
    "al-tlb": (OrderProof, TlbProof),
    "row-allocation": (RowProof,),
    "readiness": (DamProof,),
    "merge-unit": (MergeProof,),
}
"""Proofs by block. The order list is part of every table."""
