"""Data types of `config_json`."""

from __future__ import annotations

import pytest

from dysharp.measured.family import classify
from tests.measured.csv_lines import GEMM, line, read


@pytest.mark.parametrize(
    ("dtype", "same"),
    [("bf16", "bf16"), ("bfloat16", "bf16"), ("float16", "bf16"), ("int4_wo", "bf16"), ("fp8_block", "fp8"), ("float8_e4m3fn", "fp8")],
)
def test_data_types_that_are_known(dtype: str, same: str) -> None:
    (parsed,) = classify(read(line(config=GEMM | {"dtype": dtype}))).parsed
    assert parsed.case.dtypes == (same,)


@pytest.mark.parametrize("dtype", ["int8", "fp32", "tf32", "int3", "fp80", 8])
@pytest.mark.parametrize("kind", ["gemm_dense", "grouped_gemm_masked"])
def test_data_types_that_are_not_known(dtype: object, kind: str) -> None:
    (missing,) = classify(read(line(kind=kind, config=GEMM | {"m_per_group": 128, "groups": 4, "dtype": dtype}))).missing
    assert missing.reason.removesuffix(" or nvfp4 or int8_wo or int4_wo") == f"dtype {str(dtype)!r}, expected fp8 or bf16"
