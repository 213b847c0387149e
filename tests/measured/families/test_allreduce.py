"""Which kernel an all-reduce ran."""

from __future__ import annotations

import pytest

from dysharp.base.units import KiB, MiB
from dysharp.measured.families.allreduce import BY_NCCL, case
from dysharp.measured.family import classify
from dysharp.measured.measurements import Unsupported
from tests.measured.csv_lines import GB200, H100, TRTLLM, VLLM, allreduce_line, read


@pytest.mark.parametrize(
    ("system", "hardware", "config", "kernel"),
    [
        (VLLM, H100, {"bytes": 128 * KiB}, "vllm one-stage"),
        (VLLM, H100, {"bytes": 256 * KiB}, "torch multimem"),
        (VLLM, H100, {"bytes": 4 * MiB, "gpus": 4}, "vllm two-stage"),
        (VLLM, H100, {"bytes": 64 * MiB, "gpus": 2}, "torch two-shot"),
        (VLLM, H100, {"bytes": 128 * MiB}, None),
        (TRTLLM, H100, {"bytes": 512 * KiB}, "trtllm one-shot"),
        (TRTLLM, H100, {"bytes": MiB}, None),
        (TRTLLM, H100, {"bytes": 2 * MiB}, "trtllm two-shot"),
        (TRTLLM, GB200, {"bytes": 4 * MiB, "gpus": 4}, "trtllm one-shot"),
        (TRTLLM, GB200, {"bytes": 32 * MiB, "gpus": 4}, None),
        ("one-shot multimem.ld_reduce, no barrier", "8xGB200 (NVLink5)", {"bytes": 64, "ctas": 4}, "one-shot"),
        ("two-shot ld_reduce+multimem.st, poison (no barrier)", "8xGB200 (NVLink5)", {"bytes": 64, "ctas": 4}, "two-shot polled"),
        ("custom 2-stage", "SM90 (H100-class)", {"size": "1.5MiB", "gpus": 6}, "vllm two-stage"),
        ("pynccl", "SM90 (H100-class)", {"size": "1.5MiB", "gpus": 6}, None),
    ],
)
def test_the_kernel_of_a_row(system: str, hardware: str, config: dict[str, object], kernel: str | None) -> None:
    (m,) = read(allreduce_line(system, hardware, **config))
    if kernel is None:
        with pytest.raises(Unsupported, match=BY_NCCL):
            case(m)
        return
    read_case = case(m)
    assert read_case.kernel == kernel
    assert read_case.n_bytes == config.get("bytes", 1.5 * MiB)
    assert read_case.in_flight == {"torch multimem": 131072, "vllm one-stage": 294912, "vllm two-stage": 294912}.get(
        kernel, 65536 if "ctas" in config else 0
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bytes": 64, "gpus": 3}, "the measurement does not name its kernel"),
        ({"bytes": 64, "hardware": "8xA100"}, "no packaged GPU"),
        ({"bytes": 64, "hardware": "8xMI300X"}, "a fabric without a switch: only MoRI's kernels and kernels of one GPU are predicted there"),
        ({"size": "1 MB"}, "no size of the vector"),
        ({"size": "nanMiB"}, "no size of the vector"),
        ({"size": "0MiB"}, "no whole number of bytes"),
        ({"size": "64MiB", "gpus": 64, "system": "multimem (torch symm mem)", "hardware": "GB200"}, "more than a million trains"),
        ({}, "no number 'bytes'"),
    ],
)
def test_a_row_without_a_program_says_why(changed, reason) -> None:
    (missing,) = classify(read(allreduce_line(**{"system": VLLM} | changed))).missing
    assert reason in missing.reason
