"""One short file per system. `registry` finds the systems; `building` has what their plan functions are made of."""

from dysharp.systems.registry import OTHER_COLOUR, System, all_systems, get_system, is_real, system

__all__ = ["OTHER_COLOUR", "System", "all_systems", "get_system", "is_real", "system"]
