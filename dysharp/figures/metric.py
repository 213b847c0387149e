"""Metrics and calculated systems of figures. Each is one function of `figures/metrics`, found by scanning the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from dysharp.base import Amounts, AnyMapping, ByName, Cells, frozen, import_all, read_toml
from dysharp.runs import Point

Rows = dict[Point, ByName]
"""{point: its Row as plain values}."""
Measure = Callable[..., float | None]


@frozen
class Seen:
    """A point of a figure with the Rows of all points: what a metric reads. `point` has a Row.

    `over`: the system that a check compares with; `against`: its routing to compare with. `options`: the options that the check names.
    """

    point: Point
    rows: Rows = field(repr=False)
    over: str = ""
    against: str | None = None
    options: AnyMapping = field(default_factory=dict)

    def at(self, point: Point) -> Seen | None:
        """The same at another point; None where it has no Row."""
        return replace(self, point=point) if point in self.rows else None

    def among(self, *systems: str) -> list[Seen]:
        """The points of `systems` on the workload of this point, in the order of the figure."""
        return [replace(self, point=p) for p in self.rows if p.system in systems and p.workload == self.point.workload]

    @property
    def is_fastest(self) -> bool:
        """Whether no other point of the system on this workload takes less time."""
        return min(self.among(self.point.system), key=lambda seen: seen.time_us).point == self.point

    def partner(self) -> Seen | None:
        """The point of the system `over` on this workload: with equal options if it exists, else the first; None without one."""
        same = self.at(replace(self.point, system=self.over))
        return same or next(iter(self.among(self.over)), None)

    @property
    def row(self) -> ByName:
        return self.rows[self.point]

    @property
    def time_us(self) -> float:
        return float(self.row["time_us"])

    def phase_us(self, operator: str) -> Amounts:
        """`start`, `end` and `busy` of an operator on the GPU that finishes last; {} for an operator that the layer does not have."""
        found: Amounts = self.row.get("phases_us", {}).get(operator, {})
        return found

    def busy(self, *sides: str) -> float:
        """Mean share of the layer time that the links of all GPUs are busy, over `sides` ("up", "down")."""
        return sum(float(self.row["utilization"][side]) for side in sides) / len(sides)

    def block(self, name: str) -> ByName:
        """Counts of a block of the packet level; {} at burst level and where the system does not have the block."""
        return self.row.get("blocks", {}).get(name) or {}

    def share(self, block: str, part: str, whole: str) -> float | None:
        """One count of a block divided by another; None without the block, and for nothing counted."""
        table = self.block(block)
        return table[part] / table[whole] if table and table[whole] else None


@frozen
class Metric:
    """A number of a point. The decorator `metric` describes the fields. `system`: the calculated system that has it; "": simulated systems."""

    name: str
    unit: str
    measure: Measure
    compares: bool = False
    against: bool = False
    system: str = ""

    def value(self, seen: Seen) -> float | None:
        """The number of a point; None where the point has none."""
        args = [seen, seen.partner()] if self.compares else [seen]
        found = self.measure(*args) if None not in args else None
        return None if found is None else float(found)


@frozen
class Calculated:
    """A system of figures whose Rows are calculated without a run. The decorator `calculated` describes the fields."""

    name: str
    options: type[Any]
    row: Callable[[Point, Any], ByName]


def quotient(whole: float | None, part: float | None) -> float | None:
    """`whole` / `part`; None where one of them is missing or nothing."""
    return whole / part if whole and part else None


_METRICS: dict[str, Metric] = {}
_CALCULATED: dict[str, Calculated] = {}
F = TypeVar("F", bound=Callable[..., Any])


def metric(name: str, unit: str, *, compares: bool = False, against: bool = False) -> Callable[[F], F]:
    """Register a function of a `Seen`. It returns a number, or None for a point that has none.

    `unit`: what is measured, in words, with its unit. `compares`: a check names a system `over`; the function gets the `Seen` of its point, too.
    `against`: a check names a routing to compare with.
    """

    def register(measure: F) -> F:
        _METRICS[name] = Metric(name, unit, measure, compares, against)
        return measure

    return register


MEASURES: dict[str, Cells] = read_toml(Path(__file__).parent / "metrics" / "metrics.toml")
"""Calculated system -> {key of its Row: what it measures, with its unit}."""


def calculated(name: str, *, options: type[Any]) -> Callable[[F], F]:
    """Register a function of a point and its options. It returns the Row of the point, with the keys of `MEASURES`.

    `options`: a dataclass; a field without a default must be given.
    """

    def register(row: F) -> F:
        _CALCULATED[name] = Calculated(name, options, row)
        for key, unit in MEASURES[name].items():
            _METRICS[key] = Metric(key, unit, lambda seen, key=key: seen.row.get(key), system=name)
        return row

    return register


def all_metrics() -> dict[str, Metric]:
    """Every metric by name."""
    import_all("dysharp.figures.metrics")
    return dict(sorted(_METRICS.items()))


def all_calculated() -> dict[str, Calculated]:
    """Every calculated system by name."""
    import_all("dysharp.figures.metrics")
    return dict(sorted(_CALCULATED.items()))
