"""Tables of figures, on a terminal and as Markdown. `figure`, `results`: a `Figure` and its `Result`s of the folder `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dysharp.base import KEPT, SHOWN, Cells, Column, Columns, by_key
from dysharp.show.markdown import escaped, paragraph, table

if TYPE_CHECKING:
    from rich.console import Console


VERDICTS = {
    "reproduced": "came out",
    "inside": "inside (when the bound was set, or the number first seen, is not said)",
    "set after": "inside a bound that was set with or after the result",
    "cannot fail": "inside a bound that no run can leave",
    "fitted": "inside, with an input chosen for it",
    "gap": "did not come out",
}
"""{verdict of a number with a bound: the same in a sentence}, from the best to the worst."""


def bounded(results: Sequence[Any]) -> list[Any]:
    """The lines that a published value or sentence bounds."""
    return [r for r in results if r.verdict in VERDICTS]


def claims(results: Sequence[Any]) -> Cells:
    """{claim of a figure: its verdict}. A claim over several points has the worst verdict of them."""
    order, found = list(VERDICTS), Cells()
    for result in bounded(results):
        found[result.claim] = max(found.get(result.claim, order[0]), result.verdict, key=order.index)
    return found


def counted(verdicts: Sequence[str]) -> str:
    """How many of the claims came out, did not, and so on, in words."""
    return ", ".join(f"{n} {words}" for verdict, words in VERDICTS.items() if (n := verdicts.count(verdict)))


def _note(result: Any) -> str:
    """What a line without a bound says: its stored value, or why it has no verdict."""
    stored = f"regression value {result.stored}" if result.verdict == "regression" else ""
    other = result.verdict if result.verdict in ("other choice", "not judged") else ""
    problem = result.outcome if result.verdict == "other choice" or not result.holds else ""
    return ": ".join(filter(None, (stored or other, problem)))


RESULTS = Columns(
    "point", "metric", "paper:.3f", "ours:.3f", Column("note", of=_note, place=SHOWN),
    *(Column(name, place=KEPT) for name in ("bound", "verdict", "outcome", "bound_set", "number_seen", "stored", "reason")),
)  # fmt: skip
"""Lines of a figure: on a terminal and as Markdown those without a bound, in CSV and JSON all."""


def _answer(result: Any, who: str) -> str:
    """A number with a bound in one line: what the paper says, what is simulated, the verdict. `who`: "paper", or "bound"."""
    ours = "-" if result.ours is None else f"{result.ours:.3f}"
    if result.paper is None:
        return f"{result.point}: {who} {result.bound}, ours {ours}: {result.verdict}"
    return f"{result.point}: {who} {result.paper:g}, ours {ours} ({result.bound.replace(f' of {result.paper:g}', '')}): {result.verdict}"


def _reasons(results: Sequence[Any]) -> list[tuple[list[str], str]]:
    """Each reason of a figure once, with the judged numbers that it explains."""
    found = by_key((result.reason, result.point) for result in bounded(results) if result.reason)
    return [(points, reason) for reason, points in found.items()]


def print_figure(figure: Any, results: Sequence[Any], out: Console) -> None:
    """Print the answer first: published and simulated numbers, then what explains gaps, then all other numbers. `out`: a console without markup."""
    from dysharp.base.table import plain_table

    out.print(f"{figure.name}: {verdict_text(results)}\n{figure.title}")
    for result in bounded(results):
        out.print("  " + _answer(result, "paper" if figure.paper else "bound"))
    for points, reason in _reasons(results):
        out.print(f"{'; '.join(points)}: {reason}")
    rest = [r for r in results if r.verdict not in VERDICTS]
    shown = RESULTS if any(r.paper is not None for r in rest) else RESULTS.without("paper")
    if rest:
        out.print(plain_table(shown.headings, shown.cells(rest), left=0, text=shown.text))
    out.print("")


def verdict_text(results: Sequence[Any]) -> str:
    """One sentence on a figure: how many numbers with a bound came out, how many regression values are as stored, what fails."""
    verdicts = list(claims(results).values())
    stored = [r for r in results if r.verdict == "regression"]
    left = sum(r.verdict == "not judged" and r.holds for r in results)
    words = [f"{len(verdicts)} with a bound: {counted(verdicts)}"] if verdicts else [] if left else ["no number has a bound"]
    words += [f"regression values: {sum(r.holds for r in stored)} of {len(stored)} as stored"] if stored else []
    words += [f"{r.point}: {r.outcome}" for r in results if not r.holds]
    if left and words:
        words += [f"{left} not judged, because they need all points of the figure"]
    elif left:
        words = [f"nothing judged: {left} number{'s need' if left > 1 else ' needs'} all points of the figure"]
    return "; ".join(words)


def figure_markdown(figure: Any, results: Sequence[Any]) -> str:
    """A figure as a section of Markdown. Texts from files are escaped."""
    lines = [f"## {escaped(figure.name)}: {escaped(figure.title)}", "", paragraph(figure.source), ""]
    if figure.text:
        lines += [paragraph(figure.text), ""]
    lines += [f"- {escaped(_answer(r, 'paper' if figure.paper else 'bound'))}" for r in bounded(results)]
    lines += [f"\n{paragraph('; '.join(points))}: {escaped(reason)}." for points, reason in _reasons(results)]
    rest = [r for r in results if r.verdict not in VERDICTS]
    lines += ["", table(RESULTS.headings, RESULTS.cells(rest))] if rest else []
    lines += ["", f"{paragraph(verdict_text(results))}."]
    return "\n".join(lines) + "\n"
