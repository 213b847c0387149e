"""Every value of every table of regression values is as it was written (`value_tables.py`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.planning import plan_values
from tests.runs import run_values
from tests.steps import step_values
from tests.value_tables import differences, stored
from tests.workload import workload_values

CASES = {module.STORED: module.all_cases() for module in (plan_values, run_values, step_values, workload_values)}
read = cache(stored)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.partition(".")[0])
def test_a_table_has_every_case(path: Path) -> None:
    assert sorted(read(path)) == sorted(CASES[path])


@pytest.mark.parametrize(
    ("path", "case"), [(path, case) for path, cases in CASES.items() for case in cases], ids=lambda one: getattr(one, "stem", one)
)
def test_values_are_those_of_the_table(path: Path, case: str) -> None:
    assert differences(read(path)[case], CASES[path][case]()) == []


def test_a_difference_names_its_place() -> None:
    before = {"a": ["1", "x", "0"], "gone": []}
    assert differences(before, [("a", (1 + 1e-7, "x", 1e-12)), ("gone", ())]) == []
    wrong = differences(before, [("a", (1.1, "y")), ("new", ())])
    places = ["a, value 0: stored 1, found 1.1", "a, value 1: stored x, found y"]
    assert wrong == ["gone: stored only", "new: found only", "a: stored 3 values, found 2", *places]
