"""MoE-Hub's packet manager: stores merge to lines in a partition per peer, and a scheduler chooses what leaves. Model: `protocol.rpm`."""

from typing import Any, Self

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dysharp.base.values import frozen
from dysharp.protocol.rpm import LINE_BYTES, PARTITION
from dysharp.silicon.rtl.parts import Cam, lowest, memory, slot_bits
from dysharp.specs import Cluster


@frozen
class PacketParameters:
    """`peers` partitions of `entries` lines of `line_bytes` bytes; bits of a line's region and offset, of a row id, of an age, of a byte."""

    peers: int
    entries: int = PARTITION.entries
    line_bytes: int = LINE_BYTES
    line_bits: int = 25
    row_bits: int = 32
    age_bits: int = 16
    byte_bits: int = 8

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """One partition, the unit that repeats per active peer; no cluster file has a size."""
        return cls(1)


class Partition(wiring.Component):
    """The lines for one peer: which slot a store takes, and which slot leaves next.

    Store: `line`, `row`, `low` -> `hit` or `room`, and `slot`; `put` writes the tag of a new line; `whole` is the state of its mask after the store.
    Send: `may` (some line may leave), `chosen`; `take` frees it. A line that is taken in this cycle is no hit.
    """

    def __init__(self, parameters: PacketParameters):
        self.parameters = p = parameters
        self.width = slot_bits(p.entries)
        n = p.entries
        self.rows, self.since = ([Signal(bits, name=f"{name}_{i}") for i in range(n)] for name, bits in (("row", p.row_bits), ("since", p.age_bits)))
        self.lows, self.wholes, self.stales = Signal(n), Signal(n), Signal(n)
        self.cam = Cam(n, p.line_bits + p.row_bits + 1)
        self.older = {(i, j): Signal(name=f"older_{i}_{j}") for j in range(n) for i in range(j)}
        super().__init__(
            {
                "line": In(p.line_bits), "row": In(p.row_bits), "low": In(1), "put": In(1), "whole": In(1),
                "hit": Out(1), "room": Out(1), "slot": Out(self.width),
                "now": In(p.age_bits), "timer": In(p.age_bits), "fence": In(1),
                "may": Out(1), "chosen": Out(self.width), "take": In(1),
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m, p, n = Module(), self.parameters, self.parameters.entries
        m.submodules.cam = cam = self.cam
        leaves, stale, may = Signal(n), Signal(n), Signal(n)
        m.d.comb += [
            cam.key.eq(Cat(self.low, self.row, self.line)),
            cam.drop.eq(leaves),
            leaves.eq(Mux(self.take, 1 << self.chosen, 0)),
            self.hit.eq(cam.hit & ~(self.take & (cam.slot == self.chosen))),
            self.room.eq(~cam.live.all()),
            self.slot.eq(Mux(self.hit, cam.slot, lowest(~cam.live))),
            cam.at.eq(self.slot),
            cam.set.eq(self.put & ~self.hit),
        ]
        # Rule 2 to 5: the oldest of those that the timer calls, else the smallest (low, partial, row), the oldest of these.
        limit, crowded = Signal(p.age_bits), Signal()
        m.d.comb += [limit.eq(self.now - self.timer), crowded.eq(self.fence | cam.live.all())]
        ranks = []
        for i in range(n):
            m.d.comb += stale[i].eq(cam.live[i] & (self.stales[i] | (self.since[i] == limit)))
            m.d.comb += may[i].eq(cam.live[i] & (crowded | self.wholes[i] | stale[i]))
            ranks.append(Cat(self.rows[i], ~self.wholes[i], self.lows[i], ~may[i]))
            with m.If(self.put & (self.slot == i)):
                m.d.sync += self.wholes[i].eq(self.whole)
            with m.If(cam.set & (self.slot == i)):
                m.d.sync += [self.rows[i].eq(self.row), self.lows[i].eq(self.low), self.since[i].eq(self.now), self.stales[i].eq(0)]
                m.d.sync += [self.older[j, i].eq(1) for j in range(i)] + [self.older[i, j].eq(0) for j in range(i + 1, n)]
            with m.Elif(stale[i]):
                m.d.sync += self.stales[i].eq(1)
        least = Signal(len(ranks[0]))
        m.d.comb += [least.eq(_smallest(m, ranks)), self.may.eq(may.any())]
        among, first = Signal(n), Signal(n)
        m.d.comb += among.eq(Mux(stale.any(), stale, Cat(may[i] & (rank == least) for i, rank in enumerate(ranks))))
        for i in range(n):
            elder = [among[j] & (self.older[j, i] if j < i else ~self.older[i, j]) for j in range(n) if j != i]
            m.d.comb += first[i].eq(among[i] & ~Cat(elder).any())
        m.d.comb += self.chosen.eq(Cat(Cat(first[i] for i in range(n) if i >> b & 1).any() for b in range(self.width)))
        return m


def _smallest(m: Module, values: list[Any]) -> Any:
    """The smallest of numbers of one width, as a tree."""
    while len(values) > 1:
        pairs: list[Any] = []
        for a, b in zip(values[::2], values[1::2], strict=False):
            less = Signal(len(a), name=f"smallest_{len(values)}_{len(pairs)}")
            m.d.comb += less.eq(Mux(a < b, a, b))
            pairs.append(less)
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


class PacketManager(wiring.Component):
    """A store a cycle merges into the line with its tag, and a line a cycle leaves, of the peers in turn.

    In: `valid`, `ready` (0: the partition has no room; the store asks again), `peer`, `line` (region and offset, or an address), `row` (row id, or
    the low bits of an address), `low` (a `.nop` store), `mask` (a bit per byte) and `data`. Constant pin: `timer`, cycles after which a line leaves
    whatever its mask. `fence`: nothing more comes, so partial lines leave. `peer_ready`: links that take a packet.
    Out, a cycle later, held until `out_ready`: `out_valid`, `out_peer`, `out_line`, `out_row`, `out_low`, `out_mask`, `out_data`.
    A partial line leaves when its partition is full, when `fence` is 1, or after `timer` cycles; then the oldest first. Else stores before `.nop`
    stores, whole lines before partial ones, the smallest row, the oldest.
    """

    def __init__(self, parameters: PacketParameters):
        self.parameters = p = parameters
        peer, n = slot_bits(p.peers), p.line_bytes
        self.now = Signal(p.age_bits)
        self.last = Signal(peer, init=p.peers - 1)  # the peer that was served last
        self.partitions = [Partition(p) for _ in range(p.peers)]
        tag = {"line": p.line_bits, "row": p.row_bits, "low": 1}
        super().__init__(
            {
                "valid": In(1), "ready": Out(1), "peer": In(peer), **{name: In(bits) for name, bits in tag.items()},
                "mask": In(n), "data": In(n * p.byte_bits), "timer": In(p.age_bits), "fence": In(1), "peer_ready": In(p.peers),
                "out_valid": Out(1), "out_ready": In(1), "out_peer": Out(peer), **{f"out_{name}": Out(bits) for name, bits in tag.items()},
                "out_mask": Out(n), "out_data": Out(n * p.byte_bits),
            }
        )  # fmt: skip
        self.tag = data.StructLayout(tag)

    def elaborate(self, platform: Any) -> Module:
        m, p, parts = Module(), self.parameters, self.partitions
        for i, part in enumerate(parts):
            m.submodules[f"partition_{i}"] = part
        words = p.peers << slot_bits(p.entries)
        _, tag_read, tag_write = memory(m, "tags", self.tag, words)
        masks, mask_read, mask_write = memory(m, "masks", p.line_bytes, words)
        old_read = masks.read_port(domain="comb")
        m.submodules.lines = lines = Memory(shape=p.line_bytes * p.byte_bits, depth=words, init=[])
        line_read, line_write = lines.read_port(domain="comb"), lines.write_port(granularity=p.byte_bits)
        # The peers in turn, beginning behind the last one.
        asks, chosen, free, sends = Signal(p.peers), Signal(slot_bits(p.peers)), Signal(), Signal()
        behind = Signal(p.peers)
        m.d.comb += [
            asks.eq(Cat(part.may for part in parts) & self.peer_ready),
            behind.eq(Cat(asks[i] & (i > self.last) for i in range(p.peers))),
            chosen.eq(Mux(behind.any(), lowest(behind), lowest(asks))),
            free.eq(~self.out_valid | self.out_ready),
            sends.eq(free & asks.any()),
        ]
        leaving = Cat(Array([part.chosen for part in parts])[chosen], chosen)
        mine = Array([Cat(part.slot, part.hit, part.room) for part in parts])[self.peer]
        slot, hit, room = mine[:-2], mine[-2], mine[-1]
        store, at, merged = Signal(), Signal(len(tag_read.addr)), Signal(p.line_bytes)
        m.d.comb += [
            self.ready.eq(hit | room),
            store.eq(self.valid & self.ready),
            at.eq(Cat(slot, self.peer)),
            old_read.addr.eq(at),
            merged.eq(self.mask | Mux(hit, old_read.data, 0)),
            Cat(tag_write.addr, mask_write.addr, line_write.addr).eq(Cat(at, at, at)),
            Cat(tag_write.en, mask_write.en, line_write.en).eq(Mux(store, Cat(~hit, 1, self.mask), 0)),
            tag_write.data.line.eq(self.line),
            tag_write.data.row.eq(self.row),
            tag_write.data.low.eq(self.low),
            mask_write.data.eq(merged),
            line_write.data.eq(self.data),
            *(port.addr.eq(leaving) for port in (tag_read, mask_read, line_read)),
        ]
        for i, part in enumerate(parts):
            m.d.comb += [part.line.eq(self.line), part.row.eq(self.row), part.low.eq(self.low), part.whole.eq(merged.all())]
            m.d.comb += [part.put.eq(store & (self.peer == i)), part.take.eq(sends & (chosen == i))]
            m.d.comb += [part.now.eq(self.now), part.timer.eq(self.timer), part.fence.eq(self.fence)]
        m.d.sync += self.now.eq(self.now + 1)
        with m.If(free):
            m.d.sync += [self.out_valid.eq(sends), self.out_peer.eq(chosen), self.out_mask.eq(mask_read.data)]
            valid = Cat(bit.replicate(p.byte_bits) for bit in mask_read.data)  # a byte that nobody wrote leaves as 0
            m.d.sync += self.out_data.eq(line_read.data & valid)
            m.d.sync += [self.out_line.eq(tag_read.data.line), self.out_row.eq(tag_read.data.row), self.out_low.eq(tag_read.data.low)]
        with m.If(sends):
            m.d.sync += self.last.eq(chosen)
        return m
