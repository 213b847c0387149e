"""The model of the block `format-converter` converts as the functional machine does, and its arithmetic as ml_dtypes."""

from random import Random

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("amaranth")

from dysharp.functional.wire import MX_BLOCK, from_mxfp8, through, to_mxfp8
from dysharp.silicon.rtl.format_converter import MOST, ConverterParameters, _ConverterModel, steps_of


@pytest.mark.parametrize("spread", [0, 3, 30])
def test_the_block_converts_as_the_functional_machine_does(spread: int) -> None:
    rng = np.random.default_rng(spread)
    sums = (rng.standard_normal(MX_BLOCK) * np.exp2(rng.integers(-spread, spread + 1, MX_BLOCK))).astype(np.float32)
    sums[::9] = 0
    block = _ConverterModel(ConverterParameters(), Random(0))
    block.take({"narrow": 1, "sums": int.from_bytes(sums.tobytes(), "little")})
    payload = to_mxfp8(through("mxfp8", sums[None])[0])
    assert block.out["out_codes"].to_bytes(MX_BLOCK, "little") + bytes([block.out["out_scale"]]) == payload
    block.take({"narrow": 0, "codes": block.out["out_codes"], "scale": block.out["out_scale"]})
    assert np.array_equal(np.frombuffer(block.out["out_sums"].to_bytes(4 * MX_BLOCK, "little"), np.float32), from_mxfp8(payload))


def test_codes_are_those_of_e4m3() -> None:
    values = np.arange(MOST + 1, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert [steps_of(code) / 512 for code in range(MOST + 1)] == values.tolist()
