"""Predictions against measurements: errors by group, family and size, reasons without prediction, and the bars."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from dysharp.base import F64, AnyMapping, ByName, Rows, Tally, frozen, older_name
from dysharp.base.text import table
from dysharp.measured.beyond import ALL, beside_simulators
from dysharp.measured.family import Classified, Missing, Parsed, families_in_bars
from dysharp.measured.fitting import seen_by
from dysharp.measured.left_out import part_of
from dysharp.measured.predictions import ClosedForms, bar, errors_by, errors_of, measured_values, predict
from dysharp.measured.refit import stages
from dysharp.measured.regime import regime_of
from dysharp.specs.fitted import Fitted, values_of
from dysharp.specs.numbers import BETWEEN, BETWEEN_DOMAINS, ONE, ONE_DOMAIN, counted, lines, share_of

N_WORST = 20
N_IDS = 3
"""Number of measurements of one group that the report names."""


@frozen
class Bars:
    """The limits of errors (percent, ratios) that are asked for; `validate --check` checks them. A missed one is printed as missed."""

    macro_median: float = 5.0
    """Mean over families of their median absolute errors."""
    macro_p90: float = 15.0
    """Mean over families of their 90th percentiles."""
    family_median: float = 12.0
    """Largest median of a family."""
    hold_out_ratio: float = 1.5
    """Median error with the group held out, divided by the median error of the fit to all measurements."""
    constants: int = ONE_DOMAIN
    """Largest number of fitted constants and counted numbers together (`specs.numbers`)."""
    layer_device: float = 8.0
    """Median of whole layers whose time is mostly the device's (`left_out.part_of`)."""
    layer_p90: float = 25.0
    """Their 90th percentile."""
    operators: float = 8.0
    """Median of each family of `OPERATORS`."""
    between_median: float = 10.0
    """Largest median of a family between NVLink domains."""
    between_p90: float = 25.0
    """Largest 90th percentile of a family between NVLink domains."""
    between_constants: int = BETWEEN_DOMAINS
    """Largest number of fitted constants and counted numbers between NVLink domains."""
    coverage: float = 90.0
    """Share of predicted measurements: families in the bars, on NVIDIA machines in one NVLink domain."""


BARS = Bars()
OPERATORS = ("attention", "operator")
"""Families beyond the bars of `Bars` that have one of their own."""


@frozen
class Validation:
    """The report of `dysharp validate`. `to_dict` has the fields of `--json`."""

    groups: Rows
    families: Rows
    sizes: Rows
    worst: Rows
    overall: ByName
    unsupported: Rows
    fitted_constants: Rows
    bars: Rows
    forms: Rows = field(default_factory=list)
    """Per family that Programs predict: the closed form against the Program and against the measurements."""
    counted_numbers: Rows = field(default_factory=list)
    """Numbers in the code that count beside the fitted constants (`specs.numbers`)."""
    fits: Rows = field(default_factory=list)
    """The count of fitted constants and counted numbers by part, with budgets (`specs.numbers`)."""
    left_out: Rows = field(default_factory=list)
    """Measurements that are predicted and in no mean or bar, by family and group (`left_out.left_out_errors`)."""
    parts: Rows = field(default_factory=list)
    """Whole layers by part: those whose time is mostly the host's launches, and the others (`left_out.part_of`)."""
    regimes: Rows = field(default_factory=list)
    """By family and regime of the measurements, with the regime that predictions describe (`regime`)."""
    borrowed: Rows = field(default_factory=list)
    """Per fold of a hold-out, the constants that its measurements do not see, and their source."""
    hold_out: Rows = field(default_factory=list)
    beyond: Rows = field(default_factory=list)
    """Families beyond the bars, by system and hardware (`beyond.beyond_errors`)."""
    sources: Rows = field(default_factory=list)
    """How far the sources of one kernel differ (`beyond.disagreements`)."""
    simulators: Rows = field(default_factory=list)
    """Errors of the papers' simulators beside ours (`beyond.beside_simulators`)."""
    calls: Rows = field(default_factory=list)
    """Calls of libraries by regime (`calls.call_errors`)."""
    points: tuple[tuple[str, float, float], ...] = ()
    """(family, measured us, predicted us) of every prediction, for a plot."""
    summary: str = ""
    """The text of `validated.toml` (`summary.summarise`)."""
    rows: Rows = field(default_factory=list)
    """Empty for the packaged measurements. Else one entry per row, in the order of the file.

    | field | holds |
    |---|---|
    | `id`, `kind`, `system`, `hardware`, `unit` | as in the file |
    | `family` | the family that predicts the row; "" without a family |
    | `measured`, `predicted` | numbers in `unit`; None where a number is missing |
    | `error` | predicted over measured, minus 1, in percent |
    | `interval80`, `interval90` | between which numbers eight and nine of ten measurements of such a prediction lie (`measured.intervals`) |
    | `usual` | the error in percent that `interval90` allows |
    | `note` | why the row has no prediction; the group of a row whose error is in no mean (`measured.left_out.GROUPS`); "" for other rows |
    | `doubt` | another library that fits the time of a call far better than the library that the row names, and its time; "" for other rows |
    """

    out_of_sight: Rows = field(default_factory=list)
    """Errors of the packaged measurements with their groups left out of the fits (`intervals.errors`)."""

    def __str__(self) -> str:
        """Per kind of measurement: how many rows are predicted, and how well."""
        cells = [(row["family"], str(row["n"]), f"{row['median_ape']:.1f}", f"{row['p90_ape']:.1f}") for row in self.families]
        return table(("what", "predicted", "median error %", "nine of ten within %"), cells)

    apart = older_name("left_out")

    def __repr__(self) -> str:
        return f"<Report on {self.overall['n']} predicted measurements; print() shows the table, to_dict() all>"

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(bar["holds"] for bar in self.bars)

    def to_dict(self) -> ByName:
        """Fields of `--json`, plain values."""
        names = ("groups", "overall", "families", "forms", "sizes", "worst", "fitted_constants", "unsupported", "bars")
        judged = ("counted_numbers", "fits", "parts", "regimes", "left_out", "apart", "out_of_sight", "hold_out", "borrowed", "beyond", "calls")
        return {name: getattr(self, name) for name in (*names, *judged, "sources", "simulators")} | ({"rows": self.rows} if self.rows else {})


