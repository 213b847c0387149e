"""Results as plain text for `print` (a table, a cell, facts by name, wrapped sentences; at most 100 columns) and as HTML for notebooks."""

import csv
import io
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any

WIDTH = 100
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[-=]|[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?( ?%)?|[+-](inf|nan)", re.I)  # "-": no value; "=": equal


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, text: Collection[str] = (), gap: int = 2) -> str:
    """A table of `dysharp.base.table.plain_table` in lines of at most 100 columns."""
    from rich.console import Console  # loads when a result is printed, and no earlier

    from dysharp.base.table import plain_table

    out = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    with out.capture() as captured:
        out.print(plain_table(headings, rows, left=left, text=text, gap=gap))
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table as CSV. A text that a spreadsheet would take as a formula begins with an apostrophe; numbers stay as they are."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_no_formula(value) for value in line] for line in (columns, *lines))
    return out.getvalue()


def _no_formula(value: Any) -> Any:
    """https://owasp.org/www-community/attacks/CSV_Injection"""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value


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


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, bars: Sequence[float] = (), below: Sequence[str] = ()
) -> str:
    """A table for a notebook, in its own colours. `bars`: a length between 0 and 1 for each row. `below`: lines under the table. Text is escaped."""
    lines = []
    if headings:
        lines.append("<tr>" + "".join(_cell("th", text, at < left) for at, text in enumerate(headings)) + "<th></th>" * bool(bars) + "</tr>")
    for i, row in enumerate(rows):
        bar = f'<td style="width:16em"><div style="width:{100 * bars[i]:.1f}%;height:.9em;background:#0072B2"></div></td>' if bars else ""
        lines.append("<tr>" + "".join(_cell("td", text, at < left) for at, text in enumerate(row)) + bar + "</tr>")
    return "<table>" + "".join(lines) + "</table>" + "".join(f"<p>{escape(text)}</p>" for text in below)


def _cell(tag: str, text: str, is_text: bool) -> str:
    return f'<{tag} style="text-align:{"left" if is_text else "right"}">{escape(text)}</{tag}>'
