"""Stored predictions of some packaged measurements of every family: they stand for the `long` tests, which predict all of them.

A prediction of a Program may change with a new model version only; one of a rate form may change with a line of the changelog.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from dysharp.analysis import MODEL_VERSION
from dysharp.measured.family import Classified, Parsed, all_families, classify
from dysharp.measured.measurements import read_calls, read_measurements, read_operators
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values
from tests.stored_values import Cases, Rows, Table

STORED = Table(__file__, close=1e-9)
PER_FAMILY = 8
WITHOUT_ROWS = {"fused-norm", "decoder-block", "decode-step"}
"""Families without packaged rows: they judge the rows of a user."""


@cache
def parsed() -> tuple[Parsed, ...]:
    """All packaged measurements that have a family."""
    return tuple(classify(read_measurements() + read_operators() + read_calls()).parsed)


def predictions(family: str) -> dict[str, float]:
    """Of measurements evenly from the quarter with the fewest tokens per GPU (at least `PER_FAMILY`, or all), in each measurement's unit."""
    own = [entry for entry in parsed() if entry.family.name == family]
    small = sorted(own, key=lambda e: (getattr(e.case, "tokens", 0), e.measurement.value, e.measurement.id))[: max(PER_FAMILY, len(own) // 4)]
    at = np.linspace(0, len(small) - 1, min(PER_FAMILY, len(small))).astype(int)
    kept, values = predict(Classified(tuple(small[i] for i in at), ()), fitted_values())
    return {entry.measurement.id: float(value) for entry, value in zip(kept.parsed, values, strict=True)}


def why_not_written(before: Rows, rows: Rows) -> str:
    """Why the table may not be written; "" if it may: predictions of Programs that were there moved under the same model version."""
    programs = [name for name, family in all_families().items() if family.predictor != "rate form"]
    moved = [f"{name}/{m}" for name in programs for m, value in rows.get(name, {}).items() if before.get(name, {}).get(m, value) != value]
    if not moved or before["model version"] != rows["model version"]:
        return ""
    return f"found {len(moved)} moved predictions under model version {MODEL_VERSION}, expected none: {sorted(moved)[:5]}"


CASES: Cases = {
    "model version": lambda: {"version": MODEL_VERSION},
    **{name: partial(predictions, name) for name in all_families() if name not in WITHOUT_ROWS},
}
SLOW = set(all_families())
