"""The verb `validate_training`: predictions of whole models against measured training runs, the packaged ones or a file of them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from dysharp.measured.training import families, step_time
from dysharp.measured.training.families import RunCase, summarise
from dysharp.measured.training.setting import TrainingRow
from dysharp.text import table


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """Errors of training runs.

    | field | holds |
    |---|---|
    | `families` | per family: `n_rows`, `n` judged, `median_ape`, `p90_ape`, `max_ape`, `bias` in percent, `bar`, `holds` |
    | `rows` | per row and family: `id`, `model`, `measured`, `predicted`, `unit`, `error` in percent, `judged`, `note`; steps: `group`, `floor` |
    | `groups` | step time by group: rows, votes of (model, GPU), errors, the unfitted floor's median, `bar`, `holds` |
    | `micro_batches` | rows that differ in micro-batches only: ms of one more (`slope_*`) and the rest (`intercept_*`), measured and predicted |
    """

    families: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    micro_batches: list[dict[str, Any]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every family with judged rows keeps its bar."""
        return all(row["holds"] for row in self.families if row["n"])

    def to_dict(self) -> dict[str, Any]:
        """Fields of `--json`, plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """One line per family."""
        shown = [row for row in self.families if row["n"]]
        cells = [(row["family"], str(row["n"]), f"{row['median_ape']:.2f}", f"{row['max_ape']:.2f}", f"{row['bar']:.1f}") for row in shown]
        return table(("what", "judged", "median error %", "largest %", "bar of the median %"), cells)


def validate_training(data: str | os.PathLike[str] | None = None) -> TrainingReport:
    """Compare the step times, the memory and the model FLOPs of training runs with measurements; `data`: a CSV, default the packaged runs.

    Raises `ConfigError` in one line: file, row, column, found and expected.
    """
    runs = TrainingRow.read(data)
    steps = step_time.step_cases(runs)
    by_group = step_time.judge_groups(steps)
    counted, peaks = families.flops_cases(runs), families.memory_cases(runs)
    groups = sorted(map(abs, families.by_group(counted).values()))
    told = [summarise(families.MEMORY, peaks, families.MEMORY_BAR), summarise(families.FLOPS, counted, families.FLOPS_BAR)]
    if groups:  # single rows are published with three digits; the bar is for medians of a model and convention
        told[-1] |= {"groups": len(groups), "max_group": groups[-1], "holds": groups[-1] <= families.FLOPS_BAR}
    if by_group:  # bars are those of groups
        told.insert(0, summarise(step_time.FAMILY, steps, max(step_time.BARS.values())) | {"holds": all(group["holds"] for group in by_group)})
    pairs = families.pair_cases() if data is None else []
    told += [summarise(families.PAIRS, pairs, families.PAIR_BAR)] if pairs else []
    rows = [_row(step_time.FAMILY, "s", one) | {"group": one.group, "floor": one.floor} for one in steps]
    rows += [*(_row(families.MEMORY, "GiB", one) for one in peaks), *(_row(families.FLOPS, "GFLOP/token", one) for one in counted)]
    rows += [_row(families.PAIRS, "ms", one) for one in pairs]
    return TrainingReport(told, rows, by_group, step_time.slopes(steps))


def _row(family: str, unit: str, case: RunCase) -> dict[str, Any]:
    about = {"id": case.id, "family": family, "model": case.model, "unit": unit}
    return about | {"measured": case.measured, "predicted": case.predicted, "error": case.error, "judged": case.judged, "note": case.note}
