"""One short file per system that runs a collective. `register` finds them; `systems.building.collectives` has what their plans are made of."""

from dysharp.systems.collective_system import CollectiveSystem, collective
from dysharp.systems.collectives.register import all_collectives, all_tensor_parallel, get_collective

__all__ = ["CollectiveSystem", "all_collectives", "all_tensor_parallel", "collective", "get_collective"]
