"""Tables of figures, on a terminal and as Markdown. `figure`, `results`: a `Figure` and its `Result`s of the folder `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dysharp.show.markdown import escaped, paragraph, table

if TYPE_CHECKING:
    from rich.console import Console


COLUMNS = ("point", "metric", "paper", "ours", "note")
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


def claims(results: Sequence[Any]) -> dict[str, str]:
    """{claim of a figure: its verdict}. A claim over several points has the worst verdict of them."""
    order, found = list(VERDICTS), dict[str, str]()
    for result in bounded(results):
        found[result.claim] = max(found.get(result.claim, order[0]), result.verdict, key=order.index)
    return found


def counted(verdicts: Sequence[str]) -> str:
    """How many of the claims came out, did not, and so on, in words."""
    return ", ".join(f"{n} {words}" for verdict, words in VERDICTS.items() if (n := verdicts.count(verdict)))


def cells(result: Any) -> tuple[str, ...]:
    """The texts of a line of a figure's table, by `COLUMNS`."""
    numbers = ["-" if v is None else f"{v:.3f}" for v in (result.paper, result.ours)]
    stored = f"regression value {result.stored}" if result.verdict == "regression" else ""
    other = result.verdict if result.verdict in ("other choice", "not judged") else ""
    problem = result.outcome if result.verdict == "other choice" or not result.holds else ""
    return result.point, result.metric, *numbers, ": ".join(filter(None, (stored or other, problem)))


def answer(result: Any, who: str) -> str:
    """A number with a bound in one line: what the paper says, what is simulated, the verdict. `who`: "paper", or "bound"."""
    ours = "-" if result.ours is None else f"{result.ours:.3f}"
    if result.paper is None:
        return f"{result.point}: {who} {result.bound}, ours {ours}: {result.verdict}"
    return f"{result.point}: {who} {result.paper:g}, ours {ours} ({result.bound.replace(f' of {result.paper:g}', '')}): {result.verdict}"


def reasons(results: Sequence[Any]) -> list[tuple[list[str], str]]:
    """Each reason of a figure once, with the judged numbers that it explains."""
    found: dict[str, list[str]] = {}
    for result in bounded(results):
        if result.reason:
            found.setdefault(result.reason, []).append(result.point)
    return [(points, reason) for reason, points in found.items()]


def print_figure(figure: Any, results: Sequence[Any], out: Console) -> None:
    """Print the answer first: published and simulated numbers, then what explains gaps, then all other numbers. `out`: a console without markup."""
    from rich.table import Table

    out.print(f"{figure.name}: {verdict_text(results)}\n{figure.title}")
    for result in bounded(results):
        out.print("  " + answer(result, "paper" if figure.paper else "bound"))
    for points, reason in reasons(results):
        out.print(f"{'; '.join(points)}: {reason}")
    rest = [r for r in results if r.verdict not in VERDICTS]
    lines = Table(box=None, pad_edge=False)
    shown = [i for i, name in enumerate(COLUMNS) if name != "paper" or any(r.paper is not None for r in rest)]
    for i in shown:
        lines.add_column(COLUMNS[i], justify="right" if COLUMNS[i] in ("paper", "ours") else "left", overflow="fold")
    for result in rest:
        texts = cells(result)
        lines.add_row(*(texts[i] for i in shown))
    if rest:
        out.print(lines)
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
    lines += [f"- {escaped(answer(r, 'paper' if figure.paper else 'bound'))}" for r in bounded(results)]
    lines += [f"\n{paragraph('; '.join(points))}: {escaped(reason)}." for points, reason in reasons(results)]
    rest = [cells(r) for r in results if r.verdict not in VERDICTS]
    lines += ["", table(COLUMNS, rest)] if rest else []
    lines += ["", f"{paragraph(verdict_text(results))}."]
    return "\n".join(lines) + "\n"
