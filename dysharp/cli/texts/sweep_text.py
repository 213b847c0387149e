"""The points of a sweep as a table and as CSV: what they share once, what tells them apart in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dysharp.base import AnyMapping, ByName, csv_text
from dysharp.show.output import print_lines, print_table
from dysharp.silicon.cluster_area import area_columns
from dysharp.specs import load_cluster

if TYPE_CHECKING:
    from dysharp.figures import Point

Rows = Mapping["Point", AnyMapping]
AXES = ("system", "model", "cluster", "gpus", "tokens", "routing", "seed", "direction", "fidelity")
NUMBERS = {"time_us": "layer us", "bound_us": "bound us", "exposed_comm_us": "exposed comm us"}
IN_ROW = {"gpus": "gpus", "tokens": "tokens_per_gpu"}
"""Axes whose default is read from the result."""
RESULTS = ("time_us", "exposed_comm_us", "bound_us", "bound_resource", "workload_bound_us")
AREAS = ("area_gpu_mm2", "area_switch_mm2")


def _values(point: Point, row: AnyMapping) -> ByName:
    """Everything that tells a point: the axes, keys of the cluster that differ from its base, options, choices."""
    values: ByName = {name: getattr(point, name) for name in AXES}
    for axis, key in IN_ROW.items():
        values[axis] = row.get(key) if values[axis] is None else values[axis]
    values["routing"] = point.routing or "of the model"
    base, *fields = point.cluster.split(",")
    changed = dict(field.partition("=")[::2] for field in fields)
    if fields and all(changed.values()):
        values["cluster"] = base
        values |= {f"cluster.{key}": value for key, value in changed.items()}
    return values | {name: _text(value) for name, value in point.options + point.choices}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_sweep(rows: Rows) -> None:
    """One line with what all points share, then a line per point with its own settings and its times."""
    told = [_values(point, row) for point, row in rows.items()]
    names = list(dict.fromkeys(name for values in told for name in values))
    apart = [name for name in names if len({str(values.get(name)) for values in told}) > 1]
    shared = {name: told[0][name] for name in names if name not in apart} if told else {}
    if shared:
        print_lines(["all points: " + ", ".join(f"{name} {value}" for name, value in shared.items()), ""])
    lines = [
        [
            *("-" if values.get(name) is None else str(values[name]) for name in apart),
            *("-" if row.get(name) is None else f"{row[name]:.1f}" for name in NUMBERS),
        ]
        for values, row in zip(told, rows.values(), strict=True)
    ]
    if lines:
        print_table([*apart, *NUMBERS.values()], lines, left=len(apart))
        print_lines([f"{NUMBERS['bound_us']}: time that the busiest resource of this system needs"])


def sweep_csv(rows: Rows) -> str:
    """One line per finished point: the axes, keys of clusters, options, then times in us, what bounds them, and what DySHARP adds to the
    cluster in mm2 (12 nm)."""
    told = [_values(point, row) for point, row in rows.items()]
    names: Sequence[str] = list(dict.fromkeys([*AXES, *(name for values in told for name in values)]))
    areas = ([area_columns(load_cluster(point.cluster))[name] for name in AREAS] for point in rows)
    told_rows = zip(told, rows.values(), areas, strict=True)
    lines = ([*(values.get(name) for name in names), *(row.get(name) for name in RESULTS), *area] for values, row, area in told_rows)
    return csv_text([*names, *RESULTS, *AREAS], lines)
