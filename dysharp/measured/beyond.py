"""The table of families beyond the bars, whose measurements are in no mean, coverage, bar, fit or hold-out."""

from typing import Any

import numpy as np

from dysharp.arrays import F64
from dysharp.measured.classify import Classified, Missing, Parsed
from dysharp.measured.closed_forms import ClosedForms
from dysharp.measured.family import Constants, all_families
from dysharp.measured.predictions import errors_of, measured_values, predict

ALL = "all"
Key = tuple[str, str, str]


def judge(classified: Classified, constants: Constants, jobs: int = 1, predicted: F64 | None = None) -> list[dict[str, Any]]:
    """One entry per family (system "all") and one per family, system and hardware.

    | field | holds |
    |---|---|
    | `between` | `Family.between`: "" for families of one NVLink domain |
    | `by` | predictor |
    | `n`, `n_rows` | predictions, measurements |
    | `median_ape`, `p90_ape`, `bias` | errors in percent (`predictions.Errors`); None without predictions |
    | `closed_median_ape` | error of the closed form; None without one |
    | `unpredicted` | why measurements have no prediction, with their number |

    `predicted`: `[parsed]` predictions of the measurements beyond the bars (`predictions.predict`), made here if absent.
    """
    order = list(all_families())
    classified = classified.beyond_bars()
    if predicted is None:
        classified, predicted = predict(classified, constants, jobs)
    measured, closed = measured_values(classified.parsed), ClosedForms(classified.parsed).values(constants)
    entries = []
    for key in sorted({key for entry in classified.entries for key in _keys(entry)}, key=lambda key: (order.index(key[0]), key[1] != ALL, key)):
        members = np.array([i for i, entry in enumerate(classified.parsed) if key in _keys(entry)], np.int64)
        reasons = [entry.reason for entry in classified.missing if key in _keys(entry)]
        own, form = (
            errors_of(values[members], measured[members]) if len(members) and np.isfinite(values[members]).all() else None
            for values in (predicted, closed)
        )
        entries.append(
            dict(zip(("family", "system", "hardware"), key, strict=True))
            | {"between": all_families()[key[0]].between}
            | {"by": all_families()[key[0]].predictor, "n": len(members), "n_rows": len(members) + len(reasons)}
            | {name: getattr(own, name, None) for name in ("median_ape", "p90_ape", "bias")}
            | {"closed_median_ape": getattr(form, "median_ape", None)}
            | {"unpredicted": "; ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))}
        )
    return entries


def _keys(entry: Parsed | Missing) -> tuple[Key, Key]:
    name = entry.family.name if entry.family is not None else ""
    return (name, ALL, ""), (name, entry.measurement.system, entry.measurement.hardware)
