"""Errors that `step`, `plan` and `serve` quote beside an answer, of groups of measured runs: `python bench/error_bars.py` writes them anew.

They stand in `dysharp/measured/tables.toml`, section `error_bars`: group = [median, 90th percentile] of absolute errors in percent, with one digit.
Tests compare every digit with the packaged runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.api.run_validation import validate_serving
from dysharp.measured.measurements import Unsupported
from dysharp.measured.serving.predictions import ServingCase, bar_of
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import judge_groups, step_cases

FILE = Path(__file__).resolve().parents[1] / "dysharp" / "measured" / "tables.toml"
Bars = dict[str, list[float]]


def of_steps(rows: Iterable[TrainingRow]) -> Bars:
    """Of each group of steps: median over (model, GPU), 90th percentile over rows."""
    return {row["group"]: [round(row["median_ape"], 1), round(row["p90_ape"], 1)] for row in judge_groups(step_cases(list(rows)))}


def of_serving(found: Iterable[Mapping[str, Any]]) -> Bars:
    """Of each group of runs, from rows of `validate_serving`: errors of TPOT."""
    errors, asked = dict[str, list[float]](), {row.id: row for row in ServingRow.read() if ServingCase(row).scored}
    for row in found:
        if row["id"] in asked and row["tpot_error"] is not None:
            try:
                setting = setting_of(asked[row["id"]])
            except Unsupported:
                continue
            errors.setdefault(bar_of(setting.decode or setting.replica, disaggregated=setting.decode is not None).group, []).append(
                abs(row["tpot_error"])
            )
    return {name: [round(float(np.percentile(sizes, part)), 1) for part in (50, 90)] for name, sizes in errors.items()}


def main() -> None:
    text = FILE.read_text(encoding="utf-8")
    for name, values in (of_steps(TrainingRow.read(None)) | of_serving(validate_serving().rows)).items():
        text = re.sub(rf'^"{re.escape(name)}" = \[.*?\]', f'"{name}" = {values}', text, flags=re.MULTILINE)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
