"""Statistics of relative errors, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.predictions import errors_of


def test_statistics_by_hand():
    errors = errors_of(np.array([110.0, 80.0, 100.0, 150.0]), np.full(4, 100.0))
    assert errors.n == 4
    assert errors.mape == pytest.approx(20.0)
    assert errors.median_ape == pytest.approx(15.0)
    assert errors.bias == pytest.approx(5.0)
    assert errors.p90_ape == pytest.approx(20 + 0.7 * 30)
