"""Regression values of workloads: routings, placements, traffic, reports, collectives, refusals (`workload_values.py`)."""

from __future__ import annotations

from functools import cache

import pytest

from tests.value_tables import differences, stored
from tests.workload.workload_values import STORED, all_cases

CASES = all_cases()
table = cache(lambda: stored(STORED))


def test_the_table_has_every_case() -> None:
    assert sorted(table()) == sorted(CASES)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_table(case: str) -> None:
    assert differences(table()[case], CASES[case]()) == []
