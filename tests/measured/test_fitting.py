"""Bounded robust least squares."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.fitting import LEAST_SPREAD, Free, fit, spread_of, standard_errors


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


def test_standard_errors_grow_where_two_constants_move_rows_alike() -> None:
    """One constant per row: its error is the spread. Two that move all rows alike: each is unknown, their product is not."""
    apart = standard_errors(np.eye(2), 0.03)
    assert apart == pytest.approx([0.03, 0.03], rel=1e-6)
    alike = standard_errors(np.array([[1.0, 1.0], [1.0, 1.001], [1.0, 1.0]]), 0.03)
    assert (alike > 20).all()
    assert standard_errors(np.ones((3, 1)), 0.03) == pytest.approx([0.03 / np.sqrt(3)], rel=1e-6)
    assert standard_errors(np.zeros((3, 1)), 0.03)[0] > 100  # no row depends on it


def test_the_spread_of_residuals_is_around_their_median() -> None:
    assert spread_of(np.array([1.0, 1.0, 1.0, 9.0])) == LEAST_SPREAD
    assert spread_of(np.array([0.9, 1.0, 1.1])) == pytest.approx(0.14826)
