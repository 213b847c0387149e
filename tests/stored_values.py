"""Regression values in a JSON file: {row: {column: value}}. They say what the code computed when they were stored, not what is right.

A script beside a test computes the rows again and writes them: `python tests/FOLDER/SCRIPT.py`. Numbers agree to a part in ten millions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Rows = Mapping[str, Mapping[str, Any]]
SHOWN = 8
MOST = 4
"""Numbers of a column that are stored one by one."""
GOLDEN = 0.6180339887498949


def plain(value: Any) -> Any:
    """`value` as JSON has it; floats in nine digits."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def short(value: Any) -> Any:
    """`plain`, but of many numbers one: a digest of whole ones, else their count and a sum that moves with each by about its relative change."""
    found = plain(value)
    numbers = list(_leaves(found))
    if len(numbers) <= MOST or not all(isinstance(x, (int, float)) for x in numbers):
        return found
    if not any(isinstance(x, float) for x in numbers):
        return digest(found)
    return [len(numbers), plain(sum((1 + (i * GOLDEN) % 1) * math.asinh(1e3 * x) for i, x in enumerate(numbers, 1)))]


def _leaves(value: Any) -> Iterable[Any]:
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if entries is None:
        yield value
    for entry in entries or ():
        yield from _leaves(entry)


def digest(value: Any) -> str:
    """A short digest of an array (dtype, shape, entries), or of plain values."""
    if isinstance(value, np.ndarray):
        head = f"{value.dtype.str} {value.shape} ".encode()
        return hashlib.blake2b(head + np.ascontiguousarray(value).tobytes(), digest_size=4).hexdigest()
    return hashlib.blake2b(json.dumps(plain(value)).encode(), digest_size=4).hexdigest()


def arrays_of(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """(name, array or plain value) of everything in nested tuples with names and in dicts."""
    fields = value._asdict() if hasattr(value, "_asdict") else value if isinstance(value, dict) else None
    if fields is None:
        yield name, value
        return
    for key, entry in fields.items():
        yield from arrays_of(entry, f"{name}.{key}" if name else key)


def _same(found: Any, stored: Any) -> bool:
    if isinstance(found, float) and isinstance(stored, (int, float)):
        return math.isclose(found, stored, rel_tol=1e-7, abs_tol=1e-12)
    if isinstance(found, list) and isinstance(stored, list):
        return len(found) == len(stored) and all(map(_same, found, stored))
    if isinstance(found, dict) and isinstance(stored, dict):
        return list(found) == list(stored) and all(_same(found[key], stored[key]) for key in found)
    return type(found) is type(stored) and bool(found == stored)


def differences(found: Rows, stored: Rows) -> list[str]:
    """One line for each value that is not the stored one."""
    lines = [f"{row}: not stored" for row in found if row not in stored] + [f"{row}: no longer computed" for row in stored if row not in found]
    for row in (row for row in found if row in stored):
        new, old = {str(column): short(value) for column, value in found[row].items()}, stored[row]
        lines += [
            f"{row}, {column}: found {new.get(column)!r}, stored {old.get(column)!r}"
            for column in dict.fromkeys([*new, *old])
            if column not in new or column not in old or not _same(new[column], old[column])
        ]
    return lines


def check(path: Path, found: Rows, part: str = "") -> None:
    """Fails with the first values that differ from those of the file. `part`: the rows whose names start so."""
    stored = {row: columns for row, columns in json.loads(path.read_text()).items() if row.startswith(part)}
    lines = differences(found, stored)
    assert not lines, f"{len(lines)} values differ from {path.name}:\n" + "\n".join(lines[:SHOWN])


def write(path: Path, found: Rows) -> None:
    """Write the file, a row a line."""
    lines = (f"{json.dumps(row)}: {json.dumps({k: short(v) for k, v in columns.items()}, separators=(',', ':'))}" for row, columns in found.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
