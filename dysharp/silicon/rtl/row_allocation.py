"""MoE-Hub's row allocation: one bank of the RAT, and the APT with its check of capacity. Model: `protocol.aau`.

A bank is set-associative: the low bits of region + row choose a set of a few rows, which one word of the memory holds, oldest first. With
`banks` = all sets and `entries` = ways the model does the same.
"""

from typing import Any, Self

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from dysharp.base.values import frozen
from dysharp.protocol.aau import APT
from dysharp.silicon.rtl.parts import memory, slot_bits
from dysharp.specs import Cluster, choice_int


@frozen
class RowParameters:
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


class RowAllocation(wiring.Component):
    """A packet of a row gets the place of the row; the first packet takes the next place of its region.

    In: `valid`, `ready`, `region`, `row`, `n_bytes`, `packet`. Out, a cycle later, held until `out_ready`: `out_valid`, `out_packet`, `out_region`,
    `out_place`, `out_first` (the row is bound now), or `trap`: the region has no place (`out_region`, `out_row`); the packet is dropped.
    `base` + place x row bytes is left to the next stage. A full set spills its oldest row: `spill_valid`, `spill_ready`, `spill_region`, `spill_row`,
    `spill_place`, `spill_bytes`. While a region has no row in memory, a miss is a first packet. Otherwise the bank reads the map: `fetch` is 1 until
    `answer` (`found`, `answer_place`, `answer_bytes`); memory drops what was found.
    `set` writes a region and begins it anew; no row of it may be live.
    """

    def __init__(self, parameters: RowParameters):
        self.parameters = p = parameters
        self.region_bits = r = slot_bits(p.regions)
        self.waits = Signal()  # a packet waits for the map
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "region": In(r), "row": In(p.row_bits), "n_bytes": In(8), "packet": In(p.packet_bits),
                "set": In(1), "set_region": In(r), "set_row_bytes": In(p.byte_bits), "set_capacity": In(p.place_bits),
                "fetch": Out(1), "fetch_region": Out(r), "fetch_row": Out(p.row_bits), "answer": In(1), "found": In(1),
                "answer_place": In(p.place_bits), "answer_bytes": In(p.byte_bits),
                "spill_valid": Out(1), "spill_ready": In(1), "spill_region": Out(r), "spill_row": Out(p.row_bits),
                "spill_place": Out(p.place_bits), "spill_bytes": Out(p.byte_bits),
                "out_valid": Out(1), "out_ready": In(1), "out_packet": Out(p.packet_bits), "out_region": Out(r), "out_row": Out(p.row_bits),
                "out_place": Out(p.place_bits), "out_first": Out(1), "trap": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m, p, r = Module(), self.parameters, self.region_bits
        way = data.StructLayout({"live": 1, "region": r, "row": p.row_bits, "place": p.place_bits, "bytes": p.byte_bits})
        _, read, write = memory(m, "rat", data.ArrayLayout(way, p.ways), p.sets)
        registers = data.StructLayout({"row_bytes": p.byte_bits, "capacity": p.place_bits})
        counts = data.StructLayout({"next": p.place_bits, "evicted": p.place_bits})
        _, region_read, region_write = memory(m, "apt", registers, p.regions)
        pointers, point_read, point_write = memory(m, "pointers", counts, p.regions)
        evicted_read, evicted_write = pointers.read_port(domain="comb"), pointers.write_port()  # of the region whose row spills

        fill, start, waits = Signal(bits_for(p.sets)), Signal(), self.waits
        m.d.comb += start.eq(fill == p.sets)
        self.late = late = {name: Signal.like(getattr(self, name), name=f"late_{name}") for name in ("region", "row", "n_bytes", "packet")}
        region, row, n_bytes, packet = (Mux(waits, late[name], getattr(self, name)) for name in late)
        free, begin, resume = Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(start & (~self.out_valid | self.out_ready) & (~self.spill_valid | self.spill_ready)),
            self.ready.eq(free & ~waits & ~self.set),
            begin.eq(self.valid & self.ready),
            self.fetch.eq(waits & free),
            self.fetch_region.eq(late["region"]),
            self.fetch_row.eq(late["row"]),
            resume.eq(self.fetch & self.answer & ~self.set),
        ]
        index = Signal(slot_bits(p.sets))
        m.d.comb += [index.eq((region + row)[: slot_bits(p.sets)] if p.sets > 1 else 0), read.addr.eq(index)]
        m.d.comb += [region_read.addr.eq(region), point_read.addr.eq(region)]
        ways = [read.data[i] for i in range(p.ways)]
        match = Signal(p.ways)
        m.d.comb += match.eq(Cat(w.live & (w.region == region) & (w.row == row) for w in ways))
        hit, full = match.any(), ways[-1].live
        place, received = Signal(p.place_bits), Signal(p.byte_bits)
        in_map, first, overflows, act = Signal(), Signal(), Signal(), Signal()
        evicted = point_read.data.evicted != 0
        m.d.comb += [
            in_map.eq(resume & self.found),
            first.eq((begin & ~hit & ~evicted) | (resume & ~self.found)),
            overflows.eq(first & (point_read.data.next >= region_read.data.capacity)),
            act.eq((begin & hit) | in_map | (first & ~overflows)),
        ]
        hit_place = [Mux(match[i], w.place, 0) for i, w in enumerate(ways)]
        hit_bytes = [Mux(match[i], w.bytes, 0) for i, w in enumerate(ways)]
        m.d.comb += place.eq(Mux(in_map, self.answer_place, Mux(first, point_read.data.next, _any(hit_place))))
        m.d.comb += received.eq(Mux(in_map, self.answer_bytes, Mux(first, 0, _any(hit_bytes))) + n_bytes)
        # A new row goes behind the others of its set. A complete row leaves, and younger ones move up. A full set loses its oldest row first.
        complete, inserts, spills = Signal(), Signal(), Signal()
        m.d.comb += [
            complete.eq(act & (received >= region_read.data.row_bytes)),
            inserts.eq(act & ~(begin & hit)),
            spills.eq(inserts & full),
            write.addr.eq(Mux(start, index, fill)),
            write.en.eq(act | ~start),
        ]
        new = Signal(way)
        m.d.comb += [new.live.eq(1), new.region.eq(region), new.row.eq(row), new.place.eq(place), new.bytes.eq(received)]
        blank = Signal(way)
        moved: list[Any] = []
        for i, w in enumerate(ways):
            younger = Value.cast(ways[i + 1] if i + 1 < p.ways else blank)
            gone = Cat(match[: i + 1]).any()
            before = ways[i - 1].live if i else 1
            kept = Mux(spills, younger, Mux(complete & gone & ~inserts, younger, Mux(match[i], Value.cast(new), Value.cast(w))))
            end = Mux(spills, i == p.ways - 1, ~w.live & before) & inserts
            moved.append(Mux(end, Mux(complete, Value.cast(blank), Value.cast(new)), kept))
        m.d.comb += Value.cast(write.data).eq(Mux(start, Cat(moved), 0))
        # Pointers. The spilled row may belong to another region than the packet.
        oldest = ways[0]
        same = oldest.region == region
        m.d.comb += [evicted_read.addr.eq(oldest.region), evicted_write.addr.eq(oldest.region), evicted_write.en.eq(spills & ~same)]
        m.d.comb += [evicted_write.data.next.eq(evicted_read.data.next), evicted_write.data.evicted.eq(evicted_read.data.evicted + 1)]
        m.d.comb += [
            point_write.addr.eq(Mux(self.set, self.set_region, region)),
            point_write.en.eq(self.set | act),
            point_write.data.next.eq(Mux(self.set, 0, point_read.data.next + first)),
            point_write.data.evicted.eq(Mux(self.set, 0, point_read.data.evicted - in_map + (spills & same))),
            region_write.addr.eq(self.set_region),
            region_write.en.eq(self.set),
            region_write.data.row_bytes.eq(self.set_row_bytes),
            region_write.data.capacity.eq(self.set_capacity),
        ]
        with m.If(~start):
            m.d.sync += fill.eq(fill + 1)
        with m.If(begin & ~hit & evicted):
            m.d.sync += [waits.eq(1), *(late[name].eq(getattr(self, name)) for name in late)]
        with m.If(resume):
            m.d.sync += waits.eq(0)
        # One output may leave while the other one still waits.
        with m.If(self.out_ready):
            m.d.sync += self.out_valid.eq(0)
        with m.If(self.spill_ready):
            m.d.sync += self.spill_valid.eq(0)
        with m.If(free):
            m.d.sync += [self.out_valid.eq(act | overflows), self.out_packet.eq(packet), self.out_region.eq(region), self.out_row.eq(row)]
            m.d.sync += [self.out_place.eq(place), self.out_first.eq(first), self.trap.eq(overflows), self.spill_valid.eq(spills)]
            m.d.sync += [self.spill_region.eq(oldest.region), self.spill_row.eq(oldest.row), self.spill_place.eq(oldest.place)]
            m.d.sync += self.spill_bytes.eq(oldest.bytes)
        return m


def _any(values: list[Any]) -> Any:
    """The OR of values, of which at most one is not 0."""
    result = values[0]
    for value in values[1:]:
        result |= value
    return result
