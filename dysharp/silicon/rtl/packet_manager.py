"""MoE-Hub's packet manager: stores merge to lines in a partition per peer, and a scheduler chooses what leaves. Model: `protocol.rpm`."""

from dataclasses import replace
from random import Random
from typing import Any, Self

from amaranth.hdl import Array, Assert, Assume, Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from dysharp.base import ByName, Tally, frozen
from dysharp.protocol import rpm
from dysharp.protocol.rpm import LINE_BYTES, PARTITION
from dysharp.silicon.rtl import Block, BlockModel, Cam, Machine, Proof, Values, drive, lowest, memory, slot_bits, slots, wire
from dysharp.specs import Cluster


@frozen
class _PacketParameters:
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


class Partition(Machine):
    """The lines for one peer: which slot a store takes, and which slot leaves next.

    Store: `line`, `row`, `low` -> `hit` or `room`, and `slot`; `put` writes the tag of a new line; `whole` is the state of its mask after the store.
    Send: `may` (some line may leave), `chosen`; `take` frees it. A line that is taken in this cycle is no hit.
    """

    def pins(self, p: _PacketParameters) -> ByName:
        self.width = slot_bits(p.entries)
        n = p.entries
        self.rows, self.since = ([Signal(bits, name=f"{name}_{i}") for i in range(n)] for name, bits in (("row", p.row_bits), ("since", p.age_bits)))
        self.lows, self.wholes, self.stales = Signal(n), Signal(n), Signal(n)
        self.cam = Cam(n, p.line_bits + p.row_bits + 1)
        self.older = {(i, j): Signal(name=f"older_{i}_{j}") for j in range(n) for i in range(j)}
        return {
            "line": p.line_bits, "row": p.row_bits, "low": 1, "put": 1, "whole": 1, "hit": Out(1), "room": Out(1), "slot": Out(self.width),
            "now": p.age_bits, "timer": p.age_bits, "fence": 1, "may": Out(1), "chosen": Out(self.width), "take": 1,
        }  # fmt: skip

    def build(self, m: Module, p: _PacketParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        n = p.entries
        m.submodules.cam = cam = self.cam
        leaves, stale, may = Signal(n), Signal(n), Signal(n)
        comb += drive(cam, key=Cat(self.low, self.row, self.line), drop=leaves)
        comb += leaves.eq(Mux(self.take, 1 << self.chosen, 0))
        comb += drive(self, hit=cam.hit & ~(self.take & (cam.slot == self.chosen)), room=~cam.live.all())
        comb += self.slot.eq(Mux(self.hit, cam.slot, lowest(~cam.live)))
        comb += drive(cam, at=self.slot, set=self.put & ~self.hit)
        # Rule 2 to 5: the oldest of those that the timer calls, else the smallest (low, partial, row), the oldest of these.
        limit, crowded = Signal(p.age_bits), Signal()
        comb += [limit.eq(self.now - self.timer), crowded.eq(self.fence | cam.live.all())]
        ranks = []
        for i in range(n):
            comb += stale[i].eq(cam.live[i] & (self.stales[i] | (self.since[i] == limit)))
            comb += may[i].eq(cam.live[i] & (crowded | self.wholes[i] | stale[i]))
            ranks.append(Cat(self.rows[i], ~self.wholes[i], self.lows[i], ~may[i]))
            with m.If(self.put & (self.slot == i)):
                sync += self.wholes[i].eq(self.whole)
            with m.If(cam.set & (self.slot == i)):
                sync += [self.rows[i].eq(self.row), self.lows[i].eq(self.low), self.since[i].eq(self.now), self.stales[i].eq(0)]
                sync += [self.older[j, i].eq(1) for j in range(i)] + [self.older[i, j].eq(0) for j in range(i + 1, n)]
            with m.Elif(stale[i]):
                sync += self.stales[i].eq(1)
        least = Signal(len(ranks[0]))
        comb += [least.eq(_smallest(m, ranks)), self.may.eq(may.any())]
        among, first = Signal(n), Signal(n)
        comb += among.eq(Mux(stale.any(), stale, Cat(may[i] & (rank == least) for i, rank in enumerate(ranks))))
        for i in range(n):
            elder = [among[j] & (self.older[j, i] if j < i else ~self.older[i, j]) for j in range(n) if j != i]
            comb += first[i].eq(among[i] & ~Cat(elder).any())
        comb += self.chosen.eq(Cat(Cat(first[i] for i in range(n) if i >> b & 1).any() for b in range(self.width)))


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


class PacketManager(Machine):
    """A store a cycle merges into the line with its tag, and a line a cycle leaves, of the peers in turn.

    In: `valid`, `ready` (0: the partition has no room; the store asks again), `peer`, `line` (region and offset, or an address), `row` (row id, or
    the low bits of an address), `low` (a `.nop` store), `mask` (a bit per byte) and `data`. Constant pin: `timer`, cycles after which a line leaves
    whatever its mask. `fence`: nothing more comes, so partial lines leave. `peer_ready`: links that take a packet.
    Out, a cycle later, held until `out_ready`: `out_valid`, `out_peer`, `out_line`, `out_row`, `out_low`, `out_mask`, `out_data`.
    A partial line leaves when its partition is full, when `fence` is 1, or after `timer` cycles; then the oldest first. Else stores before `.nop`
    stores, whole lines before partial ones, the smallest row, the oldest.
    """

    def pins(self, p: _PacketParameters) -> ByName:
        peer, n = slot_bits(p.peers), p.line_bytes
        self.now = Signal(p.age_bits)
        self.last = Signal(peer, init=p.peers - 1)  # the peer that was served last
        self.partitions = [Partition(p) for _ in range(p.peers)]
        tag = {"line": p.line_bits, "row": p.row_bits, "low": 1}
        self.tag = data.StructLayout(tag)
        return {
            "valid": 1, "ready": Out(1), "peer": peer, **tag,
            "mask": n, "data": n * p.byte_bits, "timer": p.age_bits, "fence": 1, "peer_ready": p.peers,
            "out_valid": Out(1), "out_ready": 1, "out_peer": Out(peer), **{f"out_{name}": Out(bits) for name, bits in tag.items()},
            "out_mask": Out(n), "out_data": Out(n * p.byte_bits),
        }  # fmt: skip

    def build(self, m: Module, p: _PacketParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        parts = self.partitions
        for i, part in enumerate(parts):
            m.submodules[f"partition_{i}"] = part
        words = p.peers << slot_bits(p.entries)
        _, tag_read, tag_write = memory(m, "tags", self.tag, words)
        masks, mask_read, mask_write = memory(m, "masks", p.line_bytes, words)
        old_read = masks.read_port(domain="comb")
        m.submodules.lines = lines = Memory(shape=p.line_bytes * p.byte_bits, depth=words, init=[])
        line_read, line_write = lines.read_port(domain="comb"), lines.write_port(granularity=p.byte_bits)
        # The peers in turn, beginning behind the last one.
        asks = wire(m, Cat(part.may for part in parts) & self.peer_ready, p.peers)
        behind = wire(m, Cat(asks[i] & (i > self.last) for i in range(p.peers)), p.peers, name="behind")
        chosen = wire(m, Mux(behind.any(), lowest(behind), lowest(asks)), slot_bits(p.peers))
        free = wire(m, self.out_free)
        sends = wire(m, free & asks.any())
        leaving = Cat(Array([part.chosen for part in parts])[chosen], chosen)
        mine = Array([Cat(part.slot, part.hit, part.room) for part in parts])[self.peer]
        slot, hit, room = mine[:-2], mine[-2], mine[-1]
        comb += self.ready.eq(hit | room)
        store = wire(m, self.valid & self.ready)
        at = wire(m, Cat(slot, self.peer), len(tag_read.addr))
        comb += old_read.addr.eq(at)
        merged = wire(m, self.mask | Mux(hit, old_read.data, 0), p.line_bytes, name="merged")
        comb += [
            Cat(tag_write.addr, mask_write.addr, line_write.addr).eq(Cat(at, at, at)),
            Cat(tag_write.en, mask_write.en, line_write.en).eq(Mux(store, Cat(~hit, 1, self.mask), 0)),
        ]
        comb += drive(tag_write.data, line=self.line, row=self.row, low=self.low)
        comb += [mask_write.data.eq(merged), line_write.data.eq(self.data), *(port.addr.eq(leaving) for port in (tag_read, mask_read, line_read))]
        for i, part in enumerate(parts):
            comb += drive(part, line=self.line, row=self.row, low=self.low, whole=merged.all(), put=store & (self.peer == i))
            comb += drive(part, take=sends & (chosen == i), now=self.now, timer=self.timer, fence=self.fence)
        sync += self.now.eq(self.now + 1)
        with m.If(free):
            sync += drive(self, out_valid=sends, out_peer=chosen, out_mask=mask_read.data)
            valid = Cat(bit.replicate(p.byte_bits) for bit in mask_read.data)  # a byte that nobody wrote leaves as 0
            sync += drive(self, out_data=line_read.data & valid, out_line=tag_read.data.line, out_row=tag_read.data.row, out_low=tag_read.data.low)
        with m.If(sends):
            sync += self.last.eq(chosen)


class _PacketModel(BlockModel):
    """Stores of a few rows to all peers, links that stall, fences, and lines that grow old."""

    def __init__(self, p: _PacketParameters, random: Random):
        super().__init__(p)
        self.timer = random.choice((3, 6, 14))
        self.state = rpm.empty(p.peers, entries=p.entries, timer=self.timer)
        self.width = rpm.LINE_BYTES // p.line_bytes
        self.stall, self.load = random.choice((0, 0.3, 0.6)), random.choice((0.4, 1))
        self.whole, self.fences = random.choice((0.2, 0.7)), random.choice((0, 0.1))
        self.rows = random.choice((2, 4, 1 << p.row_bits))

    def draw(self, random: Random) -> Tally:
        n = self.p.line_bytes
        first = random.randrange(n)
        mask = (1 << n) - 1 if random.random() < self.whole else ((1 << random.randint(1, n - first)) - 1) << first
        pins = {"valid": int(random.random() < self.load), "peer": random.randrange(self.p.peers), "line": random.randrange(2), "mask": mask}
        pins |= {"row": random.randrange(self.rows), "low": int(random.random() < 0.2), "data": random.getrandbits(n * self.p.byte_bits)}
        pins |= {"timer": self.timer, "fence": int(random.random() < self.fences)} | self.takes(random)
        return pins | {"peer_ready": sum(int(random.random() >= self.stall) << i for i in range(self.p.peers))}

    def cycle(self, pins: Values) -> Values:
        before = state = replace(self.state, draining=bool(pins["fence"]))
        out, packet = dict(self.out), None
        if not out["out_valid"] or pins["out_ready"]:
            state, packet = rpm.send(before, tuple(bool(pins["peer_ready"] >> i & 1) for i in range(self.p.peers)))
            self.out = {"out_valid": 0}
        if packet:
            self._sent(packet, before)
        tag, partition = ((pins["line"], pins["row"]), bool(pins["low"])), before.partitions[pins["peer"]]
        merges = tag in state.partitions[pins["peer"]]
        ready = merges or len(partition) < self.p.entries
        if pins["valid"]:
            self.seen["merge" if merges else "new line" if ready else "no room"] += 1
        if pins["valid"] and ready:
            for i in range(self.p.line_bytes):
                if pins["mask"] >> i & 1:
                    value = bytes([pins["data"] >> i * self.p.byte_bits & (1 << self.p.byte_bits) - 1]) * self.width
                    state, _ = rpm.write(state, rpm.Write(pins["peer"], tag[0], pins["row"], i * self.width, value, tag[1]))
        self.state = rpm.tick(state)
        return out | {"ready": int(ready)}

    def _sent(self, packet: rpm.SentLine, state: rpm.RpmState) -> None:
        entry = state.partitions[packet.peer][packet.line, packet.low]
        why = "stale" if state.now - entry.since >= self.timer else "whole" if packet.mask == rpm.ALL else "fence" if state.draining else "crowded"
        self.seen[f"sent {why}"] += 1
        valid = [packet.mask >> i * self.width & 1 for i in range(self.p.line_bytes)]
        assert isinstance(packet.line, tuple)
        self.out = {"out_valid": 1, "out_peer": packet.peer, "out_line": packet.line[0], "out_row": packet.row, "out_low": int(packet.low)}
        self.out["out_mask"] = sum(bit << i for i, bit in enumerate(valid))
        self.out["out_data"] = sum(packet.data[i * self.width] << i * self.p.byte_bits for i, bit in enumerate(valid) if bit)


class _PacketProof(Proof, PacketManager, of=_PacketParameters(2, 3, 2, 1, 1, 2, 1), peer_of=1, tag_of=3, byte_of=1):
    """A byte that was stored leaves once, with its last value; a fenced unit with a line sends (no deadlock); no peer is served twice while another
    one asks. Assumed: peer numbers in range."""

    def watch(self, m: Module, p: _PacketParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        parts = self.partitions
        tags, masks, lines = (slots(memory, m) for memory in (m.submodules.tags, m.submodules.masks, m.submodules.lines))
        # A byte of one tag: inside the partition, and in the packet that leaves.
        inside, value, packed, sent = Signal(), Signal(), Signal(), Signal()
        stores = self.valid & self.ready & (self.peer == self.peer_of) & (Cat(self.low, self.row, self.line) == self.tag_of)
        writes = stores & (self.mask >> self.byte_of)[0]
        live, is_it, sends = [], [], []
        for i, part in enumerate(parts):
            keys, alive = part.cam.keys, part.cam.live
            live.append(alive)
            mine = [alive[j] & (keys[j] == self.tag_of) & (self.peer_of == i) for j in range(p.entries)]
            is_it += [(mine[j], 4 * i + j) for j in range(p.entries)]
            sends.append(part.take & Array(mine)[part.chosen])
            comb += Assert(~part.take | Array([alive[j] for j in range(p.entries)])[part.chosen])  # what leaves is a line
            for j in range(p.entries):
                at = 4 * i + j
                tag = Cat(tags[at].low, tags[at].row, tags[at].line)
                comb += Assert(~alive[j] | ((keys[j] == tag) & (part.rows[j] == tags[at].row) & (part.lows[j] == tags[at].low)))
                comb += Assert(~alive[j] | (part.wholes[j] == masks[at].all()))
            older = [[part.older[a, b] if a < b else ~part.older[b, a] if a > b else Const(0, 1) for b in range(3)] for a in range(3)]
            circle = (older[0][1] & older[1][2] & older[2][0]) | (older[1][0] & older[2][1] & older[0][2])
            comb += Assert(~alive.all() | ~circle)
        sends_it = Cat(sends).any()
        with m.If(self.out_ready | ~self.out_valid):
            sync += [packed.eq(sends_it & inside), sent.eq(value)]
        with m.If(writes):
            sync += [inside.eq(1), value.eq((self.data >> self.byte_of)[0])]
        with m.Elif(sends_it):
            sync += inside.eq(0)
        leaves = self.out_valid & (self.out_peer == self.peer_of) & (Cat(self.out_low, self.out_row, self.out_line) == self.tag_of)
        comb += [
            Assert(~packed | leaves),  # nothing is lost on the way out
            Assert(~leaves | ((self.out_mask >> self.byte_of)[0] == packed)),  # and nothing comes twice
            Assert(~packed | ((self.out_data >> self.byte_of)[0] == sent)),
            Assert(~inside | Cat(hit for hit, _ in is_it).any()),
            *(Assert(~a | ~b) for k, (a, _) in enumerate(is_it) for b, _ in is_it[:k]),
        ]
        for hit, at in is_it:
            comb += Assert(~hit | ((masks[at] >> self.byte_of)[0] == inside))
            comb += Assert(~hit | ~inside | ((lines[at] >> self.byte_of)[0] == value))
        # Progress, and the peers in turn.
        free = self.out_free
        waiting = Cat(part.any() for part in live) & self.peer_ready
        taken = Cat(part.take for part in parts)
        comb += Assert(~(self.fence & free & waiting.any()) | taken.any())
        both = Cat(part.may for part in parts) & self.peer_ready
        comb += Assert(~(taken.any() & both.all()) | (taken[0] == self.last[0]))
        comb += Assume(Mux(self.valid, self.peer < p.peers, 1))


BLOCK = Block(
    "packet-manager", "stores merge to lines per peer; the scheduler", _PacketParameters, PacketManager, _PacketModel,
    small=(_PacketParameters(1, 3, 2, 1, 3, 4, 8), _PacketParameters(2, 2, 4, 1, 3, 4, 4), _PacketParameters(3, 4, 2, 2, 4, 5, 2)),
    proofs=(_PacketProof,),
)  # fmt: skip
