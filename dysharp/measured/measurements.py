"""Measurements from a CSV, the packaged one or a file: one line per number, the columns of `COLUMNS`.

The reader is strict: a value that is silently misread would look like an error of the model.
"""

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dysharp.data import read_table
from dysharp.errors import ConfigError, nearest
from dysharp.measured import tp_rows
from dysharp.specs.fields import show
from dysharp.specs.reading import read_text

PACKAGED = "packaged measurements"
"""The name of the packaged table in errors."""
COLUMNS = ("id", "kind", "system", "hardware", "config_json", "metric", "value", "unit", "source")
STATEMENT = "-"
"""The unit of a measurement that states a fact; only there may `value` be a text."""
UNITS_OF = {
    "latency": ("us", "ms"),
    "bandwidth": ("GB/s", "TB/s"),
    "busbw": ("GB/s",),
    "memory_bandwidth": ("GB/s",),
    "nvlink_bandwidth": ("GB/s",),
    "throughput": ("TFLOPS", "GB/s"),
}
"""Units of the metrics that are predicted, by the first word of the metric (`latency_p50` counts as `latency`)."""
TIMES = UNITS_OF["latency"]
US_PER_MS = 1e3
TEXTS = ("id", "kind", "system", "hardware", "metric", "unit", "source")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the CSV: one number that somebody measured."""

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

    @property
    def us_per_unit(self) -> float:
        """Microseconds in one unit of a time."""
        return US_PER_MS if self.unit == "ms" else 1.0


class Unsupported(Exception):
    """A measurement without a prediction; the text is the reason."""


def read_measurements(path: str | os.PathLike[str] | None = None) -> list[Measurement]:
    """All measurements of a CSV file; None: of the packaged table.

    Raises `ConfigError` in one line: file, row, column, found and expected.
    """
    if path is None:
        return measurements_from_csv(read_table("measurements"), PACKAGED)
    return measurements_from_csv(read_text(Path(path)), str(path))


def read_operators() -> list[Measurement]:
    """The packaged measurements of operators, which families beyond the bars judge."""
    return measurements_from_csv(read_table("operators"), "packaged operators")


def read_calls() -> list[Measurement]:
    """The packaged calls of libraries, host included, which families beyond the bars judge."""
    return measurements_from_csv(read_table("calls"), "packaged calls of libraries")


def measurements_from_csv(text: str, where: str) -> list[Measurement]:
    """Measurements from CSV text; `where` names the file in errors, which count rows from 1 without the header."""
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{where}: malformed CSV: {error}") from None
    if not records:
        raise ConfigError(f"{where}: found an empty file, expected the header {','.join(COLUMNS)}")
    tensor_parallel = tuple(records[0]) == tp_rows.COLUMNS
    if not tensor_parallel:
        _check_header(records[0], where)
    place = {name: records[0].index(name) for name in records[0]}
    measurements: list[Measurement] = []
    first_row: dict[str, int] = {}
    for number, record in enumerate(records[1:], start=1):
        row = f"{where}: row {number}"
        if len(record) != len(records[0]):
            raise ConfigError(f"{row}: found {len(record)} columns, expected {len(records[0])}")
        cells = {name: record[i] for name, i in place.items()}
        m = _measurement(tp_rows.cells_of(cells) if tensor_parallel else cells, row)
        if m.id in first_row:
            again = f"expected each id once (first in row {first_row[m.id]})"
            raise ConfigError(f"{row}: column id: found {show(m.id)} again, {again}")
        first_row[m.id] = number
        measurements.append(m)
    return measurements


def _check_header(header: list[str], where: str) -> None:
    for name in header:
        if name not in COLUMNS:
            raise ConfigError(f"{where}: header: found unknown column {show(name)}{nearest(name, COLUMNS)}")
    for name in COLUMNS:
        if header.count(name) != 1:
            count = f"found column {name} {header.count(name)} times"
            raise ConfigError(f"{where}: header: {count}, expected each of {','.join(COLUMNS)} once")


def _measurement(cells: Mapping[str, str], row: str) -> Measurement:
    for name in TEXTS:
        if not cells[name].strip() and name != "source":
            raise ConfigError(f"{row}: column {name}: found nothing, expected a text")
    units = units_of(cells["metric"])
    if units and cells["unit"] not in units:
        unit = f"found {show(cells['unit'])} for metric {show(cells['metric'])}"
        raise ConfigError(f"{row}: column unit: {unit}, expected {' or '.join(units)}")
    value = _number(cells["value"], cells["unit"], row)
    if units and value == 0:
        raise ConfigError(f"{row}: column value: found 0, expected more than 0 {cells['unit']}")
    return Measurement(config=_config(cells["config_json"], row), value=value, **{name: cells[name] for name in TEXTS})


def units_of(metric: str) -> tuple[str, ...]:
    """Units a metric may have; empty for a metric that is not predicted."""
    word = metric.split(" ", maxsplit=1)[0]
    return UNITS_OF.get(word) or UNITS_OF.get(word.split("_", maxsplit=1)[0], ())


def _number(text: str, unit: str, row: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        if unit == STATEMENT and text.strip():
            return None
        raise ConfigError(f"{row}: column value: found {show(text)}, expected a number") from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{row}: column value: found {show(text)}, expected a finite number of at least 0")
    return value


def _config(text: str, row: str) -> dict[str, Any]:
    where = f"{row}: column config_json"
    try:
        config = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: found {show(text)}, expected a JSON object ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: found {show(text)}, expected a JSON object")
    for key, value in config.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and (not math.isfinite(value) or value < 0):
            raise ConfigError(f"{where}: {show(key)}: found {value}, expected a finite number of at least 0")
    return config


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
