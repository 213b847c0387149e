"""Plain text of results, for `print`: a table, facts by name, wrapped sentences. At most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns under their headings; the first `left` columns are text, the others numbers."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A name and a text per line; a long text continues under its beginning."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width, break_on_hyphens=False) for name, text in pairs
    )


def sentences(text: str) -> str:
    """Text in lines of at most 100 columns."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
