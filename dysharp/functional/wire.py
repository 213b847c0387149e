"""Rows as a receiver reads them that went out in a format of `systems.building.formats.ROW_FORMATS`.

```python
>>> import numpy as np
>>> through("fp8-plain", np.array([[1.0, 1.07, 500.0]])).tolist()
[[1.0, 1.125, 448.0]]

```
"""

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from dysharp.base import Array, EmulationMismatch, f64
from dysharp.functional.numbers import Number
from dysharp.systems.building.formats import FP8_BLOCK, MX_BLOCK, NV_BLOCK

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3_MOST, E2M1_MOST, INT8_MOST = float(np.uint8(0x7E).view(ml_dtypes.float8_e4m3fn)), E2M1[-1], np.iinfo(np.int8).max
"""Largest values of the formats."""
UE8M0_BIAS = 127
CAST_ERROR = 1 - E4M3_MOST / 512
"""A value in MXFP8 is at most this far off, over the largest of its block: values above 448 scales are cut down from below 512."""


def _clipped(x: Array) -> Array:
    return np.asarray(np.clip(x, -E4M3_MOST, E4M3_MOST).astype(ml_dtypes.float8_e4m3fn))


def _e4m3(x: Array) -> Array:
    return _clipped(x).astype(np.float64)


def _e2m1(x: Array) -> Array:
    """To the nearest value of E2M1, ties to the even code."""
    size = np.minimum(np.abs(x), E2M1_MOST)
    above = np.clip(np.searchsorted(E2M1, size), 1, len(E2M1) - 1)
    low, high = size - E2M1[above - 1], E2M1[above] - size
    return np.asarray(np.sign(x) * E2M1[above - ((low < high) | ((low == high) & (above % 2 == 1)))])


def _scaled(x: Array, block: int, scale: Callable[[Array], Array], cast: Callable[[Array], Array]) -> Array:
    """`x` in blocks along a row, each over the scale of its largest size, cast and scaled back."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), -1, block)
    largest = np.abs(padded).max(axis=2, keepdims=True)
    by = scale(np.where(largest > 0, largest, 1.0))
    return np.asarray((cast(padded / by) * by).reshape(len(x), -1)[:, : x.shape[1]])


def _ue8m0(largest: Array) -> Array:
    """MXFP8's scale of a block by its largest size: the power of two that brings it to E4M3's largest exponent."""
    return np.asarray(np.exp2(np.clip(np.floor(np.log2(largest)) - np.floor(np.log2(E4M3_MOST)), -UE8M0_BIAS, UE8M0_BIAS)))


def _nvfp4(x: Array) -> Array:
    """An E4M3 scale per block, and an FP32 scale per row that brings those into range."""
    row = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / (E2M1_MOST * E4M3_MOST)
    tiny = 2.0**-9  # the smallest scale, so that a block of zeros divides by something
    return np.asarray(row * _scaled(x / row, NV_BLOCK, lambda a: np.maximum(_e4m3(a / E2M1_MOST), tiny), _e2m1))


_FORMATS: Mapping[str, Callable[[Array], Array]] = {
    "fp8": lambda x: _scaled(x, FP8_BLOCK, lambda a: (a / E4M3_MOST).astype(np.float32).astype(np.float64), _e4m3),
    "fp8-ue8m0": lambda x: _scaled(x, FP8_BLOCK, lambda a: np.exp2(np.ceil(np.log2(a / E4M3_MOST))), _e4m3),
    "fp8-plain": _e4m3,
    "mxfp8": lambda x: _scaled(x, MX_BLOCK, _ue8m0, _e4m3),
    "int8": lambda x: _scaled(x, x.shape[1], lambda a: a / INT8_MOST, lambda v: np.clip(np.rint(v), -INT8_MOST, INT8_MOST)),
    "fp4-plain": _e2m1,
    "nvfp4": _nvfp4,
}


def through(word: str, x: Array) -> Array:
    """`x` `[tokens, hidden]` float, as it is read behind a way in the format `word`, as float64. "rows" changes nothing."""
    return f64(_FORMATS[word](x.astype(np.float64)) if word in _FORMATS else x)


def rounded(number: Number, word: str, total: Array) -> Array:
    """A sum `[width]` in the work dtype, as it is stored; `word`: behind a way as a packet of this format ("" = none; integers have none).

    Raises EmulationMismatch for a value to convert that is not finite.
    """
    if not word or number.is_integer:
        return number.store(total)
    if not np.isfinite(total).all():
        raise EmulationMismatch(f"conversion to {word}: found {total[~np.isfinite(total)][0]}, expected finite sums")
    return number.store(through(word, total[None])[0])


def to_mxfp8(x: Array) -> bytes:
    """`[n]` values as a payload of MXFP8: a code of E4M3 each, then a scale of UE8M0 per 32 values."""
    largest = np.abs(np.pad(x.astype(np.float64), (0, -len(x) % MX_BLOCK)).reshape(-1, MX_BLOCK)).max(axis=1)
    scale = _ue8m0(np.where(largest > 0, largest, 1.0))
    codes = _clipped(x / np.repeat(scale, MX_BLOCK)[: len(x)])
    return codes.tobytes() + (np.log2(scale) + UE8M0_BIAS).astype(np.uint8).tobytes()


def from_mxfp8(data: bytes) -> Array:
    """`[n]` float64 values of a payload of `to_mxfp8`."""
    n = len(data) * MX_BLOCK // (MX_BLOCK + 1)
    scales = np.frombuffer(data, np.uint8, offset=n).astype(np.float64) - UE8M0_BIAS
    codes = np.frombuffer(data, ml_dtypes.float8_e4m3fn, n)
    return np.asarray(codes.astype(np.float64) * np.repeat(np.exp2(scales), MX_BLOCK)[:n])
