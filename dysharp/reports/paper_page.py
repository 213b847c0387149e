"""One page per paper: a summary to read in a minute, then each figure with its picture. All numbers lie beside it as CSV."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.reports.markdown import escaped, paragraph, table
from dysharp.reports.tables import COLUMNS, FigureLike, cells, reasons, verdict_text
from dysharp.text import csv_text

VERDICTS = {"reproduced": "reproduced", "fitted": "fitted: an input was chosen for it", "gap": "**gap**", "no_published_value": "as expected"}
FEW = 2
"""Numbers of one check that the page prints one by one; more of them share a line."""


@dataclass(frozen=True, slots=True)
class Section:
    """A figure, its results, and whether a picture and a CSV file named after it lie in the folder of the page."""

    figure: FigureLike
    results: Sequence[Any]
    picture: bool

    @property
    def claims(self) -> list[Any]:
        """The results that a published value or sentence bounds."""
        return [r for r in self.results if r.status in ("reproduced", "fitted", "gap")]


def results_csv(results: Sequence[Any]) -> str:
    """All lines of a figure as CSV, with the columns of the printed table and the reason."""
    return csv_text((*COLUMNS, "reason"), ([*cells(r), r.reason] for r in results))


def paper_page(title: str, folder: str, sections: Sequence[Section], command: str, model_version: str) -> str:
    """The page. `title`: the paper, `folder`: where pictures and CSV files lie, relative to the page."""
    lines = [f"# {escaped(title)}: published and simulated", "", f"Written by `{command}`, model version {model_version}.", ""]
    sections = sorted(sections, key=_number)
    lines += _summary(sections)
    for section in sections:
        lines += _section(section, folder, title)
    return "\n".join(lines).rstrip() + "\n"


def _number(section: Section) -> tuple[bool, int, str]:
    """The published figures by their number, then the others by name."""
    digits = re.match(r"fig(\d+)", section.figure.name)
    return not digits, int(digits[1]) if digits else 0, section.figure.name


def _summary(sections: Sequence[Section]) -> list[str]:
    """The count of claims, and each reason of a gap once, with the numbers that it explains."""
    claims = [r for s in sections for r in s.claims]
    outside = sum(r.status == "gap" for r in claims)
    words = "a published value, or a sentence of the paper as this page reads it"
    out = ["## In one minute", ""]
    out += [f"{len(claims)} of the numbers below have a bound: {words}. {len(claims) - outside} are inside, {outside} are gaps.", ""]
    if outside:
        out += ["Why the gaps are there (in brackets: the published bound, and ours):", ""]
    for section in sections:
        ours = {r.point: f"{r.point} ({_bound(r)}; {_ours([r])})" for r in section.claims}
        for points, reason in reasons(section.claims):
            out.append(f"- {escaped(section.figure.name)}, {escaped(', and '.join(ours[p] for p in points))}: {escaped(reason)}.")
    return [*out, ""] if outside else out


def _bound(result: Any) -> str:
    """The published bound of a result, without the value that this model version is expected to give."""
    return str(result.tolerance.split("; ")[0])


def _ours(results: Sequence[Any]) -> str:
    values = [f"{r.ours:.3f}" for r in results if r.ours is not None]
    if not values:
        return "-"
    return values[0] if len(set(values)) == 1 else f"{min(values, key=float)} to {max(values, key=float)}"


def _verdict(result: Any) -> str:
    return VERDICTS[result.status] if result.holds else f"**{result.outcome}**"


def _lines(claims: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """The lines of a table. More than `FEW` numbers of one check with one bound and one verdict share a line."""
    for (check, bound, verdict), grouped in itertools.groupby(claims, lambda r: (r.point.rsplit(": ", 1)[0], _bound(r), _verdict(r))):
        alike = list(grouped)
        if len(alike) > FEW:
            yield f"{check} ({len(alike)} points)", bound, _ours(alike), verdict
        else:
            yield from ((r.point, bound, _ours([r]), verdict) for r in alike)


def _section(section: Section, folder: str, title: str) -> list[str]:
    figure, claims = section.figure, section.claims
    out = [f"## {escaped(figure.name)}: {escaped(figure.title)}", ""]
    if section.picture:
        out += [f"![{escaped(figure.name)}]({folder}/{figure.name}.svg)", ""]
    out += [paragraph(figure.source.removeprefix(title).lstrip(" ,:")), ""]
    out += [paragraph(figure.text), ""] if figure.text else []
    if claims:
        out += [table(("number", "published", "ours", "verdict"), _lines(claims)), ""]
    verdict = re.sub(r", \d+ of them as known gaps to the paper", "", verdict_text(section.results))  # the table above names the gaps
    rest = f"{len(section.results) - len(claims)} {'more ' if claims else ''}numbers"
    out += [f"{paragraph(verdict)}. {rest}: [{figure.name}.csv]({folder}/{figure.name}.csv).", ""]
    return out
