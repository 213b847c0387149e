"""A column of a table, stated once: screens, Markdown, HTML, CSV and JSON read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from dysharp.base.text import cell, csv_text, html_table, table

SHOWN, KEPT = "shown", "kept"
Rows = list[dict[str, Any]]
"""Rows of a table as plain values."""


class Column(NamedTuple):
    """A column. `of`: its value from a row; None: the row's key or attribute `name`. None is "-", a list of two "low to high", words stay.

    name     key in JSON and CSV
    heading  on screens and pages; "": the name
    format   of a number, as for `format`; a share in percent has ".0%", and its sign stands in the heading. "": text
    unit     of a number, below the heading
    per      screens and pages divide by it
    number   aligned as a number, without a format
    place    `SHOWN`: on screens and pages alone; `KEPT`: in JSON and CSV alone
    """

    name: str
    heading: str = ""
    format: str = ""
    of: Callable[[Any], Any] | None = None
    unit: str = ""
    per: float = 1.0
    number: bool = False
    place: str = ""

    def value(self, row: Any) -> Any:
        """The value of a row, as JSON and CSV have it."""
        if self.of is not None:
            return self.of(row)
        return row[self.name] if isinstance(row, Mapping) else getattr(row, self.name)

    def cell(self, row: Any) -> str:
        """The value of a row as text."""
        value = self.value(row)
        if isinstance(value, list | tuple):
            return " to ".join(format(each, self.format) for each in value)
        if not self.format or value is None or isinstance(value, str):
            return cell(value)
        return format(value / self.per if self.per != 1 else value, self.format).removesuffix("%")


def column(text: str) -> Column:
    """A column from "heading=name" of text, or "heading=name:format" of a number; "name/1e3" divides it. Without a heading it is the name."""
    heading, _, name = text.rpartition("=")
    name, colon, form = name.partition(":")
    name, _, divisor = name.partition("/")
    return Column(name, heading, form, per=float(divisor or 1), number=bool(colon))


class Columns:
    """The columns of a table. A column of somebody else's package is one line: `TABLE.add(Column(...))`."""

    def __init__(self, *columns: Column | str) -> None:
        self.own = tuple(column(one) if isinstance(one, str) else one for one in columns)
        self.added: list[Column] = []

    def _at(self, place: str) -> list[Column]:
        _load()
        return [one for one in (*self.own, *self.added) if one.place in ("", place)]

    def add(self, *columns: Column) -> None:
        """Show more columns wherever the table stands. The entry points `dysharp.columns` name modules that do so."""
        self.added += columns

    def like(self, *columns: Column | str) -> Columns:
        """Other columns of the same table, with what was added to it."""
        other = Columns(*columns)
        other.added = self.added
        return other

    def without(self, *names: str) -> Columns:
        """The other columns."""
        return self.like(*(one for one in self.own if one.name not in names))

    @property
    def headings(self) -> list[str]:
        """Above the columns."""
        return [(one.heading or one.name) + f"\n{one.unit}" * bool(one.unit) for one in self._at(SHOWN)]

    @property
    def text(self) -> list[str]:
        """Headings of the columns of text."""
        return [heading for heading, one in zip(self.headings, self._at(SHOWN), strict=True) if not (one.format or one.number)]

    def cells(self, rows: Iterable[Any]) -> list[tuple[str, ...]]:
        """Texts, one tuple for each row."""
        return [tuple(one.cell(row) for one in self._at(SHOWN)) for row in rows]

    def values(self, rows: Iterable[Any]) -> Rows:
        """{name: value} of each row, for JSON."""
        return [{one.name: one.value(row) for one in self._at(KEPT)} for row in rows]

    def more(self, row: Any) -> dict[str, Any]:
        """{name: value} of the columns that were added, where JSON has more of a row than its table."""
        return {one.name: one.value(row) for one in self._at(KEPT) if one in self.added}

    def screen(self, rows: Iterable[Any]) -> str:
        """The table as text of at most 100 columns."""
        return table(self.headings, self.cells(rows), left=0, text=self.text)

    def html(self, rows: Iterable[Any], **more: Any) -> str:
        """The table for a notebook. `more`: of `base.text.html_table`."""
        return html_table(self.headings, self.cells(rows), left=len(self.text), **more)

    def csv(self, rows: Iterable[Any], told: Callable[[Any], Any] = lambda value: value) -> str:
        """The table as CSV: names, and what `told` makes of values."""
        return csv_text([one.name for one in self._at(KEPT)], ([*map(told, row.values())] for row in self.values(rows)))


@cache
def _load() -> None:
    """Let other packages add their columns."""
    from importlib.metadata import entry_points  # loads when a table is shown, and no earlier

    for entry in entry_points(group="dysharp.columns"):
        entry.load()
