"""Blocks of MLA: more work takes longer, and some rows have no prediction."""

from __future__ import annotations

import pytest

from dysharp.measured.classify import Parsed, classify
from dysharp.measured.closed_forms import ClosedForms
from dysharp.measured.families.mla_block import case
from dysharp.measured.measurements import Measurement, Unsupported, measurements_from_csv
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import HEADER, line

ROW = {"batch": 16, "q_len": 256, "heads": 32, "past_len": 0, "gemm_dtype": "fp8_block", "kv_dtype": "bfloat16", "dtype": "bfloat16"}


def row(kind: str, system: str = "TensorRT-LLM 1.3", **changes: object) -> Measurement:
    text = line("x", kind=kind, system=system, hardware="B200-SXM", config=ROW | changes, value=321.9)
    return measurements_from_csv(f"{HEADER}\n{text}\n", "x")[0]


def us(kind: str, **changes: object) -> float:
    entries: tuple[Parsed, ...] = classify([row(kind, **changes)]).parsed
    return float(ClosedForms(entries).us(fitted_values())[0])


def test_more_heads_tokens_and_cached_tokens_take_longer() -> None:
    time = us("mla_block_context")
    assert 250 < time < 400  # measured: 322 us
    assert us("mla_block_context", heads=64) > time < us("mla_block_context", q_len=512)
    assert us("mla_block_generation", q_len=1, past_len=128) < us("mla_block_generation", q_len=1, past_len=8192) < time


def test_rows_without_a_prediction() -> None:
    with pytest.raises(Unsupported, match="timed with the host's launches"):
        case(row("mla_block_context", "vLLM 0.24"))
    with pytest.raises(Unsupported, match="projections in int4"):
        case(row("mla_block_context", gemm_dtype="int4"))
