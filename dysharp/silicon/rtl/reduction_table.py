"""The reduction table of a switch port in hardware: one packet per cycle, its answer one cycle later. Model: `protocol.reduction`."""

from enum import IntEnum
from typing import Any, Self

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dysharp.base.units import KiB
from dysharp.base.values import frozen
from dysharp.program.constants import sessions_of_table
from dysharp.silicon.rtl.parts import Cam, OrderList, check_slots, memory, slot_bits
from dysharp.specs import Cluster
from dysharp.specs.cluster import session_bytes


class Send(IntEnum):
    """What the answer does with the adder and the buffer of sums, which lie outside of the block."""

    NONE = 0
    PUT = 1  # the packet's data becomes the sum of `slot`
    ADD = 2  # the packet's data is added to the sum of `slot`
    BYPASS = 3  # the packet goes on as it is
    RESULT = 4  # the sum of `slot` plus the packet's data goes to the source, rounded
    RESULT_ALONE = 5  # the packet's data is the whole sum
    PARTIAL = 6  # the sum of `slot` goes to the source, unrounded: two packets


@frozen
class ReductionParameters:
    """`entries` sessions; `key_bits`: 20 of the tag and 3 of the attempt (the port faces one source); `count_bits`: targets of a session."""

    entries: int
    key_bits: int = 23
    count_bits: int = 6

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """The table of a port of `cluster`: an FP32 sum takes two entries of 128 B."""
        check_slots("reduction-table", cluster, "reduction_buffer_KiB", 2 * session_bytes() / KiB)
        return cls(sessions_of_table(cluster))


class ReductionTable(wiring.Component):
    """Sessions, counts, LRU eviction and timeouts. Sums lie in a buffer behind an adder; `send` and `slot` tell both what to do.

    In: `valid`, `ready`; `is_request`, `key`, `count` (of a request: targets; of a response: targets it sums). `look`: one step of the idle
    scan in a cycle without packet (`looked`); an entry that nothing touched since its last look leaves.
    Out, a cycle later, held until `out_ready`: `out_valid`, `send`, `slot`, `out_key`, `out_count`. `error` stays 1 after a packet that
    breaks the protocol: a request of a live session or of no target, a response with more targets than are left or with none.
    """

    def __init__(self, parameters: ReductionParameters):
        self.parameters = p = parameters
        self.width = slot_bits(p.entries)
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "is_request": In(1), "key": In(p.key_bits), "count": In(p.count_bits),
                "look": In(1), "looked": Out(1),
                "out_valid": Out(1), "out_ready": In(1), "send": Out(3), "slot": Out(self.width),
                "out_key": Out(p.key_bits), "out_count": Out(p.count_bits), "error": Out(1),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m, p = Module(), self.parameters
        m.submodules.cam = cam = Cam(p.entries, p.key_bits)
        m.submodules.order = order = OrderList(p.entries)
        shape = data.StructLayout({"key": p.key_bits, "remaining": p.count_bits, "count": p.count_bits})
        _, read, write = memory(m, "entries", shape, p.entries)
        scan, touched = Signal(self.width), Signal(p.entries)
        free = Signal()
        packet, request, response, look, slot = Signal(), Signal(), Signal(), Signal(), Signal(self.width)
        entry, left, grown = read.data, Signal(p.count_bits), Signal(p.count_bits)
        m.d.comb += [
            free.eq(order.ready & (~self.out_valid | self.out_ready)),
            self.ready.eq(free),
            packet.eq(self.valid & free),
            request.eq(packet & self.is_request),
            response.eq(packet & ~self.is_request),
            look.eq(self.look & free & ~self.valid),
            self.looked.eq(look),
            cam.key.eq(self.key),
            slot.eq(Mux(look, scan, Mux(self.is_request, order.front, cam.slot))),
            cam.at.eq(slot),
            read.addr.eq(slot),
            write.addr.eq(slot),
            order.slot.eq(slot),
            left.eq(entry.remaining - self.count),
            grown.eq(entry.count + self.count),
        ]
        # What leaves, and what is written back.
        has_sum = entry.count != 0
        idle = cam.at_live & ~((touched >> scan) & 1).any()
        last = left == 0
        m.d.comb += [
            cam.set.eq(request),
            cam.clear.eq((look & idle) | (response & cam.hit & last)),
            order.move.eq(cam.set | cam.clear | (response & cam.hit)),
            order.to_front.eq(cam.clear),
            write.en.eq(request | (response & cam.hit)),
            write.data.key.eq(self.key),
            write.data.remaining.eq(Mux(request, self.count, left)),
            write.data.count.eq(Mux(request, 0, grown)),
        ]
        for i in range(p.entries):
            with m.If((slot == i) & (request | (response & cam.hit) | look)):
                m.d.sync += touched[i].eq(~look)
        with m.If(look):
            m.d.sync += scan.eq(Mux(scan == p.entries - 1, 0, scan + 1))
        send, alone = Signal(3), entry.count == 0
        with m.If(response & ~cam.hit):
            m.d.comb += send.eq(Send.BYPASS)
        with m.Elif(response & last):
            m.d.comb += send.eq(Mux(alone, Const(Send.RESULT_ALONE, 3), Const(Send.RESULT, 3)))
        with m.Elif(response):
            m.d.comb += send.eq(Mux(alone, Const(Send.PUT, 3), Const(Send.ADD, 3)))
        with m.Elif(((request & cam.at_live) | cam.clear) & has_sum):
            m.d.comb += send.eq(Send.PARTIAL)
        with m.If(free):
            m.d.sync += [
                self.out_valid.eq(send != Send.NONE),
                self.send.eq(send),
                self.slot.eq(slot),
                self.out_key.eq(Mux(response, self.key, entry.key)),
                self.out_count.eq(Mux(response, Mux(cam.hit, grown, self.count), entry.count)),
            ]
        broken = (request & cam.hit) | (packet & (self.count == 0)) | (response & cam.hit & (self.count > entry.remaining))
        with m.If(broken):
            m.d.sync += self.error.eq(1)
        return m
