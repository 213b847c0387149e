"""Payload efficiency of packet formats: flits of packets, counted."""

from dataclasses import dataclass

from dysharp.figures.metric import calculated
from dysharp.isa.efficiency import closed_efficiency, encoded_efficiency
from dysharp.runs.point import Point
from dysharp.specs import load_model
from dysharp.specs.fields import Entries, Text


@dataclass(frozen=True, slots=True)
class Store:
    """A store of `granularity` bytes in the packet format `format`."""

    format: Text
    granularity: Entries


METRICS = {
    "payload_efficiency": "payload efficiency (%)",
    "encoded_over_closed": "encoded packets over closed form",
    "of_ideal": "payload efficiency over ideal",
    "over_explicit": "payload efficiency over explicit",
}


@calculated("packet-format", options=Store, metrics=METRICS)
def packet_format(point: Point, store: Store) -> dict[str, float]:
    """Payload efficiency of a store to as many targets as the model has experts per token, beside other formats and encoded packets."""
    targets = load_model(point.model).topk
    closed = closed_efficiency(store.format, store.granularity, targets)
    encoded = encoded_efficiency(store.format, store.granularity, targets)
    ideal, explicit = (closed_efficiency(name, store.granularity, targets) for name in ("ideal", "explicit"))
    values = (100 * closed, encoded / closed, closed / ideal, closed / explicit)
    return dict(zip(METRICS, values, strict=True))
