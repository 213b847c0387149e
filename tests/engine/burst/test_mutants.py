"""Comparing engine and oracle on random Programs notices every mutant, and passes the engine itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from dysharp.base.errors import DysharpError
from dysharp.engine.burst.run import run_burst
from tests.interpreters.mutants import (
    BULK_MUTANTS,
    LOAD_MUTANTS,
    MUTANTS,
    POINT_MUTANTS,
    SHARE_MUTANTS,
    SUM_MUTANTS,
    Mutant,
    caught,
    difference,
    engine,
)
from tests.interpreters.random_loads import random_loads
from tests.interpreters.random_points import random_points
from tests.interpreters.random_programs import random_program
from tests.interpreters.random_sums import random_sums

SEEDS = range(400)
CANCELLED = partial(random_points, parts=("cancelled",))


def test_plain_engine_is_the_engine():
    plain = engine()
    for seed in range(30):
        program = random_program(seed)
        compiled = run_burst(program)[0]
        assert difference(plain, program, compiled) is None
        assert plain.run(program).n_events == compiled.n_events


def test_unchanged_engine_is_not_caught():
    harmless = Mutant("harmless", "engine.blocks.link", "if end < until:", "if until > end:")
    assert caught(harmless, range(12)) is None


def _third(mutants: tuple[Mutant, ...], late: tuple[str, ...] = ()) -> list[object]:
    """Every third mutant is quick, but for those told by a late Program only: the gate asks all."""
    return [pytest.param(m, marks=pytest.mark.slow) if i % 3 or m.name in late else m for i, m in enumerate(mutants)]


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", _third(MUTANTS), ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_caught(mutant):
    found = caught(mutant, SEEDS)
    assert found, f"no Program of {len(SEEDS)} told {mutant.name!r} from the oracle"
    print(f"{mutant.name}: seed {found[0]}, {found[1]}")


LATE = ("cancelled ops take nothing", "nobody takes the place of a cancelled op", "one announcement is enough")
"""Told by a late Program only, so slow."""


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", _third(POINT_MUTANTS, LATE), ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_at_other_points_is_caught(mutant):
    found = caught(mutant, range(300), random_points) or caught(mutant, range(100), CANCELLED)
    assert found, f"no Program of 400 told {mutant.name!r} from the oracle"
    print(f"{mutant.name}: seed {found[0]}, {found[1]}")


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", _third(SUM_MUTANTS), ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_sums_is_caught(mutant):
    found = caught(mutant, range(300), random_sums)
    assert found, f"no Program of 300 told {mutant.name!r} from the oracle"
    print(f"{mutant.name}: seed {found[0]}, {found[1]}")


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", _third(LOAD_MUTANTS, ("timeout one instant early",)), ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_loads_is_caught(mutant):
    found = caught(mutant, range(300), random_loads)
    assert found, f"no Program of 300 told {mutant.name!r} from the oracle"
    print(f"{mutant.name}: seed {found[0]}, {found[1]}")


def test_mutants_are_many_and_distinct():
    assert len(MUTANTS) >= 20
    mutants = (*MUTANTS, *POINT_MUTANTS, *SUM_MUTANTS, *LOAD_MUTANTS, *BULK_MUTANTS, *SHARE_MUTANTS)
    assert len({m.name for m in mutants}) == len({(m.module, m.old, m.new) for m in mutants}) == len(mutants)


def test_stale_mutant_fails_loudly():
    stale = replace(MUTANTS[0], old="no such text")
    with pytest.raises(DysharpError, match=r"found 0 times 'no such text', expected once in engine\.blocks\.link"):
        caught(stale, SEEDS)
    vague = replace(MUTANTS[0], old="nodes")
    with pytest.raises(DysharpError, match=r"found \d\d times 'nodes', expected once in engine.blocks.link"):
        caught(vague, SEEDS)


def test_endless_loop_is_caught():
    endless = Mutant("endless", "engine.blocks.heap", "i = parent\n", "i = size\n")
    found = caught(endless, range(10))
    assert found
    assert found[1] == "never ends"
