"""Phases, exposed communication, utilisation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dysharp.analysis.intervals import union_ps
from dysharp.systems import all_systems

INTERVAL = st.tuples(st.integers(0, 40), st.integers(0, 10))


@given(st.lists(INTERVAL, max_size=12))
def test_union_is_the_number_of_covered_instants(intervals: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in intervals], np.int64)
    end = start + np.array([n for _, n in intervals], np.int64)
    covered = {t for a, n in intervals for t in range(a, a + n)}
    assert union_ps(start, end) == len(covered)


@pytest.mark.parametrize("system", all_systems())
def test_shares_and_phases_are_within_the_run(finished: Callable[..., Any], system: str) -> None:
    row = finished(system).row
    assert all(0 <= share <= 1 for share in row.utilization.values())
    for phase in row.phases_us.values():
        assert 0 <= phase["busy"] <= phase["end"] - phase["start"] + 1e-9
        assert phase["end"] <= row.time_us
    assert 0 <= row.exposed_comm_us <= row.time_us
    assert max(phase["end"] for phase in row.phases_us.values()) == row.time_us
    assert all(0 <= us <= row.time_us for us in row.stalls.values())


def test_operators_one_after_the_other_expose_what_is_not_compute(finished: Callable[..., Any]) -> None:
    row = finished("deepep").row
    compute = row.phases_us["gemm1"]["busy"] + row.phases_us["gemm2"]["busy"]
    assert row.exposed_comm_us == pytest.approx(row.time_us - compute, rel=0.05)
    assert finished("ideal").row.exposed_comm_us == 0


def test_pure_communication_is_all_exposed(finished: Callable[..., Any]) -> None:
    row = finished("deepep", compute=False).row
    assert row.utilization["sm"] == 0
    assert row.phases_us["gemm1"] == {"start": 0, "end": 0, "busy": 0}
    assert row.exposed_comm_us == pytest.approx(row.time_us, rel=0.2)


def test_the_same_run_gives_the_same_row(finished: Callable[..., Any]) -> None:
    run = finished("dysharp")
    assert run.row == run.row
    assert run.row.digest == run.trace.digest()
