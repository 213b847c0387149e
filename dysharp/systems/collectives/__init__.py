"""One short file per system that runs a collective; `systems.building.collectives` has what their plans are made of. Here is their register, and that
of sub-layers: `_scan` imports every module of this folder and of `systems/tp`, then the entry points of `dysharp.systems`."""

from functools import cache

from dysharp.base import ConfigError, entry_of, import_all
from dysharp.systems.collective_system import REGISTERED, CollectiveSystem, collective
from dysharp.systems.registry import all_systems
from dysharp.workload import SUB_LAYER


@cache
def _scan() -> None:
    import_all("dysharp.systems.collectives")
    import_all("dysharp.systems.tp")
    all_systems()  # loads the entry points, which may register collectives too


def all_collectives() -> dict[str, CollectiveSystem]:
    """Every registered system of collectives by name."""
    _scan()
    return {name: one for name, one in sorted(REGISTERED.items()) if SUB_LAYER not in one.operations}


def all_tensor_parallel() -> dict[str, CollectiveSystem]:
    """Every registered system of sub-layers by name."""
    _scan()
    return {name: one for name, one in sorted(REGISTERED.items()) if SUB_LAYER in one.operations}


def get_collective(name: str) -> CollectiveSystem:
    """The system of collectives or sub-layers called `name`. Raises ConfigError with the nearest valid name."""
    systems = all_collectives() | all_tensor_parallel()
    if name not in systems and name in all_systems():
        lists = "`dysharp list collectives`, `dysharp list sub-layers`"
        raise ConfigError(f"system {name!r}: found a system of MoE layers, expected one of collectives or sub-layers ({lists})")
    return entry_of(name, systems, f"system {name!r}: unknown")
