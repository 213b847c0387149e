"""No counter, time or text of the oracle moves unnoticed: regression values on random Programs of every kind."""

from __future__ import annotations

import pytest

from tests.oracle.stored_runs import STORED, rows
from tests.stored_values import check

PARTS = (*(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "crowded", "points", "deadlock")


@pytest.mark.parametrize("part", PARTS)
def test_runs_are_the_stored_ones(part: str) -> None:
    check(STORED, dict(rows(part)), part)
