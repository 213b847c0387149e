"""Rows of pseudo-systems, which are calculated and not simulated.

`closed-form`: formulas of uniform routing. `packet-format`: flits of packets. `hub-units`, `hub-area`: units of MoE-Hub.
`dysharp-area`: tables of DySHARP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dysharp.errors import ConfigError, nearest
from dysharp.figures.dysharp_area import Tables, table_area
from dysharp.figures.figure import CLOSED_FORM, DYSHARP_AREA, HUB_AREA, HUB_UNITS, PACKET_FORMAT
from dysharp.figures.hub_area import Sizes, area
from dysharp.figures.hub_units import Units, count
from dysharp.isa.efficiency import closed_efficiency, encoded_efficiency
from dysharp.runs.point import Point
from dysharp.specs import load_cluster, load_model
from dysharp.workload import uniform_traffic

UNITS: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
    HUB_UNITS: (Units, count),
    HUB_AREA: (Sizes, area),
    DYSHARP_AREA: (Tables, table_area),
}
"""Pseudo-systems of hardware: the dataclass of their options, and what is calculated from it."""


def calculated_row(point: Point) -> dict[str, Any]:
    """The calculated row of a pseudo-system's point."""
    if point.system in UNITS:
        return units_row(point)
    return format_row(point) if point.system == PACKET_FORMAT else closed_row(point)


def units_row(point: Point) -> dict[str, Any]:
    """Units with the sizes that are the options of a point: what they do (`hub_units`), or their SRAM."""
    kind, measure = UNITS[point.system]
    options = dict(point.options)
    for name in options:
        if name not in kind.__slots__:
            raise ConfigError(f"{point.label}: option {name}: unknown{nearest(name, kind.__slots__)}")
    try:
        sizes = TypeAdapter(kind).validate_python(options)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{point.label}: option {first['loc'][0]}: {first['msg']}") from None
    return asdict(measure(sizes))


def format_row(point: Point) -> dict[str, Any]:
    """Payload efficiency (percent) of a store of `granularity` bytes to topk targets in `format`.

    The row also compares the efficiency with other formats and with encoded packets.
    """
    options = dict(point.options)
    name, granularity = options.pop("format", None), options.pop("granularity", None)
    if options or not isinstance(name, str) or isinstance(granularity, bool) or not isinstance(granularity, int):
        raise ConfigError(f"{point.label}: found options {dict(point.options)}, expected format (a name) and granularity (bytes)")
    targets = load_model(point.model).topk
    closed = closed_efficiency(name, granularity, targets)
    return {
        "payload_efficiency": 100 * closed,
        "encoded_over_closed": encoded_efficiency(name, granularity, targets) / closed,
        "of_ideal": closed / closed_efficiency("ideal", granularity, targets),
        "over_explicit": closed / closed_efficiency("explicit", granularity, targets),
    }


def closed_row(point: Point) -> dict[str, Any]:
    """Fields of `workload.UniformTraffic` for the model, the GPUs and the option `topk` of a point.

    The fields are token rows per token, shares and ratios.
    """
    assert point.system == CLOSED_FORM
    options = dict(point.options)
    model = load_model(point.model)
    topk = options.pop("topk", model.topk)
    if options or isinstance(topk, bool) or not isinstance(topk, int):
        raise ConfigError(f"{point.label}: found options {dict(point.options)}, expected topk (a whole number) or none")
    gpus = load_cluster(point.cluster).n_gpus if point.gpus is None else point.gpus
    return asdict(uniform_traffic(model.n_experts, gpus, topk))
