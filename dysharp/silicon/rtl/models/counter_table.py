"""What the models of TS and OR share: the pins of a table of counters that spills, and its memory."""

from random import Random
from typing import Any

from dysharp.silicon.rtl.check import Model, Values


class CounterModel(Model):
    """`step(pins)` of a subclass does the protocol's step; `chip()` and `spilt()` are the keys on chip and in memory."""

    def __init__(self, entries: int, random: Random):
        super().__init__(entries)
        self.waits: Values | None = None
        self.spill: dict[str, int] = {"spill_valid": 0}
        self.memory: dict[int, int] = {}
        self.stall, self.load = random.choice((0, 0.3)), random.choice((0.4, 1))

    def cycle(self, pins: Values) -> Values:
        free = not self.busy and (not self.out["out_valid"] or pins["out_ready"]) and (not self.spill["spill_valid"] or pins["spill_ready"])
        ready, fetch = int(free and not self.waits), int(bool(free and self.waits))
        taken = int(bool(fetch and pins["answer"] and pins["found"] and not self.same(self.waits or {})))
        now = self.out | self.spill | {"ready": ready, "fetch": fetch, "taken": taken}
        if not free:
            self.out = {"out_valid": 0} if pins["out_ready"] else self.out
            self.spill = {"spill_valid": 0} if pins["spill_ready"] else self.spill
        if self.busy:
            self.busy -= 1
        elif free:
            self.out, self.spill = {"out_valid": 0}, {"spill_valid": 0}
            if self.waits and pins["answer"]:
                event, self.waits = self.waits, None
                if taken:
                    del self.memory[event["key"]]
                self.act(event)
            elif not self.waits and pins["valid"]:
                if self.memory and pins["key"] not in self.chip():
                    self.waits = pins
                    self.seen["read"] += 1
                else:
                    self.act(pins)
                self.sent(pins)
        return now

    def act(self, event: Values) -> None:
        before, data = set(self.chip()), {key: self.data(key) for key in self.chip()}
        kind = self.step(event)
        if kind:
            self.seen[f"kind {kind}"] += 1
            self.out = {"out_valid": 1, "out_kind": kind, "out_key": event["key"]}
        for key in before & set(self.spilt()) - set(self.chip()):
            self.seen["spill"] += 1
            self.memory[key] = data[key]
            self.spill = {"spill_valid": 1, "spill_key": key, "spill_data": data[key]}

    def answers(self, random: Random) -> dict[str, int]:
        """Pins of memory and of those who take what comes out."""
        key = self.waits["key"] if self.waits else -1
        found = int(key in self.memory)
        pins = {"answer": int(random.random() < 0.6), "found": found, "answer_data": self.memory.get(key, random.getrandbits(4))}
        return pins | {"out_ready": int(random.random() >= self.stall), "spill_ready": int(random.random() >= self.stall)}

    def chip(self) -> list[int]:
        raise NotImplementedError

    def spilt(self) -> list[int]:
        raise NotImplementedError

    def data(self, key: int) -> int:
        raise NotImplementedError

    def step(self, event: Values) -> int:
        raise NotImplementedError

    def same(self, event: Any) -> bool:
        return False

    def sent(self, pins: Values) -> None:
        """The event of these pins was accepted."""
