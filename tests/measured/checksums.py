"""Checksums of values and tables of them beside the tests: regression values, which say that a number moved, not that it is right.

A checksum weighs every number and every text of a value, by the place where it stands, so that swapped values differ, too. Numbers count by the
size of their logarithm, so that a change of a small number shows beside a large one. `python tests/measured/write_tables.py` writes all tables anew.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

CLOSE = 1e-8
"""Relative distance up to which checksums are equal: machines round sums of floating-point numbers differently."""
Table = dict[str, float]


def checksum(value: Any, place: str = "") -> float:
    """One number for a value with all its parts: dataclasses, named tuples, mappings, sequences, arrays, texts, numbers."""
    weight = 1 + crc32(place.encode()) % 9973 / 9973
    if value is None or isinstance(value, (str, bool, np.bool_)):
        return weight * (crc32(str(value).encode()) % 9973) / 9973
    if isinstance(value, (int, float, np.number)):
        return weight * (math.asinh(1e6 * float(value)) if math.isfinite(value) else 99.0 if math.isnan(value) else 777.0)
    return sum(checksum(part, f"{place}.{name}") for name, part in _parts(value))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((str(n), part) for n, part in enumerate(sorted(value)))
    elif isinstance(value, (tuple, list, np.ndarray)):
        yield from ((str(n), part) for n, part in enumerate(value))
    else:
        yield "text", str(value)


def write(path: Path, table: Mapping[str, float]) -> None:
    """A table as lines of a name and a number."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((name, f"{value:.11g}") for name, value in table.items())


def read(path: Path) -> Table:
    """A written table."""
    with path.open(newline="") as file:
        return {name: float(value) for name, value in csv.reader(file)}


def changed(found: Mapping[str, float], stored: Mapping[str, float], close: float = CLOSE) -> list[str]:
    """Names whose numbers differ by more than `close`, or that only one of the tables has."""
    both = found.keys() & stored.keys()
    moved = {name for name in both if found[name] != pytest.approx(stored[name], rel=close, abs=close)}
    return sorted(moved | (found.keys() ^ stored.keys()))
