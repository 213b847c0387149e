"""Regression values: steps, loops and searches of replicas that differ in everything."""

from __future__ import annotations

import pytest

from tests.measured.checksums import changed, read
from tests.serving.serve_values import FILE, PARTS, table

STORED = read(FILE)


@pytest.mark.parametrize("part", list(PARTS))
def test_serving_values_are_the_stored_ones(part: str) -> None:
    stored = {name: value for name, value in STORED.items() if name.startswith(f"{part}: ")}
    assert changed(table(part), stored) == [], "python tests/serving/serve_values.py writes the table anew"
