"""Errors of measurements whose shape, GPU or number of nodes was held out of the fit, beside their errors in the fit to all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dysharp.base import F64, I64, Amounts, Bools, ByName, OnProgress, Rows
from dysharp.measured.beyond import source_of
from dysharp.measured.ep_kernels import EpCase
from dysharp.measured.family import Parsed, families_in_bars
from dysharp.measured.predictions import ClosedForms, errors_of, measured_values, members_by, predict_folds
from dysharp.measured.refit import neutral, refit, stages
from dysharp.specs.fitted import Fitted, values_of

MOST_FOLDS = 8
SAMPLE = 24
"""Rule: measurements of a family whose Programs run for the fit of a fold. More take longer."""
HOLD_OUTS = ("shape", "gpu")
NODES = "nodes"
"""The hold-out of one number of nodes, of kernels between NVLink domains."""
FAMILY = "deepep-internode"  # the family of that hold-out
FITTED = tuple(f"internode.{verb}_{what}" for verb in ("dispatch", "combine") for what in ("us", "GBps"))
"""The constants of `FAMILY`. `fitted.toml` has them as given, so no other fit moves them."""
ROUNDS = 2  # Numerics: Program runs of a fit


class _HeldOut(NamedTuple):
    """Predictions with the measurement's group held out, and what each fold could not see."""

    predicted: F64
    """`[parsed]`."""
    borrowed: Rows
    """One entry per fold and constant that the fold's measurements do not see: its source (`Refit.borrowed`)."""


def held_out(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], by: str, jobs: int = 1, on_progress: OnProgress | None = None) -> _HeldOut:
    """Predictions of every measurement while its shape or GPU (`by`) was held out of the fit.

    Whole groups are held out, never random measurements; a GPU is a fold, shapes are dealt into folds (`folds`).
    A fold starts from neutral values; `constants` give it limits, stages and the given launch times of hosts. It fits
    closed forms first. Then the Programs of a sample of its own measurements run with its own constants, and the fit
    goes on with their ratios to the closed forms (`_sample`). Programs predict with the constants of each fold.
    """
    labels = [label_of(entry, by) for entry in parsed]
    groups = folds(labels, by)
    masks = [np.array([label in fold for label in labels]) for fold in groups]
    first = [refit(parsed, constants, ~mask) for mask in masks]
    samples = [_sample(parsed, ~mask) for mask in masks]
    ratios = _ratios(parsed, samples, [found.values for found in first], jobs)
    fits = [
        refit(parsed, constants, chosen, ratio, rest=found.values, start=found.values)
        for chosen, ratio, found in zip(samples, ratios, first, strict=True)
    ]
    names = [next(iter(fold)) if by == "gpu" else f"fold {i} of {len(groups)}" for i, fold in enumerate(groups, start=1)]
    borrowed = [
        {"by": by, "held_out": name, "constant": constant, "from": source}
        for name, found in zip(names, first, strict=True)
        for constant, source in found.borrowed.items()
    ]
    values = [found.values for found in fits]
    return _HeldOut(predict_folds(parsed, list(zip(masks, values, strict=True)), jobs, on_progress), borrowed)


def _sample(parsed: Sequence[Parsed], keep: Bools) -> Bools:
    """`[parsed]` mask of the measurements of `keep` that the second fit of a fold uses.

    Families that Programs predict: `SAMPLE` at even distances in the order of the file. Other families: all.
    """
    chosen = keep.copy()
    for name in {entry.family.name for entry in parsed if entry.family.program_us is not None}:
        members = np.array([i for i, entry in enumerate(parsed) if keep[i] and entry.family.name == name], np.int64)
        chosen[members] = False
        places = np.linspace(0, len(members) - 1, min(SAMPLE, len(members))).round().astype(np.int64)
        chosen[members[places]] = True
    return chosen


def _ratios(parsed: Sequence[Parsed], samples: Sequence[Bools], values: Sequence[Mapping[str, float]], jobs: int) -> list[F64]:
    """For each fold, `[parsed]` ratios of Program to closed form with the fold's constants; 1 outside its sample."""
    by_program = np.array([entry.family.program_us is not None for entry in parsed], bool)
    members = [np.flatnonzero(chosen & by_program).tolist() for chosen in samples]
    # One list of all samples, so that one pool of processes answers all folds.
    fold = np.repeat(np.arange(len(samples)), [len(index) for index in members])
    entries = [parsed[i] for index in members for i in index]
    programs = predict_folds(entries, [(fold == at, own) for at, own in enumerate(values)], jobs)
    ratios = list[F64]()
    for at, (index, own) in enumerate(zip(members, values, strict=True)):
        ratio = np.ones(len(parsed))
        ratio[index] = programs[fold == at] / ClosedForms([parsed[i] for i in index]).values(own)
        ratios.append(ratio)
    return ratios


def label_of(entry: Parsed, by: str) -> str:
    """Name of the group that is held out with the measurement."""
    if by == "shape":
        return f"{entry.family.name}: {entry.case.shape}"
    return entry.case.gpu if by == "gpu" else source_of(entry.measurement.source)


def folds(labels: Sequence[str], by: str) -> list[set[str]]:
    """Groups that are held out at once; the k-th shape of every family goes into fold k modulo `MOST_FOLDS`.

    A source with more than half of all rows is no fold: without it most constants have no measurement.
    """
    names = sorted(set(labels))
    if by != "shape":
        return [{name} for name in names if by == "gpu" or 2 * labels.count(name) <= len(labels)]
    shapes: list[set[str]] = [set() for _ in range(MOST_FOLDS)]
    dealt = Counter[str]()
    for name in names:
        family = name.split(":", maxsplit=1)[0]
        shapes[dealt[family] % MOST_FOLDS].add(name)
        dealt[family] += 1
    return [fold for fold in shapes if fold]


