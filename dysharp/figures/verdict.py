"""Simulated numbers beside the paper's numbers. No other module reads the paper's numbers."""

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dysharp.errors import ConfigError
from dysharp.figures.check import Check, unclaimed
from dysharp.figures.figure import Figure, Variant
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.figures.variants import variant_point
from dysharp.runs.point import Point

NO_CLAIM, HOLDS, NOT_JUDGED = "", "holds", "not judged"
OUTSIDE, CLOSED, MOVED, ABSENT = "does not hold", "gap has closed", "not the expected value", "no point was run"
INSIDE, BEYOND = "within", "outside"  # of a variant, which claims nothing


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `outcome`: what became of the claim, one of the words above."""

    point: str
    metric: str
    paper: float | None
    ours: float | None
    tolerance: str
    status: str
    outcome: str = NO_CLAIM
    reason: str = ""

    @property
    def holds(self) -> bool:
        """False only for a claim that was judged and is not true."""
        return self.outcome not in (OUTSIDE, CLOSED, MOVED, ABSENT)


def _reduce(values: list[float], how: str) -> float:
    if how == "geomean":
        if min(values) <= 0:
            raise ConfigError(f"geomean: found {min(values):g} among the values, expected only positive ones; use max, min or each")
        return math.exp(sum(map(math.log, values)) / len(values))
    if how == "median":
        return statistics.median(values)
    return max(values) if how == "max" else min(values)


def _growth(values: dict[Point, float]) -> float:
    """The smallest ratio of a value to the value before it, in the order of the figure, among points that share a model and a seed."""
    rows: dict[tuple[str, int], list[float]] = {}
    for point, value in values.items():
        rows.setdefault((point.model, point.seed), []).append(value)
    if max(map(len, rows.values())) < 2:
        raise ConfigError("growth: found one point per model, expected at least two")
    return min(later / earlier for row in rows.values() for earlier, later in itertools.pairwise(row))


def _within(check: Check, value: float) -> tuple[bool, str]:
    """Whether `value` is inside the published bounds, and these bounds in words."""
    parts, inside = [], True
    if check.within is not None and check.paper is not None:
        inside &= abs(value / check.paper - 1) <= check.within
        parts.append(f"within {100 * check.within:g} % of {check.paper:g}")
    if check.at_least is not None:
        inside &= value >= check.at_least
        parts.append(f"at least {check.at_least:g}")
    if check.at_most is not None:
        inside &= value <= check.at_most
        parts.append(f"at most {check.at_most:g}")
    return inside, ", ".join(parts)


def _as_expected(check: Check, value: float) -> tuple[bool, str]:
    """Whether `value` is in the band around the value of this model version, and the band in words."""
    if check.expected is None or check.band is None:
        return True, ""
    width = check.band * abs(check.expected)
    return abs(value - check.expected) <= width, f"expected {check.expected:g} +- {100 * check.band:g} %"


def outcome_of(check: Check, value: float) -> tuple[str, str]:
    """(what became of the claim, the bounds in words)."""
    inside, bounds = _within(check, value)
    as_expected, band = _as_expected(check, value)
    words = "; ".join(filter(None, (bounds, band))) or "-"
    if not check.claimed:
        return NO_CLAIM, words
    if check.status in ("reproduced", "fitted") and not inside:
        return OUTSIDE, words
    if check.status == "gap" and inside:
        return CLOSED, words
    return (HOLDS if as_expected else MOVED), words


def _matches(check: Check, point: Point) -> bool:
    options = dict(point.options + point.choices)
    return (
        point.system == check.system
        and (not check.models or point.model in check.models)
        and check.gpus in (None, point.gpus)
        and check.tokens in (None, point.tokens)
        and (check.cluster is None or point.cluster == check.cluster)
        and (not check.routings or point.routing in check.routings)
        and (check.fidelity is None or point.fidelity == check.fidelity)
        and all(options.get(name) in (value if isinstance(value, list) else [value]) for name, value in check.options.items())
    )


def _label(check: Check) -> str:
    words = f"{all_metrics()[check.metric].unit} of {check.system}"
    return words + (f" over {check.over}" if check.over else "") + (f" against {check.against}" if check.against else "")


def _place(check: Check, point: Point, among: Iterable[Point], rows: Rows) -> str:
    """The name of a point among the points of its check.

    The name has the model, the cluster, routing, GPUs and seed if they differ among the points of the check, the tokens
    if they differ among its points of one model, and the options and free choices that differ among all points of the
    figure.
    """
    words = [f"{check.name}: {point.model}"]
    if len({p.cluster for p in among}) > 1:
        words.append(point.cluster)
    if len({p.tokens for p in among if p.model == point.model}) > 1:
        words.append("own tokens" if point.tokens is None else f"{point.tokens} tokens")
    if len({p.routing for p in among}) > 1:
        words.append(point.routing or "own routing")
    if len({p.gpus for p in among}) > 1:
        words.append("all GPUs" if point.gpus is None else f"{point.gpus} GPUs")
    if len({p.seed for p in among}) > 1:
        words.append(f"seed {point.seed}")
    values: dict[str, set[Any]] = {}
    for name, value in (option for p in rows for option in p.options + p.choices):
        values.setdefault(name, set()).add(value)
    return " ".join([*words, *(f"{name}={value}" for name, value in point.options + point.choices if len(values[name]) > 1)])


def _judge_one(check: Check, rows: Rows, partial: bool) -> list[Result]:
    """The lines of a check. `partial`: points of some models only; a claim over all points is then not judged."""
    metric = all_metrics()[check.metric]
    seen = (Seen(p, rows, check.over, check.against, check.options) for p in rows if _matches(check, p))
    measured = {each.point: value for each in seen if (value := metric.value(each)) is not None}
    label = _label(check)
    if not measured:
        outcome = NO_CLAIM if not check.claimed else NOT_JUDGED if partial else ABSENT
        return [Result(check.name, label, check.paper, None, "-", check.status, outcome)]
    reason = f"{check.reason}. Run: {check.ablation}" if check.ablation else check.reason
    if check.reduce == "each":
        numbers = [(_place(check, p, measured, rows), label, value) for p, value in measured.items()]
    else:
        whole = _growth(measured) if check.reduce == "growth" else _reduce(list(measured.values()), check.reduce)
        numbers = [(check.name, f"{check.reduce} {label}", whole)]
    out = []
    for place, what, value in numbers:
        outcome, words = outcome_of(check, value)
        if partial and check.claimed and check.reduce != "each":
            outcome = NOT_JUDGED
        out.append(Result(place, what, check.paper, value, words, check.status, outcome, reason))
    return out


def _judge_variant(check: Check, variant: Variant, rows: Rows, partial: bool) -> list[Result]:
    """The lines of a check for `rows` of a variant. A variant claims nothing: it says whether the bounds would hold."""
    out = []
    for result in _judge_one(unclaimed(check), rows, partial):
        if result.ours is None:
            continue
        inside, words = _within(check, result.ours)
        judged = check.bounded and not (partial and check.reduce != "each")
        outcome = (INSIDE if inside else BEYOND) if judged else NO_CLAIM
        out.append(replace(result, point=f"{result.point}; {variant.label}", tolerance=words or "-", status="other_choice", outcome=outcome))
    return out


def judge(figure: Figure, rows: Rows) -> tuple[list[Result], bool]:
    """All lines of a figure, and whether all claims hold. A claim over all points needs all of them to be judged."""
    wanted = set(figure.points)
    base = {p: row for p, row in rows.items() if p in wanted}
    partial = {p.model for p in base} != {p.model for p in figure.points}
    results = []
    for check in figure.checks:
        results += _judge_one(check, base, partial)
        for variant in figure.variants if check.variants else ():
            there = {p: rows[other] for p in figure.points if (other := variant_point(p, variant)) in rows}
            results += _judge_variant(check, variant, there, partial)
    return results, all(r.holds for r in results)
