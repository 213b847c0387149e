"""Regression values of runs and studies: requests, options, headers, late ranks, leading tokens, draws (`run_values.py`)."""

from __future__ import annotations

from functools import cache

import pytest

from tests.runs.run_values import STORED, all_cases
from tests.value_tables import differences, stored

CASES = all_cases()
table = cache(lambda: stored(STORED))


def test_the_table_has_every_case() -> None:
    assert sorted(table()) == sorted(CASES)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_table(case: str) -> None:
    assert differences(table()[case], CASES[case]()) == []
