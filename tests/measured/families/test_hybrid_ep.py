"""Kernels of Hybrid-EP: which measurements are predicted."""

from __future__ import annotations

import pytest

from dysharp.measured.family import classify
from dysharp.measured.measurements import Measurement
from tests.measured.csv_lines import line, read

CONFIG = {
    "ep": 8, "hidden": 1024, "local_experts": 4, "topk": 4, "tokens_per_rank": 64, "sms": 4, "dtype": "fp8",
    "measure": "Kernel only",
}  # fmt: skip


def hybrid(**config: object) -> list[Measurement]:
    where = {"kind": "ep_dispatch", "system": "Hybrid-EP", "hardware": "8xB200"}
    return read(line(config=CONFIG | config, metric="bandwidth", value=100, unit="GB/s", **where))


def test_a_rate_counts_the_rows_that_arrive() -> None:
    """64 tokens to 8 (1 - C(28, 4) / C(32, 4)) GPUs, 1024 values and 8 scales each."""
    (parsed,) = classify(hybrid()).parsed
    assert (parsed.family.name, parsed.case.tokens, parsed.case.fp8, parsed.case.verb) == ("hybrid-ep", 64, True, "dispatch")
    copies = 8 * (1 - (28 * 27 * 26 * 25) / (32 * 31 * 30 * 29))
    assert parsed.in_unit(10.0) == pytest.approx(64 * copies * (1024 + 4 * 8) / 10.0 / 1e3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"measure": "Torch API"}, "times of torch calls"),
        ({"ep": 24}, "no packaged cluster of 24 b200"),
        ({"dtype": "int3"}, "int3"),
        ({"sms": 3.5}, "no whole number of SMs"),
    ],
)
def test_a_measurement_without_a_program_says_why(changed: dict[str, object], reason: str) -> None:
    (missing,) = classify(hybrid(**changed)).missing
    assert reason in missing.reason
