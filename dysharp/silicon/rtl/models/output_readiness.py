"""`protocol.readiness` behind the pins of the OR table."""

from random import Random

from dysharp.protocol import readiness
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Values
from dysharp.silicon.rtl.counter_table import OutputReadiness, ReadinessParameters
from dysharp.silicon.rtl.models.counter_table import CounterModel

TOKENS = 12


class ReadinessModel(CounterModel):
    """Tokens with 1 .. top-k notices, in random order, some repeated before their token is ready."""

    def __init__(self, parameters: ReadinessParameters, random: Random):
        super().__init__(parameters.entries, random)
        self.expected = tuple(random.randint(1, parameters.topk) for _ in range(TOKENS))
        self.state = readiness.empty(self.expected, parameters.entries)
        self.todo = [(token, place) for token, n in enumerate(self.expected) for place in range(n)]
        random.shuffle(self.todo)
        if random.random() < 0.5:  # tokens nearly in order, as Combine has them
            self.todo.sort(key=lambda notice: notice[0] + 3 * random.random())

    def draw(self, random: Random) -> dict[str, int]:
        token, place = self.todo[0] if self.todo else (0, 0)
        announced = [(t, p) for t in range(TOKENS) if t not in self.state.ready for p in readiness._announced(self.state, t)]
        if announced and random.random() < 0.1 and not self.waits:
            token, place = random.choice(announced)
        pins = {"valid": int(bool(self.todo) and random.random() < self.load), "key": token, "place": place, "expected": self.expected[token]}
        return pins | self.answers(random)

    def sent(self, pins: Values) -> None:
        if self.todo and (pins["key"], pins["place"]) == self.todo[0]:
            self.todo.pop(0)

    def step(self, event: Values) -> int:
        self.seen["repeated" if self.same(event) else "notice"] += 1
        self.state, outputs = readiness.step(self.state, (event["key"], event["place"]))
        return int(any(isinstance(output, readiness.Ready) for output in outputs))

    def same(self, event: Values) -> bool:
        return event["place"] in readiness._announced(self.state, event["key"])

    def chip(self) -> list[int]:
        return list(self.state.on_chip)

    def spilt(self) -> list[int]:
        return list(self.state.memory)

    def data(self, key: int) -> int:
        return sum(1 << place for place in readiness._announced(self.state, key))


BLOCK = Block(
    "output-readiness", "notices per token, spill", ReadinessParameters, OutputReadiness, ReadinessModel,
    small=(ReadinessParameters(2, 4, 3), ReadinessParameters(3, 4, 4), ReadinessParameters(4, 5, 2)),
)  # fmt: skip
