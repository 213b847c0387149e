"""The bars that were asked for: each is in the table, and a missed one is printed as missed. No row is left out because of its value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.api import run_validation
from dysharp.api.run_validation import ServingReport, TrainingReport, plan_bars
from dysharp.cli.app import cli
from dysharp.measured.family import classify
from dysharp.measured.measurements import read_operators
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import BARS as STEP_BARS
from dysharp.measured.training.step_time import _group_of
from dysharp.measured.validation import BARS, _check_bars, beyond_bars
from dysharp.specs.fitted import fitted

ROOT = Path(__file__).resolve().parents[2]
ROW = {"votes": 2, "floor_median_ape": 9.0, "median_ape": 9.0, "p90_ape": 36.0, "max_ape": 40.0, "bias": 0.0, "n": 3, "n_rows": 3}


def test_macro_layers_and_operators_are_judged_by_what_was_asked() -> None:
    overall = {"macro_median_ape": 5.045, "macro_p90_ape": 14.55, "coverage": 92.0, "n_numbers": 1}
    parts = [{"part": "device", "median_ape": 6.3, "p90_ape": 33.9}]
    held = {bar["name"]: bar["holds"] for bar in _check_bars(overall, [{"median_ape": 7.0}], [], parts)}
    assert (BARS.macro_median, BARS.macro_p90) == (5.0, 15.0)
    assert {name for name, holds in held.items() if not holds} == {"macro median error, %", "90th percentile of whole layers' device part, %"}
    rows = [ROW | {"family": name, "system": "all", "between": ""} for name in ("attention", "operator", "nccl-small")]
    assert [(bar["name"], bar["bar"], bar["holds"]) for bar in beyond_bars(rows, fitted())] == [
        ("median of attention, %", 8.0, False),
        ("median of operator, %", 8.0, False),
    ]


def test_bars_of_steps_serving_layouts_and_plans_are_lines_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = TrainingReport([ROW | {"family": "step", "bar": 15.0}], [], [ROW | {"group": "reduced MoE", "bar": 6.0, "holds": False}])
    families = [ROW | {"family": "TTFT since 2026-02", "bar": 25.0, "bar_p90": None}, ROW | {"family": "latency", "bar": 12.0, "bar_p90": 35.0}]
    served = ServingReport(families, [], {"share": 74.6, "groups": 0, "fronts": 63})
    found = {bar["name"]: (bar["bar"], bar["holds"]) for bar in [*steps.bars, *served.bars, *plan_bars()]}
    assert found["step, reduced MoE: median, %"] == (6.0, False)
    assert found["TTFT since 2026-02: median, %"] == (25.0, True)
    assert found["latency: 90th percentile, %"] == (35.0, False)
    assert found["fastest layout on fronts, %"] == (85.0, False)
    assert [holds for name, (_, holds) in found.items() if name.startswith("plan: ")] == [False, False]
    monkeypatch.setattr(run_validation, "validate_training", lambda: steps)
    monkeypatch.setattr(run_validation, "validate_serving", lambda: served)
    monkeypatch.setattr("dysharp.api.validation.read_measurements", lambda data=None: [])
    monkeypatch.setattr("dysharp.api.validation.read_calls", list)
    monkeypatch.setattr("dysharp.api.validation.read_operators", lambda: [m for m in read_operators() if m.kind == "quantize_static"])
    shown = CliRunner().invoke(cli, ["validate", "--bars", "--check", "--jobs", "1"])
    assert all(name in shown.stdout for name in found)
    assert "latency: 90th percentile, % 36 (bar 35)" in str(shown.exception)


def test_the_page_has_these_bars() -> None:
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    names = [
        "median of attention, %",
        "latency to the last token: 90th percentile, %",
        "TTFT since 2026-02: median, %",
        *(b["name"] for b in plan_bars()),
    ]
    assert [name for name in names if f"| {name} |" not in page] == [], "write it anew: the first line of the page has the command"
    held = (ROOT / "docs" / "validation-tables" / "bars.csv").read_text(encoding="utf-8")
    assert re.search(r"^\"?90th percentile of whole layers' device part, %\"?,[\d.]+,25,yes$", held, re.MULTILINE)


def test_recorded_bars_of_plans_are_those_of_the_deviations() -> None:
    text = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
    near, place = tomllib.loads((ROOT / "dysharp" / "measured" / "tables.toml").read_text(encoding="utf-8"))["plan_bars"].values()
    assert "21 of 51 recipes, bar 80 %" in text
    assert near["value"] == round(100 * 21 / 51, 1)
    assert "place 289 of 5,793 (5.0 %), bar the best 3 %" in text
    assert place["value"] == round(100 * 289 / 5793, 2)


def test_no_row_is_left_out_because_of_its_value() -> None:
    found = classify(read_operators())
    assert not [entry.reason for entry in found.missing if "not known" in entry.reason and ("rate" in entry.reason or "slower" in entry.reason)]
    named = [entry.measurement for entry in found.parsed]
    assert sum(m.kind == "quantize_static" and m.config.get("kernel") == "sglang" for m in named) == 21
    latent = [m for m in named if m.kind == "mla_generation" and m.config.get("kernel") == "flash_attention" and m.config.get("kv_dtype") == "fp8"]
    assert len(latent) == 12
    moonlight = [row for row in TrainingRow.read(None) if "moonlight" in row.text("model").lower()]
    assert {_group_of(row, "h100-sxm") for row in moonlight} <= set(STEP_BARS)
