"""Predictions against measurements: errors by group, family and size, what is not supported and why, and the bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.families import ASK, BARS, beyond_of, family_of, in_scope
from dysharp.analysis.measured import UNITS_OF, Measurement
from dysharp.analysis.predict import Batch
from dysharp.analysis.predictors import PREDICTORS, Ask, Told, answers, ask_of
from dysharp.analysis.queries import Query, Unsupported
from dysharp.errors import SimulationError
from dysharp.specs.fitted import Fitted

F64 = NDArray[np.float64]
N_WORST = 20
N_IDS = 3
"""Rows of one group that are named."""
TIMES = UNITS_OF["latency"]
OUTSIDE = "not of a family that is predicted"
BEYOND_BARS = "of a family beyond the bars, to which nothing is fitted"


@dataclass(frozen=True, slots=True)
class Errors:
    """Statistics of relative errors, in percent. `bias` is the median of predicted / measured - 1, `mape` the mean of its absolute value."""

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


def errors_of(predicted: F64, measured: F64) -> Errors:
    """Of `[n]` predictions and measurements in one unit each; n at least 1."""
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    return Errors(len(size), float(size.mean()), float(np.median(size)), float(np.percentile(size, 90)), float(np.median(signed)))


@dataclass(frozen=True, slots=True)
class Case:
    """A row with its family, the query a closed form answers, and what it asks of a Program (None: rates predict its family)."""

    row: Measurement
    family: str
    query: Query
    ask: Ask | None = None

    def in_unit(self, us: float) -> float:
        """A time as the unit of the row says it: a time, or work over time."""
        return self.query.work / us if self.query.work > 0 else us / self.query.scale


@dataclass(frozen=True, slots=True)
class Missing:
    """A row without a prediction. `counted`: it counts against coverage (a family's row, an NVIDIA machine, one NVLink domain)."""

    row: Measurement
    family: str | None
    reason: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Sorted:
    """All rows of a file: those with a query, and those without."""

    cases: tuple[Case, ...]
    missing: tuple[Missing, ...]

    def batch(self, at: Sequence[int] | None = None) -> Batch:
        """The queries of the cases `at` (all by default), as arrays."""
        return Batch([self.cases[i].query for i in (range(len(self.cases)) if at is None else at)])

    def answered(self, constants: Mapping[str, float], jobs: int = 1, tell: Told | None = None) -> tuple[Sorted, F64]:
        """The same without the cases whose Program refuses them, which are missing with its reason; and the `predictions` of the rest."""
        every = np.ones(len(self.cases), bool)
        predicted, refused = self._parts([(every, constants)], jobs, tell)
        kept = tuple(case for i, case in enumerate(self.cases) if i not in refused)
        missing = tuple(Missing(self.cases[i].row, self.cases[i].family, why, True) for i, why in refused.items())
        return Sorted(kept, self.missing + missing), np.delete(predicted, list(refused))

    def predictions(self, constants: Mapping[str, float], jobs: int = 1, tell: Told | None = None) -> F64:
        """`[cases]` what `validate` judges, in the unit of each row: by Programs or by the named forms (`predictors.PREDICTORS`). Raises
        `SimulationError` for a case that its Program refuses."""
        every = np.ones(len(self.cases), bool)
        return self.predict_parts([(every, constants)], jobs, tell)

    def predict_parts(self, parts: Sequence[tuple[NDArray[np.bool_], Mapping[str, float]]], jobs: int = 1, tell: Told | None = None) -> F64:
        """The same with the constants of each part (`[cases]` mask) for its cases; NaN outside all parts. One pool of processes for all."""
        out, refused = self._parts(parts, jobs, tell)
        for i, why in refused.items():
            raise SimulationError(f"row {self.cases[i].row.id}: no prediction: {why}")
        return out

    def _parts(
        self, parts: Sequence[tuple[NDArray[np.bool_], Mapping[str, float]]], jobs: int, tell: Told | None
    ) -> tuple[F64, dict[int, str]]:
        """(`[cases]` predictions, case -> why it has none)."""
        out = np.full(len(self.cases), np.nan)
        wanted: list[tuple[int, Ask, Mapping[str, float]]] = []
        for mask, constants in parts:
            at = np.flatnonzero(mask)
            if len(at):
                out[at] = self.batch(at.tolist()).values(constants)
            wanted += [(i, ask, constants) for i in at.tolist() if (ask := self.cases[i].ask) is not None]
        times = answers([(ask, constants) for _, ask, constants in wanted], jobs, tell)
        refused = {i: us for (i, _, _), us in zip(wanted, times, strict=True) if isinstance(us, str)}
        for (i, _, _), us in zip(wanted, times, strict=True):
            out[i] = np.nan if isinstance(us, str) else self.cases[i].in_unit(us)
        return out, refused

    def measured(self) -> F64:
        """`[cases]`, in the unit of each row."""
        return np.array([case.row.value for case in self.cases], np.float64)


def sort_rows(rows: Sequence[Measurement]) -> Sorted:
    """Every row either with its query or with the reason why there is none (families beyond the bars: `beyond.split`)."""
    cases, missing = [], []
    for row in rows:
        if beyond_of(row) is not None:
            missing.append(Missing(row, None, BEYOND_BARS, False))
            continue
        family = family_of(row)
        if family is None:
            missing.append(Missing(row, None, OUTSIDE, False))
            continue
        counted = in_scope(row)
        try:
            query = ASK[family](row)
            _check_value(row, query)
            ask = ask_of(family, row, query) if counted else None
        except Unsupported as reason:
            missing.append(Missing(row, family, str(reason), counted))
            continue
        if counted:
            cases.append(Case(row, family, query, ask))
        else:
            missing.append(Missing(row, family, "no NVIDIA machine, or more than one NVLink domain", False))
    return Sorted(tuple(cases), tuple(missing))


def _check_value(row: Measurement, query: Query) -> None:
    if not row.value:
        raise Unsupported("no value above 0")
    if query.work == 0 and row.unit not in TIMES:
        raise Unsupported(f"no prediction in {row.unit}, expected {' or '.join(TIMES)} or a rate that the family has")


@dataclass(frozen=True, slots=True)
class Validation:
    """What `dysharp validate` reports; `to_dict` is its `--json`."""

    groups: list[dict[str, Any]]
    families: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    overall: dict[str, Any]
    unsupported: list[dict[str, Any]]
    fitted_constants: list[dict[str, Any]]
    bars: list[dict[str, Any]]
    forms: list[dict[str, Any]] = field(default_factory=list)
    """Per family that Programs predict: the closed form, the second way, against the Program and against the measurements."""
    hold_out: list[dict[str, Any]] = field(default_factory=list)
    beyond: list[dict[str, Any]] = field(default_factory=list)
    """Families beyond the bars, by system and hardware (`beyond.judge`)."""
    points: tuple[tuple[str, float, float], ...] = ()
    """(family, measured, predicted) of every case, in us: what a plot shows."""
    summary: str = ""
    """The text of `validated.toml` (`summary.summarise`)."""

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(bar["holds"] for bar in self.bars)

    def to_dict(self) -> dict[str, Any]:
        """Fields of `--json`, plain values."""
        names = ("groups", "overall", "families", "forms", "sizes", "worst", "fitted_constants", "unsupported", "bars", "hold_out", "beyond")
        return {name: getattr(self, name) for name in names}


def validate_rows(
    found: Sorted, constants: Mapping[str, Fitted], predicted: F64 | None = None, hold_out: Sequence[dict[str, Any]] = ()
) -> Validation:
    """Errors of `predicted` (`Sorted.predictions`, made here if absent) on these rows. `hold_out`: what `calibration.hold_out` found, to be
    judged too."""
    values = {name: constant.value for name, constant in constants.items()}
    if predicted is None:
        found, predicted = found.answered(values)
    measured, batch = found.measured(), found.batch()
    closed = batch.values(values) if found.cases else measured
    tables = _Tables(found, predicted, measured)
    families = tables.families()
    overall = _overall(found, families, predicted, measured, constants)
    real, times = (np.where(batch.work > 0, batch.work / np.maximum(value, 1e-300), value * batch.scale) for value in (measured, predicted))
    return Validation(
        groups=tables.groups(),
        families=families,
        forms=tables.forms(closed),
        sizes=tables.sizes(real),
        worst=tables.worst(),
        overall=overall,
        unsupported=_unsupported(found.missing),
        fitted_constants=[{key: value for key, value in asdict(c).items() if key not in ("low", "high")} for c in constants.values()],
        bars=check_bars(overall, families, hold_out),
        hold_out=list(hold_out),
        points=tuple((case.family, float(m), float(p)) for case, m, p in zip(found.cases, real, times, strict=True)),
    )


class _Tables:
    """Groups of one set of predictions."""

    def __init__(self, found: Sorted, predicted: F64, measured: F64) -> None:
        self.found, self.predicted, self.measured = found, predicted, measured

    def _by(self, key: Callable[[int, Case], Hashable]) -> dict[Any, list[int]]:
        groups: dict[Any, list[int]] = {}
        for at, case in enumerate(self.found.cases):
            groups.setdefault(key(at, case), []).append(at)
        return groups

    def _errors(self, at: Sequence[int]) -> dict[str, Any]:
        places = np.array(at)
        return asdict(errors_of(self.predicted[places], self.measured[places]))

    def groups(self) -> list[dict[str, Any]]:
        by = self._by(lambda _, c: (list(ASK).index(c.family), c.family, c.row.kind, c.row.system, c.row.hardware))
        keys = ("family", "kind", "system", "hardware")
        return [dict(zip(keys, key[1:], strict=True)) | self._errors(at) for key, at in sorted(by.items())]

    def families(self) -> list[dict[str, Any]]:
        by = self._by(lambda _, c: c.family)
        absent = [m.family for m in self.found.missing if m.counted]
        rows = []
        for family in ASK:
            n_rows = len(by.get(family, [])) + absent.count(family)
            if family in by:
                counts = {"n_rows": n_rows, "coverage": 100 * len(by[family]) / n_rows}
                rows.append({"family": family, "by": PREDICTORS[family]} | counts | self._errors(by[family]))
        return rows

    def forms(self, closed: F64) -> list[dict[str, Any]]:
        """The closed form of each family of Programs: median signed and 90th percentile of its distance from the Program (percent of the
        Program's), and its own errors against the measurements."""
        rows = []
        for family, at in self._by(lambda _, c: c.family if c.ask is not None else None).items():
            if family is not None:
                apart = errors_of(closed[np.array(at)], self.predicted[np.array(at)])
                own = errors_of(closed[np.array(at)], self.measured[np.array(at)])
                rows.append({"family": family, "n": len(at), "closed_over_program": apart.bias, "p90_apart": apart.p90_ape,
                             "closed_median_ape": own.median_ape, "closed_p90_ape": own.p90_ape})
        return sorted(rows, key=lambda row: list(ASK).index(str(row["family"])))

    def sizes(self, measured_us: F64) -> list[dict[str, Any]]:
        """By decade of the measured time."""
        by = self._by(lambda at, c: (list(ASK).index(c.family), c.family, math.floor(math.log10(measured_us[at]))))
        return [{"family": key[1], "from_us": 10.0 ** key[2], "to_us": 10.0 ** (key[2] + 1)} | self._errors(at) for key, at in sorted(by.items())]

    def worst(self) -> list[dict[str, Any]]:
        size = np.abs(self.predicted / self.measured - 1)
        rows = []
        for at in np.argsort(-size, kind="stable")[:N_WORST]:
            case = self.found.cases[at]
            rows.append({"id": case.row.id, "family": case.family, "hardware": case.row.hardware, "config": dict(case.row.config),
                         "measured": float(self.measured[at]), "predicted": float(self.predicted[at]), "unit": case.row.unit,
                         "error": 100 * float(self.predicted[at] / self.measured[at] - 1)})
        return rows


def _overall(found: Sorted, families: Sequence[Mapping[str, Any]], predicted: F64, measured: F64, constants: Mapping[str, Fitted]) -> dict[str, Any]:
    counted = len(found.cases) + sum(m.counted for m in found.missing)
    overall: dict[str, Any] = {"n": len(found.cases), "n_rows": counted, "n_constants": len(constants)}
    if not found.cases:
        return overall | {"median_ape": None, "p90_ape": None, "macro_median_ape": None, "macro_p90_ape": None, "bias": None, "coverage": None}
    micro = errors_of(predicted, measured)
    return overall | {
        "median_ape": micro.median_ape,
        "p90_ape": micro.p90_ape,
        "bias": micro.bias,
        "macro_median_ape": float(np.mean([row["median_ape"] for row in families])),
        "macro_p90_ape": float(np.mean([row["p90_ape"] for row in families])),
        "coverage": 100 * len(found.cases) / counted,
    }


def _unsupported(missing: Sequence[Missing]) -> list[dict[str, Any]]:
    """One entry per kind, system, hardware and reason, with the number of rows and the ids of the first."""
    by: dict[tuple[str, str, str, str, str, bool], list[str]] = {}
    for m in missing:
        by.setdefault((m.family or "", m.row.kind, m.row.system, m.row.hardware, m.reason, m.counted), []).append(m.row.id)
    keys = ("family", "kind", "system", "hardware", "reason", "counts_for_coverage")
    return [dict(zip(keys, key, strict=True)) | {"n": len(ids), "ids": ids[:N_IDS]} for key, ids in sorted(by.items())]


def by_reason(unsupported: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`Validation.unsupported` with one entry per reason, most rows first: `kinds` of its rows and the ids of the first."""
    found: dict[str, dict[str, Any]] = {}
    for entry in unsupported:
        row = found.setdefault(entry["reason"], {"reason": entry["reason"], "n": 0, "counted": 0, "kinds": [], "ids": []})
        row["n"] += entry["n"]
        row["counted"] += entry["n"] if entry["counts_for_coverage"] else 0
        row["kinds"] += [entry["kind"]] if entry["kind"] not in row["kinds"] else []
        row["ids"] = [*row["ids"], *entry["ids"]][:N_IDS]
    return sorted(found.values(), key=lambda row: -row["n"])


def check_bars(overall: Mapping[str, Any], families: Sequence[Mapping[str, Any]], hold_out: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each promise with the value found; a promise about nothing does not hold."""
    worst = max((row["median_ape"] for row in families), default=None)
    found = [
        ("macro median error, %", overall["macro_median_ape"], BARS.macro_median, True),
        ("macro 90th percentile, %", overall["macro_p90_ape"], BARS.macro_p90, True),
        ("largest family median, %", worst, BARS.family_median, True),
        ("coverage, %", overall["coverage"], BARS.coverage, False),
        ("fitted constants", overall["n_constants"], BARS.constants, True),
    ]
    found += [(f"hold-out over fit, by {row['by']}", row["ratio"], BARS.hold_out_ratio, True) for row in hold_out if row["family"] == "macro"]
    return [
        {"name": name, "value": value, "bar": bar, "at_most": most, "holds": value is not None and (value <= bar if most else value >= bar)}
        for name, value, bar, most in found
    ]
