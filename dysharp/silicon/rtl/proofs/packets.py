"""Proof of the packet manager."""

from typing import Any

from amaranth.hdl import Array, Assert, Assume, Cat, Const, Module, Mux, Signal

from dysharp.silicon.rtl.formal import constants, slots
from dysharp.silicon.rtl.packet_manager import PacketManager, PacketParameters


class PacketProof(PacketManager):
    """A byte that was stored leaves once, with its last value; a fenced unit with a line sends (no deadlock); no peer is served twice while another
    one asks. Assumed: peer numbers in range."""

    def __init__(self) -> None:
        super().__init__(PacketParameters(2, 3, 2, 1, 1, 2, 1))
        self.constants = constants(self, peer_of=1, tag_of=3, byte_of=1)

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        p, parts = self.parameters, self.partitions
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
            m.d.comb += Assert(~part.take | Array([alive[j] for j in range(p.entries)])[part.chosen])  # what leaves is a line
            for j in range(p.entries):
                at = 4 * i + j
                tag = Cat(tags[at].low, tags[at].row, tags[at].line)
                m.d.comb += Assert(~alive[j] | ((keys[j] == tag) & (part.rows[j] == tags[at].row) & (part.lows[j] == tags[at].low)))
                m.d.comb += Assert(~alive[j] | (part.wholes[j] == masks[at].all()))
            older = [[part.older[a, b] if a < b else ~part.older[b, a] if a > b else Const(0, 1) for b in range(3)] for a in range(3)]
            circle = (older[0][1] & older[1][2] & older[2][0]) | (older[1][0] & older[2][1] & older[0][2])
            m.d.comb += Assert(~alive.all() | ~circle)
        sends_it = Cat(sends).any()
        with m.If(self.out_ready | ~self.out_valid):
            m.d.sync += [packed.eq(sends_it & inside), sent.eq(value)]
        with m.If(writes):
            m.d.sync += [inside.eq(1), value.eq((self.data >> self.byte_of)[0])]
        with m.Elif(sends_it):
            m.d.sync += inside.eq(0)
        leaves = self.out_valid & (self.out_peer == self.peer_of) & (Cat(self.out_low, self.out_row, self.out_line) == self.tag_of)
        m.d.comb += [
            Assert(~packed | leaves),  # nothing is lost on the way out
            Assert(~leaves | ((self.out_mask >> self.byte_of)[0] == packed)),  # and nothing comes twice
            Assert(~packed | ((self.out_data >> self.byte_of)[0] == sent)),
            Assert(~inside | Cat(hit for hit, _ in is_it).any()),
            *(Assert(~a | ~b) for k, (a, _) in enumerate(is_it) for b, _ in is_it[:k]),
        ]
        for hit, at in is_it:
            m.d.comb += Assert(~hit | ((masks[at] >> self.byte_of)[0] == inside))
            m.d.comb += Assert(~hit | ~inside | ((lines[at] >> self.byte_of)[0] == value))
        # Progress, and the peers in turn.
        free = ~self.out_valid | self.out_ready
        waiting = Cat(part.any() for part in live) & self.peer_ready
        taken = Cat(part.take for part in parts)
        m.d.comb += Assert(~(self.fence & free & waiting.any()) | taken.any())
        both = Cat(part.may for part in parts) & self.peer_ready
        m.d.comb += Assert(~(taken.any() & both.all()) | (taken[0] == self.last[0]))
        m.d.comb += Assume(Mux(self.valid, self.peer < p.peers, 1))
        return m
