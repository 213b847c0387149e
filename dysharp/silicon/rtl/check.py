"""Runs a block beside a cycle-exact model in the simulator of Amaranth and compares every output in every cycle."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from random import Random
from typing import Any

from amaranth.hdl import ResetInserter, Shape, Signal
from amaranth.lib import wiring
from amaranth.sim import Simulator

from dysharp.base import SimulationError, Tally, frozen
from dysharp.silicon.rtl.blocks import Block, Pin

Values = Mapping[str, int]


class BlockModel:
    """A step function of `protocol/` behind the pins of a block. `busy`: cycles of the start. `out`: what is held until it is taken.

    `stall`: how often what comes out is not taken.
    """

    stall: float

    def __init__(self, parameters: Any, busy: int = 0):
        self.p, self.busy = parameters, busy
        self.seen: Counter[str] = Counter()
        self.out: Tally = {"out_valid": 0}

    def takes(self, random: Random, *pins: str) -> Tally:
        """Whether those who take what comes out do so in the next cycle, by pin."""
        return {pin: int(random.random() >= self.stall) for pin in pins or ("out_ready",)}

    def draw(self, random: Random) -> Tally:
        """Inputs of the next cycle, by pin."""
        raise NotImplementedError

    def cycle(self, pins: Values) -> Values:
        """The outputs of the block in a cycle with these inputs, then the step that it accepts; pins without a meaning in this cycle are left out.

        Here, of a block that accepts a step when its output is free.
        """
        ready = not self.busy and (not self.out["out_valid"] or pins["out_ready"])
        now = self.out | {"ready": int(ready)} | self.beside(pins, bool(ready))
        self.busy = max(0, self.busy - 1)
        if ready:
            self.out = {"out_valid": 0}
            self.take(pins) if pins["valid"] else self.idle(pins)
        return now

    def beside(self, pins: Values, ready: bool) -> Tally:
        """More outputs of this cycle. `ready`: the block may do a step; of a table that spills: the step that waited."""
        return {}

    def take(self, pins: Values) -> None:
        """The step of these pins."""
        raise NotImplementedError

    def idle(self, pins: Values) -> None:
        """What the block does in a free cycle without step."""


class SpillModel(BlockModel):
    """A table that spills entries, and holds a step while it reads memory for it (`waits`)."""

    def __init__(self, parameters: Any, busy: int):
        super().__init__(parameters, busy)
        self.waits: Any = None
        self.spill: Tally = {"spill_valid": 0}

    def cycle(self, pins: Values) -> Values:
        free = not self.busy and (not self.out["out_valid"] or pins["out_ready"]) and (not self.spill["spill_valid"] or pins["spill_ready"])
        fetch, accepts = bool(free and self.waits), bool(free and self.accepts(pins))
        now = self.out | self.spill | {"ready": int(accepts and not fetch), "fetch": int(fetch)} | self.beside(pins, fetch)
        self.busy = max(0, self.busy - 1)
        self.out = {"out_valid": 0} if free or pins["out_ready"] else self.out
        self.spill = {"spill_valid": 0} if free or pins["spill_ready"] else self.spill
        if accepts and fetch and pins["answer"]:
            step, self.waits = self.waits, None
            self.resume(step, pins)
        elif now["ready"] and pins["valid"]:
            self.take(pins)
        return now

    def accepts(self, pins: Values) -> bool:
        """Whether a free table may do a step with these pins."""
        return True

    def resume(self, step: Any, pins: Values) -> None:
        """The step for which memory has answered."""
        raise NotImplementedError


@frozen
class Checked:
    """What a check ran: sequences from reset, cycles, and how often each event happened. `answer_cycles`: most cycles from a step that was taken in
    to its answer; a table that waits for memory answers later."""

    sequences: int
    cycles: int
    seen: Tally
    answer_cycles: int


def pins_of(component: wiring.Component) -> list[Pin]:
    """The interface of a block."""
    members = component.signature.members.items()
    return [Pin(name, "in" if member.flow == wiring.In else "out", Shape.cast(member.shape).width) for name, member in members]


def check_block(block: Block, sequences: int, cycles: int = 32, seed: int = 0) -> list[tuple[Tally, Checked]]:
    """Compare block and model, `sequences` sequences in all, shared by the small parameters. Raises SimulationError."""
    done = []
    for i, p in enumerate(block.small):
        n = sequences // len(block.small) + (i < sequences % len(block.small))
        done.append((asdict(p), check(block.component(p), lambda random, p=p: block.model(p, random), n, cycles, seed)))  # type: ignore[misc]
    return done


Listen = Callable[[int, Values, Values], None]
"""Told of every cycle: its number after reset, inputs, and the outputs that have a meaning."""


def check(
    component: wiring.Component, models: Callable[[Random], BlockModel], sequences: int, cycles: int, seed: int = 0, listen: Listen | None = None
) -> Checked:
    """Run `sequences` sequences of `cycles` cycles from reset. Raises SimulationError at the first output that differs."""
    reset = Signal()
    inputs = {name: getattr(component, name) for name, member in component.signature.members.items() if member.flow == wiring.In}
    outputs = {name: getattr(component, name) for name, member in component.signature.members.items() if member.flow == wiring.Out}
    seen = Counter[str]()
    latest = 0

    async def bench(ctx: Any) -> None:
        nonlocal latest
        for sequence in range(sequences):
            taken_in, answers = -1, False  # the last step; whether an answer of before still stands
            random = Random(f"{seed} {sequence}")
            model = models(random)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            before: Tally = {}
            for cycle in range(cycles):
                pins = model.draw(random)
                for name, value in pins.items():
                    if before.get(name) != value:
                        ctx.set(inputs[name], value)
                before = before | pins
                outs = model.cycle(pins)
                if listen:
                    listen(cycle, before, outs)
                for name, expected in outs.items():
                    found = ctx.get(outputs[name])
                    if found != expected:
                        raise SimulationError(
                            f"{type(component).__name__}, sequence {sequence} of seed {seed}, cycle {cycle}: "
                            f"found {name} = {found}, expected {expected} (inputs {dict(pins)})"
                        )
                if ctx.get(outputs["out_valid"]) and not answers:
                    latest = max(latest, cycle - taken_in)
                answers = bool(ctx.get(outputs["out_valid"])) and not pins["out_ready"]
                if (pins["valid"] and ctx.get(outputs["ready"])) or ("looked" in outputs and ctx.get(outputs["looked"])):
                    taken_in = cycle
                await ctx.tick()
            seen.update(model.seen)

    simulator = Simulator(ResetInserter(reset)(component))
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()
    return Checked(sequences, sequences * cycles, dict(sorted(seen.items())), latest)
