"""The effect of each free choice on the headline ratios: one choice moves to the ends of its range at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from dysharp.errors import ConfigError
from dysharp.figures.figure import Figure
from dysharp.figures.metric import Rows
from dysharp.figures.origin import origin_of
from dysharp.figures.verdict import Result
from dysharp.runs.point import Point
from dysharp.specs import Choice, Scalar, list_choices
from dysharp.systems import get_system


@dataclass(frozen=True, slots=True)
class Headline:
    """What a paper claims: `system` is faster than each of `baselines` on `cluster`.

    `mediation`: baselines with the option of this name have it, as in the paper's figures.
    """

    system: str
    baselines: tuple[str, ...]
    cluster: str
    mediation: bool = False


HEADLINES = {
    h.system: h
    for h in (
        Headline("dysharp", ("deepep", "comet", "nvls"), "paper-gh200-nvl32"),
        Headline("moe-hub", ("megatron-a2a", "comet", "comet-flux"), "paper-dgx-h800", mediation=True),
    )
}
DYSHARP = HEADLINES["dysharp"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One choice at one value. `ratios[baseline]`: time of the baseline divided by time of the headline's system.

    `change[baseline]`: relative change of the ratio against the packaged choices.
    """

    choice: Choice
    value: Scalar
    ratios: dict[str, float]
    change: dict[str, float]


def values_of(choice: Choice) -> list[Scalar]:
    """Values to try: ends of the range of a number, alternatives of a word. The packaged value is left out."""
    ends = choice.alternatives or (choice.low, choice.high)
    return [value for value in ends if value is not None and value != choice.value]


def points_of(
    model: str, choices: Mapping[str, Scalar], headline: Headline = DYSHARP, *, gpus: int | None = None, tokens: int | None = None
) -> dict[str, Point]:
    """{system: point} under uniform routing with `choices`. A choice that is a system's option becomes an option."""
    plain = Point(headline.system, model, headline.cluster, "uniform", gpus=gpus, tokens=tokens)
    points = {headline.system: plain}
    for system in headline.baselines:
        mediated = headline.mediation and "mediation" in {f.name for f in fields(get_system(system).options)}
        points[system] = replace(plain, system=system, options=(("mediation", True),) if mediated else ())
    return {system: origin_of(system).with_choices(point, choices) for system, point in points.items()}


def tornado_points(model: str, headline: Headline = DYSHARP, *, gpus: int | None = None, tokens: int | None = None) -> list[Point]:
    """All points that `tornado` needs, without duplicates."""
    points: dict[Point, None] = {}
    for choices in ({}, *({c.name: value} for c in list_choices() for value in values_of(c))):
        points |= dict.fromkeys(points_of(model, choices, headline, gpus=gpus, tokens=tokens).values())
    return list(points)


def tornado(rows: Rows, model: str, headline: Headline = DYSHARP, *, gpus: int | None = None, tokens: int | None = None) -> list[Bar]:
    """Bars by the largest effect of their choice, descending. A value with a failed point has no bar.

    Raises ConfigError if `rows` lacks a point of the packaged choices.
    """
    base = _ratios(rows, points_of(model, {}, headline, gpus=gpus, tokens=tokens), headline)
    if base is None:
        raise ConfigError(f"tornado: found no finished point for {model} with the packaged choices, expected all of them")
    bars = []
    for c in list_choices():
        for value in values_of(c):
            ratios = _ratios(rows, points_of(model, {c.name: value}, headline, gpus=gpus, tokens=tokens), headline)
            if ratios is not None:
                bars.append(Bar(c, value, ratios, {name: ratio / base[name] - 1 for name, ratio in ratios.items()}))
    size = {b.choice.name: 0.0 for b in bars}
    for b in bars:
        size[b.choice.name] = max(size[b.choice.name], *map(abs, b.change.values()))
    return sorted(bars, key=lambda b: (-size[b.choice.name], b.choice.name))


def _ratios(rows: Rows, points: dict[str, Point], headline: Headline) -> dict[str, float] | None:
    if any(p not in rows for p in points.values()):
        return None
    ours = float(rows[points[headline.system]]["time_us"])
    return {name: float(rows[points[name]]["time_us"]) / ours for name in headline.baselines}


def tornado_figure(model: str, headline: Headline = DYSHARP, tokens: int | None = None) -> Figure:
    """The title and texts above the table of bars."""
    return Figure(
        "tornado",
        f"Effect of every free choice on the speed-up of {headline.system}, {model} on {headline.cluster}, "
        f"{f'{tokens} tokens per GPU, ' if tokens else ''}uniform routing, forward",
        "no published value: each choice of `dysharp list options` at the ends of its range, while all other choices keep their packaged values",
        (),
        (),
        "Brackets hold the change against the packaged choices (`=`: less than 0.005 %). The largest effect comes first.",
    )


def tornado_results(rows: Rows, model: str, bars: Iterable[Bar], headline: Headline = DYSHARP, tokens: int | None = None) -> list[Result]:
    """The bars as Results for `--json`, one per ratio. `tolerance`: the change against the packaged choices."""
    base = _ratios(rows, points_of(model, {}, headline, tokens=tokens), headline) or {}
    lines = [_line("packaged choices", headline.system, name, ratio, "-") for name, ratio in base.items()]
    for bar in bars:
        lines += [_line(_place(bar), headline.system, name, ratio, _percent(bar.change[name])) for name, ratio in bar.ratios.items()]
    return lines


def tornado_table(
    rows: Rows, model: str, bars: Iterable[Bar], headline: Headline = DYSHARP, tokens: int | None = None
) -> tuple[list[str], list[list[str]]]:
    """The printed table: names of columns, and one line per bar, the packaged choices first."""
    base = _ratios(rows, points_of(model, {}, headline, tokens=tokens), headline) or {}
    lines = [["packaged choices", *(f"{ratio:.3f}" for ratio in base.values())]]
    lines += [[_place(bar), *(f"{ratio:.3f} ({_percent(bar.change[name])})" for name, ratio in bar.ratios.items())] for bar in bars]
    return ["choice", *(f"speed-up over {name}" for name in headline.baselines)], lines


def _place(bar: Bar) -> str:
    unit = f" {bar.choice.unit}" if bar.choice.unit else ""
    packaged = "automatic" if bar.choice.value == bar.choice.automatic else bar.choice.value
    return f"{bar.choice.name}: {packaged} -> {bar.value}{unit}"


def _percent(change: float) -> str:
    return f"{100 * change:+.2f} %" if abs(change) >= 5e-5 else "="


def _line(place: str, system: str, baseline: str, ratio: float, change: str) -> Result:
    return Result(place, f"speedup of {system} over {baseline}", None, ratio, change, "no_published_value")
