"""The predictions that `validate` judges, of the Program if the family has one, else of the closed form; and their relative errors.

Closed forms: cases are put into arrays once, because a fit evaluates them many times. Programs: equal cases run once, cases that share runs
stay in one process.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dysharp.base import F64, I64, Amounts, Bools, ByName, DysharpError, OnProgress, SimulationError, Task, by_key, frozen, here, in_processes
from dysharp.measured.family import Case, Classified, Constants, Missing, Parsed
from dysharp.specs import load_gpu

Key = TypeVar("Key", bound=Hashable)
HashableConstants = tuple[tuple[str, float], ...]
ProgramForm = Callable[[Case, Constants], float]


@frozen
class ProgramRequest:
    """One case, the function that answers it by a Program, and the constants to use."""

    program_us: ProgramForm
    case: Case
    constants: HashableConstants

    def time(self) -> float | str:
        """Time in us, or the reason of a refusal. A refused case does not stop the other cases."""
        try:
            return self.program_us(self.case, dict(self.constants))
        except DysharpError as error:
            return str(error)


def hashable_constants(constants: Constants) -> HashableConstants:
    """Constants as a hashable value."""
    return tuple(sorted(constants.items()))


def program_times(requests: Sequence[ProgramRequest], jobs: int, on_progress: OnProgress | None = None) -> list[float | str]:
    """`[requests]` times in us, or reasons of refusals. `jobs`: processes; times do not depend on `jobs`."""
    groups: dict[Hashable, dict[ProgramRequest, None]] = {}
    for request in requests:
        key = (request.program_us, request.case.run_key(), request.constants)
        groups.setdefault(key, {})[request] = None
    work = sorted((tuple(group) for group in groups.values()), key=lambda group: -max(r.case.effort() for r in group))
    times: dict[ProgramRequest, float | str] = {}
    total = sum(map(len, work))
    apart = jobs > 1 and len(work) >= 2 * jobs
    if apart:
        _times(work[-1], 1.0)  # compiles the engine once; the processes load it from the cache
    tasks = [Task(str(i), partial(_times, group)) for i, group in enumerate(work)]
    for i, group_times in in_processes(tasks, jobs) if apart else here(tasks):
        if isinstance(group_times, Exception):
            raise group_times
        times |= zip(work[i], group_times, strict=True)
        if on_progress is not None:
            on_progress(len(times), total)
    return [times[request] for request in requests]


def _times(group: tuple[ProgramRequest, ...], part: float) -> list[float | str]:
    """Times of a group, which needs little memory; `part` is not used."""
    return [request.time() for request in group]


class ClosedForms:
    """Predictions of closed forms for a sequence of measurements; NaN in families without a closed form.

    One array call evaluates all cases that differ only in numbers.
    """

    def __init__(self, parsed: Sequence[Parsed]) -> None:
        groups: dict[Hashable, list[int]] = {}
        for i, entry in enumerate(parsed):
            if entry.family.closed_us is not None:
                words = [(name, value) for name, value in _compared(entry.case).items() if not _is_number(value)]
                key = (entry.family.closed_us, type(entry.case), *words)
                groups.setdefault(key, []).append(i)
        self.work = np.array([entry.case.work for entry in parsed], np.float64)
        self.us_per_unit = np.array([entry.measurement.us_per_unit for entry in parsed], np.float64)
        self._groups: list[tuple[Any, Any, I64, Any, Amounts]] = []
        for members in groups.values():
            first = parsed[members[0]]
            stacked = stack([parsed[i].case for i in members])
            self._groups.append((first.family.closed_us, load_gpu(first.case.gpu), np.array(members), stacked, dict(first.own)))

    def us(self, constants: Constants) -> F64:
        """`[n]` predicted times in us."""
        out = np.full(len(self.work), np.nan)
        for closed_us, gpu, members, cases, own in self._groups:
            out[members] = closed_us(cases, gpu, {**constants, **own})
        return out

    def values(self, constants: Constants) -> F64:
        """`[n]` predictions in the unit of each measurement: a time, or work over time."""
        time = self.us(constants)
        return np.where(self.work > 0, self.work / time, time / self.us_per_unit)

    def times(self, values: F64) -> F64:
        """`[n]` values in the unit of each measurement as times in us."""
        return np.where(self.work > 0, self.work / np.maximum(values, 1e-300), values * self.us_per_unit)


def stack(cases: Sequence[Case]) -> Case:
    """One case with float64 arrays `[n]`, from cases that differ only in numbers."""
    names = [name for name, value in _compared(cases[0]).items() if _is_number(value)]
    arrays: ByName = {name: np.array([getattr(case, name) for case in cases], np.float64) for name in names}
    return replace(cases[0], **arrays)


def _compared(case: Case) -> ByName:
    return {f.name: getattr(case, f.name) for f in fields(case) if f.compare}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@frozen
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

    def without_mape(self) -> ByName:
        """The fields but `mape`."""
        return {name: value for name, value in asdict(self).items() if name != "mape"}


def errors_of(predicted: F64, measured: F64) -> Errors:
    """Errors of `[n]` predictions against `[n]` measurements in the same units; n at least 1."""
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    p90 = float(np.percentile(size, 90))
    return Errors(len(size), float(size.mean()), float(np.median(size)), p90, float(np.median(signed)))


def members_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Key -> its places in `keys`, in their order."""
    return by_key((key, i) for i, key in enumerate(keys))


def errors_by(keys: Iterable[Key], predicted: F64, measured: F64) -> dict[Key, Errors]:
    """Key -> errors of the values with this key. `keys`, `predicted` and `measured` are `[n]`."""
    return {key: errors_of(predicted[members], measured[members]) for key, members in members_by(keys).items()}


def bar(name: str, value: float | None, limit: float, *, at_most: bool = True) -> ByName:
    """A limit of an error or a count, and whether `value` keeps it. Without a value it does not hold."""
    holds = value is not None and (value <= limit if at_most else value >= limit)
    return {"name": name, "value": value, "bar": limit, "at_most": at_most, "holds": holds}


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
        members = np.flatnonzero(mask).tolist()
        keys = {own: hashable_constants({**constants, **dict(own)}) for own in {parsed[i].own for i in members}}
        values[members] = ClosedForms([parsed[i] for i in members]).values(constants)
        for i in members:
            program_us = parsed[i].family.program_us
            if program_us is not None:
                index.append(i)
                requests.append(ProgramRequest(program_us, parsed[i].case, keys[parsed[i].own]))
    refused = dict[int, str]()
    for i, us in zip(index, program_times(requests, jobs, on_progress), strict=True):
        if isinstance(us, str):
            refused[i] = us
        values[i] = np.nan if isinstance(us, str) else parsed[i].in_unit(us)
    return values, refused
