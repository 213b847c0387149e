"""Formats in which systems send rows and read weights: bytes with the scales that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dysharp.errors import ConfigError
from dysharp.specs import Model

MX_BLOCK = 32  # values that share an 8-bit scale (OCP MX)
NV_BLOCK = 16  # values that share an 8-bit scale in NVFP4
FP8_BLOCK = 128  # values that share an FP32 scale (DeepSeek-V3, arXiv 2412.19437 section 3.3.2)
WEIGHT_BYTES: Mapping[str, float | None] = {"model": None, "fp4": 0.5 + 1 / MX_BLOCK, "mxfp8": 1 + 1 / MX_BLOCK, "nvfp4": 0.5 + 1 / NV_BLOCK}
"""Of one weight with its part of a scale; None: those of the GEMMs' type."""
ROW_BYTES: Mapping[str, Callable[[Model], int]] = {
    "rows": lambda model: model.row_bytes,
    "fp8": lambda model: model.hidden + 4 * -(-model.hidden // FP8_BLOCK),
    "fp8-plain": lambda model: model.hidden,
    "mxfp8": lambda model: model.hidden + -(-model.hidden // MX_BLOCK),
    "nvfp4": lambda model: -(-model.hidden // 2) + -(-model.hidden // NV_BLOCK),
}
"""Of one token: the model's own rows, FP8 with FP32 scales, FP8 without, FP8 and FP4 with 8-bit scales."""


def row_bytes(option: str, found: str, known: Iterable[str], model: Model) -> int:
    """Bytes of a row in format `found`, the value of `option` ("deepep.dispatch"). Raises `ConfigError` unless it is one of `known`."""
    check(option, found, known)
    return ROW_BYTES[found](model)


def check(option: str, found: str, known: Iterable[str]) -> None:
    """Raises `ConfigError` unless `found`, the value of `option`, is one of `known`."""
    names = tuple(known)
    if found not in names:
        expected = " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
        raise ConfigError(f"{option}: found {found!r}, expected {expected}")
