"""Which Programs get kernels with points besides the ends of ops: they are slower, so no system without gates has them at its defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.engine.blocks.state import Points
from dysharp.engine.burst.lower import lower
from dysharp.specs import load_cluster, load_model
from dysharp.systems import all_systems, get_system
from dysharp.workload import make_routing
from tests.interpreters.random_points import random_points

MODEL = replace(load_model("S-8"), name="small", n_experts=16, topk=4, hidden=2048, expert_hidden=1024)
CLUSTER = load_cluster("paper-dgx-h800").with_gpus(4)
GATED = {"sync-dysharp", "sync-switch"}
"""Copies that wait in the switch for READY leave at a gate's opening, which is no end of an op."""
SYSTEMS = sorted(name for name, system in all_systems().items() if not system.bound)


def points(name: str, **options: object) -> Points | None:
    """Those of a layer of 4 GPUs."""
    system = get_system(name)
    program = system.plan(MODEL, CLUSTER, make_routing("uniform", MODEL, 4, 16), "fwd", system.options(**options))
    return lower(program).ops.points


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_system_has_other_points_at_its_defaults(name: str) -> None:
    options = {"form": "paper"} if get_system(name).has_real_form else {}
    assert (points(name, **options) is not None) == (name in GATED)


def test_announced_totals_are_other_points() -> None:
    assert points("moe-hub", totals="announced") is not None


def test_random_programs_of_other_points_have_them() -> None:
    assert sum(lower(random_points(seed)).ops.points is not None for seed in range(10)) >= 9
