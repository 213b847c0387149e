"""Regression values: tables of errors, bars, error bars, fits, and what runs of serving and training say."""

from __future__ import annotations

import pytest

from tests.measured.checksums import CLOSE, changed, read
from tests.measured.judgements import FILE, PARTS, table

STORED = read(FILE)
FITS = ("fits", "refits", "held out", "nodes", "beyond", "clusters")
"""Where a search ends depends on the last digits."""


@pytest.mark.parametrize("part", list(PARTS))
def test_judgements_are_the_stored_ones(part: str) -> None:
    stored = {name: value for name, value in STORED.items() if name.startswith(f"{part}: ")}
    found = changed(table(part), stored, 1e-5 if part in FITS else CLOSE)
    assert found == [], "python tests/measured/write_tables.py writes the table anew"
