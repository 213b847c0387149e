"""Counters of the token tracker: Tile Status (TS) and Output Readiness (OR). Models: `protocol.tracker`, `protocol.readiness`.

Both are one table: a key has an entry on chip, or its entry has spilled to memory, or it has none yet. An event updates the entry; a
complete entry leaves with an answer. While no entry is in memory, a miss is a new entry and no memory is read. Otherwise the table reads
memory and waits for its answer.
"""

from random import Random
from typing import Any

from amaranth.hdl import Assert, Assume, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import Out

from dysharp.base import ByName, Tally
from dysharp.silicon.rtl import Machine, SpillModel, Table, Values, drive, wire


class CounterTable(Machine):
    """A table of counters with LRU spill.

    In: `valid`, `ready`, `key` and the pins of the event. Out, a cycle later, held until `out_ready`: `out_valid`, `out_kind`, `out_key`.
    Spill: `spill_valid`, `spill_ready`, `spill_key`, `spill_data`. Read of memory: `fetch` is 1 until `answer` (with `found`, `answer_data`);
    `taken` in that cycle: the entry is on chip or complete now, and memory drops it.
    """

    def pins(self, p: Any) -> ByName:
        self.key_bits, counts, self.event, given = self.counted(p)
        key_bits, self.shape = self.key_bits, data.StructLayout(counts)
        bits = self.shape.size
        self.waits, self.spilled = Signal(), Signal(32)  # an event waits for memory; entries in memory
        return {
            "valid": 1, "ready": Out(1), "key": key_bits, **(self.event | given),
            "fetch": Out(1), "fetch_key": Out(key_bits), "answer": 1, "found": 1, "answer_data": bits, "taken": Out(1),
            "spill_valid": Out(1), "spill_ready": 1, "spill_key": Out(key_bits), "spill_data": Out(bits),
            "out_valid": Out(1), "out_ready": 1, "out_kind": Out(2), "out_key": Out(key_bits),
        }  # fmt: skip

    def counted(self, p: Any) -> tuple[int, Tally, Tally, Tally]:
        """Bits of the key, of the counts of an entry, of the pins of an event, and of other pins."""
        raise NotImplementedError

    def update(self, m: Module, entry: Any, held: ByName) -> tuple[Any, Any, Value, Value]:
        """(entry after the event, out kind (0 = none), whether the entry is complete, whether the event changes nothing)."""
        raise NotImplementedError

    def build(self, m: Module, p: Any) -> None:
        comb, sync = m.d.comb, m.d.sync
        row = data.StructLayout({"key": self.key_bits, "entry": self.shape})
        table = Table(m, p.entries, self.key_bits, "rows", row)
        cam, order, read, write, slot = table.cam, table.order, table.read, table.write, table.slot
        waits, spilled = self.waits, self.spilled
        # The event that waits for memory is held here, since its sender went on.
        self.late = late = {name: Signal.like(getattr(self, name), name=f"late_{name}") for name in [*self.event, "key"]}
        held = {name: Mux(waits, late[name], getattr(self, name)) for name in late}
        entry = Signal(self.shape)
        hit = cam.hit & ~waits
        free = wire(m, order.ready & self.out_free & (~self.spill_valid | self.spill_ready))
        comb += self.ready.eq(free & ~waits)
        start = wire(m, self.valid & self.ready)
        resume = wire(m, waits & free & self.answer)
        comb += drive(self, fetch=waits & free, fetch_key=late["key"])
        comb += [cam.key.eq(held["key"]), slot.eq(Mux(hit, cam.slot, order.front))]
        act = wire(m, (start & (cam.hit | (spilled == 0))) | resume)
        comb += Value.cast(entry).eq(Mux(waits, Mux(self.found, self.answer_data, 0), Mux(hit, Value.cast(read.data.entry), 0)))
        after, kind, complete, same = self.update(m, entry, held)
        keeps, evicts = Signal(), Signal()
        comb += [keeps.eq(act & ~complete & ~same), evicts.eq(keeps & ~hit & cam.at_live), self.taken.eq(resume & self.found & ~same)]
        comb += drive(cam, set=keeps & ~hit, clear=act & hit & complete)
        comb += [
            order.move.eq(keeps | cam.clear),
            write.en.eq(keeps),
            write.data.key.eq(held["key"]),
            Value.cast(write.data.entry).eq(Value.cast(after)),
        ]
        with m.If(start & ~act):
            sync += [waits.eq(1), *(late[name].eq(getattr(self, name)) for name in late)]
        with m.If(resume):
            sync += waits.eq(0)
        sync += spilled.eq(spilled + evicts - self.taken)
        # One output may leave while the other one still waits.
        with m.If(self.out_ready):
            sync += self.out_valid.eq(0)
        with m.If(self.spill_ready):
            sync += self.spill_valid.eq(0)
        with m.If(free):
            sync += drive(self, out_valid=act & (kind != 0), out_kind=kind, out_key=held["key"], spill_valid=evicts, spill_key=read.data.key)
            sync += self.spill_data.eq(Value.cast(read.data.entry))

    def kept_in_memory(self, m: Module, key: Any) -> tuple[Any, Any, Any]:
        """What memory holds of `key`: (whether it does, the data, whether the spill is under way). Memory gives back what it was given."""
        comb = m.d.comb
        in_memory, stored, spilling = Signal(), Signal(self.shape.size), Signal()
        comb += spilling.eq(self.spill_valid & (self.spill_key == key))
        with m.If(spilling & self.spill_ready):
            m.d.sync += [in_memory.eq(1), stored.eq(self.spill_data)]
        with m.If(self.taken & (self.fetch_key == key)):
            m.d.sync += in_memory.eq(0)
        there, given = in_memory | spilling, Mux(spilling, self.spill_data, stored)  # memory sees a spill before a read of its cycle
        with m.If(self.fetch & self.answer):
            comb += Assume(Mux(self.fetch_key == key, self.found == there, ~self.found | (self.spilled > in_memory + spilling)))
            comb += Assume((self.fetch_key != key) | ~self.found | (self.answer_data == given))
        comb += [Assert(~(in_memory & spilling)), Assert(self.spilled >= in_memory + spilling)]
        comb += [Assert(self.spilled < 4), Assume(self.spilled < 3)]
        return in_memory, stored, spilling


