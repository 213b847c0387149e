"""Ours beside the paper's. Paper values are read here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dysharp.experiments.figure import Check, Figure, Point

Rows = dict[Point, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `holds`: the claim of `status` is true (a gap that has closed does not hold)."""

    point: str
    metric: str
    paper: float | None
    ours: float | None
    tolerance: str
    status: str
    holds: bool
    reason: str = ""


def _total(row: dict[str, Any]) -> float:
    sides = row["traffic_bytes"]
    return float(sum(sides[side][op] for side in ("up", "down") for op in ("dispatch", "combine")))


def _partner(point: Point, check: Check, rows: Rows) -> dict[str, Any] | None:
    same = [r for p, r in rows.items() if p.system == check.over and p.workload == point.workload]
    return same[0] if same else None


def _speedup(point: Point, check: Check, rows: Rows) -> float | None:
    other = _partner(point, check, rows)
    return None if other is None else float(other["time_us"]) / float(rows[point]["time_us"])


def _traffic_cut(point: Point, check: Check, rows: Rows) -> float | None:
    """Share of `over`'s payload that the system does not move."""
    other = _partner(point, check, rows)
    return None if other is None else 1.0 - _total(rows[point]) / _total(other)


def _bound_share(point: Point, check: Check, rows: Rows) -> float | None:
    """Bound of this Program over its time: 1 = the busiest resource never waits."""
    return float(rows[point]["bound_us"]) / float(rows[point]["time_us"])


def _over_best(point: Point, check: Check, rows: Rows) -> float | None:
    """Time of the point that sets no option over the best time of the grid."""
    if point.options:
        return None
    best = min(float(r["time_us"]) for p, r in rows.items() if p.system == point.system and p.workload == point.workload)
    return float(rows[point]["time_us"]) / best


MEASURES: dict[str, Callable[[Point, Check, Rows], float | None]] = {
    "speedup": _speedup,
    "traffic_cut": _traffic_cut,
    "bound_share": _bound_share,
    "over_best": _over_best,
}


def _reduce(values: list[float], how: str) -> float:
    if how == "geomean":
        return math.exp(sum(map(math.log, values)) / len(values))
    return max(values) if how == "max" else min(values)


def _within(check: Check, value: float) -> tuple[bool, str]:
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
    return inside, ", ".join(parts) or "-"


def _judge_one(check: Check, rows: Rows, partial: bool) -> list[Result]:
    if partial and check.reduce != "each":
        check = replace(check, status="no_published_value", reason="only some of the figure's points were run")
    measured = {
        p: value
        for p in rows
        if p.system == check.system
        and (not check.models or p.model in check.models)
        and (check.routing is None or p.routing == check.routing)
        and (value := MEASURES[check.metric](p, check, rows)) is not None
    }
    label = f"{check.metric} of {check.system}" + (f" over {check.over}" if check.over else "")
    if not measured:
        return [Result(check.name, label, check.paper, None, "-", check.status, check.status == "no_published_value", "no point was run")]
    out = []
    if check.reduce == "each":
        for p, value in measured.items():
            inside, tolerance = _within(check, value)
            holds = check.status == "no_published_value" or inside == (check.status == "reproduced")
            out.append(Result(f"{check.name}: {p.model}", label, check.paper, value, tolerance, check.status, holds, check.reason))
        return out
    value = _reduce(list(measured.values()), check.reduce)
    inside, tolerance = _within(check, value)
    holds = check.status == "no_published_value" or inside == (check.status == "reproduced")
    return [Result(check.name, f"{check.reduce} {label}", check.paper, value, tolerance, check.status, holds, check.reason)]


def judge(figure: Figure, rows: Rows) -> tuple[list[Result], bool]:
    """All lines of a figure, and whether every claim in it holds. Claims over all points are not judged on some of them."""
    partial = {p.model for p in rows} != {p.model for p in figure.points}
    results = [result for check in figure.checks for result in _judge_one(check, rows, partial)]
    return results, all(r.holds for r in results)
