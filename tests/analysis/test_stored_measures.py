"""Nothing that is counted from a run moves unnoticed: regression values on random Programs, and of bounds and loads of unequal sizes."""

from __future__ import annotations

import pytest

from tests.analysis.stored_measures import STORED, rows
from tests.stored_values import check

PARTS = (*(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "points", "workload", "row")


@pytest.mark.parametrize("part", PARTS)
def test_measures_are_the_stored_ones(part: str) -> None:
    check(STORED, dict(rows(part)), part)
