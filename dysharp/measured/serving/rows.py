"""Serving runs from a CSV, the packaged one or a file: one line per run, the columns of `COLUMNS`."""

import csv
import io
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dysharp.data import read_table
from dysharp.errors import ConfigError
from dysharp.specs.fields import show
from dysharp.specs.reading import read_text

PACKAGED = "packaged serving runs"
TEXTS = ("id", "source", "where", "quality", "engine", "engine_version", "model", "hardware", "mode", "precision", "gemm_quant", "moe_quant",
         "measured", "spec_decode", "note")  # fmt: skip
DEGREES = (
    "gpus", "isl", "osl", "concurrency", "batch", "tp", "pp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "p_moe_tp",
    "p_moe_ep", "d_workers", "d_tp", "d_attn_dp", "d_moe_tp", "d_moe_ep",
)  # fmt: skip
NUMBERS = ("ttft_ms", "tpot_ms", "out_tok_s_gpu", "in_tok_s_gpu")
REQUIRED = ("id", "engine", "model", "hardware", "mode", "isl", "osl", "concurrency", "tp", "tpot_ms")
"""Columns without which a file is none of serving runs. The others may be absent or empty."""
COLUMNS = (*TEXTS, *DEGREES, *NUMBERS)
STEPS = ("decode only", "prefill only")
"""Modes of rows that measure steps without a scheduler: tokens per second of a GPU with `batch` requests (tokens of prompts) on each."""
MODES = ("agg", "disagg", *STEPS)
"""Prefill and decode on the same GPUs, apart, and one of them alone."""
MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One measured run. A degree that the row leaves out is 0; a measured number that it leaves out is None."""

    texts: dict[str, str]
    degrees: dict[str, int]
    numbers: dict[str, float | None]

    @property
    def id(self) -> str:
        """Name of the row."""
        return self.texts["id"]

    def text(self, column: str) -> str:
        """A text; "" where the row has none."""
        return self.texts[column]

    @property
    def step_ms(self) -> float | None:
        """Time of a step, measured; with drafts, of all tokens that it accepts."""
        rate = self.numbers["out_tok_s_gpu" if self.text("mode") == STEPS[0] else "in_tok_s_gpu"]
        if self.text("mode") not in STEPS or not rate or not self.degrees["batch"]:
            return None
        return self.degrees["batch"] * (1 + self.acceptance) / rate * 1e3

    @property
    def acceptance(self) -> float:
        """Part of drafts that a row with one draft says are accepted; 0 without drafts."""
        found = re.search(r"MTP (\d+) % acceptance", self.text("spec_decode"))
        return int(found[1]) / 100 if found else 0.0

    def degree(self, column: str) -> int:
        """A degree; 1 where the row has none."""
        return self.degrees[column] or 1


def is_serving(text: str) -> bool:
    """Whether the header of a CSV has the columns of serving runs."""
    header = next(csv.reader(io.StringIO(text.partition("\n")[0])), [])
    return set(REQUIRED) <= {name.strip() for name in header}


def read_serving(path: str | os.PathLike[str] | None = None) -> list[ServingRow]:
    """All runs of a CSV file; None: the packaged table. Raises `ConfigError` in one line: file, row, column, found and expected."""
    if path is None:
        return serving_from_csv(read_table("serving"), PACKAGED)
    return serving_from_csv(read_text(Path(path)), str(path))


def serving_from_csv(text: str, where: str) -> list[ServingRow]:
    """Runs from CSV text; `where` names the file in errors, which count rows from 1 without the header."""
    try:
        header, *records = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except csv.Error as error:
        raise ConfigError(f"{where}: malformed CSV: {error}") from None
    header = [name.strip() for name in header]
    if missing := [name for name in REQUIRED if name not in header]:
        raise ConfigError(f"{where}: header: found no column {missing[0]}, expected {','.join(REQUIRED)} and others")
    rows, seen = [], set[str]()
    for number, record in enumerate(records, start=1):
        if len(record) != len(header):
            raise ConfigError(f"{where}: row {number}: found {len(record)} columns, expected {len(header)}")
        row = _row(dict(zip(header, (cell.strip() for cell in record), strict=True)), f"{where}: row {number}")
        if row.id in seen:
            raise ConfigError(f"{where}: row {number}: column id: found {show(row.id)} again, expected each id once")
        seen.add(row.id)
        rows.append(row)
    return rows


def _row(cells: dict[str, str], where: str) -> ServingRow:
    known = cells["mode"] in MODES  # other rows are read, and have no prediction
    degrees = {name: _degree(cells.get(name, "") if known else "", name, where) for name in DEGREES}
    numbers = {name: _number(cells.get(name, ""), name, where) for name in NUMBERS}
    return ServingRow({name: cells.get(name, "") for name in TEXTS}, degrees, numbers)


def _degree(cell: str, column: str, where: str) -> int:
    if cell and (not cell.isascii() or not cell.isdigit() or len(cell) > 9):
        raise ConfigError(f"{where}: column {column}: found {show(cell)}, expected a whole number")
    return int(cell or 0)


def _number(cell: str, column: str, where: str) -> float | None:
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 < value < MOST:
        raise ConfigError(f"{where}: column {column}: found {show(cell)}, expected a number above 0")
    return value
