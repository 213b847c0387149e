"""Regression values: tables of what the code computes today, {row: {column: value}}, as JSON beside the scripts that compute them.

They show that a value moved, and say nothing about what is right. A script has a table of its own name, `STORED = Table(__file__)`, and makes each
row by an entry of `CASES`; `test_stored_values.py` compares them, the rows of one of its `PARTS` in one test.
`python tests/stored_values.py [FOLDER.SCRIPT ...]` writes all tables and all texts of `tests/show/held.py`, or those that it names, and prints how
much of each changed: look at the difference before you commit it.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import importlib
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

Row = tuple[str, Any]
Columns = Mapping[str, Any] | Iterable[Row]
Cases = Mapping[str, Callable[[], Columns]]
Rows = Mapping[str, Mapping[str, Any]]
TESTS = Path(__file__).parent
SHOWN = 8
MOST = 4
"""Numbers of a column that are stored one by one."""
LONG = 400
"""Characters of a row from which each of its columns has a line of its own."""
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Table:
    """The table of a script. Its numbers are near enough up to `close` (relative) or `zero`: machines round differently."""

    script: str
    close: float = 1e-7
    zero: float = 1e-12
    whole: bool = False
    """All numbers of a column are stored."""
    packed: bool = False
    loose: Mapping[str, float] = field(default_factory=dict)
    """Rows whose numbers may differ more."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.script).with_suffix(".json.gz" if self.packed else ".json")


class Digests(dict[str, str]):
    """Digests of three characters by name, which are stored one after the other, without the names."""


# ---- values


def plain(value: Any, digits: int = 9) -> Any:
    """`value` as JSON has it; floats in so many digits."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits)
    if isinstance(value, np.generic):
        return plain(value.item(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry, digits) for key, entry in value.items()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return [plain(entry, digits) for entry in value] if isinstance(value, Iterable) and not isinstance(value, bytes) else str(value)


def short(value: Any, digits: int = 9) -> Any:
    """`plain`, but of many numbers one: a digest of whole ones, else their count and a sum that moves with each by about its relative change."""
    found = plain(value)
    numbers = list(_leaves(found))
    if len(numbers) <= MOST or not all(isinstance(x, (int, float)) for x in numbers):
        return plain(value, digits)
    if not any(isinstance(x, float) for x in numbers):
        return digest(found)
    return [len(numbers), plain(sum((1 + (i * GOLDEN) % 1) * math.asinh(1e3 * x) for i, x in enumerate(numbers, 1)), digits)]


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


def digests(parts: Mapping[str, Any]) -> Digests:
    """A digest of each part, exact to the last digit: dataclasses with names of fields, arrays with types; functions do not count."""
    found = Digests()
    for name, part in parts.items():
        made = hashlib.blake2b(digest_size=5)
        _feed(part, made)
        found[name] = base64.b32encode(made.digest()).decode().lower()[:3]
    return found


def _feed(value: Any, into: Any) -> None:
    if isinstance(value, np.ndarray):
        into.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            into.update(one.name.encode())
            _feed(getattr(value, one.name), into)
    elif isinstance(value, dict):
        _feed(sorted(value.items()), into)
    elif isinstance(value, (list, tuple)):
        into.update(f"[{len(value)}]".encode())
        for part in value:
            _feed(part, into)
    else:
        into.update(b"fn" if callable(value) else repr(value).encode())


def checksum(value: Any, place: str = "") -> float:
    """One number for a value with all its parts, each weighed by its place. Numbers count by their logarithm, so that small ones show, too."""
    weight = 1 + zlib.crc32(place.encode()) % 9973 / 9973
    if value is None or isinstance(value, (str, bool, np.bool_)):
        return weight * (zlib.crc32(str(value).encode()) % 9973) / 9973
    if isinstance(value, (int, float, np.number)):
        return weight * (math.asinh(1e6 * float(value)) if math.isfinite(value) else 99.0 if math.isnan(value) else 777.0)
    return sum((checksum(part, f"{place}.{name}") for name, part in _parts(value)), 0.0)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif dataclasses.is_dataclass(value):
        yield from ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
    elif isinstance(value, (tuple, list, np.ndarray, set, frozenset)):
        yield from ((str(n), part) for n, part in enumerate(sorted(value) if isinstance(value, (set, frozenset)) else value))
    else:
        yield "text", str(value)


def arrays_of(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """(name, array or plain value) of everything in nested tuples with names and in dicts."""
    fields = value._asdict() if hasattr(value, "_asdict") else value if isinstance(value, dict) else None
    if fields is None:
        yield name, value
        return
    for key, entry in fields.items():
        yield from arrays_of(entry, f"{name}.{key}" if name else key)


# ---- tables


@cache
def read(table: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file."""
    text = table.read_bytes()
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress(text) if table.suffix == ".gz" else text)
    return found


