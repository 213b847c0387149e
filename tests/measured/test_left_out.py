"""Measurements that are left out of the bars, by rules that are the same for every GPU."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.measured.family import Classified, Parsed, classify
from dysharp.measured.left_out import AT_FLOOR, all_rows, group_of, left_out_errors, part_of, read_hosts, split
from dysharp.measured.predictions import predict
from dysharp.measured.validation import validate_measurements
from dysharp.specs.fitted import Fitted, fitted, fitted_values
from tests.measured.csv_lines import GEMM, line, read

EAGER = GEMM | {"dtype": "fp8_block", "timing": "eager"}
LAYER = {"acts": "fp8", "weights": "fp8", "ep": 4, "experts": 256, "hidden": 7168, "inter": 2048, "tokens_per_rank": 1, "topk": 8}
WEAK = {"quality": "WEAK", "gpus": 8, "experts": 32, "hidden": 2048, "inter": 2048, "tokens_per_rank": 256, "topk": 2}


def _eager(id_: str, us: float, hardware: str = "H100-SXM") -> str:
    return line(id_, config=EAGER, value=us, hardware=hardware)


@pytest.mark.parametrize(("hardware", "host"), [("H100-SXM", "h100"), ("B200", "b200"), ("GB200", "gb200")])
def test_one_rule_for_every_gpu(hardware: str, host: str) -> None:
    floor = 2 * fitted_values()[f"{host}.host_call_us"]
    near, far = classify(read(_eager("a", floor * AT_FLOOR * 0.99, hardware), _eager("b", floor * AT_FLOOR * 1.01, hardware))).parsed
    assert group_of(near, fitted_values()) == "launch-bound"
    assert group_of(far, fitted_values()) == ""


def test_host_bound_rows_are_told_by_engine_kernel_and_timing() -> None:
    """Whatever their time: they are in no fit of a host either."""
    config = EAGER | {"kernel": "DeepGemmFp8BlockScaledMMKernel"}
    rows = [line(f"v{us}", system="vLLM linear", config=config, value=us) for us in (5, 83, 5000)]
    graph = config | {"timing": "cuda graph"}
    others = [line("s", system="SGLang", config=config, value=83), line("g", system="vLLM linear", config=graph, value=83)]
    parsed = classify(read(*rows, *others)).parsed
    assert [group_of(entry, fitted_values()) for entry in parsed] == ["host-bound"] * 3 + ["launch-bound", ""]
    assert read_hosts(parsed, fitted_values()) == {"h100.host_call_us": 41.5}


def test_the_packaged_host_bound_rows(packaged_measurements) -> None:
    parsed = classify(packaged_measurements).parsed
    assert sum(group_of(entry, fitted_values()) == "host-bound" for entry in parsed) == 144


def test_graphs_and_kernels_have_no_launches() -> None:
    (parsed,) = classify(read(line(value=0.1))).parsed
    assert group_of(parsed, fitted_values()) == ""


def test_the_host_is_read_from_launch_bound_rows_alone() -> None:
    rows = [_eager(f"a{us}", us) for us in (100, 101, 102, 103, 119, 500, 5000)]
    parsed = classify(read(*rows, line(value=10.0))).parsed
    hosts = read_hosts(parsed, fitted_values())
    assert hosts == {"h100.host_call_us": 51.0}  # the median of the five rows below 1.2 times itself, for two launches


def test_the_larger_half_of_a_layer_is_its_part() -> None:
    host = 17 * fitted_values()["gb200.host_call_us"]
    text = [line(f"l{at}", kind="moe_layer", system="vLLM deepep", hardware="4xGB200", config=LAYER, value=at * host) for at in (1.9, 2.1)]
    small, large = classify(read(*text)).parsed
    assert (part_of(small, fitted_values()), part_of(large, fitted_values())) == ("host", "device")
    assert group_of(small, fitted_values()) == group_of(large, fitted_values()) == ""  # both are judged
    table = validate_measurements(*_predicted(small, large), predicted=np.array([1.9, 4.2]) * host).parts
    assert {row["part"]: row["median_ape"] for row in table} == pytest.approx({"host": 0.0, "device": 100.0})


def _predicted(*parsed: Parsed) -> tuple[Classified, dict[str, Fitted]]:
    return Classified(parsed, ()), dict(fitted())


def test_rows_left_out_count_against_coverage_and_have_a_line_of_their_own() -> None:
    weak = line("w", kind="moe_layer_fwd", system="Megatron-TE", hardware="8xH100", config=WEAK, value=900)
    classified = classify(read(_eager("a", 80.0), _eager("b", 800.0), weak))
    judged, _ = split(classified, fitted_values())
    assert [entry.measurement.id for entry in judged.parsed] == ["b"]
    assert {(entry.measurement.id, entry.reason, entry.counted) for entry in judged.missing} == {
        ("a", "left out of the bars: launch-bound", True),
        ("w", "left out of the bars: weak", True),
    }
    every, predicted = predict(classified, fitted_values())
    table = left_out_errors(every, fitted_values(), predicted)
    assert [(row["family"], row["group"], row["n"]) for row in table] == [("dense-gemm", "launch-bound", 1), ("layer", "weak", 1)]
    assert all(row["median_ape"] >= 0 for row in table)
    a, b = (abs(100 * (value / entry.measurement.value - 1)) for value, entry in zip(predicted[:2], every.parsed[:2], strict=True))
    assert table[0]["all_median_ape"] == pytest.approx((a + b) / 2), "the family with the rows left out"
    weak_error = abs(100 * (predicted[2] / 900 - 1))
    assert all_rows(every, predicted)["all_macro_median_ape"] == pytest.approx(((a + b) / 2 + weak_error) / 2)


def test_weak_rows_of_other_systems_have_no_prediction() -> None:
    (missing,) = classify(read(line("w", kind="moe_layer_fwd", system="FlashDMoE", hardware="8xH100", config=WEAK, value=900))).missing
    assert missing.reason == "a system that is not simulated"
