"""Simulated numbers beside the paper's numbers. No other module reads the paper's numbers."""

import csv
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dysharp.base import Cells, ConfigError, by_key, frozen
from dysharp.figures.check import Check
from dysharp.figures.figure import Figure, Variant
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.figures.origin import origin_of
from dysharp.runs import Point
from dysharp.specs.choices import choices_overridden


def _variant_point(point: Point, variant: Variant) -> Point:
    """The point that takes the place of `point` in `variant`: `point` itself if the variant does not touch it."""
    if point.system not in (variant.systems or (point.system,)) or point.fidelity != (variant.fidelity or point.fidelity):
        return point
    return origin_of(point.system).with_choices(point, dict(variant.choices))


def variant_points(figure: Figure, points: Iterable[Point]) -> list[Point]:
    """The points of all variants of `figure`. Systems that no check with `variants` names are left out."""
    systems = {name for check in figure.checks if check.variants for name in (check.system, check.over)}
    points = [p for p in points if p.system in systems]
    return list(dict.fromkeys(_variant_point(p, variant) for variant in figure.variants for p in points))


REPRODUCED, GAP, FITTED, CANNOT_FAIL, SET_AFTER = "reproduced", "gap", "fitted", "cannot fail", "set after"
UNDATED, REGRESSION, OTHER_CHOICE, UNBOUNDED, NOT_JUDGED = "inside", "regression", "other choice", "", "not judged"
"""Verdicts (docs/design/0024-verdicts.md). inside: a commit of its bound or number is blank. other choice: a variant. "": none of these."""
HOLDS, CLOSED, SHRUNK = "holds", "gap has closed", "gap has shrunk"
OUTSIDE, MOVED, ABSENT = "does not hold", "not the stored value", "no point was run"
INSIDE, BEYOND = "within", "outside"  # of a variant, whose verdict is OTHER_CHOICE


@frozen
class Result:
    """One line of the table. `claim`: name of the check. `bound`, `stored`: in words. `outcome`: for maintainers, one of the words above.

    `bound_set`, `number_seen`: as in `Check`.
    """

    point: str
    metric: str
    paper: float | None
    ours: float | None
    bound: str = ""
    verdict: str = UNBOUNDED
    outcome: str = ""
    reason: str = ""
    stored: str = ""
    claim: str = ""
    bound_set: str = ""
    number_seen: str = ""

    @property
    def holds(self) -> bool:
        """False for a number that is outside its bound without a reason, that is not the stored value, or that has no point."""
        return self.outcome not in (OUTSIDE, MOVED, ABSENT)


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
    rows = by_key(((point.model, point.seed), value) for point, value in values.items())
    if max(map(len, rows.values())) < 2:
        raise ConfigError("growth: found one point per model, expected at least two")
    return min(later / earlier for row in rows.values() for earlier, later in itertools.pairwise(row))


def _bound_words(check: Check) -> str:
    """The bound of a check in words; "" for none."""
    parts = [f"within {100 * check.within:g} % of {check.paper:g}"] if check.within is not None and check.paper is not None else []
    parts += [f"at least {check.at_least:g}"] if check.at_least is not None else []
    parts += [f"at most {check.at_most:g}"] if check.at_most is not None else []
    return ", ".join(parts)


def _miss(check: Check, value: float) -> float:
    """How far `value` is outside the bound of a check; 0 inside."""
    far = [0.0]
    if check.within is not None and check.paper is not None:
        far.append(abs(value / check.paper - 1) - check.within)
    far += [check.at_least - value] if check.at_least is not None else []
    far += [value - check.at_most] if check.at_most is not None else []
    return max(far)


def _moved(check: Check, value: float) -> bool:
    """Whether `value` is outside the band around the stored value."""
    if check.regression is None or check.band is None:
        return False
    return abs(value - check.regression) > check.band * abs(check.regression)


def _verdict_of(check: Check, value: float) -> str:
    """The verdict of a number, from the data of its check."""
    if not check.bounded:
        return REGRESSION if check.judged else UNBOUNDED
    if _miss(check, value) > 0:
        return GAP
    if check.fitted:
        return FITTED
    if check.cannot_fail:
        return CANNOT_FAIL
    if not check.bound_set or not check.number_seen:
        return UNDATED
    return REPRODUCED if check.before else SET_AFTER


