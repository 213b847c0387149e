"""A user's own measurements one by one: measured, predicted, error, and why a row has no prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dysharp.measured.validation import Validation
from dysharp.text import table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dysharp.measured.family import Classified, Missing, Parsed


@dataclass(frozen=True, slots=True)
class Report(Validation):
    """A `Validation`, with the rows of a user's file."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Empty for the packaged measurements. Else one entry per row, in the order of the file.

    | field | holds |
    |---|---|
    | `id`, `kind`, `system`, `hardware`, `unit` | as in the file |
    | `family` | the family that predicts the row; "" without a family |
    | `measured`, `predicted` | numbers in `unit`; None where a number is missing |
    | `error` | predicted over measured, minus 1, in percent |
    | `usual` | nine of ten public measurements of the family on this GPU are within this error, in percent; None: not known |
    | `note` | why the row has no prediction; the group of a row whose error is in no mean (`measured.apart.GROUPS`); "" for other rows |
    | `doubt` | another library that fits the time of a call far better than the library that the row names, and its time; "" for other rows |
    """

    def __str__(self) -> str:
        """Per kind of measurement: how many rows are predicted, and how well."""
        cells = [(row["family"], str(row["n"]), f"{row['median_ape']:.1f}", f"{row['p90_ape']:.1f}") for row in self.families]
        return table(("what", "predicted", "median error %", "nine of ten within %"), cells)

    def __repr__(self) -> str:
        return f"<Report on {self.overall['n']} predicted measurements; print() shows the table, to_dict() all>"

    def to_dict(self) -> dict[str, Any]:
        """Fields of `--json`, plain values."""
        return Validation.to_dict(self) | ({"rows": self.rows} if self.rows else {})


def own_rows(everything: Classified, predicted: NDArray[np.float64], order: Sequence[str], constants: Mapping[str, float]) -> list[dict[str, Any]]:
    """The entries of `Report.rows`. `predicted`: the predictions of `everything.parsed`, each in the unit of its row. `order`: ids as in the file."""
    from dysharp.measured import apart

    done = []
    for entry, value in zip(everything.parsed, predicted.tolist(), strict=True):
        group = apart.group_of(entry, constants)
        done.append(_predicted_row(entry, value, group) | {"doubt": _doubt(entry, value, constants)})
    at = {name: i for i, name in enumerate(order)}
    return sorted([*done, *map(_missing_row, everything.missing)], key=lambda row: at[row["id"]])


def _predicted_row(entry: Parsed, predicted: float, note: str) -> dict[str, Any]:
    measured = float(entry.measurement.value or 0)  # a parsed measurement has a value above 0
    values = {"measured": measured, "predicted": predicted, "error": 100 * (predicted / measured - 1)}
    return _texts(entry, entry.family.name) | values | {"usual": _usual(entry.family.name, entry.case.gpu), "note": note}


def _doubt(entry: Parsed, predicted: float, constants: Mapping[str, float]) -> str:
    """ "deepep-v2 normal, 97 us" where that library fits the time of a call far better than the named one."""
    from dysharp.measured.calls import doubts
    from dysharp.measured.families.library_calls import CallCase

    m, case = entry.measurement, entry.case
    if not isinstance(case, CallCase) or not m.value:
        return ""
    other = doubts(case, m.value * m.us_per_unit, predicted * m.us_per_unit, constants)
    return "" if other is None else f"{other[0]}, {other[1]:.0f} us"


def _missing_row(entry: Missing) -> dict[str, Any]:
    from dysharp.measured.cluster_fit import BARE
    from dysharp.measured.family import NO_FAMILY

    m, family, why = entry.measurement, "" if entry.family is None else entry.family.name, entry.reason
    if why == NO_FAMILY:
        why = f"nothing predicts the kind {m.kind!r} of the system {m.system!r}"
        if any(bare.belongs(m) for bare in BARE):
            why = "a number of the bare GPU: `dysharp calibrate` reads it, but no family predicts it"
    return _texts(entry, family) | {"measured": m.value, "predicted": None, "error": None, "usual": None, "note": why, "doubt": ""}


def _texts(entry: Parsed | Missing, family: str) -> dict[str, Any]:
    m = entry.measurement
    return {"id": m.id, "kind": m.kind, "system": m.system, "hardware": m.hardware, "unit": m.unit, "family": family}


def _usual(family: str, gpu: str) -> float | None:
    from dysharp.measured.trust import OTHER, family_errors

    table = family_errors()
    errors = table.get((family, gpu)) or table.get((family, OTHER))
    return None if errors is None else errors.p90
