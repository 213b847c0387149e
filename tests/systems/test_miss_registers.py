"""Misses of a hub's table under way: an option of every system that asks such a table."""

from __future__ import annotations

import pytest
from layers import TINY, cluster

from dysharp.engine.burst.run import run_burst
from dysharp.figures.origin import origin_of
from dysharp.runs.options import option_choices, options_of
from dysharp.runs.point import Point
from dysharp.systems import all_systems, get_system
from dysharp.workload import make_routing

ROUTING = make_routing("uniform", TINY, 4, 200, seed=1)
FAMILY = ("dysharp", "dysharp-basic", "dysharp-comet", "hub-sharp", "moe-hub")


def planned(name: str, **given):
    system = get_system(name)
    return system.plan(TINY, cluster(4), ROUTING, "fwd", options_of(system, given))


@pytest.mark.parametrize("name", FAMILY)
def test_the_option_is_the_number_of_registers(name: str) -> None:
    """0 takes what the rate needs, a power of two."""
    needed = {table.misses for table in planned(name).tables}
    assert len(needed) == 1
    assert min(needed).bit_count() == 1
    assert {table.misses for table in planned(name, al_misses=48).tables} == {48}


def test_few_registers_slow_a_layer_and_more_than_needed_change_nothing() -> None:
    """Rows of 256 B at full rate: a read of 500 ns serves one row."""
    times = [run_burst(planned("dysharp", al_misses=n, compute=False))[0].done.max() for n in (32, 2048, 4096)]
    assert times[0] > 1.2 * times[1]
    assert times[1] == times[2]


def test_the_choice_becomes_the_option_of_these_systems_only() -> None:
    with_option = {name for name, s in all_systems().items() if "al_misses" in option_choices(s)}
    assert {*FAMILY} <= with_option
    assert not {"explicit", "explicit-basic"} & with_option  # explicit targets ask no table
    points = [Point(name, "S-8", "paper-gh200-nvl32", "uniform") for name in all_systems()]
    changed = {p.system: origin_of(p.system).with_choices(p, {"hub.al_misses": 64}) for p in points}
    assert {name for name, point in changed.items() if point.options == (("al_misses", 64),)} == with_option
    assert not any(point.choices for point in changed.values())
