"""What all commands print with: the console, plain tables, JSON, the header on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from dysharp.errors import one_line

WIDTH = 100
_PRINTED = "dysharp.printed"  # key of the lines of the header that the running command has printed
UNKNOWN = "-"


class _Plain(Console):
    """A console that prints text as it is: no markup, no emoji; control characters of files are shown, not sent to the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_printable(text), **options)


def _printable(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


def console(width: int = WIDTH) -> Console:
    """stdout: the terminal's width, `width` columns into a file; colour only on a terminal and without NO_COLOR (rich reads it)."""
    to_terminal = sys.stdout.isatty()
    return _Plain(file=sys.stdout, width=None if to_terminal else width, highlight=False, soft_wrap=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON document; text of any script as it is, control characters escaped, numbers always finite."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(text if text.replace("\n", "").isprintable() else "".join(map(_in_json, text)))


def _in_json(c: str) -> str:
    return c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1]


def print_header(lines: Iterable[str]) -> None:
    """What the numbers rest on, to stderr. A line that was printed before, in this command, is not printed again."""
    command = click.get_current_context(silent=True)
    printed: set[str] = set() if command is None else command.meta.setdefault(_PRINTED, set())
    for line in lines:
        if line not in printed:
            printed.add(line)
            filled = textwrap.fill(one_line(line), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            click.echo(filled, err=True)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout; a long line is continued with an indent."""
    out = console()
    for line in lines:
        out.print(textwrap.fill(one_line(line), out.width, subsequent_indent="  ", break_on_hyphens=False))


class _Numbers(Table):
    """A table that cuts no number: where the terminal is too narrow, each row is a block of lines `heading  value`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width(console) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        headings = [" ".join(_plain(column.header).split()) for column in self.columns]
        cells = [[_plain(cell) for cell in column.cells] for column in self.columns]
        for row in zip(*cells, strict=True):
            yield fact_table((heading, cell) for heading, cell in zip(headings, row, strict=True) if cell)
            yield Text()

    def _least_width(self, console: Console) -> int:
        """The width of all columns if only cells that may continue on the next line do so."""
        return sum(self._column_width(column) for column in self.columns) + self.padding[1] * (len(self.columns) - 1)

    def _column_width(self, column: Column) -> int:
        lines = [line for text in (column.header, *column.cells) for line in _plain(text).split("\n")]
        whole = column.no_wrap or column.justify == "right"
        return max((cell_len(part) for line in lines for part in ([line] if whole else line.split()[:1])), default=0)


def _plain(text: Any) -> str:
    return text.plain if isinstance(text, Text) else str(text)


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, gap: int = 2, fold: bool = True) -> Table:
    """A table without lines. The first `left` columns are text, the others numbers; `fold`: long cells continue on the next line."""
    table = _Numbers(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="left" if column < left else "right", overflow="fold", no_wrap=not fold)
    for row in rows:
        table.add_row(*map(one_line, row))
    return table


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Name and value, one pair a line."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(one_line(name), one_line(text))
    return table
