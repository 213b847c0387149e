"""Formats in which systems send rows and read weights: printed names, and bytes with scales."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from dysharp.base import ConfigError
from dysharp.isa.framing import AS_IS, Cast
from dysharp.specs import Model

Entry = TypeVar("Entry")
MX_BLOCK = 32  # values that share an 8-bit scale (OCP MX)
NV_BLOCK = 16  # values that share an 8-bit scale in NVFP4
FP8_BLOCK = 128  # values that share an FP32 scale (DeepSeek-V3, arXiv 2412.19437 section 3.3.2)


class _RowFormat(NamedTuple):
    """A format of token rows.

    printed  its name in printed text; "" = the model's own type
    is_fp8   True: rows arrive as FP8 values, so FP8 GEMMs need no cast
    nbytes   bytes of one row, scales included, of a model
    """

    printed: str
    is_fp8: bool
    nbytes: Callable[[Model], int]


class _ExpertFormat(NamedTuple):
    """A format of expert weights.

    printed  its name in printed text; "" = the type of the model's GEMMs
    nbytes   bytes of one weight and its share of a scale; None = bytes of the GEMM type
    """

    printed: str
    nbytes: float | None


ROW_FORMATS: Mapping[str, _RowFormat] = {
    "rows": _RowFormat("", False, lambda model: model.row_bytes),
    "fp8": _RowFormat("FP8", True, lambda model: model.hidden + 4 * -(-model.hidden // FP8_BLOCK)),
    "fp8-ue8m0": _RowFormat("FP8 with UE8M0 scales", True, lambda model: model.hidden + -(-model.hidden // FP8_BLOCK)),
    "fp8-plain": _RowFormat("FP8 without scales", True, lambda model: model.hidden),
    "mxfp8": _RowFormat("MXFP8", True, lambda model: model.hidden + -(-model.hidden // MX_BLOCK)),
    "int8": _RowFormat("INT8", False, lambda model: model.hidden + 4),
    "fp4-plain": _RowFormat("FP4 without scales", False, lambda model: -(-model.hidden // 2)),
    "nvfp4": _RowFormat("NVFP4", False, lambda model: -(-model.hidden // 2) + -(-model.hidden // NV_BLOCK)),
}
"""Values of the options `dispatch` and `combine` of every system.

| format | content of a row |
|---|---|
| rows | the model's own type |
| fp8 | FP8 values, an FP32 scale per 128 |
| fp8-ue8m0 | FP8 values, an 8-bit power of two per 128 |
| fp8-plain | FP8 values, no scales |
| mxfp8 | FP8 values, an 8-bit scale per 32 |
| int8 | INT8 values, an FP32 scale |
| fp4-plain | FP4 values, no scales |
| nvfp4 | FP4 values, an FP8 scale per 16 (an FP32 scale of the row is not counted) |
"""
WEIGHT_FORMATS: Mapping[str, _ExpertFormat] = {
    "model": _ExpertFormat("", None),
    "fp4": _ExpertFormat("FP4", 0.5 + 1 / MX_BLOCK),
    "mxfp8": _ExpertFormat("MXFP8", 1 + 1 / MX_BLOCK),
    "nvfp4": _ExpertFormat("NVFP4", 0.5 + 1 / NV_BLOCK),
}
"""Values of the option `weights` of every system."""
SIDES: Mapping[str, str] = {"one": "one-sided", "two": "two-sided"}
"""Values of the option `sides` of every system -> printed name."""
ROW_BYTES = {word: row_format.nbytes for word, row_format in ROW_FORMATS.items()}
"""Format of rows -> bytes of one row of a model."""
WEIGHT_BYTES = {word: weight_format.nbytes for word, weight_format in WEIGHT_FORMATS.items()}
"""Format of weights -> bytes of one weight; None = bytes of the GEMM type."""
ROWS_OR_FP8 = ("rows", "fp8")
"""Row formats of DeepEP and of the other kernels in its repository."""


def packet_in(word: str, model: Model, packet_bytes: int) -> Cast:
    """A full packet of the model's rows, `packet_bytes` long, converted by itself into the format `word`. "rows": as it is."""
    return AS_IS if word == "rows" else Cast(word, ROW_BYTES[word](replace(model, hidden=packet_bytes // model.element_bytes)))


def row_bytes(option: str, word: str, known: Iterable[str], model: Model) -> int:
    """Bytes of a row in the format `word`, the value of `option` (such as "deepep.dispatch").

    Raises ConfigError unless `known` has `word`.
    """
    check(option, word, known)
    return ROW_BYTES[word](model)


def format_of(option: str, word: str, known: Mapping[str, Entry]) -> Entry:
    """The entry of `known` for `word`, the value of `option` (such as "deepep.dispatch").

    Raises ConfigError unless `known` has `word`.
    """
    check(option, word, known)
    return known[word]


def check(option: str, word: str, known: Iterable[str]) -> None:
    """Raises ConfigError unless `known` has `word`, the value of `option`."""
    names = tuple(known)
    if word not in names:
        expected = " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
        raise ConfigError(f"{option}: found {word!r}, expected {expected}")
