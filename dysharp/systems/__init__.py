"""One short file per system: dispatch x combine x schedule. `registry` finds them, `layer` holds their building blocks."""

from dysharp.systems.registry import System, all_systems, get_system, system

__all__ = ["System", "all_systems", "get_system", "system"]
