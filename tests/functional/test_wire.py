"""Formats on the wire: bytes of the table in docs/papers' source, values by hand, and errors that a format may have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import dysharp
from dysharp.functional.wire import E2M1, through
from dysharp.specs import load_model
from dysharp.systems.building.formats import ROW_BYTES

ROWS = np.random.default_rng(7).standard_normal((40, 300))


def test_bytes_of_a_row_of_7168() -> None:
    wide = {word: nbytes(load_model("deepseek-v3")) for word, nbytes in ROW_BYTES.items()}
    assert {k: wide[k] for k in ("fp8", "fp8-ue8m0", "fp8-plain", "nvfp4", "int8")} == {
        "fp8": 7392, "fp8-ue8m0": 7224, "fp8-plain": 7168, "nvfp4": 4032, "int8": 7172,
    }  # fmt: skip


def test_e2m1_is_rounded_to_nearest_even() -> None:
    given = np.linspace(-7, 7, 2801)
    wanted = given.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) if hasattr(ml_dtypes, "float4_e2m1fn") else None
    found = through("fp4-plain", given[None])[0]
    assert set(np.abs(found)) == set(E2M1)
    assert wanted is None or (found == wanted).all()


@pytest.mark.parametrize(
    ("word", "least", "most"), [("fp8", 0.02, 0.03), ("fp8-ue8m0", 0.02, 0.03), ("mxfp8", 0.02, 0.04), ("nvfp4", 0.07, 0.11), ("int8", 0.004, 0.01)]
)
def test_error_of_rows_and_of_zeros(word: str, least: float, most: float) -> None:
    error = np.sqrt(np.mean((through(word, ROWS) - ROWS) ** 2) / np.mean(ROWS**2))
    assert least < error < most
    assert not through(word, np.zeros((2, 300))).any()
    if word == "mxfp8":  # its scales are powers of two
        assert np.array_equal(through(word, 4 * ROWS), 4 * through(word, ROWS))


def test_emulation_says_the_error_of_the_output_and_keeps_the_bits() -> None:
    asked = {"block": "gated", "dtype": "bfloat16", "path": "row", "hidden": 256}
    errors = []
    for word in ("rows", "fp8", "nvfp4"):
        done = dysharp.emulate("dysharp", **asked, options={"dysharp.dispatch": word})
        assert (done.holds, done.rows) == (True, "" if word == "rows" else word)
        assert (f"{done.rows_error:.2%}" in str(done)) == (word != "rows")
        errors.append(done.rows_error)
    assert 0 < errors[0] < 0.006 < errors[1] < 0.06 < errors[2] < 0.2
