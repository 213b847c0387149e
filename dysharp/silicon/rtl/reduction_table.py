"""The reduction table of a switch port in hardware: one packet per cycle, its answer one cycle later. Model: `protocol.reduction`."""

from collections.abc import Sequence
from enum import IntEnum
from random import Random
from typing import Self

from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import Out

from dysharp.base import ByName, KiB, SimulationError, Tally, frozen
from dysharp.program import sessions_of_table
from dysharp.protocol import reduction
from dysharp.silicon.rtl import Machine, OrderProof, Proof, Table, check_slots, drive, live_slots, slot_bits, slots, wire
from dysharp.silicon.rtl.blocks import Block, PortStep
from dysharp.silicon.rtl.check import BlockModel, Checked, Values, check
from dysharp.specs import Cluster, session_bytes


class _AdderStep(IntEnum):
    """What the answer does with the adder and the buffer of sums, which lie outside of the block."""

    NONE = 0
    PUT = 1  # the packet's data becomes the sum of `slot`
    ADD = 2  # the packet's data is added to the sum of `slot`
    BYPASS = 3  # the packet goes on as it is
    RESULT = 4  # the sum of `slot` plus the packet's data goes to the source, rounded
    RESULT_ALONE = 5  # the packet's data is the whole sum
    PARTIAL = 6  # the sum of `slot` goes to the source, unrounded: two packets


@frozen
class _ReductionParameters:
    """`entries` sessions; `key_bits`: 20 of the tag and 3 of the attempt (the port faces one source); `count_bits`: targets of a session."""

    entries: int
    key_bits: int = 23
    count_bits: int = 6

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """The table of a port of `cluster`: an FP32 sum takes two entries of 128 B."""
        check_slots("reduction-table", cluster, "reduction_buffer_KiB", 2 * session_bytes() / KiB)
        return cls(sessions_of_table(cluster))


