"""A block with a testbench that checks itself, in one file of plain Verilog, for any simulator."""

from pathlib import Path
from typing import Any

from dysharp.base import Tally, read_text
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Values, check, pins_of
from dysharp.silicon.rtl.yosys import verilog_of


def with_testbench(block: Block, sequences: int, cycles: int = 32, seed: int = 0) -> str:
    """Verilog of `block` at its smallest sizes, with `sequences` sequences of the model as vectors. It prints how many cycles differ."""
    p = block.small[0]
    component, name = block.component(p), block.name.replace("-", "_")
    ins, outs = ({pin.name: pin.bits for pin in pins_of(component) if pin.side == side} for side in ("in", "out"))
    steps: list[str] = []

    def listen(cycle: int, pins: Values, expected: Values) -> None:
        if not cycle:
            steps.append("    reset;")
        words = (_word(ins, pins), _word(outs, expected), _word(outs, {n: (1 << outs[n]) - 1 for n in expected}))
        steps.append(f"    step({', '.join(words)});")

    check(component, lambda random: block.model(p, random), sequences, cycles, seed, listen)
    wires = [f".{n}({bus}[{low + w - 1}:{low}])" for bus, sides in (("in", ins), ("out", outs)) for n, low, w in _places(sides)]
    text = {"ins": sum(ins.values()) - 1, "outs": sum(outs.values()) - 1, "pins": ", ".join(wires), "steps": "\n".join(steps)}
    return verilog_of(block.component(p), name) + "\n" + read_text(Path(__file__).with_suffix(".v")).format(name=name, **text)


def _places(widths: Tally) -> list[tuple[str, int, int]]:
    """(pin, lowest bit, width) of the pins in one bus."""
    at, found = 0, []
    for name, width in widths.items():
        found.append((name, at, width))
        at += width
    return found


def _word(widths: Tally, values: Any) -> str:
    bits = sum((int(values.get(name, 0)) & (1 << width) - 1) << low for name, low, width in _places(widths))
    return f"{sum(widths.values())}'h{bits:x}"
