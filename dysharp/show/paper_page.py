"""One page per paper: a summary to read in a minute, then each figure with its picture. All numbers lie beside it as CSV."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dysharp.base import Texts, by_key, csv_text, frozen
from dysharp.show.figure_tables import RESULTS, bounded, claims, counted
from dysharp.show.markdown import escaped, paragraph, table
from dysharp.specs import choice

CLAIM_FIELDS = ("figure", "claim", "metric", "bound", "bound set", "number first seen", "ours", "verdict", "could fail")
FEW, MANY = 2, 15
"""Numbers of one check, or of one reason, that the page prints one by one; lines of a figure beyond which the page has only their count."""
OTHER = re.compile(r"\b(than|average over) .*")
"""The other system in the name of a comparison."""
RUN = ". Run: "
"""What stands between a reason and its command."""


INFERRED = "inferred"


@frozen
class Section:
    """A figure, its results, and whether a picture and a CSV file named after it lie in the folder of the page."""

    figure: Any
    results: Sequence[Any]
    picture: bool = False

    @property
    def claims(self) -> list[Any]:
        """The results that a published value or sentence bounds."""
        return bounded(self.results)

    @property
    def verdicts(self) -> list[str]:
        """One verdict for each claim."""
        return list(claims(self.results).values())


def results_csv(results: Sequence[Any]) -> str:
    """All lines of a figure as CSV. Numbers have three decimals."""
    return RESULTS.csv(results, _text)


def claims_csv(sections: Sequence[Section]) -> str:
    """Every number with a bound, the gaps first: bound, the commits that set it and that first showed the number, value, verdict."""
    lines = [(s.figure.name, r) for s in sorted(sections, key=by_number) for r in s.claims]
    lines.sort(key=lambda line: line[1].verdict != "gap")
    return csv_text(CLAIM_FIELDS, ([name, *_claim(result)] for name, result in lines))


def _claim(r: Any) -> list[str]:
    return [r.point, r.metric, r.bound, r.bound_set, r.number_seen, _text(r.ours), r.verdict, "no" if r.verdict == "cannot fail" else "yes"]


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def paper_page(title: str, folder: str, sections: Sequence[Section], command: str, model_version: str) -> str:
    """The page. `title`: the paper, `folder`: where pictures and CSV files lie, relative to the page."""
    lines = [f"# {escaped(title)}: published and simulated", "", f"Written by `{command}`, model version {model_version}.", ""]
    sections = sorted(sections, key=by_number)
    lines += _summary(sections)
    for section in sections:
        lines += _section(section, folder, title)
    return "\n".join(lines).rstrip() + "\n"


def by_number(section: Section) -> tuple[bool, int, str]:
    """The published figures by their number, then the others by name."""
    digits = re.match(r"fig(\d+)", section.figure.name)
    return not digits, int(digits[1]) if digits else 0, section.figure.name


def _summary(sections: Sequence[Section]) -> list[str]:
    """How many claims came out, and each reason of a gap once, with the numbers that it explains."""
    out = ["## In one minute", "", *sentences(sections), ""]
    for section in sections:
        out += headline(section.figure.headline, section.results)
    if found := gap_lines(sections):
        out += [table(("did not come out (published bound; ours)", "why", "shown by"), found), ""]
    return out


def gap_lines(sections: Sequence[Section]) -> list[tuple[str, str, str]]:
    """Each reason of a gap once: (numbers that it explains, reason, commands)."""
    claims = ((section.figure.name, r) for section in sections for r in section.claims)
    found = by_key((r.reason.partition(RUN)[0], (name, r)) for name, r in claims if r.verdict == "gap" and r.reason)
    return [(_gaps(gaps), why, _commands(gaps)) for why, gaps in found.items()]


def sentences(sections: Sequence[Section]) -> Iterator[str]:
    """What came out, what did not, and what the rest is worth."""
    verdicts = Counter(verdict for s in sections for verdict in s.verdicts)
    came_out = {(s.figure.name, r.claim): r.bound for s in sections for r in s.claims if claims(s.results)[r.claim] == "reproduced"}
    what = "published values, and sentences of the paper as this page reads them" if any(s.figure.paper for s in sections) else "set by this package"
    yield f"Of {verdicts.total()} claims ({what}) {verdicts.pop('reproduced', 0)} came out{_kinds(list(came_out.values()))}."
    gaps = Counter({s.figure.name: s.verdicts.count("gap") for s in sections})
    most = ", ".join(f"{name} ({n})" for name, n in gaps.most_common(3) if n)
    yield f"{verdicts.pop('gap', 0)} did not{f', most of them in {most}' if most else ''}."
    stored = sum(r.verdict == "regression" for s in sections for r in s.results)
    yield f"The rest is weak evidence: {counted(list(verdicts.elements())) or 'none'}; {stored} regression values say nothing about a paper."


def _kinds(bounds: Sequence[str]) -> str:
    """What the bounds of claims that came out ask for; "" for none."""
    width, order = sum(bound.startswith("within") for bound in bounds), bounds.count("at least 1")
    told = f": {width} published numbers within a width, {order} orders alone (at least 1), {len(bounds) - width - order} others"
    return told if bounds else ""


def _commands(gaps: Sequence[tuple[str, Any]]) -> str:
    """The commands of a reason. Figures that one command may run stand in one command."""
    heads = dict[str, dict[str, None]]()
    for name, r in gaps:
        head, _, figures = (r.reason.partition(RUN)[2] or f"dysharp reproduce {name}").partition("reproduce ")
        heads.setdefault(head + "reproduce" * bool(figures), {}).update(dict.fromkeys(figures.split()))
    return ", ".join(f"`{' '.join([head, *figures])}`" for head, figures in heads.items())


def _gaps(gaps: Sequence[tuple[str, Any]]) -> str:
    """The numbers that one reason explains; of more than `FEW` numbers only the farthest from the paper."""
    words = [f"{name}, {r.point} ({r.bound}; {span([r])})" for name, r in gaps]
    if len(gaps) <= FEW:
        return "; ".join(words)
    far = [abs(math.log(r.ours / r.paper)) if r.paper and r.ours else 0.0 for _, r in gaps]
    return f"{len(gaps)} numbers, the farthest: {words[far.index(max(far))]}"


def span(results: Sequence[Any]) -> str:
    values = [f"{r.ours:.3f}" for r in results if r.ours is not None]
    if not values:
        return "-"
    return values[0] if len(set(values)) == 1 else f"{min(values, key=float)} to {max(values, key=float)}"


def _verdict(result: Any) -> str:
    if not result.holds:
        return f"**{result.verdict}: {result.outcome}**"
    return f"**{result.verdict}**" if result.verdict == "gap" else str(result.verdict)


def _lines(claims: Sequence[Any]) -> Iterator[Texts]:
    """The lines of a table. More than `FEW` numbers of one check with one bound and one verdict share a line."""
    for (check, bound, verdict), grouped in itertools.groupby(claims, lambda r: (r.point.rsplit(": ", 1)[0], r.bound, _verdict(r))):
        alike = list(grouped)
        if len(alike) > FEW:
            yield f"{check} ({len(alike)} points)", bound, span(alike), verdict
        else:
            yield from ((r.point, bound, span([r]), verdict) for r in alike)


def _joined(lines: Sequence[Texts]) -> list[Texts]:
    """Neighbours that differ only in the compared system ("faster than X", "average over X") share a line, with the names beside the numbers."""
    out: list[Texts] = []
    for (head, bound, verdict), grouped in itertools.groupby(lines, lambda line: (OTHER.sub(r"\1", line[0]), line[1], line[3])):
        alike = list(grouped)
        names = [name[len(head) :].strip() for name, *_ in alike]
        ours = "; ".join(f"{name} {line[2]}" for name, line in zip(names, alike, strict=True))
        out += [(head, bound, ours, verdict)] if len(alike) > FEW and all(names) else alike
    return out


def _section(section: Section, folder: str, title: str) -> list[str]:
    figure, claims = section.figure, section.claims
    out = [f"## {escaped(figure.name)}: {escaped(figure.title)}", ""]
    if section.picture:
        out += [f"![{escaped(figure.name)}]({folder}/{figure.name}.svg)", ""]
    out += [paragraph(figure.source.removeprefix(title).lstrip(" ,:")), ""]
    out += [paragraph(figure.text), ""] if figure.text else []
    lines = list(_lines(claims))
    if len(lines) > MANY:
        out += [f"{len(section.verdicts)} claims: {counted(section.verdicts)}.", ""]
    elif lines:
        out += [table(("number", "published", "ours", "verdict"), _joined(lines)), ""]
    more = len(section.results) - (len(claims) if 0 < len(lines) <= MANY else 0)
    rest = f"{more} {'more ' if more < len(section.results) else ''}numbers"
    out += [f"{rest}: [{figure.name}.csv]({folder}/{figure.name}.csv).", ""]
    return out


def headline(names: Sequence[str], results: Sequence[Any]) -> list[str]:
    """Markdown: a sentence and a table. `names`: claims of the figure that are its headline. `results`: all lines of the figure.

    A line of the table is one value of one choice; bold numbers are outside the published bound. The band is over the choices that a published
    result needed (source "inferred"), or over all choices where none is.
    """
    packaged = {r.claim: r for r in results if r.claim in names and r.verdict != "other choice" and r.ours is not None}
    others = (r for r in results if r.verdict == "other choice" and r.claim in packaged)
    other = {(r.claim, label): r for r in others if (label := str(r.point).partition("; ")[2])}
    if not other:
        return []
    labels = list(dict.fromkeys(label for _, label in other))
    sources = {label: ", ".join(dict.fromkeys(choice(word.partition("=")[0]).source for word in label.split())) for label in labels}
    open_ones = [label for label in labels if sources[label] == INFERRED] or labels
    what = "the inferred choices" if sources[open_ones[0]] == INFERRED else "the choices of the table"
    bands = {name: [packaged[name].ours, *(other[name, x].ours for x in open_ones if (name, x) in other)] for name in packaged}
    spans = {name: f"{min(band):.3f} to {max(band):.3f}" for name, band in bands.items()}
    missed = [label for label in labels if any(other[name, label].outcome == "outside" for name in packaged if (name, label) in other)]
    said = "; ".join(f"{name} {packaged[name].ours:.3f}, {span}" for name, span in spans.items())
    lines = [["packaged choices", "", *(_number(r) for r in packaged.values())]]
    lines += [[f"`{label}`", sources[label], *(_number(other.get((name, label))) for name in packaged)] for label in labels]
    names_of = [f"{escaped(name)} ({escaped(r.bound)})" if r.bound else escaped(name) for name, r in packaged.items()]
    out = [f"Headline, with the band over {what}: {escaped(said)}."]
    if missed:
        out[0] += f" At {len(missed)} of {len(labels)} other values at least one of these numbers leaves its published band (bold)."
        out[0] += " A value that a published result needed is no evidence for that result." * (sources[open_ones[0]] == INFERRED)
    return [*out, "", table(("choice", "source", *names_of), lines), ""]


def _number(result: Any) -> str:
    if result is None or result.ours is None:
        return "-"
    return f"**{result.ours:.3f}**" if result.outcome == "outside" or result.verdict == "gap" else f"{result.ours:.3f}"
