"""Measured runs of whole models from a CSV: texts, whole numbers and measured numbers by column. Training and serving declare their columns."""

import csv
import io
import math
import re
from typing import ClassVar, Self

from dysharp.base import AnyPath, Cells, ConfigError, Tally, Texts, frozen, show
from dysharp.measured.data import read_table
from dysharp.measured.formats import rows_text
from dysharp.measured.measurements import TABLES, Unsupported

MOST = 1 << 40


@frozen
class Columns:
    """A table of runs. A file without a column of `required` is of another kind; the other columns may be absent or empty."""

    table: str
    """Packaged."""
    texts: Texts
    degrees: Texts
    numbers: Texts
    required: Texts

    @property
    def all(self) -> Texts:
        """Every column once."""
        return tuple(dict.fromkeys((*self.required, *self.texts, *self.degrees, *self.numbers)))

    def fit(self, text: str) -> bool:
        """Whether the header of a CSV has the required columns."""
        try:
            header = next(csv.reader(io.StringIO(text.partition("\n")[0])), [])
        except csv.Error:  # a line end of another kind
            return False
        return set(self.required) <= {name.strip() for name in header}


@frozen
class Run:
    """One measured run. A degree that the row leaves out is 0; a measured number that it leaves out is None."""

    columns: ClassVar[Columns]
    texts: Cells
    degrees: Tally
    numbers: dict[str, float | None]
    fault: str = ""
    """Why the row cannot be read; then it has no degrees and no numbers."""

    @property
    def id(self) -> str:
        """Name of the row."""
        return self.texts["id"]

    @property
    def model(self) -> str:
        """The packaged model of the row's name, which matches whole. Raises `Unsupported`, also for a row that cannot be read."""
        if self.fault:
            raise Unsupported(self.fault)
        words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"^[^\s/(]+/", "", self.text("model")).lower())
        ends = f"(-({'|'.join(TABLES['model_endings'])}))*-?"
        found = (name for pattern, name in TABLES["model_names"].items() if re.fullmatch(f"(?:{pattern}){ends}", words))
        if name := next(found, ""):
            return str(name)
        raise Unsupported(f"no packaged model is called like {self.text('model')!r}")

    def text(self, column: str) -> str:
        """A text; "" where the row has none."""
        return self.texts[column]

    def degree(self, column: str) -> int:
        """A degree; 1 where the row has none."""
        return self.degrees[column] or 1

    def says(self, where: Cells) -> bool:
        """Whether all patterns are found in their columns."""
        return all(re.search(pattern, self.texts[column]) for column, pattern in where.items())

    @classmethod
    def modelled(cls, cells: Cells) -> bool:
        """Whether the degrees of a row are read; a row of another kind is kept and has no prediction."""
        return True

    @classmethod
    def read(cls, path: AnyPath | None = None) -> list[Self]:
        """All runs of a CSV file; None: the packaged table. Raises `ConfigError` in one line: file, row, column, found and expected."""
        if path is None:
            return cls.from_csv(read_table(cls.columns.table), f"packaged {cls.columns.table} runs")
        return cls.from_csv(rows_text(path), str(path))

    @classmethod
    def from_csv(cls, text: str, where: str) -> list[Self]:
        """Runs from CSV text; `where` names the file in errors, which count rows from 1 without the header.

        A row with a cell that cannot be read is kept with its `fault`; if no row can be read, the first fault is raised.
        """
        try:
            header, *records = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
        except csv.Error as error:
            raise ConfigError(f"{where}: malformed CSV: {error}") from None
        header = [name.strip() for name in header]
        if missing := [name for name in cls.columns.required if name not in header]:
            raise ConfigError(f"{where}: header: found no column {missing[0]}, expected {','.join(cls.columns.required)} and others")
        rows, seen = [], set[str]()
        for number, record in enumerate(records, start=1):
            if len(record) != len(header):
                raise ConfigError(f"{where}: row {number}: found {len(record)} columns, expected {len(header)}")
            row = cls._row(dict(zip(header, (cell.strip() for cell in record), strict=True)), f"row {number}")
            if row.id in seen:
                raise ConfigError(f"{where}: row {number}: column id: found {show(row.id)} again, expected each id once")
            seen.add(row.id)
            rows.append(row)
        if rows and all(row.fault for row in rows):
            raise ConfigError(f"{where}: {rows[0].fault}")
        return rows

    @classmethod
    def _row(cls, cells: Cells, where: str) -> Self:
        columns, known = cls.columns, cls.modelled(cells)
        texts = {name: cells.get(name, "") for name in columns.texts}
        try:
            if reason := cells.get("refused"):
                raise ConfigError(f"{where}: {reason}")
            degrees = {name: _degree(cells.get(name, "") if known else "", name, where) for name in columns.degrees}
            return cls(texts, degrees, {name: _number(cells.get(name, ""), name, where) for name in columns.numbers})
        except ConfigError as error:
            return cls(texts, dict.fromkeys(columns.degrees, 0), dict.fromkeys(columns.numbers), str(error))


def _degree(cell: str, column: str, where: str) -> int:
    if cell and (not cell.isascii() or not cell.isdigit() or len(cell) > 9):
        raise ConfigError(f"{where}: column {column}: found {show(cell)}, expected a whole number up to 999999999")
    return int(cell or 0)


def _number(cell: str, column: str, where: str) -> float | None:
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 < value < MOST:
        raise ConfigError(f"{where}: column {column}: found {show(cell)}, expected a number above 0 and below {MOST:g}")
    return value
