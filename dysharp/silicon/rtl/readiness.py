"""MoE-Hub's readiness counters (DAM): bytes and source records per tile, announced totals. Model: `protocol.dam`."""

from random import Random
from typing import Self

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import Out
from amaranth.utils import bits_for

from dysharp.base import ByName, ConfigError, Tally, frozen
from dysharp.protocol import dam
from dysharp.protocol.dam import TILE_COUNTER
from dysharp.silicon.rtl import Block, BlockModel, Machine, Proof, Values, drive, memory, slot_bits, slots, wire
from dysharp.specs import Cluster


@frozen
class _DamParameters:
    """`tiles` of the grid; `tile_rows` (a power of two); `producers`; bits of a tile's bytes, of all rows' number, of a row's bytes."""

    tiles: int
    tile_rows: int = 128
    producers: int = 32
    byte_bits: int = 25
    row_bits: int = 20
    row_byte_bits: int = 17

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        rows = cluster.tile_rows
        if rows & (rows - 1):
            raise ConfigError(f'rtl readiness: tile_rows of cluster "{cluster.name}": found {rows}, expected a power of two from 1 to 4096')
        return cls(TILE_COUNTER.entries, rows, cluster.n_gpus)


class Readiness(Machine):
    """Counts what is acknowledged, and says once per tile: ready, returnable, or reclaim.

    In: `valid`, `ready`, `op`: 0 = `n_bytes` of the row at `place` are visible, 1 = its source record is visible, 2 = `producer` announces `rows`.
    Constant pins: `row_bytes`, `tile_bytes` (of a whole tile). Out, held until `out_ready`: `out_valid`, `out_tile`, `out_rows`, with one or two of
    `is_ready`, `is_returnable`, or `is_reclaim`. An announcement takes `row_bits` cycles more: rows x row bytes is added bit by bit. When all
    producers have announced and all bytes are there, a walk over the tiles starts the partial one and reclaims the empty ones, a tile per cycle;
    `ready` is 0 meanwhile. `error` stays 1 after a second announcement of a producer, or after more bytes than a tile holds.
    """

    def pins(self, p: _DamParameters) -> ByName:
        self.walks = Signal()
        self.begun = Signal()  # the counters are written after reset
        self.shift = p.tile_rows.bit_length() - 1
        if 1 << self.shift != p.tile_rows:
            raise ValueError(f"tile_rows: found {p.tile_rows}, expected a power of two")
        return {
            "valid": 1, "ready": Out(1), "op": 2, "place": p.row_bits, "n_bytes": 8, "producer": slot_bits(p.producers),
            "rows": p.row_bits, "row_bytes": p.row_byte_bits, "tile_bytes": p.byte_bits,
            "out_valid": Out(1), "out_ready": 1, "out_tile": Out(slot_bits(p.tiles)), "out_rows": Out(bits_for(p.tile_rows)),
            "is_ready": Out(1), "is_returnable": Out(1), "is_reclaim": Out(1), "all_ready": Out(1), "error": Out(1),
        }  # fmt: skip

    def build(self, m: Module, p: _DamParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        records = bits_for(p.tile_rows)
        entry = data.StructLayout({"bytes": p.byte_bits, "records": records, "started": 1, "returnable": 1})
        _, read, write = memory(m, "counters", entry, p.tiles)
        fill, start = Signal(bits_for(p.tiles)), self.begun
        owed_bits = p.row_bits + p.row_byte_bits + 1
        owed, total, announced = Signal(owed_bits), Signal(p.row_bits), Signal(p.producers)
        left, part = Signal(p.row_bits), Signal(p.row_bits + p.row_byte_bits)  # of the product that is added up
        walks, walk = self.walks, Signal(bits_for(p.tiles))
        comb += start.eq(fill == p.tiles)
        free = wire(m, self.out_free)
        # The walk begins: all producers have announced, and the bytes that they owe are there.
        begins = wire(m, ~self.all_ready & announced.all() & (left == 0) & (owed == 0), name="begins")
        comb += self.ready.eq(start & free & (left == 0) & ~begins & ~walks)
        act = wire(m, self.valid & self.ready)
        ack = wire(m, act & (self.op == 0))
        record = wire(m, act & (self.op == 1))
        announce = wire(m, act & (self.op == 2))
        step = walks & free
        tile, old, new = Signal(slot_bits(p.tiles)), read.data, Signal(entry)
        comb += [tile.eq(Mux(walks, walk, self.place >> self.shift)), read.addr.eq(tile)]
        rows = Signal(bits_for(p.tile_rows))
        beyond = wire(m, total - (tile << self.shift), p.row_bits, name="beyond")
        whole, last = Signal(), Signal()
        comb += drive(new, bytes=old.bytes + Mux(ack, self.n_bytes, 0), records=old.records + record)
        comb += [whole.eq(new.bytes == self.tile_bytes), last.eq(self.all_ready & (new.bytes != 0)), rows.eq(Mux(whole, p.tile_rows, beyond))]
        touched = ack | record | step
        becomes_ready = wire(m, touched & ~old.started & (whole | last))
        becomes_returnable = wire(m, touched & (whole | last) & ~old.returnable & (new.records == rows))
        reclaims = wire(m, step & (new.bytes == 0), name="reclaims")
        comb += drive(new, started=old.started | becomes_ready, returnable=old.returnable | becomes_returnable)
        comb += drive(write, addr=Mux(start, tile, fill), en=touched | ~start)
        with m.If(start):
            comb += write.data.eq(new)
        with m.Else():
            sync += fill.eq(fill + 1)
        with m.If(announce):
            sync += [left.eq(self.rows), part.eq(self.row_bytes), total.eq(total + self.rows), announced.eq(announced | 1 << self.producer)]
        with m.Elif(left != 0):
            sync += [left.eq(left >> 1), part.eq(part << 1), owed.eq(owed + Mux(left[0], part, Const(0)))]
        with m.Elif(ack):
            sync += owed.eq(owed - self.n_bytes)
        with m.If(begins & start & free & ~walks):
            sync += [walks.eq(1), self.all_ready.eq(1), walk.eq(0)]
        with m.If(step):
            sync += [walk.eq(walk + 1), walks.eq(walk != p.tiles - 1)]
        with m.If(free):
            sync += drive(self, out_valid=Cat(becomes_ready, becomes_returnable, reclaims).any(), out_tile=tile, out_rows=rows)
            sync += drive(self, is_ready=becomes_ready, is_returnable=becomes_returnable, is_reclaim=reclaims)
        twice = announce & ((announced & (1 << self.producer)) != 0)
        with m.If(twice | (ack & (new.bytes > self.tile_bytes))):
            sync += self.error.eq(1)


class _DamModel(BlockModel):
    """A region with fewer rows than its grid; bytes, records and announcements in mixed order."""

    def __init__(self, p: _DamParameters, random: Random):
        super().__init__(p, p.tiles)
        self.row_bytes = random.randint(1, 2)
        n_rows = random.randint(0, p.tiles * p.tile_rows)
        self.state = dam.empty(p.tiles * p.tile_rows, self.row_bytes, p.tile_rows, p.producers)
        cuts = sorted(random.randint(0, n_rows) for _ in range(p.producers - 1))
        rows = [b - a for a, b in zip([0, *cuts], [*cuts, n_rows], strict=True)]
        self.todo = [(0, place, 1) for place in range(n_rows) for _ in range(self.row_bytes)] + [(1, place, 1) for place in range(n_rows)]
        self.todo += [(2, producer, n) for producer, n in enumerate(rows)]
        random.shuffle(self.todo)
        self.adds, self.walk, self.all_ready = 0, -1, 0
        self.outputs: dict[int, list[dam.Output]] = {}  # of the walk, by tile
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.5, 1))

    def draw(self, random: Random) -> Tally:
        kind, what, n = self.todo[0] if self.todo else (0, 0, 0)
        pins = {"valid": int(bool(self.todo) and random.random() < self.load), "op": kind, "row_bytes": self.row_bytes}
        pins |= {"place": what if kind < 2 else 0, "n_bytes": n if kind == 0 else 7, "producer": what if kind == 2 else 0}
        pins |= {"rows": n if kind == 2 else 3, "tile_bytes": self.row_bytes * self.p.tile_rows}
        return pins | self.takes(random)

    def cycle(self, pins: Values) -> Values:
        free = not self.out["out_valid"] or pins["out_ready"]
        begins = not self.all_ready and self.state.all_ready and not self.adds
        ready = int(not self.busy and free and not self.adds and not begins and self.walk < 0)
        now = self.out | {"ready": ready, "all_ready": self.all_ready, "error": 0}
        if free:
            self.out = {"out_valid": 0}
        if self.busy:
            self.busy -= 1
        if self.adds:
            self.adds -= 1
        elif self.walk >= 0:
            if free:
                self._out(self.outputs.pop(self.walk, []))
                self.walk = self.walk + 1 if self.walk < self.p.tiles - 1 else -1
        elif begins and free and not self.busy:
            self.walk, self.all_ready = 0, 1
        elif ready and pins["valid"]:
            self._step(*self.todo.pop(0))
        return now

    def _step(self, kind: int, what: int, n: int) -> None:
        was = self.state.all_ready
        event: dam.Event = dam.Ack(what, n) if kind == 0 else dam.Record(what) if kind == 1 else dam.Announce(what, n)
        self.adds = n.bit_length() if kind == 2 else 0
        self.state, outputs = dam.step(self.state, event)
        for output in outputs:
            self.seen[type(output).__name__.lower()] += 1
        if self.state.all_ready and not was:  # what the event itself caused comes at once, the rest in the walk
            for output in outputs:
                self.outputs.setdefault(output.tile, []).append(output)
            tile, rows = what // self.p.tile_rows, self.p.tile_rows
            mine = self.outputs.get(tile, []) if kind < 2 else []
            if mine and not isinstance(mine[0], dam.Reclaim) and dam.rows_of(self.state, tile) == rows:
                self._out(self.outputs.pop(tile))
            return
        self._out(list(outputs))

    def _out(self, outputs: list[dam.Output]) -> None:
        if outputs:
            kinds = {type(output) for output in outputs}
            self.out = {"out_valid": 1, "out_tile": outputs[0].tile, "is_ready": int(dam.Ready in kinds)}
            self.out |= {"is_returnable": int(dam.Returnable in kinds), "is_reclaim": int(dam.Reclaim in kinds)}
            if not isinstance(outputs[0], dam.Reclaim):
                self.out["out_rows"] = outputs[0].rows


