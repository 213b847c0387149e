"""What all commands print with: the console, plain tables, JSON, the header on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

WIDTH = 100
UNKNOWN = "-"


def console(width: int = WIDTH) -> Console:
    """stdout: the terminal's width, `width` columns into a file; colour only on a terminal and without NO_COLOR (rich reads it)."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else width, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """One JSON document; text of any script as it is, numbers always finite."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_header(lines: Iterable[str]) -> None:
    """What the numbers rest on, to stderr."""
    for line in lines:
        click.echo(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False), err=True)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout; a long line is continued with an indent."""
    out = console()
    for line in lines:
        out.print(textwrap.fill(line, out.width, subsequent_indent="  ", break_on_hyphens=False), markup=False)


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, gap: int = 2, fold: bool = True) -> Table:
    """A table without lines. The first `left` columns are text, the others numbers; `fold`: long cells continue on the next line."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="left" if column < left else "right", overflow="fold", no_wrap=not fold)
    for row in rows:
        table.add_row(*row)
    return table


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Name and value, one pair a line."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, text in facts:
        table.add_row(name, text)
    return table
