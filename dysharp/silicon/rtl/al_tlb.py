"""The AL TLB of a hub with its miss registers and waiting packets. Model: `protocol.al_table`; the table itself lies in memory."""

from random import Random
from typing import Self

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import Out
from amaranth.utils import bits_for

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import al_table
from dysharp.silicon.rtl import Block, BlockModel, OrderProof, Proof, Values
from dysharp.silicon.rtl.parts import Cam, Machine, OrderList, check_slots, drive, lowest, memory, slot_bits, wire
from dysharp.specs import Cluster, choice_int


@frozen
class _TlbParameters:
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


class AlTlb(Machine):
    """Algebraic to layout index. Hits take one cycle. Packets that miss wait in a list of their entry and leave in order of arrival.

    Lookup: `valid`, `ready`, `expert`, `index`, `packet`, `allocate` (Dispatch). A lookup waits at the door while memory answers, while packets
    leave a list, and when it needs a miss register or a place to wait and there is none.
    Memory: `read_valid`, `read_ready`, `read_expert`, `read_index`, `read_miss`; `answer_valid`, `answer_ready`, `answer_miss`, `answer_bound`,
    `answer_layout` in any order. `write_valid` with `write_expert`, `write_index`, `write_layout`: a block is bound; memory takes it at once.
    Out, held until `out_ready`: `out_valid`, `out_packet`, `out_layout`, `out_unbound`.
    """

    def pins(self, p: _TlbParameters) -> ByName:
        self.expert_bits = e = slot_bits(p.experts)
        miss = slot_bits(p.misses)
        return {
            "valid": 1, "ready": Out(1), "expert": e, "index": p.index_bits, "packet": p.packet_bits, "allocate": 1,
            "read_valid": Out(1), "read_ready": 1, "read_expert": Out(e), "read_index": Out(p.index_bits), "read_miss": Out(miss),
            "answer_valid": 1, "answer_ready": Out(1), "answer_miss": miss, "answer_bound": 1, "answer_layout": p.layout_bits,
            "write_valid": Out(1), "write_expert": Out(e), "write_index": Out(p.index_bits), "write_layout": Out(p.layout_bits),
            "out_valid": Out(1), "out_ready": 1, "out_packet": Out(p.packet_bits), "out_layout": Out(p.layout_bits), "out_unbound": Out(1),
        }  # fmt: skip

    def build(self, m: Module, p: _TlbParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
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
        start = wire(m, order.ready & (fill == p.waiters) & (fresh == p.experts), name="start")  # links, places and block counters are written
        leaving, at, last, layout, unbound = Signal(), Signal(wait_bits), Signal(wait_bits), Signal(p.layout_bits), Signal()
        out_free, read_free = Signal(), Signal()
        comb += [out_free.eq(self.out_free), read_free.eq(~self.read_valid | self.read_ready)]

        key = wire(m, Cat(self.index, self.expert), key_bits)
        comb += [cam.key.eq(key), pending.key.eq(key)]
        has_miss = wire(m, ~pending.live.all(), name="has_miss")
        free_miss = wire(m, lowest(~pending.live), miss_bits)
        waits = pending.hit | has_miss
        comb += self.answer_ready.eq(start & ~leaving)
        answer = wire(m, self.answer_valid & self.answer_ready)
        comb += self.ready.eq(start & ~leaving & ~self.answer_valid & out_free & read_free & (cam.hit | ((n_free != 0) & waits)))
        lookup = wire(m, self.valid & self.ready)
        hit = wire(m, lookup & cam.hit)
        joins = wire(m, lookup & ~cam.hit & pending.hit)
        opens = wire(m, lookup & ~cam.hit & ~pending.hit)
        # The miss register that this cycle reads: of the answer, or the one that the lookup joins.
        chosen = Signal(miss_bits)
        comb += [chosen.eq(Mux(answer, self.answer_miss, Mux(pending.hit, pending.slot, free_miss))), miss_read.addr.eq(chosen)]
        comb += drive(pending, at=chosen, set=opens, clear=answer)
        old = miss_read.data
        comb += place_read.addr.eq(n_free - 1)
        comb += drive(miss_write, addr=chosen, en=joins | opens)
        comb += drive(miss_write.data, key=key, first=Mux(joins, old.first, place_read.data), last=place_read.data)
        comb += miss_write.data.allocates.eq(self.allocate | (joins & old.allocates))
        comb += drive(name_write, addr=place_read.data, data=self.packet, en=joins | opens)
        comb += drive(behind_write, addr=old.last, data=place_read.data, en=joins)
        with m.If(joins | opens):
            sync += n_free.eq(n_free - 1)
        # An answer fills the TLB and starts the list of its register.
        expert = old.key[p.index_bits :]
        comb += block_read.addr.eq(expert)
        binds = wire(m, answer & ~self.answer_bound & old.allocates)
        known = wire(m, Mux(self.answer_bound, self.answer_layout, block_read.data), p.layout_bits, name="known")
        comb += layout_read.addr.eq(cam.slot)
        comb += drive(layout_write, addr=order.front, data=known, en=answer & (self.answer_bound | old.allocates))
        comb += drive(order, move=hit | layout_write.en, slot=Mux(answer, order.front, cam.slot))
        comb += drive(cam, at=order.front, set=layout_write.en)
        with m.If(answer):
            comb += cam.key.eq(old.key)
            sync += [leaving.eq(1), at.eq(old.first), last.eq(old.last), layout.eq(known), unbound.eq(~layout_write.en)]
        comb += drive(block_write, addr=Mux(start, expert, fresh), data=Mux(start, block_read.data + 1, 0), en=binds | (fresh != p.experts))
        with m.If(fresh != p.experts):
            sync += fresh.eq(fresh + 1)
        sync += drive(self, write_valid=binds, write_expert=expert, write_index=old.key[: p.index_bits], write_layout=known)
        with m.If(read_free):
            sync += drive(self, read_valid=opens, read_expert=self.expert, read_index=self.index, read_miss=chosen)
        # Waiting packets leave one per cycle, and their places become free.
        comb += [name_read.addr.eq(at), behind_read.addr.eq(at)]
        go = leaving & out_free
        with m.If(out_free):
            sync += drive(self, out_valid=hit | leaving, out_packet=Mux(leaving, name_read.data, self.packet))
            sync += drive(self, out_layout=Mux(leaving, layout, layout_read.data), out_unbound=leaving & unbound)
        with m.If(go):
            sync += [at.eq(behind_read.data), leaving.eq(at != last), n_free.eq(n_free + 1)]
        filling = fill != p.waiters
        comb += drive(place_write, addr=Mux(filling, fill, n_free), data=Mux(filling, fill, at), en=filling | go)
        with m.If(filling):
            sync += [fill.eq(fill + 1), n_free.eq(fill + 1)]


class _TlbModel(BlockModel):
    """Lookups of few rows, so that misses join; memory answers in any order."""

    def __init__(self, p: _TlbParameters, random: Random):
        super().__init__(p, max(p.entries, p.waiters, p.experts))
        self.state = al_table.empty(p.experts, p.entries, p.misses)
        self.read: Tally = {"read_valid": 0}
        self.write: Tally = {"write_valid": 0}
        self.register: dict[al_table.Key, int] = {}
        self.known: list[al_table.Key] = []  # reads that memory has seen
        self.leaving: list[Tally] = []
        self.n_wait = 0
        self.stall, self.slow, self.rows = random.choice((0, 0.3)), random.choice((0.1, 0.5)), random.choice((2, 6))
        self.held: Tally = {}

    def draw(self, random: Random) -> Tally:
        if not self.held:
            e, i = random.randrange(self.p.experts), random.randrange(min(self.rows, 1 << self.p.index_bits))
            packet = random.getrandbits(self.p.packet_bits)
            self.held = {"valid": int(random.random() < 0.9), "expert": e, "index": i, "packet": packet, "allocate": int(random.random() < 0.6)}
        pins = self.held | self.takes(random, "out_ready", "read_ready") | {"answer_valid": 0}
        if self.known and random.random() < self.slow:
            key = random.choice(self.known)
            layout = al_table.layout_of(self.state, key)
            pins |= {"answer_valid": 1, "answer_miss": self.register[key], "answer_bound": int(layout >= 0), "answer_layout": max(layout, 0)}
        return pins

    def cycle(self, pins: Values) -> Values:
        key = (pins["expert"], pins["index"])
        start = self.busy == 0
        out_free, read_free = not self.out["out_valid"] or pins["out_ready"], not self.read["read_valid"] or pins["read_ready"]
        cached, joins = al_table.is_hit(self.state, key), key in self.state.pending
        room = self.n_wait < self.p.waiters and (joins or len(self.state.pending) < self.p.misses)
        ready = int(start and not self.leaving and not pins["answer_valid"] and out_free and read_free and (cached or room))
        answer_ready = int(start and not self.leaving)
        now = self.out | self.read | self.write | {"ready": ready, "answer_ready": answer_ready}
        if self.read["read_valid"] and pins["read_ready"]:
            self.known.append((self.read["read_expert"], self.read["read_index"]))
        if out_free:
            self.out = {"out_valid": 0}
            if self.leaving:
                self.out = self.leaving.pop(0)
                self.n_wait -= 1
        if read_free:
            self.read = {"read_valid": 0}
        self.write = {"write_valid": 0}
        self.busy = max(0, self.busy - 1)
        if answer_ready and pins["answer_valid"]:
            self._answer(next(k for k in self.known if self.register[k] == pins["answer_miss"]))
        elif ready and pins["valid"]:
            self._look_up(al_table.Lookup(key, pins["packet"], bool(pins["allocate"])))
        elif start and pins["valid"] and not (cached or room):
            self.seen["at the door"] += 1
        if ready or not pins["valid"]:
            self.held = {}
        return now

    def _look_up(self, event: al_table.Lookup) -> None:
        self.state, outputs = al_table.step(self.state, event)
        if outputs and isinstance(outputs[0], al_table.Found):
            self.seen["hit"] += 1
            self.out = self._found(outputs[0])
            return
        self.n_wait += 1
        self.seen["miss" if outputs else "joined"] += 1
        if outputs:
            expert, index = event.key
            self.register[event.key] = min(set(range(self.p.misses)) - {self.register[k] for k in self.state.pending if k != event.key})
            self.read = {"read_valid": 1, "read_expert": expert, "read_index": index, "read_miss": self.register[event.key]}

    def _answer(self, key: al_table.Key) -> None:
        self.known.remove(key)
        self.state, outputs = al_table.step(self.state, al_table.MemoryAnswer(key))
        for output in outputs:
            if isinstance(output, al_table.BlockBound):
                self.seen["bound"] += 1
                self.write = {"write_valid": 1, "write_expert": key[0], "write_index": key[1], "write_layout": output.layout}
            elif isinstance(output, al_table.Unbound):
                self.seen["unbound"] += 1
                self.leaving.append({"out_valid": 1, "out_packet": int(str(output.packet)), "out_unbound": 1})
            elif isinstance(output, al_table.Found):
                self.leaving.append(self._found(output))

    def _found(self, output: al_table.Found) -> Tally:
        return {"out_valid": 1, "out_packet": int(str(output.packet)), "out_layout": output.layout, "out_unbound": 0}


class _TlbProof(Proof, AlTlb, of=_TlbParameters(2, 2, 2, 2, 1, 2, 1), packet_of=1):
    """A packet leaves once for every time it asked, and none stays when memory answers: no deadlock. Assumed: a packet that is
    inside does not ask again; memory answers reads that it was sent."""

    bound = 14
    patience = 7
    """Cycles without lookups, in which memory answers and the output takes, until no packet may be inside."""

    def watch(self, m: Module, p: _TlbParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        pending = m.submodules.pending
        inside, quiet, sent = Signal(), Signal(4), Signal(2)
        asks = self.valid & self.ready & (self.packet == self.packet_of)
        leaves = self.out_valid & self.out_ready & (self.out_packet == self.packet_of)
        comb += [Assume(~(asks & inside) | leaves), Assert(~leaves | inside)]
        sync += inside.eq((inside & ~leaves) | asks)
        for i in range(2):  # reads that memory has
            begins = self.read_valid & self.read_ready & (self.read_miss == i)
            ends = self.answer_valid & self.answer_ready & (self.answer_miss == i)
            sync += sent[i].eq((sent[i] | begins) & ~ends)
        comb += Assume(~self.answer_valid | (sent >> self.answer_miss)[0])
        calm = ~self.valid & self.out_ready & self.read_ready & (self.answer_valid | (sent == 0))
        sync += quiet.eq(Mux(calm, Mux(quiet == 15, 15, quiet + 1), 0))
        comb += self.promise((quiet < self.patience) | ~inside, (quiet < self.patience) | ~pending.live.any())


BLOCK = Block(
    "al-tlb", "algebraic to layout index, miss registers, waiting packets", _TlbParameters, AlTlb, _TlbModel,
    small=(_TlbParameters(2, 2, 4, 2, 3, 4, 5), _TlbParameters(3, 1, 3, 1, 3, 4, 5), _TlbParameters(4, 3, 4, 2, 3, 4, 5)),
    proofs=(OrderProof, _TlbProof),
)  # fmt: skip
