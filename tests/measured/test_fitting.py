"""Bounded robust least squares."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.fitting import Free, fit


def test_fit_recovers_constants_and_shrugs_off_an_outlier():
    x = np.linspace(1, 100, 60)
    true = 5.0 + x / 3.0
    true[7] *= 10
    found = fit([Free("a", 1.0, 0.1, 50.0), Free("r", 1.0, 0.1, 50.0)], {}, lambda v: v["a"] + x / v["r"], true)
    assert found["a"] == pytest.approx(5.0, rel=0.02)
    assert found["r"] == pytest.approx(3.0, rel=0.02)


def test_fit_stays_inside_its_bounds():
    x = np.linspace(1, 10, 20)
    assert fit([Free("r", 1.0, 0.5, 2.0)], {}, lambda v: x / v["r"], x / 9)["r"] == pytest.approx(2.0)
