"""What all commands print with: the console, JSON, the header on stderr. Tables: `dysharp.base.table`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from dysharp.base import MODEL_VERSION, ByName, Columns, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100
_LATER = "dysharp.later"  # key of the lines that wait for the answer
_PRINTED = "dysharp.printed"  # key of the lines of the header that the running command has printed
UNKNOWN = "-"


@cache
def _plain() -> type[Console]:
    """A console that prints text as it is: no markup, no emoji; control characters of files are shown, not sent to the terminal."""
    from rich.console import Console  # loads when something is printed, and no earlier

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return Plain


def printable(text: str) -> str:
    """Text for a terminal: control characters are escaped, line ends stay."""
    return "\n".join(map(one_line, text.split("\n")))


def console(width: int = WIDTH) -> Console:
    """stdout: the terminal's width, `width` columns into a file; colour only on a terminal and without NO_COLOR (rich reads it)."""
    to_terminal = sys.stdout.isatty()
    return _plain()(file=sys.stdout, width=None if to_terminal else width, highlight=False, soft_wrap=False, markup=False, emoji=False)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, text: Collection[str] = (), gap: int = 2, fold: bool = True,
    whole: int = 0,
) -> None:  # fmt: skip
    """A table of `dysharp.base.table.plain_table` on stdout. The first `whole` columns stay on one line, whatever else is folded."""
    from dysharp.base.table import plain_table

    table = plain_table(headings, rows, left=left, text=text, gap=gap, fold=fold)
    for column in table.columns[:whole]:
        column.no_wrap = True
    console().print(table)


def print_columns(columns: Columns, rows: Iterable[Any], **how: Any) -> None:
    """A table on stdout. `how`: arguments of `print_table`."""
    print_table(columns.headings, columns.cells(rows), left=0, text=columns.text, **how)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values on stdout, one pair a line."""
    from dysharp.base.table import fact_table

    console().print(fact_table(facts))


def print_json(value: Any) -> None:
    """One JSON document; text of any script as it is, control characters escaped, numbers always finite."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(text if text.replace("\n", "").isprintable() else "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def print_answer(value: Any) -> None:
    """JSON of an answer, with the version of the simulated numbers: a field of the object, or of every object of a list."""
    print_json(_of_version(value) if isinstance(value, dict) else [_of_version(one) for one in value])


def _of_version(value: ByName) -> ByName:
    return value if "model_version" in value else value | {"model_version": MODEL_VERSION}


def print_later(line: str) -> None:
    """Print a line with the header, below the answer."""
    click.get_current_context().meta.setdefault(_LATER, []).append(line)


def print_header(lines: Iterable[str], *, version: bool = True) -> None:
    """What the numbers rest on, to stderr, below the answer; last their version, unless more follows.

    A line that was printed before, in this command, is not printed again.
    """
    sys.stdout.flush()
    command = click.get_current_context(silent=True)
    printed: set[str] = set() if command is None else command.meta.setdefault(_PRINTED, set())
    of_version = [f"model version {MODEL_VERSION}"] if version else []
    for line in (*lines, *([] if command is None else command.meta.pop(_LATER, ())), *of_version):
        if line not in printed:
            printed.add(line)
            filled = textwrap.fill(one_line(line), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            click.echo(filled, err=True)


def warn(text: str) -> None:
    """A warning on stderr, in one line: names in it may come from somebody else's file."""
    click.echo(f"dysharp: warning: {one_line(text)}", err=True)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout; a long line is continued with an indent."""
    out = console()
    for line in lines:
        out.print(textwrap.fill(one_line(line), out.width, subsequent_indent="  ", break_on_hyphens=False))
