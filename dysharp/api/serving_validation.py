"""The verb `validate_serving`: predictions of serving runs against measured ones, the packaged runs or a file of them."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from dysharp.measured.serving.predictions import LATENCY, STEP, TPOT, TTFT, ServingCase, fastest_layouts, predict_row
from dysharp.measured.serving.setting import STEPS, ServingRow
from dysharp.text import table

BARS: dict[str, tuple[float | None, float | None]] = {
    "TPOT": (12.0, 35.0),
    "latency to the last token": (12.0, 35.0),
    "TTFT since 2026-02": (25.0, None),
    "TTFT of at most 4 users": (25.0, None),
    "decode-step": (15.0, 30.0),
    "prefill-step": (15.0, 30.0),
}
"""Family -> bars of the median and of the 90th percentile of absolute errors, in percent."""
COVERAGE, LAYOUTS = 95.0, 85.0


@dataclass(frozen=True, slots=True)
class ServingReport:
    """Errors of serving runs.

    | field | holds |
    |---|---|
    | `families` | per family: `n_rows`, `n` judged, `coverage`, `median_ape`, `p90_ape`, `bias` in percent, `bar`, `bar_p90`, `holds` |
    | `groups` | the same of TPOT by model, hardware, engine, mode |
    | `layouts` | groups of rows that differ in their layout alone: right, within 5 %, share |
    | `rows` | per row: `id`, measured and predicted TPOT and TTFT in ms, errors in percent, `judged`, `note` |
    """

    families: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    layouts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every bar with judged rows holds."""
        return all(row["holds"] for row in self.families if row["n"] and row["bar"])

    def to_dict(self) -> dict[str, Any]:
        """Fields of `--json`, plain values."""
        return asdict(self)

    def __str__(self) -> str:
        shown = [row for row in self.families if row["n"]]
        cells = [(row["family"], str(row["n"]), f"{row['median_ape']:.1f}", f"{row['p90_ape']:.1f}", f"{row['bias']:+.1f}") for row in shown]
        return table(("what", "judged", "median error %", "90 % of errors below %", "bias %"), cells)


def validate_serving(data: str | os.PathLike[str] | None = None, tick: Callable[[int, int], None] = lambda done, of: None) -> ServingReport:
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
        _family("TPOT, suspected of speculation", [case for case in cases if case.apart], TPOT),
    ]  # fmt: skip
    return ServingReport(families, _groups(cases), fastest_layouts(cases), [_row(case) for case in cases])


def _family(name: str, cases: list[ServingCase], what: str) -> dict[str, Any]:
    errors = [error for case in cases if (error := case.error(what)) is not None]
    none: tuple[float | None, float | None] = (None, None)
    bar, bar_p90 = BARS.get(name, none)
    found = _errors(errors)
    coverage = 100 * len(errors) / len(cases) if cases else None
    within = bool(errors) and all(limit is None or (found[key] or 0.0) <= limit for key, limit in (("median_ape", bar), ("p90_ape", bar_p90)))
    covered = what in (TTFT, STEP) or (coverage or 0.0) >= COVERAGE
    counts = {"family": name, "n_rows": len(cases), "n": len(errors), "coverage": coverage}
    return counts | found | {"bar": bar, "bar_p90": bar_p90, "holds": within and covered}


def _errors(errors: Iterable[float]) -> dict[str, float | None]:
    signed = list(errors)
    sizes = np.abs(signed)
    if not signed:
        return {"median_ape": None, "p90_ape": None, "bias": None}
    return {"median_ape": float(np.median(sizes)), "p90_ape": float(np.percentile(sizes, 90)), "bias": median(signed)}


def _groups(cases: list[ServingCase]) -> list[dict[str, Any]]:
    found: dict[tuple[str, ...], list[float]] = {}
    for case in cases:
        error = case.error(TPOT)
        if case.scored and error is not None:
            found.setdefault(tuple(case.row.text(name) for name in ("model", "hardware", "engine", "mode")), []).append(error)
    return [
        dict(zip(("model", "hardware", "engine", "mode"), key, strict=True)) | {"n": len(errors)} | _errors(errors)
        for key, errors in sorted(found.items())
    ]


def _row(case: ServingCase) -> dict[str, Any]:
    measured = case.row.numbers
    return {
        "id": case.id, "model": case.row.text("model"), "measured_tpot_ms": measured["tpot_ms"], "tpot_ms": case.tpot_ms,
        "tpot_error": case.error(TPOT), "measured_step_ms": case.row.step_ms, "step_ms": case.step_ms,
        "measured_ttft_ms": measured["ttft_ms"], "ttft_ms": case.ttft_ms, "ttft_error": case.error(TTFT),
        "judged": case.scored, "note": case.note,
    }  # fmt: skip
