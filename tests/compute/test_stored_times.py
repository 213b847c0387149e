"""No closed form moves unnoticed: regression values over GPUs, kinds, and sizes on both sides of every limit."""

from __future__ import annotations

import pytest

from tests.compute.stored_times import STORED, rows
from tests.stored_values import check

PARTS = ("operators", "attention", "linear attention", "collectives", "kernels", "experts", "transfers", "tiles", "tasks")


@pytest.mark.parametrize("part", PARTS)
def test_closed_forms_are_the_stored_ones(part: str) -> None:
    check(STORED, dict(rows(part)), part)
