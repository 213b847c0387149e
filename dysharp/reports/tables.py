"""Tables of figures, on a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dysharp.reports.markdown import escaped, paragraph, table

if TYPE_CHECKING:
    from rich.console import Console


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


def cells(result: Any) -> tuple[str, ...]:
    """The texts of a line of a figure's table, by `COLUMNS`."""
    numbers = ["-" if v is None else f"{v:.3f}" for v in (result.paper, result.ours)]
    status = result.status if result.outcome in ("", "holds") else f"{result.status}: {result.outcome}"
    return result.point, result.metric, *numbers, result.tolerance, status


def reasons(results: Sequence[Any]) -> list[tuple[list[str], str]]:
    """Each reason of a figure once, with the numbers that it explains."""
    found: dict[str, list[str]] = {}
    for result in results:
        if result.reason:
            found.setdefault(result.reason, []).append(result.point)
    return [(points, reason) for reason, points in found.items()]


def print_figure(figure: FigureLike, results: Sequence[Any], out: Console) -> None:
    """Print what became of the claims of a figure, its table, then the reasons of its gaps. `out`: a console without markup."""
    from rich.table import Table

    out.print(f"{figure.name}: {verdict_text(results)}\n{figure.title}")
    lines = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        lines.add_column(name, justify="right" if name in ("paper", "ours") else "left", overflow="fold")
    for result in results:
        lines.add_row(*cells(result))
    out.print(lines)
    for points, reason in reasons(results):
        out.print(f"{'; '.join(points)}: {reason}")
    out.print("")


def verdict_text(results: Sequence[Any]) -> str:
    """One sentence on the checks of a figure: how many there are, how many are known gaps, which fail, how many were not judged.

    A known gap holds while it is as large as expected: its size is checked, and the paper's number is not reached.
    """
    failing = [r for r in results if not r.holds]
    judged = [r for r in results if r.outcome == "holds"]
    left = sum(r.outcome == "not judged" for r in results)
    gaps = sum(r.status == "gap" for r in judged)
    known = f", {gaps} of them as known gaps to the paper" if gaps else ""
    words = [f"checks: {len(judged)} of {len(judged) + len(failing)} hold{known}"] if judged or failing else ["checks: none judged"]
    words += [f"{r.point}: {r.outcome}" for r in failing]
    words += [f"{left} not judged, because they need all points of the figure"] if left else []
    return "; ".join(words)


def figure_markdown(figure: FigureLike, results: Sequence[Any]) -> str:
    """A figure as a section of Markdown. Texts from files are escaped."""
    lines = [f"## {escaped(figure.name)}: {escaped(figure.title)}", "", paragraph(figure.source), ""]
    if figure.text:
        lines += [paragraph(figure.text), ""]
    lines.append(table(COLUMNS, map(cells, results)))
    lines += [f"\n{paragraph('; '.join(points))}: {escaped(reason)}." for points, reason in reasons(results)]
    lines += ["", f"{paragraph(verdict_text(results))}."]
    return "\n".join(lines) + "\n"
