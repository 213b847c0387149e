"""Plain text of results, for `print`: a table, a cell, facts by name, wrapped sentences. At most 100 columns."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

WIDTH = 100


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, text: Collection[str] = (), gap: int = 2) -> str:
    """A table of `dysharp.table.plain_table` in lines of at most 100 columns."""
    from rich.console import Console  # loads when a result is printed, and no earlier

    from dysharp.table import plain_table

    out = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    with out.capture() as captured:
        out.print(plain_table(headings, rows, left=left, text=text, gap=gap))
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def cell(value: Any) -> str:
    """A value of a report as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A name and a text per line; a long text continues under its beginning."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width, break_on_hyphens=False) for name, text in pairs
    )


def sentences(text: str) -> str:
    """Text in lines of at most 100 columns."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
