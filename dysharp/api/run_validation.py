"""The verbs `validate_training` and `validate_serving`: predictions of whole models against measured runs, the packaged runs or a file of them."""

from collections.abc import Iterable
from dataclasses import field, fields
from statistics import median

import numpy as np

from dysharp.base import AnyPath, ByName, Columns, OnProgress, Rows, Texts, frozen, named
from dysharp.measured.intervals import Asked, interval_of
from dysharp.measured.measurements import TABLES
from dysharp.measured.predictions import bar
from dysharp.measured.serving.predictions import LATENCY, STEP, TPOT, TTFT, ServingCase, fastest_layouts, intervals_of, predict_row
from dysharp.measured.serving.setting import STEPS, ServingRow
from dysharp.measured.training import families, step_time
from dysharp.measured.training.families import RunCase, summarise
from dysharp.measured.training.setting import TrainingRow

STEPS_SHORT = Columns("what=family", "judged=n:", "median error %=median_ape:.2f", "largest %=max_ape:.2f", "bar of the median %=bar:.1f")
SERVED_SHORT = Columns("what=family", "judged=n:", "median error %=median_ape:.1f", "90 % of errors below %=p90_ape:.1f", "bias %=bias:+.1f")


class _RunReport:
    """What reports of runs share."""

    families: Rows

    @property
    def holds(self) -> bool:
        """Whether every bar with judged rows holds."""
        return all(row["holds"] for row in self.families if row["n"] and row["bar"])

    @property
    def bars(self) -> Rows:
        """Each bar with its value (`predictions.bar`)."""
        return _bars(self.families)

    def to_dict(self) -> ByName:
        """Fields of `--json`, plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]


def _bars(rows: Iterable[ByName]) -> Rows:
    limits = (("median", "median_ape", "bar"), ("90th percentile", "p90_ape", "bar_p90"))
    asked = [(row, limit) for row in rows if row["n"] for limit in limits if row.get(limit[2])]
    return [bar(f"{row['family']}: {what}, %", row[key], row[most]) for row, (what, key, most) in asked]


def plan_bars() -> Rows:
    """Bars of `dysharp plan`, whose values `bench/` finds in minutes: as `tables.toml` has them."""
    return [bar(name, **entry) for name, entry in TABLES["plan_bars"].items()]


@frozen
class TrainingReport(_RunReport):
    """Errors of training runs.

    | field | holds |
    |---|---|
    | `families` | per family: `n_rows`, `n` judged, `median_ape`, `p90_ape`, `max_ape`, `bias` in percent, `bar`, `holds` |
    | `rows` | per row and family: `id`, `model`, `measured`, `predicted`, `unit`, `error` in percent, `judged`, `note`; steps: `group`, `floor`; |
    | | steps and memory: `interval80`, `interval90` (`measured.intervals`) |
    | `groups` | step time by group: rows, votes of (model, GPU), errors, the unfitted floor's median, `bar`, `holds` |
    | `micro_batches` | rows that differ in micro-batches only: ms of one more (`slope_*`) and the rest (`intercept_*`), measured and predicted |
    """

    families: Rows = field(default_factory=list)
    rows: Rows = field(default_factory=list)
    groups: Rows = field(default_factory=list)
    micro_batches: Rows = field(default_factory=list)

    @property
    def bars(self) -> Rows:
        """As of all reports; steps have a bar in each group, model FLOPs one of their largest group."""
        named = [row | {"family": f"step, {row['group']}"} for row in self.groups]
        told = [row | {"median_ape": row.get("max_group", row["median_ape"])} for row in self.families if row["family"] != step_time.FAMILY]
        return _bars([*named, *told])

    def __str__(self) -> str:
        """One line per family."""
        return STEPS_SHORT.screen(row | {"bar": row["bar"] or 0.0} for row in self.families if row["n"])


def validate_training(data: AnyPath | None = None) -> TrainingReport:
    """Compare the step times, the memory and the model FLOPs of training runs with measurements; `data`: a CSV, default the packaged runs.

    Raises `ConfigError` in one line: file, row, column, found and expected.
    """
    runs = TrainingRow.read(data)
    steps = step_time.step_cases(runs)
    by_group = step_time.judge_groups(steps)
    counted, peaks = families.flops_cases(runs), families.memory_cases(runs)
    groups = sorted(map(abs, families.by_group(counted).values()))
    told = [summarise(families.MEMORY, peaks, families.MEMORY_BAR), summarise(families.FLOPS, counted, families.FLOPS_BAR)]
    every = [summarise(f"{family}, all rows", cases, None) for family, cases in ((step_time.FAMILY, steps), (families.MEMORY, peaks))]
    if groups:  # single rows are published with three digits; the bar is for medians of a model and convention
        told[-1] |= {"groups": len(groups), "max_group": groups[-1], "holds": groups[-1] <= families.FLOPS_BAR}
    if by_group:  # bars are those of groups
        told.insert(0, summarise(step_time.FAMILY, steps, max(step_time.BARS.values())) | {"holds": all(group["holds"] for group in by_group)})
    pairs = families.pair_cases() if data is None else []
    told += [*([summarise(families.PAIRS, pairs, families.PAIR_BAR)] if pairs else []), *every]
    none = {"unit": "-", "measured": None, "predicted": None, "error": None, "judged": False}
    seen, no = {one.id for one in (*steps, *peaks, *counted)}, "found none of step_s, tok_s_gpu, mem_gib"
    unread = [(row.id, row.text("model"), row.fault or no) for row in runs if row.id not in seen]
    rows: Rows = [{"id": name, "family": "-", "model": model, **none, "note": why} for name, model, why in unread]
    rows += [
        _training_row(step_time.FAMILY, "s", one) | named(one, "group", "floor", "plain") | _interval(one, "steps", one.like, one.gpu, 1e6)
        for one in steps
    ]
    rows += [_training_row(families.MEMORY, "GiB", one) | _interval(one, "memory", "memory") for one in peaks]
    rows += [_training_row(families.FLOPS, "GFLOP/token", one) for one in counted]
    rows += [_training_row(families.PAIRS, "ms", one) for one in pairs]
    return TrainingReport(told, rows, by_group, step_time.slopes(steps))


def _interval(case: RunCase, kind: str, family: str, gpu: str = "", us: float = 1.0) -> ByName:
    if case.predicted is None:
        return {"interval80": None, "interval90": None}
    return interval_of(Asked(kind, family, gpu, us * case.predicted, case.model)).of(case.predicted)


def _training_row(family: str, unit: str, case: RunCase) -> ByName:
    about = {"id": case.id, "family": family, "model": case.model, "unit": unit}
    return about | named(case, "measured", "predicted", "error", "judged", "note")


BARS: dict[str, tuple[float | None, float | None]] = {
    "TPOT": (12.0, 35.0),
    "latency to the last token": (12.0, 35.0),
    "TTFT since 2026-02": (25.0, None),
    "TTFT of at most 4 users": (25.0, None),
    "decode-step": (15.0, 30.0),
    "prefill-step": (15.0, 30.0),
}
"""Family -> bars of the median and of the 90th percentile of absolute errors, in percent."""
COVERAGE = 95.0
LAYOUTS = 85.0
"""Percent of groups whose fastest layout is chosen, or one within 5 % of it."""


@frozen
class ServingReport(_RunReport):
    """Errors of serving runs.

    | field | holds |
    |---|---|
    | `families` | per family: `n_rows`, `n` judged, `coverage`, `median_ape`, `p90_ape`, `bias` in percent, `bar`, `bar_p90`, `holds` |
    | `groups` | the same of TPOT by model, hardware, engine, mode |
    | `layouts` | groups of rows that differ in their layout alone (`predictions.fastest_layouts`) |
    | `rows` | per row: `id`, measured and predicted TPOT and TTFT in ms, errors in percent, `interval80`, `interval90` of TPOT, `ttft_interval80`, |
    | | `ttft_interval90`, `judged`, `note` |
    """

    families: Rows = field(default_factory=list)
    groups: Rows = field(default_factory=list)
    layouts: ByName = field(default_factory=dict)
    rows: Rows = field(default_factory=list)

    @property
    def bars(self) -> Rows:
        """As of all reports; coverage and the fastest layout too."""
        least = [("TPOT: coverage, %", row["coverage"], COVERAGE) for row in self.families if row["family"] == "TPOT" and row["n"]]
        least += [("fastest layout on fronts, %", self.layouts["share"], LAYOUTS)] if self.layouts.get("fronts") else []
        return [*_bars(self.families), *(bar(*one, at_most=False) for one in least)]

    def __str__(self) -> str:
        return SERVED_SHORT.screen(row for row in self.families if row["n"])


def validate_serving(data: AnyPath | None = None, tick: OnProgress = lambda done, of: None) -> ServingReport:
    """Compare TPOT and TTFT of serving runs with predictions; `data`: a CSV, default the packaged runs. `tick`: called after each row.

    Raises `ConfigError` in one line: file, row, column, found and expected.
    """
    runs = ServingRow.read(data)
    cases = []
    for number, row in enumerate(runs, start=1):
        cases.append(predict_row(row))
        tick(number, len(runs))
    families = [
        _family("TPOT", [case for case in cases if case.scored], TPOT), _family("TTFT since 2026-02", [case for case in cases if case.warm], TTFT),
        _family("TTFT of at most 4 users", [case for case in cases if case.few], TTFT),
        _family("latency to the last token", [case for case in cases if case.scored], LATENCY),
        *(_family(f"{mode.split()[0]}-step", [case for case in cases if case.row.text("mode") == mode], STEP) for mode in STEPS),
        _family("TPOT, suspected of speculation", [case for case in cases if case.suspected], TPOT),
        _family("TPOT, these too", [case for case in cases if case.scored or case.suspected], TPOT),
    ]  # fmt: skip
    return ServingReport(families, _groups(cases), fastest_layouts(cases), [_serving_row(case) for case in cases])


def _family(name: str, cases: list[ServingCase], what: str) -> ByName:
    errors = [error for case in cases if (error := case.error(what)) is not None]
    none: tuple[float | None, float | None] = (None, None)
    median_bar, bar_p90 = BARS.get(name, none)
    found = _errors(errors)
    coverage = 100 * len(errors) / len(cases) if cases else None
    within = bool(errors) and all(limit is None or (found[key] or 0.0) <= limit for key, limit in (("median_ape", median_bar), ("p90_ape", bar_p90)))
    covered = what in (TTFT, STEP) or (coverage or 0.0) >= COVERAGE
    counts = {"family": name, "n_rows": len(cases), "n": len(errors), "coverage": coverage}
    return counts | found | {"bar": median_bar, "bar_p90": bar_p90, "holds": within and covered}


def _errors(errors: Iterable[float]) -> dict[str, float | None]:
    signed = list(errors)
    sizes = np.abs(signed)
    if not signed:
        return {"median_ape": None, "p90_ape": None, "bias": None}
    return {"median_ape": float(np.median(sizes)), "p90_ape": float(np.percentile(sizes, 90)), "bias": median(signed)}


def _groups(cases: list[ServingCase]) -> Rows:
    found: dict[Texts, list[float]] = {}
    for case in cases:
        error = case.error(TPOT)
        if case.scored and error is not None:
            found.setdefault(tuple(case.row.text(name) for name in ("model", "hardware", "engine", "mode")), []).append(error)
    return [
        dict(zip(("model", "hardware", "engine", "mode"), key, strict=True)) | {"n": len(errors)} | _errors(errors)
        for key, errors in sorted(found.items())
    ]


def _serving_row(case: ServingCase) -> ByName:
    measured = case.row.numbers
    return {
        "id": case.id, "model": case.row.text("model"), "measured_tpot_ms": measured["tpot_ms"], "tpot_ms": case.tpot_ms,
        "tpot_error": case.error(TPOT), "measured_step_ms": case.row.step_ms, "step_ms": case.step_ms, "measured_ttft_ms": measured["ttft_ms"],
        "ttft_ms": case.ttft_ms, "ttft_error": case.error(TTFT), "judged": case.scored, "note": case.note,
    } | intervals_of(case)  # fmt: skip
