"""One short file per system: dispatch x combine x schedule. `registry` finds them, `layer` holds their building blocks."""

from dysharp.systems.registry import OTHER_COLOUR, System, all_systems, get_system, system

__all__ = ["OTHER_COLOUR", "System", "all_systems", "get_system", "system"]