def _outcome_of(check: Check, value: float) -> str:
    """What a maintainer has to know of a number. A gap that closes or shrinks holds."""
    if not check.judged:
        return ""
    miss, moved = _miss(check, value), _moved(check, value)
    if miss > 0 and not check.reason:
        return OUTSIDE
    if check.reason and miss == 0:
        return CLOSED
    if check.reason and check.regression is not None and moved and miss < _miss(check, check.regression):
        return SHRUNK
    return MOVED if moved else HOLDS


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

    The name has the model, the cluster, routing, GPUs and seed if they differ among the points of the check, the tokens if they differ among its
    points of one model, and the options and free choices that differ among all points of the figure.
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
        missing = ("", "") if not check.judged else (NOT_JUDGED, "") if partial else (NOT_JUDGED, ABSENT)
        return [Result(check.name, label, check.paper, None, _bound_words(check), *missing, claim=check.name)]
    reason = f"{check.reason}. Run: {check.ablation}" if check.ablation else check.reason
    if check.reduce == "each":
        numbers = [(_place(check, p, measured, rows), label, value) for p, value in measured.items()]
    else:
        whole = _growth(measured) if check.reduce == "growth" else _reduce(list(measured.values()), check.reduce)
        numbers = [(check.name, f"{check.reduce} {label}", whole)]
    out = []
    stored = "" if check.regression is None or check.band is None else f"{check.regression:g} +- {100 * check.band:g} %"
    for place, what, value in numbers:
        verdict, outcome = _verdict_of(check, value), _outcome_of(check, value)
        if partial and check.judged and check.reduce != "each":
            verdict, outcome = NOT_JUDGED, ""
        why = reason if verdict in (GAP, NOT_JUDGED) else ""
        marked = f"{place} ({check.mark})" if value > check.mark_above else place
        line = Result(marked, what, check.paper, value, _bound_words(check), verdict, outcome, why, stored, check.name)
        out.append(replace(line, bound_set=check.bound_set, number_seen=check.number_seen))
    return out


def _judge_variant(check: Check, variant: Variant, rows: Rows, partial: bool) -> list[Result]:
    """The lines of a check for `rows` of a variant. A variant has no verdict: it says whether the bound would hold."""
    out = []
    with choices_overridden(dict(variant.choices)):  # metrics of training steps read choices that no layer has
        found = _judge_one(replace(check, reason="", ablation="", variants=False), rows, partial)
    for result in found:
        if result.ours is None:
            continue
        judged = check.bounded and not (partial and check.reduce != "each")
        outcome = (BEYOND if _miss(check, result.ours) > 0 else INSIDE) if judged else ""
        place = f"{result.point}; {variant.label}"
        out.append(replace(result, point=place, verdict=OTHER_CHOICE, outcome=outcome, stored="", bound_set="", number_seen=""))
    return out


def judge(figure: Figure, rows: Rows) -> tuple[list[Result], bool]:
    """All lines of a figure, and whether all of them hold for maintainers. A number over all points needs all of them to be judged."""
    wanted = set(figure.points)
    base = {p: row for p, row in rows.items() if p in wanted}
    partial = {p.model for p in base} != {p.model for p in figure.points}
    results = []
    for check in figure.checks:
        results += _judge_one(check, base, partial)
        for variant in figure.variants if check.variants else ():
            there = {p: rows[other] for p in figure.points if (other := _variant_point(p, variant)) in rows}
            results += _judge_variant(check, variant, there, partial)
    return results, all(r.holds for r in results)


def _results_from(path: Path, figure: Figure) -> list[Result]:
    """The lines of a file that `show.paper_page.results_csv` wrote. Numbers have three decimals. Raises ConfigError for another file."""
    claims = sorted((c.name for c in figure.checks), key=len, reverse=True)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [_result(line, claims) for line in csv.DictReader(file)]
        except (KeyError, ValueError, csv.Error) as error:
            raise ConfigError(f"{path}: found {error!r}, expected a file that `dysharp reproduce --pages` wrote") from None


def rejudged(path: Path, figure: Figure) -> list[Result]:
    """The lines of `_results_from`: numbers as the file has them, bounds and verdicts as today's checks say."""
    names = Counter(c.name for c in figure.checks)
    known = {c.name: c for c in figure.checks if names[c.name] == 1}  # else a line does not say which
    return [_judged(r, known[r.claim]) if r.claim in known else r for r in _results_from(path, figure)]


def _judged(line: Result, check: Check) -> Result:
    """Three digits decide a bound except beside it, where the verdict of the run stays."""
    if line.verdict in (OTHER_CHOICE, NOT_JUDGED) or line.ours is None:
        return line
    verdict = line.verdict if GAP in (line.verdict, _verdict_of(check, line.ours)) else _verdict_of(check, line.ours)
    return replace(line, verdict=verdict, bound=_bound_words(check), bound_set=check.bound_set, number_seen=check.number_seen)


def _result(line: Cells, claims: list[str]) -> Result:
    paper, ours = (float(line[name]) if line[name] else None for name in ("paper", "ours"))
    words = {name: line[name] for name in ("bound", "verdict", "outcome", "bound_set", "number_seen", "stored", "reason")}
    claim = next((name for name in claims if line["point"].startswith(name)), line["point"])
    return Result(line["point"], line["metric"], paper, ours, claim=claim, **words)
