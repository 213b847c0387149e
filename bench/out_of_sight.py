"""How far off on rows out of sight: every bar of accuracy, coverage and share predicted, with the row's GPU, model or source left out of the fits.

`python bench/out_of_sight.py [--new DIR] [--jobs N] [--only PART ...] [--write [FILE]]`. `PART` is a kind of measured rows, "serving" or "steps";
the signs are left out then. `DIR` has tables `*_visible4.csv` that the package does not hold (../shared/data).

| rows | constants refitted without the group |
|---|---|
| kernels, layers and collectives of one domain | those of their stages, by GPU, shape and source; a Program moves as its closed form |
| attention, operators | their own, by GPU, shape and source |
| calls of libraries | `lib.*` and host steps, by GPU and library (`bench/libraries.py`) |
| TPOT, TTFT, steps | `serving.*`, `training.*`, by GPU, model and source or engine, to first order around the packaged values |
| everything else | none: residuals across groups, of constants that other families fixed or that these rows fixed |

Numbers that were counted and not fitted stay as they are. A row of DIR was in no fit and no choice: its residual is out of sight as it is.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import libraries

from dysharp.base.arrays import F64
from dysharp.base.text import cell, table
from dysharp.measured import left_out
from dysharp.measured.beyond import source_of
from dysharp.measured.families.library_calls import CallCase
from dysharp.measured.family import Classified, Parsed, classify
from dysharp.measured.hold_out import folds, label_of
from dysharp.measured.intervals import ASKED, COLUMNS, NEW, OFF, Residuals, coverage, engine_of, errors, kind_of, residuals_from
from dysharp.measured.measurements import Measurement, measurements_from_csv, read_calls, read_measurements, read_operators
from dysharp.measured.predictions import ClosedForms, measured_values, predict
from dysharp.measured.refit import refit, stages
from dysharp.measured.serving.predictions import KEYS, ServingCase, group_of, predict_row
from dysharp.measured.serving.setting import ServeSetting, ServingRow
from dysharp.measured.serving.setting import setting_of as serving_setting
from dysharp.measured.training.families import memory_cases
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row, step_cases
from dysharp.specs import Cluster
from dysharp.specs.fitted import fitted, fitted_values
from dysharp.specs.numbers import lines

FILE = Path(__file__).resolve().parents[1] / "dysharp" / "measured" / "data" / "residuals.csv.gz"
PREDICTED = 90.0
"""Percent of the rows of every kind."""
SLOPE = 0.05
"""Step of the logarithm of a constant, for the first order."""
SEEN = "all"
GROUPS = ("gpu", "shape", "source")


@dataclass
class Row:
    """One measured row. `off`: name of what was left out ("gpu", "model", "source"; `SEEN`: nothing) -> ln(measured / predicted)."""

    id: str
    kind: str
    family: str
    gpu: str
    model: str
    source: str
    way: str
    us: float
    new: bool
    off: dict[str, float] = field(default_factory=dict)
    aside: str = ""
    engine: str = ""


@dataclass
class Found:
    """Rows with a prediction, and the others: (kind, table, reason)."""

    rows: list[Row] = field(default_factory=list)
    missing: list[tuple[str, str, str]] = field(default_factory=list)


def new_tables(folder: Path | None) -> dict[str, str]:
    """Texts of the tables that the package does not hold, by name."""
    return {path.stem.removesuffix("_visible4"): path.read_text(encoding="utf-8") for path in sorted(folder.glob("*_visible4.csv"))} if folder else {}


def as_kernels(text: str) -> list[Measurement]:
    """Rows of DeepEP V2's kernels as calls: the kernels alone. Phases of a kernel have no prediction."""
    rows = measurements_from_csv(text, "deepepv2_h200")
    return [replace(m, config={**m.config, "library": "deepep-v2", "mode": "normal", "regime": "kernel"}) for m in rows]


