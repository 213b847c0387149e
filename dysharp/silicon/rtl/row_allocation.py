"""MoE-Hub's row allocation: one bank of the RAT, and the APT with its check of capacity. Model: `protocol.aau`.

A bank is set-associative: the low bits of region + row choose a set of a few rows, which one word of the memory holds, oldest first. With
`banks` = all sets and `entries` = ways the model does the same.
"""

from random import Random
from typing import Any, Self

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import Out
from amaranth.utils import bits_for

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import aau
from dysharp.protocol.aau import APT
from dysharp.silicon.rtl import Block, Machine, Proof, SpillModel, Values, drive, memory, slot_bits, slots, wire
from dysharp.specs import Cluster, choice_int


@frozen
class _RowParameters:
    """`sets` x `ways` rows of a bank (`sets` a power of two); `regions` of the GPU; bits of a row id, a place, a number of bytes."""

    sets: int
    ways: int = 4
    regions: int = 64
    row_bits: int = 32
    place_bits: int = 20
    byte_bits: int = 17
    packet_bits: int = 10

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """The packaged choice for a bank, in sets of four; no cluster file has a size."""
        return cls(choice_int("moe_hub.rat_bank_entries") // 4, regions=APT.entries)


class RowAllocation(Machine):
    """A packet of a row gets the place of the row; the first packet takes the next place of its region.

    In: `valid`, `ready`, `region`, `row`, `n_bytes`, `packet`. Out, a cycle later, held until `out_ready`: `out_valid`, `out_packet`, `out_region`,
    `out_place`, `out_first` (the row is bound now), or `trap`: the region has no place (`out_region`, `out_row`); the packet is dropped.
    `base` + place x row bytes is left to the next stage. A full set spills its oldest row: `spill_valid`, `spill_ready`, `spill_region`, `spill_row`,
    `spill_place`, `spill_bytes`. While a region has no row in memory, a miss is a first packet. Otherwise the bank reads the map: `fetch` is 1 until
    `answer` (`found`, `answer_place`, `answer_bytes`); memory drops what was found.
    `set` writes a region and begins it anew; no row of it may be live.
    """

    def pins(self, p: _RowParameters) -> ByName:
        self.region_bits = r = slot_bits(p.regions)
        self.waits = Signal()  # a packet waits for the map
        return {
            "valid": 1, "ready": Out(1), "region": r, "row": p.row_bits, "n_bytes": 8, "packet": p.packet_bits,
            "set": 1, "set_region": r, "set_row_bytes": p.byte_bits, "set_capacity": p.place_bits,
            "fetch": Out(1), "fetch_region": Out(r), "fetch_row": Out(p.row_bits), "answer": 1, "found": 1,
            "answer_place": p.place_bits, "answer_bytes": p.byte_bits,
            "spill_valid": Out(1), "spill_ready": 1, "spill_region": Out(r), "spill_row": Out(p.row_bits),
            "spill_place": Out(p.place_bits), "spill_bytes": Out(p.byte_bits),
            "out_valid": Out(1), "out_ready": 1, "out_packet": Out(p.packet_bits), "out_region": Out(r), "out_row": Out(p.row_bits),
            "out_place": Out(p.place_bits), "out_first": Out(1), "trap": Out(1),
        }  # fmt: skip

    def build(self, m: Module, p: _RowParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        way = data.StructLayout({"live": 1, "region": self.region_bits, "row": p.row_bits, "place": p.place_bits, "bytes": p.byte_bits})
        _, read, write = memory(m, "rat", data.ArrayLayout(way, p.ways), p.sets)
        registers = data.StructLayout({"row_bytes": p.byte_bits, "capacity": p.place_bits})
        counts = data.StructLayout({"next": p.place_bits, "evicted": p.place_bits})
        _, region_read, region_write = memory(m, "apt", registers, p.regions)
        pointers, point_read, point_write = memory(m, "pointers", counts, p.regions)
        evicted_read, evicted_write = pointers.read_port(domain="comb"), pointers.write_port()  # of the region whose row spills

        fill, waits = Signal(bits_for(p.sets)), self.waits
        start = wire(m, fill == p.sets)
        self.late = late = {name: Signal.like(getattr(self, name), name=f"late_{name}") for name in ("region", "row", "n_bytes", "packet")}
        region, row, n_bytes, packet = (Mux(waits, late[name], getattr(self, name)) for name in late)
        free = wire(m, start & self.out_free & (~self.spill_valid | self.spill_ready))
        comb += self.ready.eq(free & ~waits & ~self.set)
        begin = wire(m, self.valid & self.ready)
        comb += drive(self, fetch=waits & free, fetch_region=late["region"], fetch_row=late["row"])
        resume = wire(m, self.fetch & self.answer & ~self.set, name="resume")
        index = Signal(slot_bits(p.sets))
        comb += [index.eq((region + row)[: slot_bits(p.sets)] if p.sets > 1 else 0), read.addr.eq(index)]
        comb += [region_read.addr.eq(region), point_read.addr.eq(region)]
        ways = [read.data[i] for i in range(p.ways)]
        match = wire(m, Cat(w.live & (w.region == region) & (w.row == row) for w in ways), p.ways, name="match")
        hit, full = match.any(), ways[-1].live
        evicted = point_read.data.evicted != 0
        in_map = wire(m, resume & self.found)
        first = wire(m, (begin & ~hit & ~evicted) | (resume & ~self.found))
        overflows = wire(m, first & (point_read.data.next >= region_read.data.capacity))
        act = wire(m, (begin & hit) | in_map | (first & ~overflows))
        hit_place = [Mux(match[i], w.place, 0) for i, w in enumerate(ways)]
        hit_bytes = [Mux(match[i], w.bytes, 0) for i, w in enumerate(ways)]
        place = wire(m, Mux(in_map, self.answer_place, Mux(first, point_read.data.next, _any(hit_place))), p.place_bits)
        received = wire(m, Mux(in_map, self.answer_bytes, Mux(first, 0, _any(hit_bytes))) + n_bytes, p.byte_bits, name="received")
        # A new row goes behind the others of its set. A complete row leaves, and younger ones move up. A full set loses its oldest row first.
        complete, inserts, spills = Signal(), Signal(), Signal()
        comb += [complete.eq(act & (received >= region_read.data.row_bytes)), inserts.eq(act & ~(begin & hit)), spills.eq(inserts & full)]
        comb += drive(write, addr=Mux(start, index, fill), en=act | ~start)
        new = Signal(way)
        comb += drive(new, live=1, region=region, row=row, place=place, bytes=received)
        blank = Signal(way)
        moved: list[Any] = []
        for i, w in enumerate(ways):
            younger = Value.cast(ways[i + 1] if i + 1 < p.ways else blank)
            gone = Cat(match[: i + 1]).any()
            before = ways[i - 1].live if i else 1
            kept = Mux(spills, younger, Mux(complete & gone & ~inserts, younger, Mux(match[i], Value.cast(new), Value.cast(w))))
            end = Mux(spills, i == p.ways - 1, ~w.live & before) & inserts
            moved.append(Mux(end, Mux(complete, Value.cast(blank), Value.cast(new)), kept))
        comb += Value.cast(write.data).eq(Mux(start, Cat(moved), 0))
        # Pointers. The spilled row may belong to another region than the packet.
        oldest = ways[0]
        same = oldest.region == region
        comb += evicted_read.addr.eq(oldest.region)
        comb += drive(evicted_write, addr=oldest.region, en=spills & ~same)
        comb += drive(evicted_write.data, next=evicted_read.data.next, evicted=evicted_read.data.evicted + 1)
        comb += drive(point_write, addr=Mux(self.set, self.set_region, region), en=self.set | act)
        comb += point_write.data.next.eq(Mux(self.set, 0, point_read.data.next + first))
        comb += point_write.data.evicted.eq(Mux(self.set, 0, point_read.data.evicted - in_map + (spills & same)))
        comb += drive(region_write, addr=self.set_region, en=self.set)
        comb += drive(region_write.data, row_bytes=self.set_row_bytes, capacity=self.set_capacity)
        with m.If(~start):
            sync += fill.eq(fill + 1)
        with m.If(begin & ~hit & evicted):
            sync += [waits.eq(1), *(late[name].eq(getattr(self, name)) for name in late)]
        with m.If(resume):
            sync += waits.eq(0)
        # One output may leave while the other one still waits.
        with m.If(self.out_ready):
            sync += self.out_valid.eq(0)
        with m.If(self.spill_ready):
            sync += self.spill_valid.eq(0)
        with m.If(free):
            sync += drive(self, out_valid=act | overflows, out_packet=packet, out_region=region, out_row=row, out_place=place, out_first=first)
            sync += drive(self, trap=overflows, spill_valid=spills, spill_region=oldest.region, spill_row=oldest.row, spill_place=oldest.place)
            sync += self.spill_bytes.eq(oldest.bytes)


def _any(values: list[Any]) -> Any:
    """The OR of values, of which at most one is not 0."""
    result = values[0]
    for value in values[1:]:
        result |= value
    return result


class _RowModel(SpillModel):
    """Rows of a few regions in packets, in mixed order; some regions are too small."""

    def __init__(self, p: _RowParameters, random: Random):
        super().__init__(p, p.sets)
        self.regions = tuple(aau.Region(0, random.randint(1, 3), random.randint(2, 5)) for _ in range(p.regions))
        self.state = aau.empty(self.regions, entries=p.ways, banks=p.sets)
        self.registers = list(range(p.regions))
        rows = [(g, row) for g, region in enumerate(self.regions) for row in random.sample(range(1 << p.row_bits), min(region.capacity + 1, 6))]
        self.todo = [(key, 1) for key in rows for _ in range(self.regions[key[0]].row_bytes)]
        random.shuffle(self.todo)
        if random.random() < 0.5:
            self.todo.sort(key=lambda packet: packet[0][1] + 4 * random.random())
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.5, 1))
        self.dead: set[aau.Key] = set()

    def draw(self, random: Random) -> Tally:
        pins = {"valid": 0, "region": 0, "row": 0, "n_bytes": 1, "packet": 0, "set": 0} | self.takes(random, "out_ready", "spill_ready")
        if self.registers:
            g = self.registers.pop()
            pins |= {"set": 1, "set_region": g, "set_row_bytes": self.regions[g].row_bytes, "set_capacity": self.regions[g].capacity}
        elif self.todo and random.random() < self.load:
            (g, row), n = self.todo[0]
            pins |= {"valid": 1, "region": g, "row": row, "n_bytes": n, "packet": random.getrandbits(self.p.packet_bits)}
        found = self.state.memory.get(self.waits.key) if self.waits else None
        place, n_bytes = found or (random.getrandbits(self.p.place_bits), 1)
        return pins | {"answer": int(random.random() < 0.6), "found": int(found is not None), "answer_place": place, "answer_bytes": n_bytes}

    def accepts(self, pins: Values) -> bool:
        return not pins["set"]

    def beside(self, pins: Values, ready: bool) -> Tally:
        return {"fetch_region": self.waits.key[0], "fetch_row": self.waits.key[1]} if ready else {}

    def resume(self, step: aau.RowPacket, pins: Values) -> None:
        self._step(aau.MapAnswer(step.key), step)

    def take(self, pins: Values) -> None:
        store = aau.RowPacket((pins["region"], pins["row"]), 0, pins["n_bytes"], pins["packet"])
        self.todo.pop(0)
        self._step(store, store)

    def _step(self, event: aau.Event, store: aau.RowPacket) -> None:
        rows = {key: entry for bank in self.state.banks for key, entry in bank.items()}
        self.state, outputs = aau.step(self.state, event)
        first = 0
        for output in outputs:
            self.seen[type(output).__name__.lower()] += 1
            if isinstance(output, aau.ReadMap):
                self.waits = store
            elif isinstance(output, aau.Allocated):
                first = 1
            elif isinstance(output, aau.Overflow):
                self.out = {"out_valid": 1, "trap": 1, "out_region": output.region, "out_row": output.row}
            elif isinstance(output, aau.Spilled):
                (place, n_bytes), (region, row) = rows[output.key], output.key
                self.spill = {"spill_valid": 1, "spill_region": region, "spill_row": row, "spill_place": place, "spill_bytes": n_bytes}
            elif isinstance(output, aau.Placed):
                self.out = {"out_valid": 1, "trap": 0, "out_packet": store.packet, "out_place": output.place, "out_first": first}  # type: ignore[dict-item]


