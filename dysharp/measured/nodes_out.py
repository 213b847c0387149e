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
from dysharp.measured.predictions import measured_values, predict_folds
from dysharp.measured.refit import neutral, refit
from dysharp.specs.fitted import Fitted

F64 = NDArray[np.float64]
FAMILY = "deepep-internode"
FITTED = tuple(f"internode.{verb}_{what}" for verb in ("dispatch", "combine") for what in ("us", "GBps"))
"""Its constants. `fitted.toml` has them as given, so no other fit moves them."""
ROUNDS = 2  # Numerics: Program runs of a fit
BY = "nodes"


def hold_out_nodes(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], jobs: int = 1) -> list[dict[str, Any]]:
    """One row in the form of `hold_out.hold_out_table`, or none where fewer than two numbers of nodes were measured.

    Judged are the times of `FAMILY`; all of them are of one collector and GPU in the packaged measurements, so a fold has
    no other rows to lean on. `fit`: with constants that were fitted to all of them in the same way.
    """
    rows = [entry for entry in parsed if entry.family.name == FAMILY and entry.case.work == 0 and "proto" in entry.measurement.config]
    gpus = np.array([entry.case.gpus if isinstance(entry.case, EpCase) else 0 for entry in rows])
    groups = sorted(set(gpus.tolist()))
    if len(groups) < 2:
        return []
    everything = np.ones(len(rows), bool)
    inside = _predicted(rows, constants, everything, everything, jobs)
    outside = np.full(len(rows), np.nan)
    for group in groups:
        mine = gpus == group
        outside[mine] = _predicted(rows, constants, ~mine, mine, jobs)
    measured = measured_values(rows)
    fit, held = (errors_of(values, measured).median_ape for values in (inside, outside))
    counts = {"n": len(rows), "groups": len(groups)}
    return [{"by": BY, "family": FAMILY, **counts, "fit": fit, "held_out": held, "ratio": held / fit}]


def _predicted(rows: Sequence[Parsed], constants: Mapping[str, Fitted], keep: NDArray[np.bool_], wanted: NDArray[np.bool_], jobs: int) -> F64:
    """Predictions of the rows `wanted` with the constants of the family fitted to the rows `keep`."""
    mine = {name: replace(constants[name], stage=FAMILY) for name in FITTED}
    values = {name: constant.value for name, constant in constants.items()} | neutral(mine)
    seen = [entry for entry, kept in zip(rows, keep, strict=True) if kept]
    ratio = np.ones(len(seen))
    for _ in range(ROUNDS):
        values |= refit(seen, mine, ratio=ratio, start=values).values
        ratio = predict_folds(seen, [(np.ones(len(seen), bool), values)], jobs) / ClosedForms(seen).values(values)
    values |= refit(seen, mine, ratio=ratio, start=values).values
    asked = [entry for entry, want in zip(rows, wanted, strict=True) if want]
    return predict_folds(asked, [(np.ones(len(asked), bool), values)], jobs)
