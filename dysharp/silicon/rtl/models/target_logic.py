"""Lists of targets behind the pins of the target logic: each GPU gets one copy, whose targets count from its first expert (isa/packets.py)."""

from random import Random

from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values
from dysharp.silicon.rtl.target_logic import ID_BITS, TargetLogic, TargetParameters


def replicas(targets: list[int], per_gpu: int) -> dict[int, set[int]]:
    """{GPU: its targets, counted from its first expert}."""
    found: dict[int, set[int]] = {}
    for target in targets:
        found.setdefault(target // per_gpu, set()).add(target % per_gpu)
    return found


class TargetModel(Model):
    """Draws lists of one or more flits, some with a target twice or out of range."""

    def __init__(self, parameters: TargetParameters, random: Random):
        super().__init__()
        self.p, self.experts = parameters, parameters.ports * parameters.experts_per_gpu
        self.rest: list[int] = []
        self.listed: list[int] = []
        self.stall = random.choice((0, 0.4))

    def draw(self, random: Random) -> dict[str, int]:
        if not self.rest:
            self.rest = random.sample(range(self.experts), random.randint(1, min(self.experts, 2 * self.p.ids)))
            if random.random() < 0.1:
                self.rest.insert(random.randrange(len(self.rest) + 1), random.choice([*self.rest, self.experts, (1 << ID_BITS) - 1]))
        flit = self.rest[: self.p.ids]
        word = sum(t << ID_BITS * i for i, t in enumerate(flit)) | random.getrandbits(ID_BITS * self.p.ids) >> ID_BITS * len(flit) << ID_BITS * len(
            flit
        )
        pins = {"valid": int(random.random() < 0.8), "ids": word, "n_ids": len(flit), "last": int(len(self.rest) <= self.p.ids)}
        return pins | {"out_ready": int(random.random() >= self.stall)}

    def cycle(self, pins: Values) -> Values:
        ready = int(not self.out["out_valid"] or pins["out_ready"])
        now = self.out | {"ready": ready}
        if ready:
            self.out = {"out_valid": 0}
            if pins["valid"]:
                self._flit(bool(pins["last"]))
        return now

    def _flit(self, last: bool) -> None:
        flit, self.rest = self.rest[: self.p.ids], self.rest[self.p.ids :]
        self.listed += flit
        self.seen["flit"] += 1
        if not last:
            return
        wrong = len(set(self.listed)) < len(self.listed) or max(self.listed) >= self.experts
        self.seen["wrong list" if wrong else "list"] += 1
        copies = replicas(self.listed, self.p.experts_per_gpu)
        self.out = {"out_valid": 1, "error": int(wrong)}
        if not wrong:
            bits = sum(1 << gpu * self.p.experts_per_gpu + t for gpu, targets in copies.items() for t in targets)
            self.out |= {"out_ports": sum(1 << gpu for gpu in copies), "out_replicas": bits}
        self.listed = []


BLOCK = Block(
    "target-logic", "lists of experts to output ports and replicas", TargetParameters, TargetLogic, TargetModel,
    small=(TargetParameters(4, 2, 3), TargetParameters(5, 4, 8), TargetParameters(3, 1, 2)),
)  # fmt: skip
