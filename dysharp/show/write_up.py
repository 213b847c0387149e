"""What holds of the papers in one document: a fold over stored figures, their checks and kept answers. No number and no verdict is made here."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dysharp.api.gain_map import GainMap
from dysharp.base import MODEL_VERSION, AnyMapping, Texts, frozen, one_line
from dysharp.planning.gain import EVEN
from dysharp.runs.finite import ABSENT, GONE, HOLDS, WEAKER
from dysharp.show.figure_tables import VERDICTS, claims
from dysharp.show.markdown import page, paragraph, table
from dysharp.show.paper_page import Section, gap_lines, sentences, span

TITLE, TODAY, AREA = "What holds of the papers", "today", "mm2"
CHECKOUT = "Commands that begin with `python bench/` need a checkout; all others run as installed."
FINITE = (HOLDS, WEAKER, GONE, ABSENT)


@frozen
class Paper:
    """A page of figures: the command and model version that wrote it, and its figures with their lines."""

    title: str
    command: str
    version: str
    sections: Sequence[Section]


@frozen
class Part:
    """A heading, paragraphs, and a table whose last cells are commands. Commands stand in backticks."""

    heading: str
    text: Texts = ()
    columns: Texts = ()
    rows: tuple[Texts, ...] = ()


def write_up(papers: Sequence[Paper], stored: Mapping[str, AnyMapping], asked: int) -> list[Part]:
    """The document. `stored`: kept answers. `asked`: claims that finite hardware may move."""
    answer = tuple(f"{p.title}: {' '.join(sentences(p.sections))} (`{p.command}`, model version {p.version})" for p in papers)
    head, columns = "what does not come out", ("numbers (bound; ours)", "why", "command")
    gaps = [Part(f"{p.title}: {head}", (), columns, tuple(gap_lines(p.sections))) for p in papers]
    found = [Part("", answer), _gain_and_area(papers), _today(papers), _where(stored["gain-map"]), _finite(stored, asked)]
    return [*found, *gaps, *map(_claims, papers)]


def _of(figure: Any) -> str:
    return f"`dysharp reproduce {figure.name}`"


def _code(kept: AnyMapping) -> str:
    return f"`{kept['command']}`"


def _ends(results: Sequence[Any], claim: str) -> str:
    """Least and most of a claim over its points and over other values of its choices."""
    found = span([r for r in results if r.claim == claim])
    return found if " to " in found else "no other run"


def _lines(section: Section, names: Sequence[str]) -> Iterator[Texts]:
    """Of each claim: its name, bound or published value, ours, ends."""
    for name in names:
        own = [r for r in section.results if r.claim == name and r.verdict != "other choice"]
        published = own[0].bound or ("" if own[0].paper is None else f"{own[0].paper:g}")
        yield f"{section.figure.name}: {name}", published, span(own), _ends(section.results, name)


def _gain_and_area(papers: Sequence[Paper]) -> Part:
    rows = []
    for p in papers:
        for s in p.sections:
            areas = dict.fromkeys(r.claim for r in s.results if AREA in r.metric)
            rows += [(p.title, *line, _of(s.figure)) for line in _lines(s, [*s.figure.headline, *areas] if s.figure.paper else ())]
    text = "Headline gains, and area in mm2. Ends are over other values of open choices, and over points."
    return Part("Gain beside area", (text,), ("paper", "number", "published", "ours", "ends", "command"), tuple(rows))


def _today(papers: Sequence[Paper]) -> Part:
    (s,) = (s for p in papers for s in p.sections if s.figure.name == TODAY)
    rows = tuple((line[0].partition(": ")[2], *line[2:], _of(s.figure)) for line in _lines(s, [check.name for check in s.figure.checks]))
    return Part(s.figure.title, (s.figure.source, s.figure.text), ("groups", "share", "ends", "command"), rows)


def _where(kept: AnyMapping) -> Part:
    found, command = GainMap(**{key: value for key, value in kept["answer"]["gain_map"].items() if key != "sentence"}), _code(kept)

    def cell(line: list[float]) -> str:
        return f"{f'from {start}' if (start := found.start(line)) else 'nowhere'} ({min(line):+.0%} to {max(line):+.0%})"

    rows = [("this layer", "", *map(cell, found.own.values()), command)]
    rows += [(name, str(value), *map(cell, one.values()), command) for name, panel in found.panels.items() for value, one in panel.items()]
    head = f"Tokens per GPU from which a mechanism gains more than {EVEN:.0%} over the best system without it, and its least and largest gain"
    text = (f"{head} over {found.tokens[0]} to {found.tokens[-1]} tokens. Closed forms, model version {kept['model_version']}.", found.sentence)
    return Part("Where each mechanism pays", text, ("input", "value", *found.own, "command"), tuple(rows))


def _finite(kept: Mapping[str, AnyMapping], asked: int) -> Part:
    lines = [(one, answer) for name, answer in kept.items() if name.startswith("finite-") for one in answer["answer"]]
    counts, versions = Counter(one["verdict"] for one, _ in lines), sorted({str(answer["model_version"]) for _, answer in lines})
    told = ", ".join(f"{counts[word]} {word}" for word in FINITE)
    text = f"{len(lines)} of {asked} claims about ratios of layer times ran with finite tables, buffers, packets: {told}"
    rows = tuple(
        (f"{one['figure']}: {one['name']}", f"{one['headline']:.3f}", f"{one['finite']:.3f}", one["verdict"], one["resource"] or "-", _code(answer))
        for one, answer in sorted(lines, key=lambda line: -FINITE.index(line[0]["verdict"]))
    )
    columns = ("claim", "at its own level", "finite", "verdict", "takes most", "command")
    return Part("What finite hardware leaves", (f"{text}. Model version {', '.join(versions)}.",), columns, rows)


def _claims(p: Paper) -> Part:
    """Every claim of a page, with what it rests on."""
    rows = []
    for s in p.sections:
        worst, checks = claims(s.results), {check.name: check for check in s.figure.checks}
        for line, verdict in zip(_lines(s, list(worst)), worst.values(), strict=True):
            check = checks[line[0].partition(": ")[2]]
            dates = f"bound {check.bound_set[9:] or 'not dated'}, number {check.number_seen[9:] or 'not dated'}"
            rows.append((*line, VERDICTS[verdict], check.fitted or check.cannot_fail or dates, _of(s.figure)))
    return Part(f"{p.title}: every claim", (), ("claim", "bound", "ours", "ends", "verdict", "rests on", "command"), tuple(rows))


def markdown(parts: Sequence[Part], command: str) -> str:
    """The document as Markdown."""
    out = [f"# {TITLE}", ""]
    for part in parts:
        out += [f"## {paragraph(part.heading)}", ""] * bool(part.heading)
        out += [line for text in part.text for line in (paragraph(text), "")]
        out += [table(part.columns, part.rows), ""] * bool(part.rows)
    return "\n".join([*out, f"Written by `{one_line(command)}`, model version {MODEL_VERSION}, without a run. {CHECKOUT}", ""])


def html(parts: Sequence[Part], command: str) -> str:
    """The document as one HTML file without scripts that loads nothing."""
    coded = {"code": lambda text: enumerate(text.split("`"))}
    return page("paper.html", coded, title=TITLE, parts=parts, checkout=CHECKOUT, command=one_line(command))
