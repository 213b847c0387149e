"""One page per paper: a summary to read in a minute, then each figure with its picture. All numbers lie beside it as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.reports.markdown import escaped, paragraph, table
from dysharp.reports.tables import COLUMNS, FigureLike, cells, verdict_text

VERDICTS = {
    "reproduced": "reproduced",
    "fitted": "fitted: an input was chosen for it",
    "gap": "**gap**",
    "no_published_value": "as expected",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A figure, its results, and whether a picture and a CSV file named after it lie in the folder of the page."""

    figure: FigureLike
    results: Sequence[Any]
    picture: bool


def results_csv(results: Sequence[Any]) -> str:
    """All lines of a figure as CSV, with the columns of the printed table and the reason."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, "reason"])
    writer.writerows([*cells(r), r.reason] for r in results)
    return out.getvalue()


def paper_page(title: str, folder: str, sections: Sequence[Section], command: str, model_version: str) -> str:
    """The page. `title`: the paper, `folder`: where pictures and CSV files lie, relative to the page."""
    lines = [f"# {escaped(title)}: published and simulated", "", f"Written by `{command}`, model version {model_version}.", ""]
    lines += _summary(sections)
    for section in sections:
        lines += _section(section, folder)
    return "\n".join(lines).rstrip() + "\n"


def _bounded(result: Any) -> bool:
    return bool(result.status in ("reproduced", "fitted", "gap"))


def _summary(sections: Sequence[Section]) -> list[str]:
    claims = [(s.figure.name, r) for s in sections for r in s.results if _bounded(r)]
    kept = sum(r.status != "gap" for _, r in claims)
    out = ["## In one minute", ""]
    words = "a published value, or a sentence of the paper as this page reads it"
    out.append(f"{len(claims)} of the numbers below have a bound: {words}. {kept} are inside, {len(claims) - kept} are gaps.")
    out += ["", table(("figure", "number", "published", "ours", "verdict"), (_claim(name, r) for name, r in claims)), ""]
    gaps = [(name, r) for name, r in claims if r.reason]
    if gaps:
        out += ["Why the gaps are there:", "", *(f"- {escaped(name)}, {escaped(r.point)}: {escaped(r.reason)}." for name, r in gaps), ""]
    return out


def _claim(name: str, result: Any) -> tuple[str, ...]:
    published = f"{result.paper:g}" if result.paper is not None else result.tolerance.split(";")[0]
    ours = "-" if result.ours is None else f"{result.ours:.3f}"
    verdict = VERDICTS[result.status] if result.holds else f"**{result.outcome}**"
    return name, result.point, published, ours, verdict


def _section(section: Section, folder: str) -> list[str]:
    figure = section.figure
    out = [f"## {escaped(figure.name)}: {escaped(figure.title)}", ""]
    if section.picture:
        out += [f"![{escaped(figure.title)}]({folder}/{figure.name}.svg)", ""]
    out += [paragraph(figure.source), ""]
    out += [paragraph(figure.text), ""] if figure.text else []
    shown = [r for r in section.results if _bounded(r)]
    if shown:
        out += [table(COLUMNS, map(cells, shown)), ""]
    rest = len(section.results) - len(shown)
    words = f"{rest} more numbers, which no sentence of the paper bounds" if shown else f"{rest} numbers, none bounded by the paper"
    out += [f"{paragraph(verdict_text(section.results))}. {words}: [{figure.name}.csv]({folder}/{figure.name}.csv).", ""]
    return out
