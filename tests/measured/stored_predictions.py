"""Stored predictions of some packaged measurements of every family: they stand for the `long` tests, which predict all of them.

`python tests/measured/stored_predictions.py` writes `predictions.csv` beside this file. A prediction of a Program may
change with a new model version only; one of a rate form may change with a line of the changelog.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import numpy as np

from dysharp.analysis import MODEL_VERSION
from dysharp.measured.family import Classified, Parsed, all_families, classify
from dysharp.measured.measurements import read_calls, read_measurements, read_operators
from dysharp.measured.predictions import predict
from dysharp.specs.fitted import fitted_values

STORED = Path(__file__).with_name("predictions.csv")
PER_FAMILY = 8


def sample() -> list[Parsed]:
    """Measurements of each family, evenly from the quarter with the fewest tokens per GPU (at least `PER_FAMILY`, or all)."""
    families: dict[str, list[Parsed]] = {}
    for entry in classify(read_measurements() + read_operators() + read_calls()).parsed:
        families.setdefault(entry.family.name, []).append(entry)
    chosen = []
    for entries in families.values():
        small = sorted(entries, key=lambda e: (getattr(e.case, "tokens", 0), e.measurement.value, e.measurement.id))
        small = small[: max(PER_FAMILY, len(small) // 4)]
        at = np.linspace(0, len(small) - 1, min(PER_FAMILY, len(small))).astype(int)
        chosen += [small[i] for i in at]
    return chosen


def key_of(entry: Parsed) -> str:
    """The name of a measurement in the file: ids repeat in several families."""
    return f"{entry.family.name}/{entry.measurement.id}"


def predictions() -> dict[str, float]:
    """The prediction of each measurement of the sample, in the measurement's unit."""
    kept, values = predict(Classified(tuple(sample()), ()), fitted_values())
    return {key_of(entry): float(value) for entry, value in zip(kept.parsed, values, strict=True)}


def stored(text: str) -> tuple[str, dict[str, float]]:
    """(model version, predictions) of the file."""
    (_, version), *rows = csv.reader(io.StringIO(text))
    return version, {name: float(value) for name, value in rows}


def write() -> int:
    """Write the file; 1 and no change where a prediction of a Program moved under the stored model version."""
    found = predictions()
    if STORED.exists():
        version, before = stored(STORED.read_text())
        programs = {name for name, family in all_families().items() if family.predictor != "rate form"}
        both = [name for name in found.keys() & before.keys() if name.partition("/")[0] in programs]
        moved = [name for name in both if not np.isclose(found[name], before[name], rtol=1e-9, atol=0)]
        if moved and version == MODEL_VERSION:
            print(f"found {len(moved)} moved predictions under model version {version}, expected none: {sorted(moved)[:5]}", file=sys.stderr)
            return 1
    with STORED.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("model version", MODEL_VERSION), *((k, repr(v)) for k, v in found.items())])
    return 0


if __name__ == "__main__":
    sys.exit(write())
