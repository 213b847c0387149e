"""What a row asks for, counted by hand: products and bytes behind a rate, rows of an expert, formats of both ways, verbs of a slow NIC."""

from __future__ import annotations

from typing import Any

import pytest

from dysharp.measured import hold_out
from dysharp.measured.families import deepep_internode
from dysharp.measured.family import Parsed, classify
from dysharp.measured.internode import _Straggler
from dysharp.measured.measurements import read_operators
from dysharp.measured.trust import family_errors
from dysharp.measured.validation import _check_bars
from dysharp.specs.fitted import fitted, fitted_values
from tests.measured.csv_lines import line, read

US = 7.0


def only(kind: str, system: str, hardware: str, config: dict[str, Any], unit: str = "us") -> Parsed:
    metric = "latency" if unit == "us" else "throughput"
    (parsed,) = classify(read(line(kind=kind, system=system, hardware=hardware, config=config, metric=metric, value=50, unit=unit))).parsed
    return parsed


GROUPED = {"m_per_group": 96, "groups": 6, "n": 4096, "k": 7168, "dtype": "fp8"}
PRODUCTS = 2 * 6 * 96 * 4096 * 7168  # a multiplication and an addition for each row, column and depth of six GEMMs
MOVED = 6 * (96 * 7168 + 4096 * 7168) + 2 * 6 * 96 * 4096  # FP8 operands, BF16 results
FUSED = {"ep": 8, "experts": 256, "topk": 8, "tokens_per_rank": 512, "hidden": 7168, "inter": 2048}
LAYER = 2 * 512 * 8 * 3 * 7168 * 2048  # gate, up and down of each row of the own tokens


@pytest.mark.parametrize(
    ("kind", "system", "hardware", "config", "unit", "work"),
    [
        ("grouped_gemm_contiguous", "DeepGEMM", "H100-SXM", GROUPED, "TFLOPS", PRODUCTS / 1e6),
        ("grouped_gemm_masked", "DeepGEMM", "H100-SXM", GROUPED | {"groups": 12}, "TFLOPS", 2 * PRODUCTS / 1e6),
        ("grouped_gemm_contiguous", "DeepGEMM", "H100-SXM", GROUPED, "GB/s", MOVED / 1e3),
        ("moe_layer_fused", "DeepGEMM MegaMoE", "8xB200", FUSED, "TFLOPS", LAYER / 1e6),
    ],
)
def test_a_rate_is_the_work_over_the_time(kind: str, system: str, hardware: str, config: dict[str, Any], unit: str, work: float) -> None:
    assert only(kind, system, hardware, config, unit).in_unit(US) == pytest.approx(work / US)


@pytest.mark.parametrize(("per_expert", "groups"), [(256, 8), (4, 1)])
def test_rows_of_a_grouped_mlp_are_those_of_all_local_experts(per_expert: int, groups: int) -> None:
    """Experts with few rows share blocks of 128 rows; the rows stay."""
    config = {"rows_per_expert": per_expert, "local_experts": 8, "hidden": 7168, "inter": 2048, "dtype": "fp8"}
    case = only("grouped_gemm_mlp", "SGLang", "H100-SXM", config).case
    assert (case.groups, case.rows * case.groups) == (groups, 8 * per_expert)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "back"), [("ep_combine", "rows"), ("ep_combine_lowprec", "nvfp4")])
def test_low_precision_is_a_format_of_the_way_back(kind: str, back: str) -> None:
    dtype = "nvfp4" if back == "nvfp4" else "bf16"
    config = {"ep": 8, "experts": 256, "topk": 8, "tokens_per_rank": 64, "hidden": 7168, "dtype": dtype}
    assert only(kind, "TRTLLM-NVLinkTwoSided", "GB200", config).case.back == back  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", ["dispatch", "combine", "combine notify"])
def test_a_slow_nic_is_seen_by_dispatch_and_by_the_next_notify(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = _Straggler(dispatch=9.0, combine=4.0, last=11.0)
    monkeypatch.setattr(deepep_internode, "straggler_us", lambda *_: times)
    case = type("Case", (), {"verb": verb})()
    assert deepep_internode._slow_us(case, {}) == {"dispatch": 9.0, "combine": 4.0, "combine notify": 7.0}[verb]  # type: ignore[arg-type]


def test_held_out_errors_are_of_the_family_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fit that changes nothing both errors of a family are those of its own rows."""
    rows = [e for e in classify(read_operators()).parsed if e.family.name in ("attention", "operator")]
    few = [e for n, e in enumerate(rows) if n % 40 == 0]
    same = type("Fit", (), {"values": fitted_values()})()
    monkeypatch.setattr(hold_out, "refit", lambda *_, **__: same)
    found = {row["family"]: row for row in hold_out.hold_out_beyond(few, fitted(), "gpu")}
    assert {name: row["n"] for name, row in found.items()} == {name: sum(e.family.name == name for e in few) for name in found}
    assert len(found) == 2
    assert all(row["ratio"] == pytest.approx(1.0) for row in found.values())


def test_bars_judge_the_device_part_of_layers_and_the_mean_of_a_hold_out() -> None:
    overall = {"macro_median_ape": 1.0, "macro_p90_ape": 2.0, "coverage": 99.0, "n_numbers": 3}
    parts = [{"part": "host", "median_ape": 77.0, "p90_ape": 78.0}, {"part": "device", "median_ape": 4.0, "p90_ape": 9.0}]
    held = [{"family": "macro", "by": "gpu", "ratio": 1.25}, {"family": "nccl", "by": "gpu", "ratio": 9.0}]
    bars = {bar["name"]: bar["value"] for bar in _check_bars(overall, [{"median_ape": 5.0}, {"median_ape": 6.0}], held, parts)}
    assert list(bars.values()) == [1.0, 2.0, 6.0, 99.0, 3, 4.0, 9.0, 1.25]


def test_no_printed_median_is_above_its_ninetieth_percentile() -> None:
    bars = [(e.median, e.p90) for e in family_errors().values()]
    assert len(bars) > 20
    assert all(0 <= median <= most for median, most in bars)