def table_of(rows: Iterable[Mapping[str, str]]) -> str:
    """CSV text."""
    every = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(every[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(every)
    return out.getvalue()


def training_rows(tables: Mapping[str, str]) -> list[TrainingRow]:
    """Training runs that the package does not hold."""
    fresh = TrainingRow.from_csv(tables["train"], "train") if "train" in tables else []
    return fresh + (TrainingRow.from_csv(tables["aws_training"], "aws_training") if "aws_training" in tables else [])


def serving_rows(tables: Mapping[str, str]) -> list[ServingRow]:
    """Serving runs that the package does not hold."""
    fresh = ServingRow.from_csv(tables["infer"], "infer") if "infer" in tables else []
    return fresh + (cookbook_rows(tables["sglang_cookbook"]) if "sglang_cookbook" in tables else [])


def cookbook_rows(text: str) -> list[ServingRow]:
    """Outputs of SGLang's benchmark with their launch line, as runs with their mean lengths."""
    cells = []
    for row in csv.DictReader(io.StringIO(text)):
        drafts = "EAGLE 3" if row["accept_length"] else ""
        shown = {name: row[name] for name in ("id", "source", "engine", "engine_version", "model", "hardware", "gpus", "concurrency", "attn_dp")}
        lengths = {name: str(round(float(row[f"{name}_mean"]))) for name in ("isl", "osl")}
        measured = {"ttft_ms": row["ttft_mean_ms"], "tpot_ms": row["tpot_mean_ms"], "out_tok_s_gpu": str(float(row["out_tok_s"]) / int(row["gpus"]))}
        tp = str(int(row["tp"]) // int(row["attn_dp"]))
        layout = {"tp": tp, "moe_ep": row["ep"], "mode": "agg", "spec_decode": drafts}
        cells.append(shown | lengths | measured | layout | {"quality": "A", "measured": "2026-02"})
    return ServingRow.from_csv(table_of(cells), "sglang_cookbook")


def of_measurements(tables: Mapping[str, str], jobs: int, only: Sequence[str] = ()) -> Found:
    """Kernels, layers, collectives and calls. `only`: kinds to predict; constants are refitted on all rows."""
    names = [name for name in ("op", "tp", "collectivex", "ascend") if name in tables]
    fresh = [m for name in names for m in measurements_from_csv(tables[name], name)]
    fresh += as_kernels(tables["deepepv2_h200"]) if "deepepv2_h200" in tables else []
    new = {m.id for m in fresh}
    values = fitted_values()
    every = classify([*read_measurements(), *read_operators(), *read_calls(), *fresh])
    kept = [tuple(entry for entry in part if not only or (entry.family and kind_of(entry.family) in only)) for part in (every.parsed, every.missing)]
    classified, predicted = predict(Classified(*kept), values, jobs)
    measured, found = measured_values(classified.parsed), Found()
    for entry, off, us in zip(classified.parsed, np.log(measured / predicted).tolist(), predicted.tolist(), strict=True):
        rate = entry.case.work > 0
        way, source = entry.case.library if isinstance(entry.case, CallCase) else " ".join(entry.case.dtypes), source_of(entry.measurement.source)
        found.rows.append(
            Row(
                entry.measurement.id, kind_of(entry.family), entry.family.name, entry.case.gpu, entry.case.shape, source, way,
                entry.case.work / us if rate else us * entry.measurement.us_per_unit, entry.measurement.id in new, {SEEN: -off if rate else off},
                left_out.group_of(entry, values), engine_of(entry),
            )
        )  # fmt: skip
    found.missing = [
        (entry.family.name if entry.family else entry.measurement.kind, "new" if entry.measurement.id in new else "", entry.reason)
        for entry in classified.missing
    ]
    refused = {entry.measurement.id for entry in classified.missing}
    _add_refitted(found, [entry for entry in every.parsed if entry.measurement.id not in refused and not left_out.group_of(entry, values)])
    return found


def _add_refitted(found: Found, parsed: Sequence[Parsed]) -> None:
    """Add residuals of families whose constants a fit of closed forms moves; a Program's residual moves as its closed form does."""
    rows, constants = {row.id: row for row in found.rows}, fitted()
    kept = {name: one.value for name, one in constants.items()}
    staged = {name for families, _ in stages(constants) for name in families}
    inside = [entry for entry in parsed if entry.family.in_bars]
    beyond = [entry for entry in parsed if not entry.family.in_bars and entry.family.name in staged and entry.family.closed_us is not None]
    for entries, rest in ((inside, None), (beyond, kept)):
        if not any(entry.measurement.id in rows for entry in entries):
            continue
        forms, names = ClosedForms(entries), [entry.family.name for entry in entries]
        whole = forms.us(refit(entries, constants, rest=rest).values)
        for by in GROUPS:
            labels = np.array([label_of(entry, by) for entry in entries])
            several = {name for name in names if len({label for label, other in zip(labels, names, strict=True) if other == name}) > 1}
            for fold in folds(labels.tolist(), by):
                out = np.isin(labels, list(fold))
                moved = np.log(forms.us(refit(entries, constants, ~out, rest=rest).values) / whole)
                for i in np.flatnonzero(out):
                    if names[i] in several and entries[i].measurement.id in rows:
                        row = rows[entries[i].measurement.id]
                        row.off["model" if by == "shape" else by] = row.off[SEEN] - float(moved[i])


def add_calls(found: Found) -> None:
    """Calls of libraries, with `lib.*` and host steps fitted without the GPU or the library."""
    rows, every = {row.id: row for row in found.rows}, libraries.rows()
    by: dict[str, Callable[[libraries.Row], str]] = {"gpu": lambda row: row.case.gpu, "model": lambda row: row.case.library}
    for name, label in by.items():
        for held in sorted({label(row) for row in every}):
            numbers = libraries.fit([row for row in every if label(row) != held])
            for row in (row for row in every if label(row) == held and row.entry.measurement.id in rows):
                rows[row.entry.measurement.id].off[name] = math.log(row.us / row.predicted(numbers))


def first_order(rows: Sequence[Row], slopes: F64, labels: Mapping[str, Sequence[str]]) -> None:
    """Add residuals with each group left out: constants move by what a robust fit without the group's rows moves them from one with them.

    `slopes`: `[rows, constants]` d ln(predicted) / d ln(constant) at the packaged values.
    """
    off, old = np.array([row.off[SEEN] for row in rows]), np.array([not row.new and not row.aside for row in rows])
    whole = _moved(slopes[old], off[old])
    for by, names in labels.items():
        groups = np.array(names)
        for group in sorted(set(names)):
            out = groups == group
            shift = slopes[out] @ (_moved(slopes[old & ~out], off[old & ~out]) - whole)
            for i, value in zip(np.flatnonzero(out), off[out] - shift, strict=True):
                rows[i].off[by] = float(value)


def _moved(slopes: F64, off: F64) -> F64:
    """`[constants]` logarithms that bring predictions nearest, in the least absolute residual; within a factor of 2."""
    step = np.zeros(slopes.shape[1])
    for _ in range(20):
        weight = 1 / np.maximum(np.abs(off - slopes @ step), 0.05)
        normal = slopes.T @ (weight[:, None] * slopes) + 1e-6 * len(off) * np.eye(len(step))
        step = np.clip(np.linalg.solve(normal, slopes.T @ (weight * off)), -math.log(2), math.log(2))
    return step


EVERY = 12
SERVING = tuple(name for name in fitted() if name.startswith("serving."))
TRAINING = tuple(name for name in fitted() if name.startswith(("training.", "proxy.")))
CLOUD = "awslabs/"
"""Source of the rows on which `proxy.*` are fitted: they came after the other constants and are in sight. Without them nothing fixes these constants,
so that where this source is left out they keep their values.
"""


def moved(constant: str) -> Callable[[Cluster], Cluster]:
    """What moves a machine's `constant` by `SLOPE`."""
    value = fitted()[constant].value * math.exp(SLOPE)
    return lambda cluster: replace(cluster, constants=tuple(sorted((dict(cluster.constants) | {constant: value}).items())))


def rate_of(row: ServingRow, tpot: float, ttft: float) -> float:
    """Tokens per second of a GPU."""
    gpus = row.degrees["gpus"] or row.degree("tp") * row.degree("attn_dp")
    return (row.degrees["concurrency"] or row.degrees["batch"]) * row.degrees["osl"] / ((ttft + row.degrees["osl"] * tpot) / 1e3) / gpus


GPUS = ("gb300", "gb200", "b300", "b200", "h200", "h100", "h800", "h20", "mi355x", "mi325x", "mi300x")


def _gpu_word(text: str) -> str:
    return next((name for name in GPUS if name in text.lower()), text.lower())


def answers(case: ServingCase) -> dict[str, float]:
    """What a prediction says, as times: milliseconds, and GPU milliseconds per token."""
    assert case.tpot_ms is not None
    assert case.ttft_ms is not None
    return {"TPOT": case.tpot_ms, "TTFT": case.ttft_ms, "throughput": 1e3 / rate_of(case.row, case.tpot_ms, case.ttft_ms)}


def group_of_served(setting: ServeSetting) -> str:
    """The group of runs of a run."""
    return group_of(setting.decode or setting.replica, disaggregated=setting.decode is not None)


def of_serving(tables: Mapping[str, str]) -> Found:
    """TPOT, TTFT and throughput. Slopes are those of every `EVERY`th row of a model, machine, engine and format."""
    fresh = serving_rows(tables)
    new, found = {row.id for row in fresh}, Found()
    slopes: list[list[float]] = []
    counts, last = dict[tuple[str, ...], int](), dict[tuple[str, ...], dict[str, list[float]]]()
    for row in [*ServingRow.read(), *fresh]:
        case = predict_row(row)
        if case.tpot_ms is None or case.ttft_ms is None:
            if case.step_ms is None:
                found.missing.append(("serving", "new" if row.id in new else "", case.note))
            continue
        cell = tuple(row.text(name) for name in ("model", "hardware", "engine", "precision", "mode"))
        mine, tpot, ttft = answers(case), row.numbers["tpot_ms"], row.numbers["ttft_ms"]
        if counts.get(cell, 0) % EVERY == 0:
            other = [answers(predict_row(row, moved(name))) for name in SERVING]
            last[cell] = {name: [math.log(one[name] / value) / SLOPE for one in other] for name, value in mine.items()}
        counts[cell] = counts.get(cell, 0) + 1
        measured = {"TPOT": tpot, "TTFT": ttft if case.warm or row.id in new else None}
        measured["throughput"] = 1e3 / rate_of(row, tpot, ttft) if tpot and ttft else None
        way = f"{row.text('engine')} {row.text('moe_quant') or row.text('precision')}"
        aside = "suspected of speculation" if case.suspected else "" if case.scored else "quality"
        place = (serving_setting(row).replica.machine.gpu.name, row.model, source_of(row.text("source")), way)
        group = group_of_served(serving_setting(row))
        for name, real in measured.items():
            if real is not None:
                off = {SEEN: math.log(real / mine[name])}
                found.rows.append(Row(row.id, "serving", f"{name}, {group}", *place, 1e3 * mine[name], row.id in new, off, aside))
                slopes.append(last[cell][name])
    rows = found.rows  # one fit: a constant of serving is shared by all three
    groups = {"gpu": [row.gpu for row in rows], "model": [row.model for row in rows], "source": [row.way.split(" ")[0] for row in rows]}
    first_order(rows, np.array(slopes), groups)
    return found


def of_training(tables: Mapping[str, str]) -> Found:
    """Steps and memory."""
    fresh = training_rows(tables)
    new, found = {row.id for row in fresh if not row.text("source").startswith(CLOUD)}, Found()
    every = {row.id: row for row in [*TrainingRow.read(), *fresh]}
    slopes: list[list[float]] = []
    for case in step_cases(list(every.values())):
        row, table_name = every[case.id], "new" if case.id in new else ""
        if case.predicted is None:
            found.missing.append(("steps", table_name, case.note))
            continue
        slopes.append([math.log(estimate_row(row, moved(name)).step_us / 1e6 / case.predicted) / SLOPE for name in TRAINING])
        found.rows.append(_run("steps", case.like, row, case, 1e6 * case.predicted, case.id in new, case.gpu))
    if found.rows:
        first_order(found.rows, np.array(slopes), {name: [getattr(row, name) for row in found.rows] for name in ("gpu", "model", "source")})
    for one in memory_cases(list(every.values())):
        if one.predicted is None:
            found.missing.append(("memory", "new" if one.id in new else "", one.note))
        else:
            found.rows.append(_run("memory", "memory", every[one.id], one, one.predicted, one.id in new, _gpu_word(every[one.id].text("hardware"))))
    return found


def _run(kind: str, family: str, row: TrainingRow, case: Any, size: float, new: bool, gpu: str) -> Row:
    off = {SEEN: math.log(case.measured / case.predicted)}
    return Row(row.id, kind, family, gpu, row.model, source_of(row.text("source")), row.text("precision"), size, new, off, case.note)


def of_everything(tables: Mapping[str, str], jobs: int, only: Sequence[str] = ()) -> Found:
    """All rows, or those of some parts."""
    kinds = set(only) - {"serving", "steps"}
    found = of_measurements(tables, jobs, tuple(kinds)) if kinds or not only else Found()
    served_rows, trained = (make(tables) if name in only or not only else Found() for name, make in (("serving", of_serving), ("steps", of_training)))
    if not only or kinds & {"calls", "between nodes"}:
        add_calls(found)
    return Found([*found.rows, *served_rows.rows, *trained.rows], [*found.missing, *served_rows.missing, *trained.missing])


def named(row: Row, name: str) -> bool:
    """Whether a line of the tables holds a row."""
    return name in (row.kind, row.family.split(", ")[0])


def bar_lines(found: Found) -> list[tuple[str, ...]]:
    """One line per bar: rows, the share of them that is judged, and errors: out of sight, of new rows, in sight."""
    told, every = [], _judged(found)
    fresh = {entry["what"]: entry for entry in errors(every.of(new=NEW))}
    for entry in errors(every):
        rows = [row for row in found.rows if named(row, entry["what"])]
        kinds = {row.kind for row in rows}
        share = 100 * entry["n"] / (len(rows) + sum(kind in kinds for kind, *_ in found.missing))
        new = fresh.get(entry["what"])
        shown = [_pair(entry, "median_ape", "p90_ape"), _pair(new, "median_ape", "p90_ape"), _pair(entry, "seen_median_ape", "seen_p90_ape")]
        told.append((entry["what"], str(entry["n"]), f"{share:.0f}", *shown, _pair(entry, "bar", "bar_p90"), cell(entry["holds"])))
    return told


def _pair(entry: Mapping[str, Any] | None, *names: str) -> str:
    return " / ".join("-" if entry is None or entry[name] is None else f"{entry[name]:.3g}" for name in names)


def predicted_lines(found: Found) -> list[tuple[str, ...]]:
    """Families and kinds of which fewer than `PREDICTED` percent are predicted, with the commonest reasons."""
    ids = {(row.kind if row.kind in ("serving", "steps") else row.family, row.id) for row in found.rows}
    rows, lost = Counter(name for name, _ in ids), Counter[str]()
    reasons: dict[str, Counter[str]] = {}
    for name, _, reason in found.missing:
        lost[name] += 1
        reasons.setdefault(name, Counter())[reason] += 1
    told = []
    for name, count in lost.most_common():
        share = 100 * rows[name] / (rows[name] + count)
        if share < PREDICTED:
            told.append((name, str(rows[name] + count), f"{share:.0f}", "; ".join(f"{n} {why[:70]}" for why, n in reasons[name].most_common(2))))
    return told


def written(found: Found) -> str:
    """The table `residuals`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(found.rows, key=lambda row: (row.kind, row.family, row.gpu, row.id)):
        texts = (row.kind, row.family, row.gpu, row.model, row.source, row.engine, row.aside, NEW if row.new else "")
        writer.writerow((*texts, f"{row.us:.3g}", *("" if name not in row.off else f"{row.off[name]:.3f}" for name in OFF)))
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", type=Path, metavar="DIR", help="tables *_visible4.csv that the package does not hold")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", default=(), metavar="PART", help='kinds of rows, "serving" or "steps"')
    parser.add_argument("--write", nargs="?", type=Path, const=FILE, metavar="FILE", help="write the residuals; without FILE the packaged table")
    args = parser.parse_args()
    tables = new_tables(args.new)
    found = of_everything(tables, args.jobs, args.only)
    if args.write:
        text = written(found).encode()
        args.write.write_bytes(gzip.compress(text, mtime=0) if args.write.suffix == ".gz" else text)
    report(found, tables)


def report(found: Found, tables: Mapping[str, str]) -> None:
    """Print the tables."""
    heads = ("what", "judged", "% of rows", "out of sight %", "new rows %", "in sight %", "bar", "holds")
    print("Errors, median / 90th percentile.\n" + table(heads, bar_lines(found)))
    print("\nIntervals built without the group: 80 % must hold {:g} to {:g} % of rows, 90 % {:g} to {:g}.".format(*ASKED[0.8], *ASKED[0.9]))
    told = [[str(one) if isinstance(one, (str, int)) else f"{one:.3g}" for one in entry.values()] for entry in coverage(_judged(found))]
    print(table(("what", "left out", "rows", "% in 80", "% in 90", "high / low", "% in factor", "high / low"), told, left=2))
    groups: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.aside:
            groups.setdefault(f"{row.kind if row.kind == 'steps' else row.family}: {row.aside}", []).append(row)
    asides = []
    for name, rows in sorted(groups.items()):
        sizes = [100 * abs(math.expm1(-row.off[SEEN])) for row in rows]
        asides.append((name, str(len(rows)), f"{np.median(sizes):.1f} / {np.percentile(sizes, 90):.1f}"))
    print("\nApart for a reason that was fixed before.\n" + table(("what", "rows", "error %"), asides))
    heads = ("what", "rows", "% predicted", "why not")
    print(f"\nPredicted less often than {PREDICTED:g} %.\n" + table(heads, predicted_lines(found), text=("why not",)))
    print("\nSigns, bar 75 %.\n" + table(("pairs", "n", "% right"), sign_lines(found, tables)))
    print(f"\nFitted constants and counted numbers: {lines(fitted())[-1]['total']}")


def _judged(found: Found) -> Residuals:
    return residuals_from(written(found)).of(aside="")


def sign_lines(found: Found, tables: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Pairs of runs that differ in one choice alone: how often the faster one is predicted faster."""
    tpot, step = ({row.id: row for row in found.rows if named(row, name)} for name in ("TPOT", "steps"))
    served, trained = dict[Any, list[tuple[str, Row]]](), dict[Any, list[tuple[str, Row]]]()
    for run in [*ServingRow.read(), *serving_rows(tables)]:
        gpus = run.degrees["gpus"] or run.degree("tp") * run.degree("attn_dp")
        cell = (*map(run.text, KEYS), run.text("mode"), *(run.degrees[name] for name in ("isl", "osl", "concurrency", "batch", "attn_dp")), gpus)
        if run.id in tpot and run.text("mode") == "agg" and run.degree("moe_ep") in (1, gpus):
            served.setdefault(cell, []).append(("EP" if run.degree("moe_ep") > 1 else "TP", tpot[run.id]))
    for one in TrainingRow.from_csv(tables["aws_training"], "aws_training") if "aws_training" in tables else []:
        overlap = one.text("a2a_overlap")
        cell = (one.text("model"), one.text("hardware"), overlap, *(one.degrees[name] for name in ("mbs", "ep", "layers")))
        if one.id in step:
            trained.setdefault(cell, []).append((one.text("dispatcher"), step[one.id]))
    return [_signs(name, cells) for name, cells in (("EP against TP of experts", served), ("dispatchers on another operator's cluster", trained))]


def _signs(name: str, cells: Mapping[Any, Sequence[tuple[str, Row]]]) -> tuple[str, ...]:
    pairs = [pair for rows in cells.values() for pair in combinations(rows, 2) if pair[0][0] != pair[1][0]]
    right = 0
    for (_, one), (_, two) in pairs:
        said = math.log(one.us / two.us)
        right += said * (said + one.off[SEEN] - two.off[SEEN]) > 0
    return name, str(len(pairs)), f"{100 * right / len(pairs):.0f}" if pairs else "-"


if __name__ == "__main__":
    main()
