"""Bytes of 32 values in the formats of fused layers, scales included."""

from __future__ import annotations

import pytest

from dysharp.measured.families.fused_layer import ACT_BYTES, BACK_BYTES, WEIGHT_BYTES


@pytest.mark.parametrize(
    ("table", "name", "n_bytes"),
    [
        (ACT_BYTES, "fp8", 32 + 1),  # OCP MX: an 8-bit scale for 32 values
        (ACT_BYTES, "mxfp8", 32 + 1),
        (ACT_BYTES, "nvfp4", 16 + 2),  # NVFP4: an 8-bit scale for 16 values
        (WEIGHT_BYTES, "fp8", 32),  # scales of blocks of 128 by 128 are left out
        (WEIGHT_BYTES, "fp4", 16 + 1),
        (BACK_BYTES, "rows", 64),  # BF16
    ],
)
def test_bytes_of_32_values(table: dict[str, float], name: str, n_bytes: int) -> None:
    assert 32 * table[name] == n_bytes
