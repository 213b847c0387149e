"""Closed forms of uniform routing; payload efficiency of packet formats: flits of packets, counted."""

from dataclasses import asdict

from dysharp.base import Amounts, frozen
from dysharp.figures.metric import MEASURES, calculated
from dysharp.isa.efficiency import closed_efficiency, encoded_efficiency
from dysharp.runs import Point
from dysharp.specs import load_cluster, load_model
from dysharp.specs.fields import Entries, Experts, Text
from dysharp.workload import uniform_traffic


@frozen
class _Choices:
    """`topk`: experts per token in place of the model's own."""

    topk: Experts | None = None


@calculated("closed-form", options=_Choices)
def _closed_form(point: Point, choices: _Choices) -> Amounts:
    """The closed forms for the model and the GPUs of a point: token rows per token, shares and ratios."""
    model = load_model(point.model)
    gpus = load_cluster(point.cluster).n_gpus if point.gpus is None else point.gpus
    return asdict(uniform_traffic(model.n_experts, gpus, model.topk if choices.topk is None else choices.topk))


@frozen
class _StoreOptions:
    """A store of `granularity` bytes in the packet format `format`."""

    format: Text
    granularity: Entries


@calculated("packet-format", options=_StoreOptions)
def _packet_format(point: Point, store: _StoreOptions) -> Amounts:
    """Payload efficiency of a store to as many targets as the model has experts per token, beside other formats and encoded packets."""
    targets = load_model(point.model).topk
    closed = closed_efficiency(store.format, store.granularity, targets)
    encoded = encoded_efficiency(store.format, store.granularity, targets)
    ideal, explicit = (closed_efficiency(name, store.granularity, targets) for name in ("ideal", "explicit"))
    values = (100 * closed, encoded / closed, closed / ideal, closed / explicit)
    return dict(zip(MEASURES["packet-format"], values, strict=True))
