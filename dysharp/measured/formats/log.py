"""What readers of logs share."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dysharp.base import AnyMapping, Cells, frozen, read_toml

WORDS = read_toml(Path(__file__).with_name("words.toml"))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TAG = re.compile(r"\[\d+,\d+\]<std\w+>:")
"""What mpirun puts before each piece of a line."""


TRAINED = ("model", "hardware", "gpus", "precision", "gbs", "mbs", "seq", "tp", "pp", "ep", "dp")
"""Columns without which a step of training is not predicted."""
FEWEST = 2
"""Steps of a log behind the first whose median counts."""


@frozen
class Log:
    """What a reader found: `rows` as cells of CSV, names that are `missing`, and names that may be given (`known`)."""

    name: str
    rows: list[Cells]
    missing: Sequence[str] = ()
    known: Sequence[str] = ()


def number(text: str) -> float | None:
    """A printed number, with commas or without; None for anything else."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 <= value < 1e15 else None


def whole(value: Any) -> str:
    """A cell of a whole number; "" without one."""
    return "" if value is None or value > 1e15 else str(round(value))


def lacking(names: Sequence[str], cells: Mapping[str, str]) -> list[str]:
    """The names without a cell."""
    return [name for name in names if not cells.get(name)]


def measurement(n: int, of: str, cells: Mapping[str, str], config: AnyMapping, value: float) -> Cells:
    """A row of `Measurement`; `cells`: kind, system, hardware, metric, unit."""
    keys = json.dumps({key: _as_number(one) for key, one in config.items() if one not in ("", None)}, sort_keys=True)
    return {"id": f"{of}-{n}", **cells, "config_json": keys, "value": repr(value), "source": of}


def _as_number(value: Any) -> Any:
    """A text of digits as a number."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16 else value