def validate_measurements(
    classified: Classified, constants: Mapping[str, Fitted], predicted: F64 | None = None, hold_out: Sequence[ByName] = ()
) -> Validation:
    """Errors of `[parsed]` predictions (`predictions.predict`, made here if absent), families of the bars alone.

    `hold_out`: the table of `hold_out.hold_out_table`, which the bars judge, too.
    """
    values = values_of(constants)
    if predicted is None:
        classified, predicted = predict(classified.in_bars(), values)
    measured, closed_forms = measured_values(classified.parsed), ClosedForms(classified.parsed)
    tables = _Tables(classified, predicted, measured)
    families, parts = tables.families(), tables.parts(values)
    overall = _overall(classified, families, predicted, measured, constants)
    measured_us, predicted_us = closed_forms.times(measured), closed_forms.times(predicted)
    return Validation(
        groups=tables.groups(),
        families=families,
        forms=tables.forms(closed_forms.values(values)),
        sizes=tables.sizes(measured_us),
        worst=tables.worst(),
        overall=overall,
        unsupported=_unsupported(classified.missing),
        fitted_constants=_constants(classified.parsed, constants),
        counted_numbers=[number.to_dict() for number in counted()],
        fits=lines(constants),
        parts=parts,
        simulators=beside_simulators(classified.parsed, predicted, measured),
        regimes=tables.regimes(),
        bars=_check_bars(overall, families, hold_out, parts),
        hold_out=list(hold_out),
        points=tuple(zip(tables.names, measured_us.tolist(), predicted_us.tolist(), strict=True)),
    )


def _constants(parsed: Sequence[Parsed], constants: Mapping[str, Fitted]) -> Rows:
    """The constants, with the number of judged measurements that see each of them (None: given constants)."""
    values, rows = values_of(constants), Tally()
    for families, names in stages(constants):
        forms = ClosedForms([entry for entry in parsed if entry.family.name in families])
        rows |= seen_by(names, values, forms.values)
    shown = [{key: value for key, value in asdict(c).items() if key not in ("low", "high")} for c in constants.values()]
    return [entry | {"seen_by": rows.get(entry["name"])} for entry in shown]


