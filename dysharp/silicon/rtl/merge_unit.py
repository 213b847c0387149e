"""CAIS' merge unit: loads of one address share a request and a response; sums share the places. Model: `protocol.merging`."""

from random import Random
from typing import Self

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import Out
from amaranth.utils import bits_for

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import merging
from dysharp.silicon.rtl import Block, BlockModel, Machine, OrderList, OrderProof, Proof, Table, Values, WatchedList, drive, slot_bits, slots, wire
from dysharp.specs import Cluster

ENTRIES = 320  # CAIS (HPCA 2026): 40 KB of 128 B a port


@frozen
class _MergeParameters:
    """`places` for loads and sums; `askers`: GPUs; bits of the number of a 128 B line."""

    places: int
    askers: int = 8
    line_bits: int = 41

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """The published table; a cluster file has no size for it."""
        return cls(ENTRIES, cluster.n_gpus)


class MergeUnit(Machine):
    """One event per cycle, its answer one cycle later.

    In: `valid`, `ready`, `op`: 0 = a load of `line` by `asker`, which `expected` loads ask for; 1 = the response to the load of `line`
    that merges; 2 = a sum takes a place; 3 = a sum gives its place back; 4 = `line` was idle for too long.
    Out, held until `out_ready`: `out_valid`; `forward` (the load goes on; `merges`: its response comes here), `answers` (a bit per GPU that gets
    the data of `slot`), `has_place` (of event 2), `dropped` (a cached line left early).
    """

    def pins(self, p: _MergeParameters) -> ByName:
        self.width = slot_bits(p.places)
        self.oldest = Signal(self.width)
        self.n_loads, self.n_sums, self.room = Signal(bits_for(p.places)), Signal(bits_for(p.places)), Signal()
        return {
            "valid": 1, "ready": Out(1), "op": 3, "line": p.line_bits, "asker": slot_bits(p.askers),
            "expected": bits_for(p.askers), "out_valid": Out(1), "out_ready": 1, "forward": Out(1), "merges": Out(1),
            "answers": Out(p.askers), "has_place": Out(1), "dropped": Out(1), "slot": Out(self.width),
        }  # fmt: skip

    order_list = OrderList

    def build(self, m: Module, p: _MergeParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        count = bits_for(p.askers)
        shape = data.StructLayout({"waiting": p.askers, "cached": 1, "count": count, "expected": count})
        table = Table(m, p.places, p.line_bits, "entries", shape, self.order_list)
        cam, order, slot, oldest_read = table.cam, table.order, table.slot, table.words.read_port(domain="comb")
        # Sums hold places as a number. Loads stand in the list behind the free slots, so the oldest load is behind as many slots as sums hold:
        # a register follows it.
        oldest, n_loads, n_sums = self.oldest, self.n_loads, self.n_sums
        load, response, take, give, expire = (Signal(name=name) for name in ("load", "response", "take", "give", "expire"))
        free = wire(m, order.ready & self.out_free, name="free")
        comb += [
            self.ready.eq(free),
            *(kind.eq(self.valid & free & (self.op == i)) for i, kind in enumerate((load, response, take, give, expire))),
            cam.key.eq(self.line),
            oldest_read.addr.eq(oldest),
        ]
        hit, full = cam.hit, n_loads + n_sums == p.places
        may_drop = (n_loads != 0) & oldest_read.data.cached
        first, room, drops = Signal(), self.room, Signal()
        comb += [first.eq(load & ~hit), room.eq(~full | may_drop), drops.eq((first | take) & full & may_drop)]
        takes_slot = first & room
        # A load that drops the oldest one takes its slot; a sum that does gives the slot to the free ones.
        comb += slot.eq(Mux(drops, oldest, Mux(first, order.front, cam.slot)))
        old, new = table.read.data, Signal(shape)
        asker = wire(m, 1 << self.asker, p.askers, name="asker")
        later = load & hit
        with m.If(first):
            comb += drive(new, waiting=asker, cached=0, count=1, expected=self.expected)
        with m.Else():
            comb += drive(new, waiting=Mux(response, 0, Mux(old.cached, 0, old.waiting | asker)), cached=old.cached | response)
            comb += drive(new, count=old.count + later, expected=old.expected)
        settles = (response & hit) | (later & old.cached)
        ends = wire(m, (settles & (new.count >= old.expected)) | (expire & hit & old.cached), name="ends")
        leaves = ends | (take & drops)
        stays = takes_slot | ((later | (response & hit)) & ~ends)
        comb += [table.write.en.eq(stays), table.write.data.eq(new), cam.set.eq(takes_slot), cam.clear.eq(leaves), order.move.eq(leaves | stays)]
        sync += n_loads.eq(n_loads + (takes_slot & ~drops) - leaves)
        sync += n_sums.eq(n_sums + (take & room) - give)
        with m.If((n_loads == 0) & takes_slot):
            sync += oldest.eq(slot)
        with m.Elif((leaves | stays) & (slot == oldest) & (n_loads != 1)):
            sync += oldest.eq(order.following)
        with m.If(free):
            sync += drive(self, out_valid=first | take | settles | (expire & ends), forward=first, merges=takes_slot)
            sync += drive(self, answers=Mux(response, Mux(hit, old.waiting, 0), Mux(later & old.cached, asker, 0)), has_place=take & room)
            sync += drive(self, dropped=drops | (expire & ends), slot=slot)


class _MergeModel(BlockModel):
    """Loads of few lines, responses in any order, sums that come and go, lines that expire."""

    def __init__(self, parameters: _MergeParameters, random: Random):
        super().__init__(parameters, parameters.places)
        self.state = merging.empty(parameters.places)
        self.sums = 0
        self.stall, self.lines = random.choice((0, 0.3)), random.choice((3, 8))
        self.expected = random.randint(2, parameters.askers)

    def draw(self, random: Random) -> Tally:
        kind = random.choices(range(5), (6, 4, 1, 1, 1))[0]
        line, asker = random.randrange(self.lines), random.randrange(self.p.askers)
        out = [address for address, entry in self.state.loads.items() if not entry.ready]
        valid = random.random() < 0.9
        if kind == 1:
            valid, line = valid and bool(out), int(str(random.choice(out))) if out else 0
        elif kind == 3:
            valid = valid and self.sums > 0
        elif kind == 0:
            entry = self.state.loads.get(line)
            valid = valid and (entry is None or (asker not in entry.waiting and entry.count < self.p.askers))
        pins = {"valid": int(valid), "op": kind, "line": line, "asker": asker, "expected": self.expected}
        return pins | self.takes(random)

    def take(self, pins: Values) -> None:
        line, asker = pins["line"], pins["asker"]
        events = (merging.Load(line, asker, pins["expected"]), merging.Response(line), merging.Take(), merging.Give(), merging.Expire(line))
        event = events[pins["op"]]
        self.seen[type(event).__name__.lower()] += 1
        self.state, outputs = merging.step(self.state, event)
        forward = merges = answers = place = dropped = 0
        for output in outputs:
            self.seen[f"out {type(output).__name__.lower()}"] += 1
            if isinstance(output, merging.Forward):
                forward, merges = 1, int(output.merges)
            elif isinstance(output, merging.LoadResponse):
                answers |= 1 << int(str(output.asker))
            elif isinstance(output, merging.Taken):
                place = int(output.has_place)
            else:
                dropped = 1
        self.sums += place - (pins["op"] == 3)
        if outputs:
            self.out = {"out_valid": 1, "forward": forward, "merges": merges, "answers": answers, "has_place": place, "dropped": dropped}


class _MergeProof(Proof, MergeUnit, of=_MergeParameters(2, 2, 1), line_of=1, asker_of=1):
    """A load that waits is answered once, and places never exceed the table. Assumed: a GPU asks once; a sum gives back what it took."""

    order_list = WatchedList

    def watch(self, m: Module, p: _MergeParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        cam, words = m.submodules.cam, slots(m.submodules.entries, m)
        taken = self.valid & self.ready
        live = [cam.live[i] & (cam.keys[i] == self.line_of) for i in range(p.places)]
        hit = Cat(live).any()
        cached = Cat(live[i] & words[i].cached for i in range(p.places)).any()
        waits = Signal()  # the load of the asker waits in the table
        mine = taken & (self.line == self.line_of)
        comb += Assume(~(mine & (self.op == 1)) | (hit & ~cached))  # one response to the load that merges
        comb += Assume(~(mine & (self.op == 0) & (self.asker == self.asker_of)) | ~waits)
        comb += Assume(~(taken & (self.op == 3)) | (self.n_sums != 0))
        answered = Signal()
        with m.If(mine & (self.op == 1)):
            sync += [waits.eq(0), answered.eq(waits)]
        with m.Elif(mine & (self.op == 0) & (self.asker == self.asker_of)):
            sync += [waits.eq(Mux(hit, ~cached, self.room)), answered.eq(hit & cached)]
        with m.Elif(self.ready):
            sync += answered.eq(0)
        n_live = cam.live[0] + cam.live[1]
        order = m.submodules.order
        head, tail = order.head, order.tail
        live_head, live_tail = Mux(head[0], cam.live[1], cam.live[0]), Mux(tail[0], cam.live[1], cam.live[0])
        after, before = order.links
        comb += self.promise(
            head != tail,
            (self.n_loads != 1) | ((self.oldest == tail) & live_tail & ~live_head),
            (self.n_loads != 2) | (self.oldest == head),
            order.ready | ((self.n_loads == 0) & ~self.out_valid & ~head[0]),
            ~order.ready | ((Mux(head[0], after[1], after[0]) == tail) & (Mux(tail[0], before[1], before[0]) == head)),
            order.fill <= 2,
            order.ready | (order.fill == 0) | (after[0] == 1),
        )
        comb += self.promise(
            ~(self.out_valid & answered) | (self.answers >> self.asker_of)[0],
            ~live[0] | ~live[1],
            self.n_loads == n_live,
            self.n_loads + self.n_sums <= p.places,
            ~answered | self.out_valid,
        )
        bits = [(words[i].waiting >> self.asker_of)[0] for i in range(p.places)]
        comb += Assert(waits == Cat(live[i] & ~words[i].cached & bits[i] for i in range(p.places)).any())
        for i in range(p.places):
            comb += Assert(~(live[i] & words[i].cached) | ~bits[i])


BLOCK = Block(
    "merge-unit", "loads of one line that share request and response; places of sums", _MergeParameters, MergeUnit, _MergeModel,
    small=(_MergeParameters(2, 3, 4), _MergeParameters(3, 4, 4), _MergeParameters(4, 3, 4)),
    proofs=(OrderProof, _MergeProof),
)  # fmt: skip
