"""Units. Time is int64 picoseconds, sizes are int64 bytes, rates are int64 bytes (or FLOP) per microsecond.

GB and GB/s are decimal (1e9). KiB, MiB and GiB are binary. A conversion to an integer rounds to the nearest one.
It raises `ValueError` for a negative, infinite or not-a-number input.
"""

import math

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
PS_PER_NS = 1_000
PS_PER_US = 1_000_000


def _rounded(value: float) -> int:
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"found {value}, expected a finite number of at least 0")
    return round(value)


def ns_to_ps(ns: float) -> int:
    """Nanoseconds to picoseconds."""
    return _rounded(ns * PS_PER_NS)


def us_to_ps(us: float) -> int:
    """Microseconds to picoseconds."""
    return _rounded(us * PS_PER_US)


def ps_to_ns(ps: int) -> float:
    """Picoseconds to nanoseconds, for Rows and plots only."""
    return ps / PS_PER_NS


def ps_to_us(ps: int) -> float:
    """Picoseconds to microseconds, for Rows and plots only."""
    return ps / PS_PER_US


def GBps_to_bytes_per_us(gb_per_s: float) -> int:
    """GB/s (decimal) to bytes per microsecond: 1 GB/s = 1000."""
    return _rounded(gb_per_s * 1_000)


def TFLOPS_to_flops_per_us(tflops: float) -> int:
    """TFLOP/s to FLOP per microsecond: 1 TFLOP/s = 1e6."""
    return _rounded(tflops * 1_000_000)


USABLE = 0.9955
"""Part of a GPU's memory that programs see: nvidia-smi prints 81,559 MiB for 80 (H100), 143,771 for 141 (H200), 183,359 for 180 (B200)."""


def memory_to_bytes(gb: float) -> int:
    """Bytes that programs see of a GPU's memory of `gb` "GB": datasheets call GiB so."""
    return _rounded(gb * GiB * USABLE)


def KiB_to_bytes(kib: float) -> int:
    """Kibibytes to bytes."""
    return _rounded(kib * KiB)
