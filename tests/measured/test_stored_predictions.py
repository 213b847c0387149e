"""No prediction of a measurement moves without a new model version: some of every family are stored."""

from __future__ import annotations

import pytest

from dysharp.analysis import MODEL_VERSION
from dysharp.measured.family import all_families
from tests.measured.stored_predictions import STORED, predictions, stored

WITHOUT_ROWS = {"fused-norm"}
"""Families without packaged rows: they judge the rows of a user."""
VERSION, EXPECTED = stored(STORED.read_text())


def test_every_family_is_in_the_file() -> None:
    assert VERSION == MODEL_VERSION, "write it anew: python tests/measured/stored_predictions.py"
    assert {name.partition("/")[0] for name in EXPECTED} == set(all_families()) - WITHOUT_ROWS


@pytest.mark.slow
def test_predictions_are_the_stored_ones() -> None:
    assert predictions() == pytest.approx(EXPECTED, rel=1e-9)
