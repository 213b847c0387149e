"""CAIS' merge unit: loads of one address share a request and a response; sums share the places. Model: `protocol.merging`."""

from typing import Any, Self

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from dysharp.base.values import frozen
from dysharp.silicon.rtl.parts import Cam, OrderList, memory, slot_bits
from dysharp.specs import Cluster

ENTRIES = 320  # CAIS (HPCA 2026): 40 KB of 128 B a port


@frozen
class MergeParameters:
    """`places` for loads and sums; `askers`: GPUs; bits of the number of a 128 B line."""

    places: int
    askers: int = 8
    line_bits: int = 41

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """The published table; a cluster file has no size for it."""
        return cls(ENTRIES, cluster.n_gpus)


class MergeUnit(wiring.Component):
    """One event per cycle, its answer one cycle later.

    In: `valid`, `ready`, `op`: 0 = a load of `line` by `asker`, which `expected` loads ask for; 1 = the response to the load of `line`
    that merges; 2 = a sum takes a place; 3 = a sum gives its place back; 4 = `line` was idle for too long.
    Out, held until `out_ready`: `out_valid`; `forward` (the load goes on; `merges`: its response comes here), `answers` (a bit per GPU that gets
    the data of `slot`), `has_place` (of event 2), `dropped` (a cached line left early).
    """

    def __init__(self, parameters: MergeParameters):
        self.parameters = p = parameters
        self.width = slot_bits(p.places)
        self.oldest = Signal(self.width)
        self.n_loads, self.n_sums, self.room = Signal(bits_for(p.places)), Signal(bits_for(p.places)), Signal()
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "op": In(3), "line": In(p.line_bits), "asker": In(slot_bits(p.askers)),
                "expected": In(bits_for(p.askers)), "out_valid": Out(1), "out_ready": In(1), "forward": Out(1), "merges": Out(1),
                "answers": Out(p.askers), "has_place": Out(1), "dropped": Out(1), "slot": Out(self.width),
            }
        )  # fmt: skip

    order_list = OrderList

    def elaborate(self, platform: Any) -> Module:
        m, p = Module(), self.parameters
        m.submodules.cam = cam = Cam(p.places, p.line_bits)
        m.submodules.order = order = self.order_list(p.places)
        count = bits_for(p.askers)
        shape = data.StructLayout({"waiting": p.askers, "cached": 1, "count": count, "expected": count})
        entries, read, write = memory(m, "entries", shape, p.places)
        oldest_read = entries.read_port(domain="comb")
        # Sums hold places as a number. Loads stand in the list behind the free slots, so the oldest load is behind as many slots as sums hold:
        # a register follows it.
        oldest, n_loads, n_sums = self.oldest, self.n_loads, self.n_sums
        free = Signal()
        load, response, take, give, expire = (Signal(name=name) for name in ("load", "response", "take", "give", "expire"))
        m.d.comb += [
            free.eq(order.ready & (~self.out_valid | self.out_ready)),
            self.ready.eq(free),
            *(kind.eq(self.valid & free & (self.op == i)) for i, kind in enumerate((load, response, take, give, expire))),
            cam.key.eq(self.line),
            oldest_read.addr.eq(oldest),
        ]
        hit, full = cam.hit, n_loads + n_sums == p.places
        may_drop = (n_loads != 0) & oldest_read.data.cached
        first, room, drops = Signal(), self.room, Signal()
        m.d.comb += [first.eq(load & ~hit), room.eq(~full | may_drop), drops.eq((first | take) & full & may_drop)]
        slot = Signal(self.width)
        takes_slot = first & room
        # A load that drops the oldest one takes its slot; a sum that does gives the slot to the free ones.
        m.d.comb += [slot.eq(Mux(drops, oldest, Mux(first, order.front, cam.slot))), read.addr.eq(slot), write.addr.eq(slot), cam.at.eq(slot)]
        old, new = read.data, Signal(shape)
        asker = Signal(p.askers)
        m.d.comb += asker.eq(1 << self.asker)
        later = load & hit
        with m.If(first):
            m.d.comb += [new.waiting.eq(asker), new.cached.eq(0), new.count.eq(1), new.expected.eq(self.expected)]
        with m.Else():
            m.d.comb += [
                new.waiting.eq(Mux(response, 0, Mux(old.cached, 0, old.waiting | asker))),
                new.cached.eq(old.cached | response),
                new.count.eq(old.count + later),
                new.expected.eq(old.expected),
            ]
        settles = (response & hit) | (later & old.cached)
        ends = Signal()
        m.d.comb += ends.eq((settles & (new.count >= old.expected)) | (expire & hit & old.cached))
        leaves = ends | (take & drops)
        stays = takes_slot | ((later | (response & hit)) & ~ends)
        m.d.comb += [
            write.en.eq(stays),
            write.data.eq(new),
            cam.set.eq(takes_slot),
            cam.clear.eq(leaves),
            order.slot.eq(slot),
            order.move.eq(leaves | stays),
            order.to_front.eq(leaves),
        ]
        m.d.sync += n_loads.eq(n_loads + (takes_slot & ~drops) - leaves)
        m.d.sync += n_sums.eq(n_sums + (take & room) - give)
        with m.If((n_loads == 0) & takes_slot):
            m.d.sync += oldest.eq(slot)
        with m.Elif((leaves | stays) & (slot == oldest) & (n_loads != 1)):
            m.d.sync += oldest.eq(order.following)
        with m.If(free):
            m.d.sync += [
                self.out_valid.eq(first | take | settles | (expire & ends)),
                self.forward.eq(first),
                self.merges.eq(takes_slot),
                self.answers.eq(Mux(response, Mux(hit, old.waiting, 0), Mux(later & old.cached, asker, 0))),
                self.has_place.eq(take & room),
                self.dropped.eq(drops | (expire & ends)),
                self.slot.eq(slot),
            ]
        return m
