"""One short file per system. `registry` finds the systems; `building` has what their plan functions are made of."""

from dysharp.systems.facts import OTHER_COLOUR, Change, Costs, Facts, Moves, Reach, Ships, Shown
from dysharp.systems.registry import System, all_systems, get_system, is_real, system

__all__ = [
    "OTHER_COLOUR", "Change", "Costs", "Facts", "Moves", "Reach", "Ships", "Shown", "System", "all_systems", "get_system", "is_real", "system",
]  # fmt: skip