def cells(table: Table, columns: Columns) -> dict[str, Any]:
    """The columns of a row as the table has them; digests with their names."""
    digits, form = 3 - math.ceil(math.log10(table.close)), plain if table.whole else short
    found: dict[str, Any] = {}
    for name, value in columns.items() if isinstance(columns, Mapping) else columns:
        assert str(name) not in found, f"found the column {name} twice"
        found[str(name)] = value if isinstance(value, Digests) else form(value, digits)
    return found


def differences(table: Table, row: str, found: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """One line for each value of a row that is not the stored one."""
    return _changes(table, table.loose.get(row, table.close), row, found, stored)


def _changes(table: Table, close: float, name: str, new: Any, old: Any) -> Iterator[str]:
    if isinstance(new, Digests) and isinstance(old, str):
        names = zip_longest(new, range(0, len(old), 3))
        old = {f"no {at // 3}" if key is None else key: old[at : at + 3] for key, at in names if at is not None}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        new, old = dict(enumerate(new)), dict(enumerate(old))
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        for key in dict.fromkeys([*new, *old]):
            if key in new and key in old:
                yield from _changes(table, close, f"{name}, {key}", new[key], old[key])
            else:
                yield f"{name}, {key}: {f'found {new[key]!r}, stored nothing' if key in new else f'found nothing, stored {old[key]!r}'}"
        if new.keys() == old.keys() and [*new] != [*old]:
            yield f"{name}: found {[*new]}, stored in another order"
    elif isinstance(new, float) and isinstance(old, (int, float)):
        if not math.isclose(new, old, rel_tol=close, abs_tol=table.zero * close / table.close):
            yield f"{name}: found {new!r}, stored {old!r}"
    elif type(new) is not type(old) or new != old:
        yield f"{name}: found {new!r}, stored {old!r}"


def parts_of(cases: Iterable[str], *begins: str) -> dict[str, list[str]]:
    """Rows by the begin of their names."""
    return {begin: [row for row in cases if row.startswith(begin)] for begin in begins}


def check(table: Table, cases: Cases) -> None:
    """Fails with the first values that differ from those of the table."""
    stored = read(table.path)
    lines = [line for row, make in cases.items() for line in differences(table, row, cells(table, make()), stored.get(row, {}))]
    asked = f"{table.path.name}, which python tests/stored_values.py writes"
    assert not lines, f"{len(lines)} values differ from {asked}:\n" + "\n".join(lines[:SHOWN])


def write(table: Table, cases: Cases, refused: Callable[[Rows, Rows], str] | None = None) -> tuple[int, int]:
    """Write a table, if `refused` finds nothing against it; (rows that changed, all rows). Numbers that are near enough stay as they are."""
    before, rows = read(table.path) if table.path.exists() else {}, dict[str, dict[str, Any]]()
    for row, make in cases.items():
        found, stored = cells(table, make()), before.get(row, {})
        same = {name for name in found.keys() & stored.keys() if not [*differences(table, row, {name: found[name]}, {name: stored[name]})]}
        rows[row] = {name: stored[name] if name in same else _stored(value) for name, value in found.items()}
    changed = [row for row in {**before, **rows} if rows.get(row) != before.get(row)]
    if refused and (reason := refused(before, rows)):
        sys.exit(reason)
    text = ("{\n" + ",\n".join(f"{_json(row)}: {_line(columns)}" for row, columns in rows.items()) + "\n}\n").encode()
    table.path.write_bytes(gzip.compress(text, 9, mtime=0) if table.packed else text)
    read.cache_clear()
    return len(changed), len(rows)


def _stored(value: Any) -> Any:
    return "".join(value.values()) if isinstance(value, Digests) else value


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _line(columns: dict[str, Any]) -> str:
    line = _json(columns)
    return line if len(line) < LONG else "{\n" + ",\n".join(f" {_json(name)}: {_json(value)}" for name, value in columns.items()) + "\n}"


def scripts(below: Path = TESTS) -> list[str]:
    """FOLDER.SCRIPT of every table and of every module of texts."""
    found = (path for path in below.rglob("*.py") if re.search(r"^(STORED = Table\(|TEXTS\b.* = )", path.read_text(encoding="utf-8"), re.M))
    return sorted(".".join(path.relative_to(below).with_suffix("").parts) for path in found)


def main(names: Iterable[str]) -> None:
    """Write the tables and texts that have these names."""
    from tests.show import held

    modules = {name: importlib.import_module(f"tests.{name}") for name in names}
    for name, module in sorted(modules.items(), key=lambda one: not hasattr(one[1], "ANEW")):  # other tables read what these choose
        if hasattr(module, "TEXTS"):
            changed, every = held.write(module.FOLDER, module.TEXTS)
        else:
            changed, every = write(module.STORED, getattr(module, "ANEW", module.CASES), getattr(module, "why_not_written", None))
        print(f"{name}: {changed} of {every} changed", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS.parent))
    from tests import stored_values

    stored_values.main(sys.argv[1:] or scripts())
