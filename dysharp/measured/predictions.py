"""The predictions that `validate` judges, of the Program if the family has one, else of the closed form; and their relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dysharp.arrays import F64, Bools
from dysharp.errors import SimulationError
from dysharp.measured.classify import Classified, Missing, Parsed
from dysharp.measured.closed_forms import ClosedForms
from dysharp.measured.family import Constants
from dysharp.measured.program_times import OnProgress, ProgramRequest, frozen, program_times


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of `n` predictions, in percent.

    | field | statistic of predicted / measured - 1 |
    |---|---|
    | `mape` | mean of the absolute values |
    | `median_ape`, `p90_ape` | median and 90th percentile of the absolute values |
    | `bias` | median of the signed values |
    """

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


def errors_of(predicted: F64, measured: F64) -> Errors:
    """Errors of `[n]` predictions against `[n]` measurements in the same units; n at least 1."""
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    p90 = float(np.percentile(size, 90))
    return Errors(len(size), float(size.mean()), float(np.median(size)), p90, float(np.median(signed)))


def measured_values(parsed: Sequence[Parsed]) -> F64:
    """`[parsed]` measured values, each in the unit of its measurement."""
    return np.array([entry.measurement.value for entry in parsed], np.float64)


def predict(classified: Classified, constants: Constants, jobs: int = 1, on_progress: OnProgress | None = None) -> tuple[Classified, F64]:
    """The measurements that are predicted and `[parsed]` their predictions, each in the unit of its measurement.

    A measurement that its Program refuses becomes missing, with the Program's reason.
    """
    parsed = classified.parsed
    everything = np.ones(len(parsed), bool)
    values, refused = _predict(parsed, [(everything, constants)], jobs, on_progress)
    kept = tuple(entry for i, entry in enumerate(parsed) if i not in refused)
    missing = tuple(Missing(parsed[i].measurement, parsed[i].family, why, parsed[i].family.in_bars) for i, why in refused.items())
    return Classified(kept, classified.missing + missing), np.delete(values, list(refused))


def predict_folds(parsed: Sequence[Parsed], folds: Sequence[tuple[Bools, Constants]], jobs: int = 1, on_progress: OnProgress | None = None) -> F64:
    """`[parsed]` predictions, each with the constants of the fold whose mask has it; NaN outside all folds.

    One pool of processes answers all folds. Raises `SimulationError` for a measurement that its Program refuses.
    """
    values, refused = _predict(parsed, folds, jobs, on_progress)
    for i, why in refused.items():
        raise SimulationError(f"measurement {parsed[i].measurement.id}: no prediction: {why}")
    return values


def _predict(
    parsed: Sequence[Parsed], folds: Sequence[tuple[Bools, Constants]], jobs: int, on_progress: OnProgress | None
) -> tuple[F64, dict[int, str]]:
    """(`[parsed]` predictions, index -> why there is none)."""
    values = np.full(len(parsed), np.nan)
    index, requests = list[int](), list[ProgramRequest]()
    for mask, constants in folds:
        members, key = np.flatnonzero(mask).tolist(), frozen(constants)
        values[members] = ClosedForms([parsed[i] for i in members]).values(constants)
        for i in members:
            program_us = parsed[i].family.program_us
            if program_us is not None:
                index.append(i)
                requests.append(ProgramRequest(program_us, parsed[i].case, key))
    refused = dict[int, str]()
    for i, us in zip(index, program_times(requests, jobs, on_progress), strict=True):
        if isinstance(us, str):
            refused[i] = us
        values[i] = np.nan if isinstance(us, str) else parsed[i].in_unit(us)
    return values, refused
