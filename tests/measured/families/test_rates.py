"""Rates of DeepEP's kernels: the bytes of a row in each format, by hand."""

from __future__ import annotations

import pytest

from dysharp.measured.family import classify
from tests.measured.csv_lines import NORMAL, line, read

US, TOKENS, HIDDEN, TOPK = 10.0, 64, 512, 4
COPIES = 8 * (1 - (56 * 55 * 54 * 53) / (64 * 63 * 62 * 61))  # GPUs of a token: top-4 of 64 experts, eight on a GPU
FP8_ROW, BF16_ROW = HIDDEN + 4 * HIDDEN / 128, 2 * HIDDEN  # a scale of 4 bytes for 128 values


@pytest.mark.parametrize(
    ("verb", "dtype", "row_bytes"), [("dispatch", "fp8_e4m3+fp32 scale/128", FP8_ROW), ("dispatch", "bf16", BF16_ROW), ("combine", "bf16", BF16_ROW)]
)
def test_a_rate_of_normal_kernels_counts_the_rows_that_a_gpu_receives(verb: str, dtype: str, row_bytes: float) -> None:
    config = NORMAL | {"tokens_per_rank": TOKENS, "dtype": dtype}
    text = line(kind=f"ep_{verb}", system="DeepEP-normal", hardware="8xH100", config=config, metric="bandwidth", value=100, unit="GB/s")
    (parsed,) = classify(read(text)).parsed
    assert parsed.family.name == f"deepep-{verb}"
    assert parsed.in_unit(US) == pytest.approx(TOKENS * COPIES * row_bytes / US / 1e3)


@pytest.mark.parametrize(
    ("verb", "dtype", "message"), [("dispatch", "fp8", FP8_ROW + 16), ("dispatch", "bf16", BF16_ROW + 16), ("combine", "bf16", BF16_ROW)]
)
def test_a_rate_of_low_latency_kernels_counts_a_message_per_expert(verb: str, dtype: str, message: float) -> None:
    """A message of Dispatch has a header of 16 bytes."""
    config = {k: v for k, v in NORMAL.items() if k != "sms"} | {"tokens_per_rank": TOKENS, "dtype": dtype}
    text = line(kind=f"ep_{verb}", system="DeepEP-LL", hardware="8xH100", config=config, metric="bandwidth", value=100, unit="GB/s")
    (parsed,) = classify(read(text)).parsed
    assert parsed.family.name == "deepep-ll"
    assert parsed.in_unit(US) == pytest.approx(TOKENS * TOPK * message / US / 1e3)
