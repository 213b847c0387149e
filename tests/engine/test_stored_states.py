"""No array with which an engine begins moves unnoticed: regression values of lowered Programs and of networks."""

from __future__ import annotations

import pytest

from tests.engine.stored_states import STORED, rows
from tests.stored_values import check

KINDS = (*(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "crowded", "points")


@pytest.mark.parametrize("part", [*(f"burst, {kind}" for kind in KINDS), "packet", "flit"])
def test_states_are_the_stored_ones(part: str) -> None:
    check(STORED, dict(rows(part)), part)
