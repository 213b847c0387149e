"""`Fitted`: the small table of constants that are fitted to measurements, each with unit, meaning and the rows it rests on."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError, nearest
from dysharp.specs.fields import show
from dysharp.specs.reading import parse_toml, read_text

FILE = Path(__file__).parent / "data" / "fitted.toml"
KEYS = ("value", "low", "high", "unit", "meaning", "stage", "fitted_on")


@dataclass(frozen=True, slots=True)
class Fitted:
    """One constant: `low` to `high` is what its meaning allows; `stage` is the family (or families) whose rows it is fitted on."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    meaning: str
    stage: str
    fitted_on: str


def fitted_from_toml(text: str, where: str) -> dict[str, Fitted]:
    """Constants by name, in file order. Raises `ConfigError` (one line: file, constant, what was found)."""
    table = parse_toml(text, where)
    return {name: _fitted(name, entry, f"{where}: {name}") for name, entry in _flat(table)}


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`[a.b]` tables as ("a.b", entry): an entry is a table that has a `value`."""
    found: list[tuple[str, Any]] = []
    for key, entry in table.items():
        name = f"{prefix}{key}"
        is_group = isinstance(entry, dict) and "value" not in entry
        found += _flat(entry, f"{name}.") if is_group else [(name, entry)]
    return found


def _fitted(name: str, entry: Any, where: str) -> Fitted:
    if not isinstance(entry, dict) or set(entry) != set(KEYS):
        raise ConfigError(f"{where}: found {show(entry)}, expected a table of {', '.join(KEYS)}")
    numbers = [entry[key] for key in ("value", "low", "high")]
    if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise ConfigError(f"{where}: found {show(numbers)}, expected three finite numbers value, low, high")
    value, low, high = (float(n) for n in numbers)
    if not 0 < low <= value <= high:
        raise ConfigError(f"{where}: found value {value:g}, low {low:g}, high {high:g}, expected 0 < low <= value <= high")
    texts = {key: entry[key] for key in ("unit", "meaning", "stage", "fitted_on")}
    if not all(isinstance(text, str) and text for text in texts.values()):
        raise ConfigError(f"{where}: found an empty text, expected unit, meaning, stage and fitted_on")
    return Fitted(name, value, low, high, **texts)


def constants_from_file(path: Path) -> dict[str, Fitted]:
    """Constants of a file in the form of the packaged one, all of them and no others. Raises `ConfigError`."""
    found = fitted_from_toml(read_text(path), str(path))
    for name in found:
        if name not in fitted():
            raise ConfigError(f"{path}: {show(name)}: unknown constant{nearest(name, fitted())}")
    missing = [name for name in fitted() if name not in found]
    if missing:
        raise ConfigError(f"{path}: found {len(found)} constants, expected also {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}")
    return found


@functools.cache
def fitted() -> Mapping[str, Fitted]:
    """The packaged constants by name."""
    return fitted_from_toml(read_text(FILE), FILE.name)


Overrides = tuple[tuple[str, float], ...]
"""Constants of one machine that replace the packaged ones: (name, value), sorted by name."""


def fitted_values(overrides: Overrides = ()) -> dict[str, float]:
    """Name to value: what the formulas of `compute` take; `overrides` replace packaged values."""
    return {name: constant.value for name, constant in fitted().items()} | dict(overrides)


def overrides_of(table: Any, where: str) -> Overrides:
    """The `[constants]` table of a cluster file, nested or with dotted keys. Raises `ConfigError` for anything but tables of numbers."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: constants: found {show(table)}, expected a table of name = value")
    found: dict[str, float] = {}
    _collect(table, "", found, where)
    return tuple(sorted(found.items()))


def _collect(table: Mapping[str, Any], prefix: str, found: dict[str, float], where: str) -> None:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            _collect(value, f"{name}.", found, where)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{where}: constants: {show(name)}: found {show(value)}, expected a number")
        elif name in found:
            raise ConfigError(f"{where}: constants: {show(name)}: found twice, expected once")
        else:
            found[name] = float(value)


def conflicts_of(overrides: Overrides) -> list[str]:
    """What is wrong with constants of a machine: unknown names, values outside what their meaning allows."""
    known, found = fitted(), []
    for name, value in overrides:
        if name not in known:
            found.append(f"constants: {show(name)}: unknown{nearest(name, known)}")
        elif not known[name].low <= value <= known[name].high:
            c = known[name]
            found.append(f"constants: {name}: found {value:g}, expected {c.low:g} to {c.high:g} {c.unit}")
    if len({name for name, _ in overrides}) < len(overrides):
        found.append("constants: found a name twice, expected each once")
    return found
