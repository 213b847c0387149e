"""Bounds are at or below every time, and are made of what they say."""

from collections.abc import Callable
from typing import Any

import pytest

from dysharp.systems import all_systems
from dysharp.testing.conformance.runs import _bound_adds_up, _time_above_bounds

WITH_COMPUTE = ("deepep", "dysharp", "dysharp-basic", "dysharp-comet", "explicit", "nvls", "fusion-only")


@pytest.mark.parametrize("routing", ["uniform", "lognormal:0.8", "dropped", "one GPU"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("system", all_systems())
def test_no_time_is_below_a_bound(finished: Callable[..., Any], system: str, routing: str, direction: str) -> None:
    assert list(_time_above_bounds(finished(system, routing, direction))) == []


@pytest.mark.parametrize("system", WITH_COMPUTE)
def test_no_time_of_pure_communication_is_below_a_bound(finished: Callable[..., Any], system: str) -> None:
    row = finished(system, "lognormal:0.8", compute=False).row
    assert row.bound_resource.rpartition(".")[2] in ("up", "down")
    assert row.bound_us <= row.time_us
    assert row.workload_bound_us <= row.time_us


@pytest.mark.parametrize("system", all_systems())
def test_every_summand_counts(finished: Callable[..., Any], system: str) -> None:
    assert list(_bound_adds_up(finished(system))) == []


def test_link_bound_is_the_wire_time_of_one_direction(finished: Callable[..., Any]) -> None:
    run = finished("dysharp", "lognormal:0.8", compute=False)
    node, side = run.row.bound_resource.removeprefix("gpu[").split("].")
    sent = run.trace.up_busy if side == "up" else run.trace.down_busy
    assert sent[int(node)] == sent.max()
    terms = run.row.bound_terms
    assert {"payload", "headers", "requests", "acks", "notifications"} <= set(terms)
    latency = sum(us for name, us in terms.items() if name.endswith("latency"))
    assert run.row.bound_us - latency == pytest.approx(sent.max() / run.program.hardware.rate)


def test_memory_bound_of_ideal(finished: Callable[..., Any]) -> None:
    row = finished("ideal").row
    """The tiny layer streams weights: four experts of a GPU have three matrices of 1000 x 256 bytes, and 160 or more rows add less than a third."""
    run = finished("ideal")
    row, weights = run.row, 4 * 3 * 1000 * 256
    assert row.bound_resource.endswith(".memory")
    assert 1 < row.bound_terms["memory"] * run.program.hardware.memory_rate / weights < 4 / 3
