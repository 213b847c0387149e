"""Bytes of rows and weights in the formats that systems send and read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import load_model
from dysharp.systems.building.formats import ROW_BYTES, WEIGHT_BYTES, row_bytes

WIDE = replace(load_model("deepseek-v3"), hidden=7168)


@pytest.mark.parametrize(("name", "size"), [("rows", 14336), ("fp8", 7392), ("fp8-plain", 7168), ("mxfp8", 7392), ("nvfp4", 4032)])
def test_rows(name: str, size: int) -> None:
    assert ROW_BYTES[name](WIDE) == size


def test_an_odd_end_takes_a_whole_scale() -> None:
    odd = replace(WIDE, hidden=33)
    assert [ROW_BYTES[name](odd) for name in ("fp8", "mxfp8", "nvfp4")] == [33 + 4, 33 + 2, 17 + 3]


def test_weights() -> None:
    assert WEIGHT_BYTES == {"model": None, "fp4": 0.53125, "mxfp8": 1.03125, "nvfp4": 0.5625}


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"deepep\.dispatch: found 'fp4', expected rows or fp8"):
        row_bytes("deepep.dispatch", "fp4", ("rows", "fp8"), WIDE)
