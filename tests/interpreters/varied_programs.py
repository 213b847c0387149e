"""Random Programs of every kind, a few of each, by name: what regression values of interpreters and counters are made of."""

from collections.abc import Callable
from functools import partial

from dysharp.program.tables import Program
from tests.interpreters.random_bulk import crowded_bulk, random_bulk
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_merges import random_merge
from tests.interpreters.random_points import PARTS, random_points
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_shares import random_shares
from tests.interpreters.random_sums import random_sums

SEEDS: dict[Callable[[int], Program], tuple[int, ...]] = {
    random_program: (0, 2, 3, 5, 7),
    random_bulk: (2, 3, 4, 5, 6),
    random_sums: (2, 3, 4),
    random_loads: (1, 2, 4, 5),
    random_merge: (3,),
    random_shares: (1, 2, 3),
    crowded_bulk: (1,),
}


def varied_programs() -> dict[str, Callable[[], Program]]:
    """Name -> what makes the Program."""
    made: dict[str, Callable[[], Program]] = {f"{make.__name__} {seed}": partial(make, seed) for make, seeds in SEEDS.items() for seed in seeds}
    for i, part in enumerate(PARTS):
        made[f"points, {part}"] = partial(random_points, 2 * i + 1)
    return made
