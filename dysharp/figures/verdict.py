"""Simulated numbers beside the paper's numbers. No other module reads the paper's numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dysharp.errors import ConfigError
from dysharp.figures import sizing
from dysharp.figures.figure import CALCULATED, Check, Figure, Variant, unclaimed
from dysharp.figures.variants import variant_point
from dysharp.runs.point import Point
from dysharp.systems import all_systems

Rows = dict[Point, dict[str, Any]]


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


def _gemm1_speedup(point: Point, check: Check, rows: Rows) -> float | None:
    """End of GEMM-1 of `over` divided by the end of GEMM-1 of the system, each on the GPU that finishes last."""
    other = _partner(point, check, rows)
    return None if other is None else float(other["phases_us"]["gemm1"]["end"]) / float(rows[point]["phases_us"]["gemm1"]["end"])


def _over_software(point: Point, check: Check, rows: Rows) -> float | None:
    """Time of the fastest system of today on the same workload divided by the time of the system.

    A system that drops choices does less work and does not count.
    """
    systems = all_systems()
    same = [(p.system, row) for p, row in rows.items() if p.workload == point.workload]
    today = [float(row["time_us"]) for name, row in same if systems[name].today and not row.get("dropped_rows")]
    return min(today) / float(rows[point]["time_us"]) if today else None


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


def _over_packet(point: Point, check: Check, rows: Rows) -> float | None:
    """Time at burst level divided by the time of the same system and workload at packet level, with the same options if there is such a point."""
    if point.fidelity == "packet":
        return None
    same = replace(point, fidelity="packet")
    other = rows.get(same) or next((row for p, row in rows.items() if p.system == point.system and p.workload == same.workload), None)
    return None if other is None else float(rows[point]["time_us"]) / float(other["time_us"])


def _comm_share(point: Point, check: Check, rows: Rows) -> float | None:
    """Share of the layer time that communication adds: the exposed communication."""
    return float(rows[point]["exposed_comm_us"]) / float(rows[point]["time_us"])


def _bound_share(point: Point, check: Check, rows: Rows) -> float | None:
    """Lower bound of this Program divided by its time: 1 = the busiest resource never waits."""
    return float(rows[point]["bound_us"]) / float(rows[point]["time_us"])


def _over_best(point: Point, check: Check, rows: Rows) -> float | None:
    """Time of the point divided by the best time of the grid.

    A check without `options` takes the point with default options.
    """
    if (point.options or point.choices) and not check.options:
        return None
    best = min(float(r["time_us"]) for p, r in rows.items() if p.system == point.system and p.workload == point.workload)
    return float(rows[point]["time_us"]) / best


def _field(name: str, per: float = 1.0) -> Callable[[Point, Check, Rows], float | None]:
    return lambda point, check, rows: float(rows[point][name]) / per if name in rows[point] else None


def _traffic(point: Point, check: Check, rows: Rows) -> float | None:
    """Payload of Dispatch and Combine, up and down, all GPUs, in GB (1e9 bytes)."""
    return _total(rows[point]) / 1e9


def _link_use(*sides: str) -> Callable[[Point, Check, Rows], float | None]:
    """Mean share of the layer time that the links of all GPUs are busy, over `sides` ("up", "down")."""
    return lambda point, check, rows: sum(float(rows[point]["utilization"][side]) for side in sides) / len(sides)


def _use_ratio(point: Point, check: Check, rows: Rows) -> float | None:
    """Mean busy share of all links, divided by that of the system `over`."""
    other = _partner(point, check, rows)
    theirs = 0.0 if other is None else _used(other)
    return _used(rows[point]) / theirs if theirs else None  # "ideal" uses no link


def _used(row: dict[str, Any]) -> float:
    return float(row["utilization"]["up"]) + float(row["utilization"]["down"])


def _sized(measure: Callable[[Point, Rows], float | None]) -> Callable[[Point, Check, Rows], float | None]:
    return lambda point, check, rows: measure(point, rows)


MEASURES: dict[str, Callable[[Point, Check, Rows], float | None]] = {
    "speedup": _speedup,
    "gemm1_speedup": _gemm1_speedup,
    "over_software": _over_software,
    "traffic_cut": _traffic_cut,
    "bound_share": _bound_share,
    "over_best": _over_best,
    "kept": _kept,
    "over_packet": _over_packet,
    "comm_share": _comm_share,
    "traffic_GB": _traffic,
    "time_us": _field("time_us"),
    "up_use": _link_use("up"),
    "down_use": _link_use("down"),
    "link_use": _link_use("up", "down"),
    "use_ratio": _use_ratio,
    **{name: _sized(measure) for name, measure in sizing.MEASURES.items()},
    **{name: _field(name) for names in CALCULATED.values() for name in names},
}
UNITS = {
    "speedup": "speed-up",
    "ideal_speedup": "ideal speed-up",
    "traffic_GB": "payload (GB)",
    "time_us": "layer time (us)",
    "up_use": "busy share of the up links",
    "down_use": "busy share of the down links",
    "link_use": "busy share of all links",
    "use_ratio": "busy share of all links, ratio",
    "gemm1_speedup": "speedup to the end of GEMM-1",
    "over_software": "speedup over the fastest system of today",
    "over_packet": "time at burst level over time at packet level",
    "comm_share": "exposed communication over layer time",
    "payload_efficiency": "payload efficiency (%)",
    "encoded_over_closed": "encoded packets over closed form",
    "of_ideal": "payload efficiency over ideal",
    "over_explicit": "payload efficiency over explicit",
    "rat_kib": "SRAM of the row table (KiB)",
    "apt_kib": "SRAM of the pointer table (KiB)",
    "partitions_kib": "SRAM of the packet manager (KiB)",
    "counters_kib": "SRAM of the tile counters (KiB)",
    "sram_mm2": "SRAM of all units (mm2, estimate)",
    "tables_kib": "SRAM of AL TLB, tile and token tables (KiB)",
    "queues_kib": "SRAM of the MultimemQs (KiB)",
    "gpu_mm2": "SRAM in a GPU (mm2, estimate)",
    "buffer_mm2": "SRAM of a switch's reduction buffers (mm2, estimate)",
    "map_reads_per_row": "reads of evicted places per row",
    "packet_payload": "mean payload of a packet (B)",
    "open_rows": "most rows begun and not complete at a hub",
    **sizing.UNITS,
}


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


def unit(metric: str) -> str:
    """What a metric measures, in words."""
    return UNITS.get(metric, metric)


def _label(check: Check) -> str:
    words = f"{unit(check.metric)} of {check.system}"
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
    measured = {p: v for p in rows if _matches(check, p) and (v := MEASURES[check.metric](p, check, rows)) is not None}
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
