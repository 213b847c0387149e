"""Closed forms of many measurements. Cases are put into arrays once, because a fit evaluates them many times."""

from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.arrays import F64
from dysharp.measured.classify import Parsed
from dysharp.measured.family import Case, Constants
from dysharp.specs.gpu import load_gpu


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
        self._groups: list[tuple[Any, Any, NDArray[np.int64], Any]] = []
        for members in groups.values():
            first = parsed[members[0]]
            stacked = stack([parsed[i].case for i in members])
            self._groups.append((first.family.closed_us, load_gpu(first.case.gpu), np.array(members), stacked))

    def us(self, constants: Constants) -> F64:
        """`[n]` predicted times in us."""
        out = np.full(len(self.work), np.nan)
        for closed_us, gpu, members, cases in self._groups:
            out[members] = closed_us(cases, gpu, constants)
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
    arrays: dict[str, Any] = {name: np.array([getattr(case, name) for case in cases], np.float64) for name in names}
    return replace(cases[0], **arrays)


def _compared(case: Case) -> dict[str, Any]:
    return {f.name: getattr(case, f.name) for f in fields(case) if f.compare}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
