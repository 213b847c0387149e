"""Regression values: many values of many cases in a packed CSV file beside a test, to the seventh digit.

They say what the code gave when they were written, so that no change moves one unseen; nobody measured or published them. A row is a case, a name
and its values. A difference names the case, the name and the place of the value. `python tests/value_tables.py` writes all tables,
or those that it names: `python tests/value_tables.py steps.step_values`.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

Value = float | int | str | None
Row = tuple[str, Iterable[Value]]
Cases = Mapping[str, Callable[[], Iterator[Row]]]
CLOSE = 2e-6
"""Relative difference of two numbers that are written with seven digits."""
ROUNDING = 1e-9
"""What is left of a zero where a processor adds in another order. No stored value but 0 is below 1e-5."""


def digest(values: ArrayLike) -> str:
    """Shape and a short hash of whole numbers or truth values, for arrays too long to write."""
    found = np.ascontiguousarray(values)
    if found.dtype.kind not in "iub":
        raise TypeError(f"digest: found {found.dtype}, expected whole numbers: the last digit of others depends on the machine")
    return f"{'x'.join(map(str, found.shape))}:{zlib.crc32(found.astype(np.int64).tobytes()):08x}"


def text_digest(text: str) -> str:
    """A short hash of a long text."""
    return f"{zlib.crc32(text.encode()):08x}"


def word(value: Value) -> str:
    """A value as the file has it."""
    if isinstance(value, bool | np.bool_ | str) or value is None:
        return str(value)
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.7g}"


def write(path: Path, cases: Cases) -> None:
    """Write the values of all cases, packed: they are compared, not read."""
    rows = [(case, name, *map(word, values)) for case, make in cases.items() for name, values in make()]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def stored(path: Path) -> dict[str, dict[str, list[str]]]:
    """{case: {name: values}} of a file."""
    found: dict[str, dict[str, list[str]]] = {}
    for case, name, *values in csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode())):
        assert name not in found.setdefault(case, {}), f"{path.name}: {case}: {name} is there twice"
        found[case][name] = values
    return found


def _same(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=ROUNDING)
    except ValueError:
        return one == other


def differences(before: Mapping[str, list[str]], rows: Iterable[Row]) -> list[str]:
    """What differs between the stored values of a case and those of now, in words."""
    now = {name: [*map(word, values)] for name, values in rows}
    found = [f"{name}: {'stored' if name in before else 'found'} only" for name in sorted(before.keys() ^ now.keys())]
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name], now[name]
        if len(old) != len(new):
            found.append(f"{name}: stored {len(old)} values, found {len(new)}")
        found += [f"{name}, value {i}: stored {a}, found {b}" for i, (a, b) in enumerate(zip(old, new, strict=False)) if not _same(a, b)]
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    for table in sys.argv[1:] or sorted(".".join((path.parent.name, path.stem)) for path in Path(__file__).parent.glob("*/*_values.py")):
        module = importlib.import_module(f"tests.{table}")
        write(module.STORED, module.all_cases())