class CounterModel(SpillModel):
    """`step(pins)` of a subclass does the protocol's step on `state`."""

    state: Any

    def __init__(self, parameters: Any, random: Random):
        super().__init__(parameters, parameters.entries)
        self.memory: dict[int, int] = {}
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.4, 1))

    def beside(self, pins: Values, ready: bool) -> Tally:
        return {"taken": int(bool(ready and pins["answer"] and pins["found"]) and not self.same(self.waits))}

    def resume(self, step: Values, pins: Values) -> None:
        if pins["found"] and not self.same(step):
            del self.memory[step["key"]]
        self.act(step)

    def take(self, pins: Values) -> None:
        if self.memory and pins["key"] not in map(self.key, self.state.on_chip):
            self.waits = pins
            self.seen["read"] += 1
        else:
            self.act(pins)
        self.sent(pins)

    def act(self, event: Values) -> None:
        before = {self.key(entry): self.data(entry) for entry in self.state.on_chip}
        kind = self.step(event)
        if kind:
            self.seen[f"kind {kind}"] += 1
            self.out = {"out_valid": 1, "out_kind": kind, "out_key": event["key"]}
        for key in before.keys() & {self.key(entry) for entry in self.state.memory}:
            self.seen["spill"] += 1
            self.memory[key] = before[key]
            self.spill = {"spill_valid": 1, "spill_key": key, "spill_data": before[key]}

    def answers(self, random: Random) -> Tally:
        """Pins of memory and of those who take what comes out."""
        key = self.waits["key"] if self.waits else -1
        found = int(key in self.memory)
        pins = {"answer": int(random.random() < 0.6), "found": found, "answer_data": self.memory.get(key, random.getrandbits(4))}
        return pins | self.takes(random, "out_ready", "spill_ready")

    def key(self, entry: Any) -> int:
        """The key of an entry of `state.on_chip` or `state.memory`."""
        return int(entry)

    def data(self, entry: Any) -> int:
        """What memory gets of it."""
        raise NotImplementedError

    def step(self, event: Values) -> int:
        raise NotImplementedError

    def same(self, event: Any) -> bool:
        return False

    def sent(self, pins: Values) -> None:
        """The event of these pins was accepted."""
