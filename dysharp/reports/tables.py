"""Tables of figures, on a terminal and as Markdown."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dysharp.errors import ConfigError


class FigureLike(Protocol):
    """The texts of a figure."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def text(self) -> str: ...


COLUMNS = ("point", "metric", "paper", "ours", "tolerance", "status")


def _cells(result: Any) -> tuple[str, ...]:
    numbers = ["-" if v is None else f"{v:.3f}" for v in (result.paper, result.ours)]
    status = result.status if result.outcome in ("", "holds") else f"{result.status}: {result.outcome}"
    return result.point, result.metric, *numbers, result.tolerance, status


def print_figure(figure: FigureLike, results: Sequence[Any]) -> None:
    """Print the table of a figure on stdout, then the reasons of its gaps and what became of its claims."""
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, width=None if sys.stdout.isatty() else 130)
    table = Table(title=f"{figure.name}: {figure.title}", title_justify="left", box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("paper", "ours") else "left", overflow="fold")
    for result in results:
        table.add_row(*_cells(result))
    out.print(table, markup=False)
    for result in results:
        if result.reason:
            out.print(f"{result.point}: {result.reason}", markup=False)
    out.print(f"{verdict_text(results)}\n", markup=False)


def verdict_text(results: Sequence[Any]) -> str:
    """One sentence on the claims of a figure: how many there are, which do not hold, how many were not judged."""
    failing = [r for r in results if not r.holds]
    judged = [r for r in results if r.outcome == "holds"]
    left = sum(r.outcome == "not judged" for r in results)
    words = [f"claims: {len(judged)} of {len(judged) + len(failing)} hold"] if judged or failing else ["claims: none judged"]
    words += [f"{r.point}: {r.outcome}" for r in failing]
    words += [f"{left} not judged, because they need all points of the figure"] if left else []
    return "; ".join(words)


def figure_markdown(figure: FigureLike, results: Sequence[Any]) -> str:
    """A figure as a section of Markdown. Texts from files are escaped."""
    lines = [f"## {figure.name}: {_escape(figure.title)}", "", _escape(figure.source), ""]
    if figure.text:
        lines += [_escape(figure.text), ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(_escape, _cells(r)))} |" for r in results]
    lines += [f"\n{_escape(r.point)}: {_escape(r.reason)}." for r in results if r.reason]
    lines += ["", f"{_escape(verdict_text(results))}."]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(mark, safe)
    return text


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to a temporary file and rename it. Raises ConfigError for a folder that cannot be written to."""
    file = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=file.resolve().parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
