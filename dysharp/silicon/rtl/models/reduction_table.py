"""`protocol.reduction` behind the pins of the reduction table, with the adder and the buffer of sums.

`replay`: steps of a port of the packet level; block, protocol and packet level agree on sums, results and evictions.
"""

from collections.abc import Sequence
from random import Random

from dysharp.base.errors import SimulationError
from dysharp.protocol import reduction
from dysharp.silicon.rtl.blocks import Block, PortStep
from dysharp.silicon.rtl.check import Checked, Model, Values, check
from dysharp.silicon.rtl.reduction_table import ReductionParameters, ReductionTable, Send


class ReductionModel(Model):
    """Draws requests, responses (late ones too) and looks, and predicts every pin."""

    def __init__(self, parameters: ReductionParameters, random: Random):
        super().__init__(parameters.entries)
        self.p = parameters
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

    def draw(self, random: Random) -> dict[str, int]:
        """A packet in most cycles; a key may come again when its session has all answers."""
        pins = {"valid": int(random.random() < self.load), "look": int(random.random() < self.looks), "out_ready": int(random.random() >= self.stall)}
        fresh = [k for k in range(min(self.keys + self.p.entries, 1 << self.p.key_bits)) if k not in self.owed]
        if fresh and (not self.owed or random.random() < self.requests):
            return pins | {"is_request": 1, "key": random.choice(fresh), "count": random.randint(1, min(5, (1 << self.p.count_bits) - 1))}
        if not self.owed:
            return pins | {"valid": 0, "is_request": 0, "key": 0, "count": 1}
        key = random.choice(list(self.owed))
        return pins | {"is_request": 0, "key": key, "count": random.randint(1, self.owed[key])}

    def cycle(self, pins: Values) -> Values:
        """The registered outputs of now; then the step that this cycle accepts."""
        ready = int(self.busy == 0 and (not self.out["out_valid"] or pins["out_ready"]))
        look = int(ready and pins["look"] and not pins["valid"])
        now = self.out | {"ready": ready, "looked": look, "error": 0}
        if self.busy:
            self.busy -= 1
        elif ready:
            self.out = {"out_valid": 0}
            if look:
                self._look()
            elif pins["valid"]:
                self._packet(pins)
        return now

    def _packet(self, pins: Values) -> None:
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

    def _look(self) -> None:
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
            send = (Send.RESULT_ALONE if alone else Send.RESULT) if outputs else (Send.PUT if alone else Send.ADD)
        else:
            send = Send.BYPASS if isinstance(event, reduction.Response) else Send.PARTIAL if outputs else Send.NONE
        total = {Send.PUT: value, Send.BYPASS: value, Send.RESULT_ALONE: value}.get(send, self.sums.get(slot, 0) + value)
        if send in (Send.PUT, Send.ADD):
            self.sums[slot] = total
        for output in outputs:
            assert output.value == total, f"the buffer sends {total}, the protocol {output.value}"
            self.seen[type(output).__name__.lower()] += 1
        gone = session not in self.state.table and before is not None
        if gone:
            self.front.insert(0, slot)
            del self.slot_of[session]
        if send != Send.NONE:
            self.out = {"out_valid": 1, "send": int(send)}
            if send != Send.BYPASS:
                self.out["slot"] = slot
            if outputs:
                self.out |= {"out_key": int(str(outputs[0].session)), "out_count": outputs[0].count}


BLOCK = Block(
    "reduction-table", "sessions of a switch port: counts, LRU eviction, timeouts", ReductionParameters, ReductionTable, ReductionModel,
    small=(ReductionParameters(2, 4, 4), ReductionParameters(3, 4, 4), ReductionParameters(4, 4, 4)),
)  # fmt: skip


class ReplayModel(ReductionModel):
    """The model with given steps in place of drawn ones. Each contribution has a value of its own, and each session's total must come out."""

    def __init__(self, parameters: ReductionParameters, random: Random, steps: Sequence[PortStep]):
        super().__init__(parameters, random)
        self.steps, self.at = steps, 0
        self.looks = 0
        self.total: dict[int, int] = {}  # of a session: what went in less what came out
        self.sent: list[reduction.Output[int]] = []

    def draw(self, random: Random) -> dict[str, int]:
        pins = {"valid": int(self.at < len(self.steps)), "look": 0, "out_ready": int(random.random() >= self.stall)}
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
    p = ReductionParameters(entries, key_bits=max(2, max(step.session for step in steps).bit_length()))
    models: list[ReplayModel] = []

    def model(random: Random) -> ReplayModel:
        models.append(ReplayModel(p, random, steps))
        return models[-1]

    done = check(ReductionTable(p), model, 1, 2 * len(steps) + entries + 8)
    (used,) = models
    if used.at < len(steps) or any(used.total.values()):
        raise SimulationError(
            f"found {used.at} of {len(steps)} steps and {sum(map(bool, used.total.values()))} sums that differ, expected all and none"
        )
    return done
