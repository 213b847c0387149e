"""Conversions are exact where the unit is, rounded once where it is not."""

import math

import pytest

from dysharp.base import units


def test_known_values() -> None:
    assert units.ns_to_ps(250) == 250_000
    assert units.ps_to_us(1_500_000) == 1.5
    assert units.ps_to_ns(35_600) == 35.6
    assert units.GBps_to_bytes_per_us(450) == 450_000
    assert units.TFLOPS_to_flops_per_us(989.5) == 989_500_000
    assert units.memory_to_bytes(80) == round(80 * (1 << 30) * 0.9955)
    assert units.KiB_to_bytes(64) == 65_536
    assert (units.KiB, units.MiB, units.GiB) == (2**10, 2**20, 2**30)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_numbers(bad: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number of at least 0"):
        units.ns_to_ps(bad)