class _Tables:
    """Groups of one set of predictions."""

    def __init__(self, classified: Classified, predicted: F64, measured: F64) -> None:
        self.parsed, self.missing = classified.parsed, classified.missing
        self.predicted, self.measured = predicted, measured
        self.order, self.names = families_in_bars(), [entry.family.name for entry in classified.parsed]
        self.judged = sorted({entry.family.name: entry.family for entry in classified.parsed}.values(), key=lambda f: self.order.index(f.name))

    def _table(self, columns: Sequence[str], keys: Iterable[tuple[Any, ...]]) -> Rows:
        """Errors by key. `keys`: `[parsed]` values of `columns`, of which the first is the family."""
        errors = errors_by(keys, self.predicted, self.measured)
        shown = sorted(errors, key=lambda key: (self.order.index(key[0]), key))
        return [dict(zip(columns, key, strict=True)) | asdict(errors[key]) for key in shown]

    def groups(self) -> Rows:
        """By family, kind, system, hardware and regime."""
        rows = [(name, entry.measurement) for name, entry in zip(self.names, self.parsed, strict=True)]
        keys = ((name, m.kind, m.system, m.hardware, regime_of(m)) for name, m in rows)
        return self._table(("family", "kind", "system", "hardware", "regime"), keys)

    def families(self) -> Rows:
        """By family, with the coverage of its measurements."""
        absent = [entry.family.name for entry in self.missing if entry.counted and entry.family is not None]
        errors, entries = errors_by(self.names, self.predicted, self.measured), []
        for family in self.judged:
            own = errors[family.name]
            n_rows = own.n + absent.count(family.name)
            entries.append({"family": family.name, "by": family.predictor, "n_rows": n_rows, "coverage": 100 * own.n / n_rows} | asdict(own))
        return entries

    def parts(self, constants: Mapping[str, float]) -> Rows:
        """Eager layers by part."""
        keys = ((entry.family.name, part_of(entry, constants)) for entry in self.parsed)
        errors = sorted(errors_by(keys, self.predicted, self.measured).items())
        return [{"family": name, "part": part} | asdict(own) for (name, part), own in errors if part]

    def regimes(self) -> Rows:
        """By family and regime, beside the regime that the family's predictions describe."""
        keys = ((entry.family.name, regime_of(entry.measurement), entry.family.regime) for entry in self.parsed)
        return self._table(("family", "regime", "predicted_as"), keys)

    def forms(self, closed: F64) -> Rows:
        """The closed form of each family that Programs predict.

        | field | percent |
        |---|---|
        | `closed_over_program` | median signed distance of the closed form from the Program |
        | `p90_apart` | 90th percentile of the distance |
        | `closed_median_ape`, `closed_p90_ape` | errors of the closed form against the measurements |
        """
        apart, errors = errors_by(self.names, closed, self.predicted), errors_by(self.names, closed, self.measured)
        entries = []
        for name in (family.name for family in self.judged if family.program_us is not None):
            distance = {"closed_over_program": apart[name].bias, "p90_apart": apart[name].p90_ape}
            own = {"closed_median_ape": errors[name].median_ape, "closed_p90_ape": errors[name].p90_ape}
            entries.append({"family": name, "n": apart[name].n} | distance | own)
        return entries

    def sizes(self, measured_us: F64) -> Rows:
        """By family and decade of the measured time."""
        decades = [math.floor(math.log10(us)) for us in measured_us]
        keys = ((name, 10.0**decade, 10.0 ** (decade + 1)) for name, decade in zip(self.names, decades, strict=True))
        return self._table(("family", "from_us", "to_us"), keys)

    def worst(self) -> Rows:
        """The `N_WORST` measurements with the largest errors."""
        signed = self.predicted / self.measured - 1
        entries = []
        for i in np.argsort(-np.abs(signed), kind="stable")[:N_WORST]:
            m = self.parsed[i].measurement
            entries.append(
                {
                    "id": m.id,
                    "family": self.parsed[i].family.name,
                    "hardware": m.hardware,
                    "config": dict(m.config),
                    "measured": float(self.measured[i]),
                    "predicted": float(self.predicted[i]),
                    "unit": m.unit,
                    "error": 100 * float(signed[i]),
                }
            )
        return entries


def _overall(classified: Classified, families: Sequence[AnyMapping], predicted: F64, measured: F64, constants: Mapping[str, Fitted]) -> ByName:
    n = len(classified.parsed)
    n_rows = n + sum(entry.counted for entry in classified.missing)
    numbers = share_of(constants, ONE)
    overall: ByName = {"n": n, "n_rows": n_rows, "n_constants": numbers.fitted, "n_numbers": numbers.total}
    if not n:
        names = ("median_ape", "p90_ape", "macro_median_ape", "macro_p90_ape", "bias", "coverage")
        return overall | dict.fromkeys(names)
    micro = errors_of(predicted, measured)
    return overall | {
        "median_ape": micro.median_ape,
        "p90_ape": micro.p90_ape,
        "bias": micro.bias,
        "macro_median_ape": float(np.mean([entry["median_ape"] for entry in families])),
        "macro_p90_ape": float(np.mean([entry["p90_ape"] for entry in families])),
        "coverage": 100 * n / n_rows,
    }


