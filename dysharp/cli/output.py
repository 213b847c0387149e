"""What all commands print with: the console, JSON, the header on stderr. Tables: `dysharp.table`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
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
    """What the numbers rest on, to stderr, below the answer. A line that was printed before, in this command, is not printed again."""
    sys.stdout.flush()
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