class _RowProof(Proof, RowAllocation, of=_RowParameters(1, 2, 2, 2, 3, 3, 1), first_row=2, other_row=2, region_of=1):
    """Two rows of a region never get one place, no place is beyond the capacity, and a first packet traps when and only when its region is full.
    Assumed: memory gives back what it was given."""

    def watch(self, m: Module, p: _RowParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        pointers, registers = slots(m.submodules.pointers, m), slots(m.submodules.apt, m)
        following = Mux(self.region_of, pointers[1].next, pointers[0].next)
        capacity = Mux(self.region_of, registers[1].capacity, registers[0].capacity)
        started = Signal()  # the region is set, and not again
        with m.If(self.set):
            sync += started.eq(started | (self.set_region == self.region_of))
            comb += Assume((self.set_region != self.region_of) | ~started)
        comb += Assume(self.first_row != self.other_row)
        mine = self.region == self.region_of
        comb += Assume(~self.valid | ~mine | started)
        places = []
        for row, name in ((self.first_row, "first"), (self.other_row, "other")):
            bound, place = Signal(name=f"{name}_bound"), Signal(3, name=f"{name}_place")
            out = self.out_valid & ~self.trap & (self.out_region == self.region_of) & (self.out_row == row)
            with m.If(out & self.out_ready & self.out_first):
                sync += [bound.eq(1), place.eq(self.out_place)]
            has = bound | (out & self.out_first)
            at = Mux(bound, place, self.out_place)
            # A row that was complete and comes again would be a new row: links deliver once.
            comb += Assume(~(out & self.out_first & bound))
            comb += self.promise(~has | (at < following), ~out | self.out_first | bound | True)
            places.append((has, at))
        comb += Assert(~(places[0][0] & places[1][0]) | (places[0][1] != places[1][1]))
        comb += self.promise(~started | (following <= capacity), started | (~places[0][0] & ~places[1][0]))
        full = Signal()  # when the packet that is out was taken in
        with m.If(self.out_free & (~self.spill_valid | self.spill_ready)):
            sync += full.eq(following >= capacity)
        out = self.out_valid & (self.out_region == self.region_of)
        comb += self.promise(~out | ~self.out_first | (self.trap == full), ~out | ~self.trap | self.out_first)
        late = self.waits & (self.late["region"] == self.region_of)
        comb += Assert(~late | started)


BLOCK = Block(
    "row-allocation", "a RAT bank and the APT: place of a row, capacity", _RowParameters, RowAllocation, _RowModel,
    small=(_RowParameters(1, 2, 2, 3, 4, 4, 5), _RowParameters(2, 2, 3, 3, 4, 4, 5), _RowParameters(2, 3, 2, 3, 4, 4, 5)),
    proofs=(_RowProof,),
)  # fmt: skip
