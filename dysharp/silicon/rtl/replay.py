"""Steps of a port of the packet level through the reduction table: block, protocol and packet level agree on sums, results and evictions."""

from collections.abc import Sequence
from random import Random

from dysharp.errors import SimulationError
from dysharp.protocol import reduction
from dysharp.silicon.rtl.blocks import PortStep
from dysharp.silicon.rtl.check import Checked, check
from dysharp.silicon.rtl.models.reduction_table import ReductionModel
from dysharp.silicon.rtl.reduction_table import ReductionParameters, ReductionTable


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
