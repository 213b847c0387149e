"""`protocol.merging` behind the pins of the merge unit."""

from random import Random

from dysharp.protocol import merging
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values
from dysharp.silicon.rtl.merge_unit import MergeParameters, MergeUnit


class MergeModel(Model):
    """Loads of few lines, responses in any order, sums that come and go, lines that expire."""

    def __init__(self, parameters: MergeParameters, random: Random):
        super().__init__(parameters.places)
        self.p = parameters
        self.state = merging.empty(parameters.places)
        self.sums = 0
        self.stall, self.lines = random.choice((0, 0.3)), random.choice((3, 8))
        self.expected = random.randint(2, parameters.askers)

    def draw(self, random: Random) -> dict[str, int]:
        kind = random.choices(range(5), (6, 4, 1, 1, 1))[0]
        line, asker = random.randrange(self.lines), random.randrange(self.p.askers)
        out = [address for address, entry in self.state.loads.items() if not entry.ready]
        valid = random.random() < 0.9
        if kind == 1:
            valid, line = valid and bool(out), int(str(random.choice(out))) if out else 0
        elif kind == 3:
            valid = valid and self.sums > 0
        elif kind == 0:
            entry = self.state.loads.get(line)
            valid = valid and (entry is None or (asker not in entry.waiting and entry.count < self.p.askers))
        pins = {"valid": int(valid), "op": kind, "line": line, "asker": asker, "expected": self.expected}
        return pins | {"out_ready": int(random.random() >= self.stall)}

    def cycle(self, pins: Values) -> Values:
        ready = int(self.busy == 0 and (not self.out["out_valid"] or pins["out_ready"]))
        now = self.out | {"ready": ready}
        if self.busy:
            self.busy -= 1
        elif ready:
            self.out = {"out_valid": 0}
            if pins["valid"]:
                self._step(pins)
        return now

    def _step(self, pins: Values) -> None:
        line, asker = pins["line"], pins["asker"]
        events = (merging.Load(line, asker, pins["expected"]), merging.Response(line), merging.Take(), merging.Give(), merging.Expire(line))
        event = events[pins["op"]]
        self.seen[type(event).__name__.lower()] += 1
        self.state, outputs = merging.step(self.state, event)
        forward = merges = answers = place = dropped = 0
        for output in outputs:
            self.seen[f"out {type(output).__name__.lower()}"] += 1
            if isinstance(output, merging.Forward):
                forward, merges = 1, int(output.merges)
            elif isinstance(output, merging.LoadResponse):
                answers |= 1 << int(str(output.asker))
            elif isinstance(output, merging.Taken):
                place = int(output.has_place)
            else:
                dropped = 1
        self.sums += place - (pins["op"] == 3)
        if outputs:
            self.out = {"out_valid": 1, "forward": forward, "merges": merges, "answers": answers, "has_place": place, "dropped": dropped}


BLOCK = Block(
    "merge-unit", "loads of one line that share request and response; places of sums", MergeParameters, MergeUnit, MergeModel,
    small=(MergeParameters(2, 3, 4), MergeParameters(3, 4, 4), MergeParameters(4, 3, 4)),
)  # fmt: skip
