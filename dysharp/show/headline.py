"""The headline of a paper's page: numbers of one figure at the other values of its open choices, and the band that they span."""

from collections.abc import Sequence
from typing import Any

from dysharp.show.markdown import escaped, table
from dysharp.specs import choice

INFERRED = "inferred"


def headline(names: Sequence[str], results: Sequence[Any]) -> list[str]:
    """Markdown: a sentence and a table. `names`: claims of the figure that are its headline. `results`: all lines of the figure.

    A line of the table is one value of one choice; bold numbers are outside the published bound. The band is over the choices that a published
    result needed (source "inferred"), or over all choices where none is.
    """
    packaged = {r.claim: r for r in results if r.claim in names and r.verdict != "other choice" and r.ours is not None}
    other = {(r.claim, label): r for r in results if (label := _label(r)) and r.claim in packaged}
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


def _label(result: Any) -> str:
    """The other value of a line; "" for the packaged choices."""
    return str(result.point).partition("; ")[2] if result.verdict == "other choice" else ""


def _number(result: Any) -> str:
    if result is None or result.ours is None:
        return "-"
    return f"**{result.ours:.3f}**" if result.outcome == "outside" or result.verdict == "gap" else f"{result.ours:.3f}"
