"""Simulated numbers beside the paper's numbers. No other module reads the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dysharp.errors import ConfigError
from dysharp.experiments import sizing
from dysharp.experiments.figure import CALCULATED, Check, Figure, Point, unclaimed

Rows = dict[Point, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `holds`: the claim of `status` is true. A gap that has closed does not hold."""

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
    """The Row of the system `over` on the workload of `point`: with equal options if it exists, else the first Row."""
    same = {p: r for p, r in rows.items() if p.system == check.over and p.workload == point.workload}
    return same.get(replace(point, system=check.over)) or next(iter(same.values()), None)


def _speedup(point: Point, check: Check, rows: Rows) -> float | None:
    other = _partner(point, check, rows)
    return None if other is None else float(other["time_us"]) / float(rows[point]["time_us"])


def _kept(point: Point, check: Check, rows: Rows) -> float | None:
    """Speed-up over `over` divided by the speed-up under the routing `against`: the share of the gain that is kept."""
    there = replace(point, routing=str(check.against))
    here, base = _speedup(point, check, rows), _speedup(there, check, rows) if there in rows else None
    return None if here is None or base is None else here / base


def _traffic_cut(point: Point, check: Check, rows: Rows) -> float | None:
    """Share of the payload of `over` that the system avoids."""
    other = _partner(point, check, rows)
    moved = 0.0 if other is None else _total(other)
    return 1.0 - _total(rows[point]) / moved if moved else None  # "ideal" moves no payload


def _bound_share(point: Point, check: Check, rows: Rows) -> float | None:
    """Lower bound of this Program divided by its time: 1 = the busiest resource never waits."""
    return float(rows[point]["bound_us"]) / float(rows[point]["time_us"])


def _over_best(point: Point, check: Check, rows: Rows) -> float | None:
    """Time of the point divided by the best time of the grid.

    A check without `options` takes the point with default options.
    """
    if point.options and not check.options:
        return None
    best = min(float(r["time_us"]) for p, r in rows.items() if p.system == point.system and p.workload == point.workload)
    return float(rows[point]["time_us"]) / best


def _field(name: str, per: float = 1.0) -> Callable[[Point, Check, Rows], float | None]:
    return lambda point, check, rows: float(rows[point][name]) / per if name in rows[point] else None


def _traffic(point: Point, check: Check, rows: Rows) -> float | None:
    """Payload of Dispatch and Combine, up and down, all GPUs, in GB (1e9 bytes)."""
    return _total(rows[point]) / 1e9


def _sized(measure: Callable[[Point, Rows], float | None]) -> Callable[[Point, Check, Rows], float | None]:
    return lambda point, check, rows: measure(point, rows)


MEASURES: dict[str, Callable[[Point, Check, Rows], float | None]] = {
    "speedup": _speedup,
    "traffic_cut": _traffic_cut,
    "bound_share": _bound_share,
    "over_best": _over_best,
    "kept": _kept,
    "traffic_GB": _traffic,
    "time_us": _field("time_us"),
    **{name: _sized(measure) for name, measure in sizing.MEASURES.items()},
    **{name: _field(name) for names in CALCULATED.values() for name in names},
}
UNITS = {
    "traffic_GB": "payload (GB)",
    "time_us": "layer time (us)",
    "payload_efficiency": "payload efficiency (%)",
    "encoded_over_closed": "encoded packets over closed form",
    "of_ideal": "payload efficiency over ideal",
    "over_explicit": "payload efficiency over explicit",
    **sizing.UNITS,
}


def _reduce(values: list[float], how: str) -> float:
    if how == "geomean":
        if min(values) <= 0:
            raise ConfigError(f"geomean: found {min(values):g} among the values, expected only positive ones; use max, min or each")
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


def _matches(check: Check, point: Point) -> bool:
    options = dict(point.options)
    return (
        point.system == check.system
        and (not check.models or point.model in check.models)
        and (check.routing is None or point.routing == check.routing)
        and all(options.get(name) in (value if isinstance(value, list) else [value]) for name, value in check.options.items())
    )


def _label(check: Check) -> str:
    words = f"{UNITS.get(check.metric, check.metric)} of {check.system}"
    return words + (f" over {check.over}" if check.over else "") + (f" against {check.against}" if check.against else "")


def _place(check: Check, point: Point, among: Iterable[Point], rows: Rows) -> str:
    """The name of a point among the points of its check.

    The name has the model, the routing and GPUs if they differ among the points of the check, and the options that
    differ among all points of the figure.
    """
    words = [f"{check.name}: {point.model}"]
    if len({p.routing for p in among}) > 1:
        words.append(point.routing or "own routing")
    if len({p.gpus for p in among}) > 1:
        words.append("all GPUs" if point.gpus is None else f"{point.gpus} GPUs")
    values: dict[str, set[Any]] = {}
    for name, value in (option for p in rows for option in p.options):
        values.setdefault(name, set()).add(value)
    return " ".join([*words, *(f"{name}={value}" for name, value in point.options if len(values[name]) > 1)])


def _judge_one(check: Check, rows: Rows, partial: bool) -> list[Result]:
    if partial and check.reduce != "each":
        check = unclaimed(check)
    measured = {p: v for p in rows if _matches(check, p) and (v := MEASURES[check.metric](p, check, rows)) is not None}
    label, claimed = _label(check), check.status != "no_published_value"
    if not measured:
        # With --models a check may have no point. Its claim is then not judged.
        return [Result(check.name, label, check.paper, None, "-", check.status, partial or not claimed, "no point was run")]
    reason = f"{check.reason}. Run: {check.ablation}" if check.ablation else check.reason
    if check.reduce == "each":
        numbers = [(_place(check, p, measured, rows), label, value) for p, value in measured.items()]
    else:
        numbers = [(check.name, f"{check.reduce} {label}", _reduce(list(measured.values()), check.reduce))]
    out = []
    for place, what, value in numbers:
        inside, tolerance = _within(check, value)
        holds = not claimed or inside == (check.status == "reproduced")
        out.append(Result(place, what, check.paper, value, tolerance, check.status, holds, reason))
    return out


def judge(figure: Figure, rows: Rows) -> tuple[list[Result], bool]:
    """All lines of a figure, and whether all claims hold. A claim over all points needs all of them to be judged."""
    partial = {p.model for p in rows} != {p.model for p in figure.points}
    results = [result for check in figure.checks for result in _judge_one(check, rows, partial)]
    return results, all(r.holds for r in results)
