"""Formats in which systems send rows and read weights, with the bytes of their scales."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dysharp.errors import ConfigError
from dysharp.specs import Model

MX_BLOCK = 32  # values that share an 8-bit scale (OCP MX)
NV_BLOCK = 16  # values that share an 8-bit scale in NVFP4
FP8_BLOCK = 128  # values that share an FP32 scale (DeepSeek-V3, arXiv 2412.19437 section 3.3.2)
WEIGHT_BYTES: Mapping[str, float | None] = {"model": None, "fp4": 0.5 + 1 / MX_BLOCK, "mxfp8": 1 + 1 / MX_BLOCK, "nvfp4": 0.5 + 1 / NV_BLOCK}
"""Format of weights -> bytes of one weight and its share of a scale. None: bytes of the GEMM type."""
ROW_BYTES: Mapping[str, Callable[[Model], int]] = {
    "rows": lambda model: model.row_bytes,
    "fp8": lambda model: model.hidden + 4 * -(-model.hidden // FP8_BLOCK),
    "fp8-plain": lambda model: model.hidden,
    "mxfp8": lambda model: model.hidden + -(-model.hidden // MX_BLOCK),
    "nvfp4": lambda model: -(-model.hidden // 2) + -(-model.hidden // NV_BLOCK),
}
"""Format of rows -> bytes of one token row.

| format | content of a row |
|---|---|
| rows | the model's own type |
| fp8 | FP8 values, an FP32 scale per 128 |
| fp8-plain | FP8 values, no scales |
| mxfp8 | FP8 values, an 8-bit scale per 32 |
| nvfp4 | FP4 values, an 8-bit scale per 16 |
"""
ROWS_OR_FP8 = ("rows", "fp8")
"""Row formats of DeepEP and of the other kernels in its repository."""


def row_bytes(option: str, word: str, known: Iterable[str], model: Model) -> int:
    """Bytes of a row in the format `word`, the value of `option` (such as "deepep.dispatch").

    Raises ConfigError unless `known` has `word`.
    """
    check(option, word, known)
    return ROW_BYTES[word](model)


def check(option: str, word: str, known: Iterable[str]) -> None:
    """Raises ConfigError unless `known` has `word`, the value of `option`."""
    names = tuple(known)
    if word not in names:
        expected = " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
        raise ConfigError(f"{option}: found {word!r}, expected {expected}")