def _unsupported(missing: Sequence[Missing]) -> Rows:
    """One entry per family, kind, system, hardware and reason: how many measurements, and the ids of the first."""
    by: dict[tuple[str, str, str, str, str, bool], list[str]] = {}
    for entry in missing:
        m, name = entry.measurement, entry.family.name if entry.family is not None else ""
        by.setdefault((name, m.kind, m.system, m.hardware, entry.reason, entry.counted), []).append(m.id)
    keys = ("family", "kind", "system", "hardware", "reason", "counts_for_coverage")
    return [dict(zip(keys, key, strict=True)) | {"n": len(ids), "ids": ids[:N_IDS]} for key, ids in sorted(by.items())]


def by_reason(unsupported: Sequence[AnyMapping]) -> Rows:
    """`Validation.unsupported` with one entry per reason, the most frequent first: its kinds and the first ids."""
    by: dict[str, ByName] = {}
    for entry in unsupported:
        empty = {"reason": entry["reason"], "n": 0, "counted": 0, "kinds": [], "ids": []}
        total = by.setdefault(entry["reason"], empty)
        total["n"] += entry["n"]
        total["counted"] += entry["n"] if entry["counts_for_coverage"] else 0
        total["kinds"] += [entry["kind"]] if entry["kind"] not in total["kinds"] else []
        total["ids"] = [*total["ids"], *entry["ids"]][:N_IDS]
    return sorted(by.values(), key=lambda total: -total["n"])


def _check_bars(overall: AnyMapping, families: Sequence[AnyMapping], hold_out: Sequence[AnyMapping], parts: Sequence[AnyMapping]) -> Rows:
    """Each bar with its value. A bar without a value does not hold."""
    worst = max((entry["median_ape"] for entry in families), default=None)
    at_most: list[tuple[str, float | None, float]] = [
        ("macro median error, %", overall["macro_median_ape"], BARS.macro_median),
        ("macro 90th percentile, %", overall["macro_p90_ape"], BARS.macro_p90),
        ("largest family median, %", worst, BARS.family_median),
    ]
    device = [entry for entry in parts if entry["part"] == "device"]
    macro = [entry for entry in hold_out if entry["family"] == "macro"]
    return [
        *(bar(name, value, limit) for name, value, limit in at_most),
        bar("coverage, %", overall["coverage"], BARS.coverage, at_most=False),
        bar("fitted constants and counted numbers", overall["n_numbers"], BARS.constants),
        *(bar("median of whole layers' device part, %", entry["median_ape"], BARS.layer_device) for entry in device),
        *(bar("90th percentile of whole layers' device part, %", entry["p90_ape"], BARS.layer_p90) for entry in device),
        *(bar(f"hold-out over fit, by {entry['by']}", entry["ratio"], BARS.hold_out_ratio) for entry in macro),
    ]


def beyond_bars(beyond: Sequence[AnyMapping], constants: Mapping[str, Fitted], hold_out: Sequence[AnyMapping] = ()) -> Rows:
    """The bars of families of operators, and of families between NVLink domains; none without their measurements.

    `beyond`: `beyond.beyond_errors`. `hold_out`: `hold_out.hold_out_nodes`.
    """
    whole = [row for row in beyond if row["system"] == ALL and row["n"]]
    operators = [bar(f"median of {row['family']}, %", row["median_ape"], BARS.operators) for row in whole if row["family"] in OPERATORS]
    rows = [row for row in whole if row["between"] == "bars"]
    if not rows:
        return operators
    n_constants = share_of(constants, BETWEEN).total
    return [
        *operators,
        bar("between domains: largest family median, %", max(row["median_ape"] for row in rows), BARS.between_median),
        bar("between domains: largest 90th percentile, %", max(row["p90_ape"] for row in rows), BARS.between_p90),
        bar("between domains: fitted constants and counted numbers", n_constants, BARS.between_constants),
        *(bar(f"between domains: hold-out over fit, by {row['by']}", row["ratio"], BARS.hold_out_ratio) for row in hold_out),
    ]
