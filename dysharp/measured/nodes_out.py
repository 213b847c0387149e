"""Kernels between NVLink domains with the measurements of one number of nodes held out of the fit of their constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.measured.accuracy import errors_of
from dysharp.measured.classify import Parsed
from dysharp.measured.closed_forms import ClosedForms
from dysharp.measured.ep_kernels import EpCase
from dysharp.measured.fitting import spread_of, standard_errors
from dysharp.measured.predictions import measured_values, predict_folds
from dysharp.measured.refit import neutral, refit
from dysharp.specs.fitted import Fitted

F64 = NDArray[np.float64]
FAMILY = "deepep-internode"
FITTED = tuple(f"internode.{verb}_{what}" for verb in ("dispatch", "combine") for what in ("us", "GBps"))
"""Its constants. `fitted.toml` has them as given, so no other fit moves them."""
ROUNDS = 2  # Numerics: Program runs of a fit
SLOPE_STEP = 0.1  # Numerics: of a logarithm, for slopes of Programs, whose rows come in whole chunks
BY = "nodes"


def rows_of(parsed: Sequence[Parsed]) -> tuple[list[Parsed], NDArray[np.int64]]:
    """The measurements that the hold-out judges, the times of `FAMILY`, and `[rows]` their GPUs."""
    rows = [entry for entry in parsed if entry.family.name == FAMILY and entry.case.work == 0 and "proto" in entry.measurement.config]
    return rows, np.array([entry.case.gpus if isinstance(entry.case, EpCase) else 0 for entry in rows], np.int64)


def hold_out_nodes(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], jobs: int = 1) -> list[dict[str, Any]]:
    """One row in the form of `hold_out.hold_out_table`, or none where fewer than two numbers of nodes were measured.

    Judged are the rows of one collector and GPU in the packaged measurements (`rows_of`), so a fold has
    no other rows to lean on. `fit`: with constants that were fitted to all of them in the same way.
    """
    rows, gpus = rows_of(parsed)
    groups = sorted(set(gpus.tolist()))
    if len(groups) < 2:
        return []
    inside = predicted(rows, fitted_to(rows, constants, jobs), jobs)
    outside = np.full(len(rows), np.nan)
    for group in groups:
        mine = gpus == group
        own, others = ([entry for entry, held in zip(rows, mine, strict=True) if held == out] for out in (True, False))
        outside[mine] = predicted(own, fitted_to(others, constants, jobs), jobs)
    measured = measured_values(rows)
    fit, held = (errors_of(values, measured).median_ape for values in (inside, outside))
    counts = {"n": len(rows), "groups": len(groups)}
    return [{"by": BY, "family": FAMILY, **counts, "fit": fit, "held_out": held, "ratio": held / fit}]


def predicted(rows: Sequence[Parsed], values: Mapping[str, float], jobs: int = 1) -> F64:
    """`[rows]` predictions by Programs with the constants `values`."""
    return predict_folds(rows, [(np.ones(len(rows), bool), values)], jobs)


def fitted_to(rows: Sequence[Parsed], constants: Mapping[str, Fitted], jobs: int = 1, given: Mapping[str, float] | None = None) -> dict[str, float]:
    """`constants` with those of the family fitted to `rows` from neutral values, but for the constants `given`."""
    mine = {name: replace(constants[name], stage=FAMILY) for name in FITTED if name not in (given or {})}
    values = {name: constant.value for name, constant in constants.items()} | neutral(mine) | dict(given or {})
    ratio = np.ones(len(rows))
    for _ in range(ROUNDS):
        values |= refit(rows, mine, ratio=ratio, start=values).values
        ratio = predicted(rows, values, jobs) / ClosedForms(rows).values(values)
    return values | refit(rows, mine, ratio=ratio, start=values).values


def errors_by_programs(rows: Sequence[Parsed], values: Mapping[str, float], jobs: int = 1) -> F64:
    """`[FITTED]` relative standard errors of the family's constants in a fit to `rows`, from slopes of Programs at `values`."""
    trials = [dict(values), *({**values, name: values[name] * np.exp(SLOPE_STEP)} for name in FITTED)]
    base, *moved = (np.log(predicted(rows, trial, jobs)) for trial in trials)
    slopes = np.stack([(column - base) / SLOPE_STEP for column in moved], axis=1)
    return standard_errors(slopes, spread_of(base - np.log(measured_values(rows))))
