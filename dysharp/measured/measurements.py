"""Measurements from a CSV: one row per number, the columns of `COLUMNS`; strict, because a silent misreading would pass as a model error."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError, nearest
from dysharp.specs.fields import show
from dysharp.specs.reading import read_text

COLUMNS = ("id", "kind", "system", "hardware", "config_json", "metric", "value", "unit", "source")
STATEMENT = "-"
"""The unit of a row that states a fact; only there may `value` be a text."""
UNITS_OF = {
    "latency": ("us", "ms"),
    "bandwidth": ("GB/s", "TB/s"),
    "busbw": ("GB/s",),
    "memory_bandwidth": ("GB/s",),
    "nvlink_bandwidth": ("GB/s",),
    "throughput": ("TFLOPS",),
}
"""Units of the metrics a prediction exists for, by the first word of the metric (`latency_p50` counts as `latency`)."""
TEXTS = ("id", "kind", "system", "hardware", "metric", "unit", "source")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number of a public measurement."""

    id: str
    kind: str
    system: str
    hardware: str
    config: Mapping[str, Any]
    metric: str
    value: float | None
    """None: a statement (unit `STATEMENT`) that is no number."""
    unit: str
    source: str


def read_measurements(path: str | os.PathLike[str]) -> list[Measurement]:
    """All rows of a CSV file. Raises `ConfigError` (one line: file, row, column, what was found and expected)."""
    return measurements_from_csv(read_text(Path(path)), str(path))


def measurements_from_csv(text: str, where: str) -> list[Measurement]:
    """Rows from CSV text; `where` names the file in errors. Rows are counted from 1, the header not included."""
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{where}: malformed CSV: {error}") from None
    if not records:
        raise ConfigError(f"{where}: found an empty file, expected the header {','.join(COLUMNS)}")
    _check_header(records[0], where)
    place = {name: records[0].index(name) for name in COLUMNS}
    rows: list[Measurement] = []
    seen: dict[str, int] = {}
    for number, record in enumerate(records[1:], start=1):
        at = f"{where}: row {number}"
        if len(record) != len(records[0]):
            raise ConfigError(f"{at}: found {len(record)} columns, expected {len(records[0])}")
        row = _measurement({name: record[place[name]] for name in COLUMNS}, at)
        if row.id in seen:
            raise ConfigError(f"{at}: column id: found {show(row.id)} again, expected each id once (first in row {seen[row.id]})")
        seen[row.id] = number
        rows.append(row)
    return rows


def _check_header(header: list[str], where: str) -> None:
    for name in header:
        if name not in COLUMNS:
            raise ConfigError(f"{where}: header: found unknown column {show(name)}{nearest(name, COLUMNS)}")
    for name in COLUMNS:
        if header.count(name) != 1:
            raise ConfigError(f"{where}: header: found column {name} {header.count(name)} times, expected each of {','.join(COLUMNS)} once")


def _measurement(cells: Mapping[str, str], at: str) -> Measurement:
    for name in TEXTS:
        if not cells[name].strip() and name != "source":
            raise ConfigError(f"{at}: column {name}: found nothing, expected a text")
    units = units_of(cells["metric"])
    if units and cells["unit"] not in units:
        raise ConfigError(f"{at}: column unit: found {show(cells['unit'])} for metric {show(cells['metric'])}, expected {' or '.join(units)}")
    value = _number(cells["value"], cells["unit"], at)
    if units and value == 0:
        raise ConfigError(f"{at}: column value: found 0, expected more than 0 {cells['unit']}")
    return Measurement(config=_config(cells["config_json"], at), value=value, **{name: cells[name] for name in TEXTS})


def units_of(metric: str) -> tuple[str, ...]:
    """Units a metric may have; empty for a metric that is not predicted."""
    word = metric.split(" ", maxsplit=1)[0]
    return UNITS_OF.get(word) or UNITS_OF.get(word.split("_", maxsplit=1)[0], ())


def _number(text: str, unit: str, at: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        if unit == STATEMENT and text.strip():
            return None
        raise ConfigError(f"{at}: column value: found {show(text)}, expected a number") from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{at}: column value: found {show(text)}, expected a finite number of at least 0")
    return value


def _config(text: str, at: str) -> dict[str, Any]:
    where = f"{at}: column config_json"
    try:
        config = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: found {show(text)}, expected a JSON object ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: found {show(text)}, expected a JSON object")
    for key, value in config.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (not math.isfinite(value) or value < 0):
            raise ConfigError(f"{where}: {show(key)}: found {value}, expected a finite number of at least 0")
    return config


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
