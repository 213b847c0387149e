"""Which measurements have a case, and the reasons of those that have none."""

from __future__ import annotations

import pytest

from dysharp.measured.family import classify
from dysharp.measured.validation import validate_measurements
from dysharp.specs.fitted import fitted
from tests.measured.csv_lines import ep_line, line, read


def test_supported_and_unsupported_rows():
    weak = line("a-2", kind="moe_layer_fwd", config={"quality": "WEAK", "ep": 8})
    other = line("a-4", kind="routing_stat", metric="entropy", unit="bits")
    shapeless = line("a-5", kind="gemm_max", config={"dtype": "bf16"}, metric="throughput", unit="TFLOPS")
    done = validate_measurements(classify(read(line(), weak, other, shapeless)), fitted())
    assert [row["family"] for row in done.groups] == ["dense-gemm"]
    assert done.overall["n"] == 1
    assert done.overall["coverage"] == pytest.approx(100 / 3)  # of three rows; entropy belongs to no family
    reasons = {row["kind"]: row["reason"] for row in done.unsupported if row["n"] == 1}
    assert reasons["moe_layer_fwd"] == "a system that is not simulated"
    assert "without its shape" in reasons["gemm_max"]
    assert not done.holds


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sms": 7}, "an odd number of SMs"),
        ({"ep": 16}, "no packaged cluster of 16 h100-sxm"),
        ({"experts": 60}, "experts that the GPUs do not share evenly"),
        ({"hidden": 512.5}, "no whole number of hidden"),
        ({"hidden": 1}, "hidden 1, expected 128 to 65536"),
        ({"tokens_per_rank": 1e12}, r"tokens_per_rank 1e+12, expected 1 to 1048576"),
        ({"sms": 1000}, "sms 1000, expected 1 to 256"),
        ({"dtype": "int3"}, "dtype 'int3', expected fp8 or bf16"),
        ({"kind": "ep_combine", "dtype": "fp8"}, "dtype 'fp8', expected bf16"),
        ({"system": "TRTLLM-NVLinkOneSided", "kind": "ep_alltoall"}, "kind 'ep_alltoall' of TensorRT-LLM, expected ep_prepare or"),
    ],
)
def test_a_row_without_a_program_is_unsupported(changed, reason) -> None:
    """A closed form might answer, but a system is predicted by its Program only."""
    (missing,) = classify(read(ep_line("a", 16, **changed))).missing
    assert reason in missing.reason
    assert missing.counted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit": "TB/s", "metric": "bandwidth"}, "no prediction in TB/s, expected us or ms"),
        ({"unit": "-", "metric": "a_fact", "value": "fast"}, "no value above 0"),
    ],
)
def test_a_row_in_another_unit_has_no_prediction(changes: dict[str, str], reason: str) -> None:
    (missing,) = classify(read(line(**changes))).missing
    assert missing.reason.startswith(reason)


@pytest.mark.parametrize("changes", [{"config": {}}, {"config": {"sms": "many"}}, {"value": 0.0, "metric": "a_fact", "unit": "-"}])
def test_scope_is_told_before_any_number_is_read(changes: dict[str, object]) -> None:
    """A measurement of another machine has one reason, whatever else is wrong with it."""
    (missing,) = classify(read(line(kind="ep_dispatch", system="DeepEP", hardware="8xMI300X", **changes))).missing
    assert missing.reason == "a fabric without a switch: only MoRI's kernels and kernels of one GPU are predicted there"
    assert not missing.counted


def test_families_beyond_the_bars_are_told_apart_by_their_flag() -> None:
    other = line("b", kind="custom_allreduce", config={"gpus": 8, "bytes": 1 << 30}, system="NCCL")
    classified = classify(read(line(), ep_line("c", 16), other))
    assert [entry.measurement.id for entry in classified.in_bars().entries] == ["a-1", "c"]
    assert [entry.measurement.id for entry in classified.beyond_bars().entries] == ["b"]
