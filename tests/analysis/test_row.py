"""Phases, exposed communication, utilisation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dysharp.analysis import both_passes
from dysharp.analysis.phases import union_ps
from dysharp.systems import all_systems
from dysharp.testing.conformance.runs import _shares_lie_within_the_run

INTERVAL = st.tuples(st.integers(0, 40), st.integers(0, 10))


@given(st.lists(INTERVAL, max_size=12))
def test_union_is_the_number_of_covered_instants(intervals: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in intervals], np.int64)
    end = start + np.array([n for _, n in intervals], np.int64)
    covered = {t for a, n in intervals for t in range(a, a + n)}
    assert union_ps(start, end) == len(covered)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("system", all_systems())
def test_shares_and_phases_are_within_the_run(finished: Callable[..., Any], system: str, direction: str) -> None:
    assert list(_shares_lie_within_the_run(finished(system, direction=direction))) == []


def test_operators_one_after_the_other_expose_what_is_not_compute(finished: Callable[..., Any]) -> None:
    row = finished("deepep").row
    compute = row.phases_us["gemm1"]["busy"] + row.phases_us["gemm2"]["busy"]
    assert row.exposed_comm_us == pytest.approx(row.time_us - compute, rel=0.05)
    assert finished("ideal").row.exposed_comm_us == 0


def test_pure_communication_is_all_exposed(finished: Callable[..., Any]) -> None:
    row = finished("deepep", compute=False).row
    assert row.utilization["sm"] == 0
    assert row.phases_us["gemm1"] == {"start": 0, "end": 0, "busy": 0}
    assert row.exposed_comm_us == row.time_us


def test_the_same_run_gives_the_same_row(finished: Callable[..., Any]) -> None:
    run = finished("dysharp")
    assert run.row == run.row
    assert run.row.digest == run.trace.digest()


def test_both_passes_add_up(finished: Callable[..., Any]) -> None:
    one, two = (finished("dysharp", "lognormal:0.8", direction).row for direction in ("fwd", "bwd"))
    both = both_passes(one, two)
    assert both.direction == "both"
    assert both.time_us == one.time_us + two.time_us
    assert sum(both.attribution.values()) == pytest.approx(both.time_us)
    assert sum(both.bound_terms.values()) == pytest.approx(both.bound_us) == pytest.approx(one.bound_us + two.bound_us)
    assert both.workload_bound_us == one.workload_bound_us + two.workload_bound_us
    for side in ("up", "down"):
        assert both.traffic_bytes[side] == {op: one.traffic_bytes[side][op] + two.traffic_bytes[side][op] for op in one.traffic_bytes[side]}
    for name, phase in both.phases_us.items():
        assert phase["busy"] == one.phases_us[name]["busy"] + two.phases_us[name]["busy"]
    assert both.phases_us["combine"]["start"] == one.phases_us["combine"]["start"]
    assert both.phases_us["combine"]["end"] == one.time_us + two.phases_us["combine"]["end"]
    assert min(one.utilization["sm"], two.utilization["sm"]) <= both.utilization["sm"] <= max(one.utilization["sm"], two.utilization["sm"])
    assert both.digest not in (one.digest, two.digest)
    assert both.digest != both_passes(two, one).digest


def test_a_phase_that_a_pass_lacks_says_nothing_about_when(finished: Callable[..., Any]) -> None:
    one, two = (finished("deepep", direction=d, compute=False).row for d in ("fwd", "bwd"))
    both = both_passes(one, two)
    assert both.phases_us["gemm1"] == {"start": 0, "end": 0, "busy": 0}
    assert both.bound_resource.startswith("gpu[")


def test_causes_below_a_hundredth_of_the_time_are_not_told(finished: Callable[..., Any]) -> None:
    row = replace(finished("deepep", "uniform").row, time_us=100.0, attribution={"sm_us": 60.0, "link_up_us": 39.5, "host_us": 0.5})
    assert dict(row._facts())["critical path"] == "sm 60.0 us, link_up 39.5 us"