class _DamProof(Proof, Readiness, of=_DamParameters(2, 2, 2, 3, 3, 2), tile_of=1):
    """A tile is ready at most once, and ready or reclaimed but not both. Assumed: places in range, no more bytes than a
    tile holds, no bytes for a reclaimed tile."""

    def watch(self, m: Module, p: _DamParameters) -> None:
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
            Assume(~(self.valid & (self.op == 0) & reclaimed & ((self.place >> self.shift)[0] == self.tile_of))),
            Assume(~(self.valid & (self.op == 0) & out & self.is_reclaim)),
            Assume((self.place >> self.shift) < 2),
            Assume(
                ~(self.valid & (self.op == 0))
                | (Mux((self.place >> self.shift)[0], words[1].bytes, words[0].bytes) + self.n_bytes <= self.tile_bytes)
            ),
            Assert(~(begun & (ready | now)) | (word[: self.parameters.byte_bits] != 0)),
            Assert(~(begun & (reclaimed | (out & self.is_reclaim))) | (word[: self.parameters.byte_bits] == 0)),
            Assert(begun | ~self.walks),
            Assume(self.tile_bytes != 0),
        ]


BLOCK = Block(
    "readiness", "bytes and records per tile, announced totals, reclaim", _DamParameters, Readiness, _DamModel,
    small=(_DamParameters(3, 2, 2, 5, 4, 3), _DamParameters(2, 4, 3, 5, 4, 3), _DamParameters(4, 1, 2, 5, 4, 3)),
    proofs=(_DamProof,),
)  # fmt: skip
