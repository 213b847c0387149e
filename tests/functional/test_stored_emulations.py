"""Nothing that the functional machine counts or says moves unnoticed: regression values of every system, order of events and fault."""

from __future__ import annotations

import json

import pytest

from tests.functional.stored_emulations import PARTS, STORED, rows
from tests.stored_values import SHOWN, differences


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow) if part in ("layers 1", "layers 2") else part for part in PARTS])
def test_emulations_are_the_stored_ones(part: str) -> None:
    found, stored = dict(rows(part)), json.loads(STORED.read_text())
    lines = differences(found, {name: stored[name] for name in found if name in stored})
    assert not lines, "\n".join(lines[:SHOWN])
