"""From gates and bits to square millimetres, with a spread. Sources: docs/rtl.md, "Area"."""

from typing import NamedTuple

from dysharp.specs import choice_int


class Spread(NamedTuple):
    """A value with the ends of its range."""

    low: float
    middle: float
    high: float


GE_PER_MM2 = {12: Spread(4.5e6, 6.5e6, 9.0e6), 7: Spread(11e6, 16.4e6, 23e6)}
"""Gate equivalents (four transistors) per mm2. Middle: V100 and A100, transistors over die."""
SRAM_CHOICES = {12: ("dysharp.sram_mbit_per_mm2", 3, 8), 7: ("moe_hub.sram_mbit_per_mm2", 6, 24)}
THIRD_PORT = Spread(1.5, 1.8, 2.25)
"""Size of a bit with one port more than a read and a write; the high end is the square of 3/2. Assumed."""
CAM_BIT = Spread(1.6, 2.0, 3.0)
"""SRAM bits that a bit of a CAM takes. Assumed: a binary CAM cell has 9 or 10 transistors and match lines, an SRAM cell 6."""


def parts_mm2(node: int, *, kge: float, bits: float, ported_bits: float = 0, cam_bits: float = 0) -> dict[str, Spread]:
    """Area by named part in `node` (12 or 7) nm. `ported_bits`: bits of memories with three ports, beside `bits`."""
    name, lowest, highest = SRAM_CHOICES[node]
    per_mm2 = Spread(1e6 * highest, 1e6 * choice_int(name), 1e6 * lowest)
    return {
        "logic": Spread(*(1000 * kge / d for d in reversed(GE_PER_MM2[node]))),
        "sram": Spread(*(bits / d for d in per_mm2)),
        "order lists and other ports": Spread(*(ported_bits * f / d for f, d in zip(THIRD_PORT, per_mm2, strict=True))),
        "cam": Spread(*(cam_bits * f / d for f, d in zip(CAM_BIT, per_mm2, strict=True))),
    }


def total(parts: dict[str, Spread]) -> Spread:
    """The sum; its ends add the ends of the parts."""
    return Spread(*(sum(ends) for ends in zip(*parts.values(), strict=True)))