class ReductionTable(Machine):
    """Sessions, counts, LRU eviction and timeouts. Sums lie in a buffer behind an adder; `send` and `slot` tell both what to do.

    In: `valid`, `ready`; `is_request`, `key`, `count` (of a request: targets; of a response: targets it sums). `look`: one step of the idle
    scan in a cycle without packet (`looked`); an entry that nothing touched since its last look leaves.
    Out, a cycle later, held until `out_ready`: `out_valid`, `send`, `slot`, `out_key`, `out_count`. `error` stays 1 after a packet that
    breaks the protocol: a request of a live session or of no target, a response with more targets than are left or with none.
    """

    def pins(self, p: _ReductionParameters) -> ByName:
        self.width = slot_bits(p.entries)
        return {
            "valid": 1, "ready": Out(1), "is_request": 1, "key": p.key_bits, "count": p.count_bits, "look": 1, "looked": Out(1),
            "out_valid": Out(1), "out_ready": 1, "send": Out(3), "slot": Out(self.width),
            "out_key": Out(p.key_bits), "out_count": Out(p.count_bits), "error": Out(1),
        }  # fmt: skip

    def build(self, m: Module, p: _ReductionParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        shape = data.StructLayout({"key": p.key_bits, "remaining": p.count_bits, "count": p.count_bits})
        table = Table(m, p.entries, p.key_bits, "entries", shape)
        cam, order, write, slot = table.cam, table.order, table.write, table.slot
        scan, touched = Signal(self.width), Signal(p.entries)
        entry = table.read.data
        free = wire(m, order.ready & self.out_free, name="free")
        comb += self.ready.eq(free)
        packet = wire(m, self.valid & free)
        request = wire(m, packet & self.is_request)
        response = wire(m, packet & ~self.is_request)
        look = wire(m, self.look & free & ~self.valid)
        comb += [self.looked.eq(look), cam.key.eq(self.key), slot.eq(Mux(look, scan, Mux(self.is_request, order.front, cam.slot)))]
        left = wire(m, entry.remaining - self.count, p.count_bits)
        grown = wire(m, entry.count + self.count, p.count_bits, name="grown")
        # What leaves, and what is written back.
        has_sum = entry.count != 0
        idle = cam.at_live & ~((touched >> scan) & 1).any()
        last = left == 0
        comb += drive(cam, set=request, clear=(look & idle) | (response & cam.hit & last))
        comb += [order.move.eq(cam.set | cam.clear | (response & cam.hit)), write.en.eq(request | (response & cam.hit))]
        comb += drive(write.data, key=self.key, remaining=Mux(request, self.count, left), count=Mux(request, 0, grown))
        for i in range(p.entries):
            with m.If((slot == i) & (request | (response & cam.hit) | look)):
                sync += touched[i].eq(~look)
        with m.If(look):
            sync += scan.eq(Mux(scan == p.entries - 1, 0, scan + 1))
        send, alone = Signal(3), entry.count == 0
        with m.If(response & ~cam.hit):
            comb += send.eq(_AdderStep.BYPASS)
        with m.Elif(response & last):
            comb += send.eq(Mux(alone, Const(_AdderStep.RESULT_ALONE, 3), Const(_AdderStep.RESULT, 3)))
        with m.Elif(response):
            comb += send.eq(Mux(alone, Const(_AdderStep.PUT, 3), Const(_AdderStep.ADD, 3)))
        with m.Elif(((request & cam.at_live) | cam.clear) & has_sum):
            comb += send.eq(_AdderStep.PARTIAL)
        with m.If(free):
            sync += drive(self, out_valid=send != _AdderStep.NONE, send=send, slot=slot, out_key=Mux(response, self.key, entry.key))
            sync += self.out_count.eq(Mux(response, Mux(cam.hit, grown, self.count), entry.count))
        broken = (request & cam.hit) | (packet & (self.count == 0)) | (response & cam.hit & (self.count > entry.remaining))
        with m.If(broken):
            sync += self.error.eq(1)


class _ReductionModel(BlockModel):
    """Draws requests, responses (late ones too) and looks, and predicts every pin."""

    def __init__(self, parameters: _ReductionParameters, random: Random):
        super().__init__(parameters, parameters.entries)
        self.state: reduction.ReductionState[int] = reduction.empty(parameters.entries)
        self.owed: dict[int, int] = {}  # by session: targets that have not answered
        self.slot_of: dict[int, int] = {}
        self.front = list(range(parameters.entries))  # free slots, the next one first
        self.touched = [False] * parameters.entries
        self.scan = 0
        self.sums: dict[int, int] = {}  # the buffer, by slot
        self.requests, self.stall, self.looks = random.choice((0.2, 0.4, 0.7)), random.choice((0, 0.3)), random.choice((0, 0.2, 0.9))
        self.keys = random.choice((2, 1 << parameters.key_bits))
        self.load = random.choice((0.3, 0.8, 1))

    def draw(self, random: Random) -> Tally:
        """A packet in most cycles; a key may come again when its session has all answers."""
        pins = {"valid": int(random.random() < self.load), "look": int(random.random() < self.looks)} | self.takes(random)
        fresh = [k for k in range(min(self.keys + self.p.entries, 1 << self.p.key_bits)) if k not in self.owed]
        if fresh and (not self.owed or random.random() < self.requests):
            return pins | {"is_request": 1, "key": random.choice(fresh), "count": random.randint(1, min(5, (1 << self.p.count_bits) - 1))}
        if not self.owed:
            return pins | {"valid": 0, "is_request": 0, "key": 0, "count": 1}
        key = random.choice(list(self.owed))
        return pins | {"is_request": 0, "key": key, "count": random.randint(1, self.owed[key])}

    def beside(self, pins: Values, ready: bool) -> Tally:
        return {"looked": int(ready and bool(pins["look"]) and not pins["valid"]), "error": 0}

    def take(self, pins: Values) -> None:
        key, count = pins["key"], pins["count"]
        live = [int(str(session)) for session in self.state.table]
        if pins["is_request"]:
            self.owed[key] = count
            slot = self.slot_of[live[0]] if len(live) == self.p.entries else self.front.pop(0)
            self._step(reduction.Request(key, count), slot, 0)
            self.slot_of = {k: s for k, s in self.slot_of.items() if s != slot} | {key: slot}
            self.touched[slot] = True
            return
        self.owed[key] -= count
        if not self.owed[key]:
            del self.owed[key]
        slot = self.slot_of.get(key, -1) if key in live else -1
        value = (key * 31 + count * 7 + sum(self.seen.values())) % 1009
        self._step(reduction.Response(key, count, value), slot, value)
        if slot >= 0:
            self.touched[slot] = True

    def idle(self, pins: Values) -> None:
        if not pins["look"]:
            return
        slot, self.scan = self.scan, (self.scan + 1) % self.p.entries
        keys = [k for k, s in self.slot_of.items() if s == slot and k in self.state.table]
        if keys and not self.touched[slot]:
            self._step(reduction.Expire(keys[0]), slot, 0)
        self.touched[slot] = False

    def _step(self, event: reduction.Event[int], slot: int, value: int) -> None:
        """The step of the protocol, the pins it leads to, and what adder and buffer make of these pins."""
        session = int(str(event.session))
        before = self.state.table.get(session)
        self.state, outputs = reduction.step(self.state, event)
        self.seen[type(event).__name__.lower()] += 1
        alone = before is None or before.value is None
        if isinstance(event, reduction.Response) and before is not None:
            send = (_AdderStep.RESULT_ALONE if alone else _AdderStep.RESULT) if outputs else (_AdderStep.PUT if alone else _AdderStep.ADD)
        else:
            send = _AdderStep.BYPASS if isinstance(event, reduction.Response) else _AdderStep.PARTIAL if outputs else _AdderStep.NONE
        total = {_AdderStep.PUT: value, _AdderStep.BYPASS: value, _AdderStep.RESULT_ALONE: value}.get(send, self.sums.get(slot, 0) + value)
        if send in (_AdderStep.PUT, _AdderStep.ADD):
            self.sums[slot] = total
        for output in outputs:
            assert output.value == total, f"the buffer sends {total}, the protocol {output.value}"
            self.seen[type(output).__name__.lower()] += 1
        gone = session not in self.state.table and before is not None
        if gone:
            self.front.insert(0, slot)
            del self.slot_of[session]
        if send != _AdderStep.NONE:
            self.out = {"out_valid": 1, "send": int(send)}
            if send != _AdderStep.BYPASS:
                self.out["slot"] = slot
            if outputs:
                self.out |= {"out_key": int(str(outputs[0].session)), "out_count": outputs[0].count}


class _ReductionProof(Proof, ReductionTable, of=_ReductionParameters(2, 2, 3), key_of=2):
    """No contribution of a session is lost or counted twice. Assumed: a session has one request at a time, and no more answers than targets."""

    def watch(self, m: Module, p: _ReductionParameters) -> None:
        comb, sync = m.d.comb, m.d.sync
        cam = m.submodules.cam
        words = slots(m.submodules.entries, m)
        owed, came, went = Signal(p.count_bits), Signal(8), Signal(8)
        taken = self.valid & self.ready & (self.key == self.key_of)
        leaves = self.out_valid & (self.out_key == self.key_of) & (self.send >= _AdderStep.BYPASS)
        with m.If(taken & self.is_request):
            sync += owed.eq(self.count)
        with m.Elif(taken):
            sync += [owed.eq(owed - self.count), came.eq(came + self.count)]
        with m.If(leaves & self.out_ready):
            sync += went.eq(went + self.out_count)
        comb += Assume(self.count != 0)
        with m.If(taken):
            comb += Assume(Mux(self.is_request, owed == 0, self.count <= owed))
        live = live_slots(m, cam, words, self.key_of)
        inside = sum(Mux(live[i], words[i].count, 0) for i in range(p.entries))
        comb += Assert((came - went - inside - Mux(leaves, self.out_count, 0))[:8] == 0)  # nothing lost, nothing twice
        comb += Assert(~Cat(live).all())  # one entry of a session
        for i in range(p.entries):
            with m.If(live[i]):
                comb += self.promise(words[i].remaining == owed, owed != 0, words[i].count + words[i].remaining < 1 << p.count_bits)


BLOCK = Block(
    "reduction-table", "sessions of a switch port: counts, LRU eviction, timeouts", _ReductionParameters, ReductionTable, _ReductionModel,
    small=(_ReductionParameters(2, 4, 4), _ReductionParameters(3, 4, 4), _ReductionParameters(4, 4, 4)),
    proofs=(OrderProof, _ReductionProof),
)  # fmt: skip


class _ReplayModel(_ReductionModel):
    """The model with given steps in place of drawn ones. Each contribution has a value of its own, and each session's total must come out."""

    def __init__(self, parameters: _ReductionParameters, random: Random, steps: Sequence[PortStep]):
        super().__init__(parameters, random)
        self.steps, self.at = steps, 0
        self.looks = 0
        self.total: dict[int, int] = {}  # of a session: what went in less what came out
        self.sent: list[reduction.Output[int]] = []

    def draw(self, random: Random) -> Tally:
        pins = {"valid": int(self.at < len(self.steps)), "look": 0} | self.takes(random)
        step = self.steps[min(self.at, len(self.steps) - 1)]
        return pins | {"is_request": int(step.kind == "request"), "key": step.session, "count": step.targets}

    def _step(self, event: reduction.Event[int], slot: int, value: int) -> None:
        step, live = self.steps[self.at], [int(str(session)) for session in self.state.table]
        full = step.kind == "request" and len(live) == self.p.entries
        expected = f"evicts {live[0]}" if full else ""
        _, outputs = reduction.step(self.state, event)
        for output in outputs:
            session = int(str(output.session))
            if isinstance(output, reduction.Bypass | reduction.Result):
                expected = type(output).__name__.lower()
            self.total[session] = self.total.get(session, 0) - output.value
        if isinstance(event, reduction.Response):
            self.total[step.session] = self.total.get(step.session, 0) + value
        if expected != step.outcome:
            raise SimulationError(f"step {self.at} of the port: the packet level has {step.outcome!r}, the protocol {expected!r}")
        super()._step(event, slot, value)
        self.seen["eviction"] += full
        self.at += 1


def replay(steps: Sequence[PortStep], entries: int) -> Checked:
    """All `steps`, in order, through a block of `entries` sessions. Raises SimulationError where block, protocol and packet level differ."""
    if not steps:
        raise SimulationError("the port did nothing: found no step, expected at least one")
    p = _ReductionParameters(entries, key_bits=max(2, max(step.session for step in steps).bit_length()))
    models: list[_ReplayModel] = []

    def model(random: Random) -> _ReplayModel:
        models.append(_ReplayModel(p, random, steps))
        return models[-1]

    done = check(ReductionTable(p), model, 1, 2 * len(steps) + entries + 8)
    (used,) = models
    if used.at < len(steps) or any(used.total.values()):
        raise SimulationError(
            f"found {used.at} of {len(steps)} steps and {sum(map(bool, used.total.values()))} sums that differ, expected all and none"
        )
    return done