def hold_out_table(parsed: Sequence[Parsed], predicted: F64, held: F64, by: str) -> Rows:
    """Median errors per family of `predicted` and of `held`, both `[parsed]`, and their mean."""
    rows, measured = Rows(), measured_values(parsed)
    by_family = members_by(entry.family.name for entry in parsed)
    for family, members in ((name, by_family[name]) for name in families_in_bars() if name in by_family):
        inside, outside = (errors_of(values[members], measured[members]).median_ape for values in (predicted, held))
        n_groups = len({label_of(parsed[i], by) for i in members})
        rows.append(_row(by, family, len(members), n_groups, inside, outside))
    judged = [row for row in rows if row["held_out"] is not None]
    if judged:
        n, groups, fit, out = ([row[key] for row in judged] for key in ("n", "groups", "fit", "held_out"))
        rows.append(_row(by, "macro", sum(n), sum(groups), float(np.mean(fit)), float(np.mean(out))))
    return rows


def _row(by: str, family: str, n: int, groups: int, fit: float, held: float) -> ByName:
    """`fit`, `held`: median errors of predictions with constants fitted to all, and with the group held out."""
    # With a single group no measurement is left for the fit.
    without = {"held_out": None, "ratio": None} if groups == 1 else {"held_out": held, "ratio": held / fit}
    return {"by": by, "family": family, "n": n, "groups": groups, "fit": fit} | without


def hold_out_beyond(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], by: str) -> Rows:
    """Rows of `hold_out_table` for the families beyond the bars whose closed forms have constants of their own.

    Other constants stay as they are. A fold starts from neutral values of its own constants. `fit`: fitted to all rows in the same way.
    """
    staged = {name for families, _ in stages(constants) for name in families}
    own = [entry for entry in parsed if entry.family.name in staged and not entry.family.in_bars and entry.family.program_us is None]
    if not own:
        return []
    kept, labels = values_of(constants), [label_of(entry, by) for entry in own]
    forms, measured = ClosedForms(own), measured_values(own)
    inside, outside = forms.values(refit(own, constants, rest=kept, start=kept | neutral(_of(constants, own))).values), np.full(len(own), np.nan)
    for fold in folds(labels, by):
        mask = np.array([label in fold for label in labels])
        found = refit(own, constants, ~mask, rest=kept, start=kept | neutral(_of(constants, own)))
        outside[mask] = forms.values(found.values)[mask]
    rows = []
    for name, members in members_by(entry.family.name for entry in own).items():
        groups = len({labels[i] for i in members})
        if groups > 1:
            fit, held = (errors_of(values[members], measured[members]).median_ape for values in (inside, outside))
            rows.append(_row(by, name, len(members), groups, fit, held))
    return rows


def _of(constants: Mapping[str, Fitted], parsed: Sequence[Parsed]) -> dict[str, Fitted]:
    """The constants that the families of `parsed` fix."""
    names = {entry.family.name for entry in parsed}
    return {name: constants[name] for families, stage in stages(constants) if names & set(families) for name in stage}


def rows_of(parsed: Sequence[Parsed]) -> tuple[list[Parsed], I64]:
    """The measurements that the hold-out judges, the times of `FAMILY`, and `[rows]` their GPUs."""
    rows = [entry for entry in parsed if entry.family.name == FAMILY and entry.case.work == 0 and "proto" in entry.measurement.config]
    return rows, np.array([entry.case.gpus if isinstance(entry.case, EpCase) else 0 for entry in rows], np.int64)


def hold_out_nodes(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], jobs: int = 1) -> Rows:
    """One row in the form of `hold_out_table`, or none where fewer than two numbers of nodes were measured.

    Judged are the rows of one collector and GPU in the packaged measurements (`rows_of`), so a fold has
    no other rows to lean on. `fit`: with constants that were fitted to all rows in the same way.
    """
    rows, gpus = rows_of(parsed)
    groups = sorted(set(gpus.tolist()))
    if len(groups) < 2:
        return []
    inside = predicted_by_programs(rows, fitted_to(rows, constants, jobs), jobs)
    outside = np.full(len(rows), np.nan)
    for group in groups:
        mine = gpus == group
        own, others = ([entry for entry, held in zip(rows, mine, strict=True) if held == out] for out in (True, False))
        outside[mine] = predicted_by_programs(own, fitted_to(others, constants, jobs), jobs)
    measured = measured_values(rows)
    fit, held = (errors_of(values, measured).median_ape for values in (inside, outside))
    return [_row(NODES, FAMILY, len(rows), len(groups), fit, held)]


def predicted_by_programs(rows: Sequence[Parsed], values: Mapping[str, float], jobs: int = 1) -> F64:
    """`[rows]` predictions by Programs with the constants `values`."""
    return predict_folds(rows, [(np.ones(len(rows), bool), values)], jobs)


def fitted_to(rows: Sequence[Parsed], constants: Mapping[str, Fitted], jobs: int = 1, given: Mapping[str, float] | None = None) -> Amounts:
    """`constants`, with the constants of the family fitted to `rows` from neutral values; the constants `given` stay."""
    mine = {name: replace(constants[name], stage=FAMILY) for name in FITTED if name not in (given or {})}
    values = values_of(constants) | neutral(mine) | dict(given or {})
    ratio = np.ones(len(rows))
    for _ in range(ROUNDS):
        values |= refit(rows, mine, ratio=ratio, start=values).values
        ratio = predicted_by_programs(rows, values, jobs) / ClosedForms(rows).values(values)
    return values | refit(rows, mine, ratio=ratio, start=values).values
