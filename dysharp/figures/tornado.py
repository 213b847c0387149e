"""The effect of each free choice on the headline ratios: one choice moves to the ends of its range at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from dysharp.base import Amounts, ConfigError, Texts, frozen
from dysharp.figures.figure import Figure
from dysharp.figures.metric import Rows
from dysharp.figures.origin import origin_of
from dysharp.figures.verdict import OTHER_CHOICE, Result
from dysharp.runs import Point
from dysharp.specs import Choice, Scalar, list_choices
from dysharp.systems import get_system


@frozen
class _Headline:
    """What a paper claims: `system` is faster than each of `baselines` on `cluster`.

    `mediation`: baselines with the option of this name have it, as in the paper's figures.
    """

    system: str
    baselines: Texts
    cluster: str
    mediation: bool = False


HEADLINES = {
    h.system: h
    for h in (
        _Headline("dysharp", ("deepep", "comet", "nvls"), "paper-gh200-nvl32"),
        _Headline("moe-hub", ("megatron-a2a", "comet", "comet-flux"), "paper-dgx-h800", mediation=True),
    )
}
DYSHARP = HEADLINES["dysharp"]


@frozen
class _Swing:
    """One choice at one value. `ratios[baseline]`: time of the baseline divided by time of the headline's system.

    `change[baseline]`: relative change of the ratio against the packaged choices.
    """

    choice: Choice
    value: Scalar
    ratios: Amounts
    change: Amounts


def _values_of(choice: Choice) -> list[Scalar]:
    """Values to try: ends of the range of a number, alternatives of a word. The packaged value is left out."""
    ends = choice.alternatives or (choice.low, choice.high)
    return [value for value in ends if value is not None and value != choice.value]


@frozen
class Tornado:
    """What a tornado is about: the headline's systems on one workload under uniform routing."""

    model: str
    headline: _Headline = DYSHARP
    gpus: int | None = None
    tokens: int | None = None

    def points(self, choices: Mapping[str, Scalar]) -> dict[str, Point]:
        """{system: point} with `choices`. A choice that is a system's option becomes an option."""
        line = self.headline
        plain = Point(line.system, self.model, line.cluster, "uniform", gpus=self.gpus, tokens=self.tokens)
        points = {line.system: plain}
        for system in line.baselines:
            mediated = line.mediation and "mediation" in {f.name for f in fields(get_system(system).options)}
            points[system] = replace(plain, system=system, options=(("mediation", True),) if mediated else ())
        return {system: origin_of(system).with_choices(point, choices) for system, point in points.items()}

    def all_points(self) -> list[Point]:
        """All points that `bars` needs, without duplicates."""
        changes = [{}, *({c.name: value} for c in list_choices() for value in _values_of(c))]
        return list(dict.fromkeys(point for choices in changes for point in self.points(choices).values()))

    def ratios(self, rows: Rows, choices: Mapping[str, Scalar]) -> Amounts | None:
        """{baseline: its time over the time of the headline's system}; None where a point failed."""
        points = self.points(choices)
        if any(p not in rows for p in points.values()):
            return None
        ours = float(rows[points[self.headline.system]]["time_us"])
        return {name: float(rows[points[name]]["time_us"]) / ours for name in self.headline.baselines}

    def bars(self, rows: Rows) -> list[_Swing]:
        """Bars by the largest effect of their choice, descending. A value with a failed point has no bar.

        Raises ConfigError if `rows` lacks a point of the packaged choices.
        """
        base = self.ratios(rows, {})
        if base is None:
            raise ConfigError(f"tornado: found no finished point for {self.model} with the packaged choices, expected all of them")
        found = ((c, value, self.ratios(rows, {c.name: value})) for c in list_choices() for value in _values_of(c))
        bars = [_Swing(c, value, ratios, {name: ratio / base[name] - 1 for name, ratio in ratios.items()}) for c, value, ratios in found if ratios]
        size: Amounts = {}
        for b in bars:
            size[b.choice.name] = max(size.get(b.choice.name, 0.0), *map(abs, b.change.values()))
        return sorted(bars, key=lambda b: (-size[b.choice.name], b.choice.name))

    def figure(self) -> Figure:
        """The title and texts above the table of bars."""
        line, tokens = self.headline, f"{self.tokens} tokens per GPU, " if self.tokens else ""
        return Figure(
            "tornado",
            f"Effect of every free choice on the speed-up of {line.system}, {self.model} on {line.cluster}, {tokens}uniform routing, forward",
            "no published value: each choice of `dysharp list options` at the ends of its range, while all other choices keep their packaged values",
            (),
            (),
            "Brackets hold the change against the packaged choices (`=`: less than 0.005 %). The largest effect comes first.",
        )

    def results(self, rows: Rows, bars: Iterable[_Swing]) -> list[Result]:
        """The bars as Results for `--json`, one per ratio. `bound`: the change against the packaged choices."""
        lines = [("packaged choices", name, ratio, "-") for name, ratio in (self.ratios(rows, {}) or {}).items()]
        lines += [(_place(bar), name, ratio, _percent(bar.change[name])) for bar in bars for name, ratio in bar.ratios.items()]
        what = f"speedup of {self.headline.system} over"
        return [Result(place, f"{what} {name}", None, ratio, change, OTHER_CHOICE) for place, name, ratio, change in lines]

    def table(self, rows: Rows, bars: Iterable[_Swing]) -> tuple[list[str], list[list[str]]]:
        """The printed table: names of columns, and one line per bar, the packaged choices first."""
        lines = [["packaged choices", *(f"{ratio:.3f}" for ratio in (self.ratios(rows, {}) or {}).values())]]
        lines += [[_place(bar), *(f"{ratio:.3f} ({_percent(bar.change[name])})" for name, ratio in bar.ratios.items())] for bar in bars]
        return ["choice", *(f"speed-up over {name}" for name in self.headline.baselines)], lines


def _place(bar: _Swing) -> str:
    unit = f" {bar.choice.unit}" if bar.choice.unit else ""
    packaged = "automatic" if bar.choice.value == bar.choice.automatic else bar.choice.value
    return f"{bar.choice.name}: {packaged} -> {bar.value}{unit}"


def _percent(change: float) -> str:
    return f"{100 * change:+.2f} %" if abs(change) >= 5e-5 else "="
