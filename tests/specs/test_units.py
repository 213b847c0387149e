"""Conversions are exact where the unit is, rounded once where it is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dysharp import units


def test_known_values() -> None:
    assert units.ns_to_ps(250) == 250_000
    assert units.us_to_ps(1.5) == 1_500_000
    assert units.ps_to_us(1_500_000) == 1.5
    assert units.ps_to_ns(35_600) == 35.6
    assert units.GBps_to_bytes_per_us(450) == 450_000
    assert units.TFLOPS_to_flops_per_us(989.5) == 989_500_000
    assert units.GB_to_bytes(141) == 141_000_000_000
    assert units.KiB_to_bytes(64) == 65_536
    assert (units.KiB, units.MiB, units.GiB) == (2**10, 2**20, 2**30)


def test_a_flit_is_rounded_once_per_busy_period() -> None:
    assert units.busy_ps(16, 450_000) == 36
    assert units.busy_ps(16 * 9_000, 450_000) == 320_000  # not 9000 * 36


@given(st.integers(0, 10**12), st.integers(1, 10**7))
def test_busy_time_is_the_ceiling(n_bytes: int, rate: int) -> None:
    ps = units.busy_ps(n_bytes, rate)
    assert ps * rate >= n_bytes * units.PS_PER_US > (ps - 1) * rate or n_bytes == 0 == ps


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_numbers(bad: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number of at least 0"):
        units.ns_to_ps(bad)
