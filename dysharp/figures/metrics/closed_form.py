"""Closed forms of uniform routing."""

from dataclasses import asdict, dataclass

from dysharp.figures.metric import calculated
from dysharp.runs.point import Point
from dysharp.specs import load_cluster, load_model
from dysharp.specs.fields import Experts
from dysharp.workload.closed import uniform_traffic


@dataclass(frozen=True, slots=True)
class Choices:
    """`topk`: experts per token in place of the model's own."""

    topk: Experts | None = None


@calculated("closed-form", options=Choices, metrics={"redundant_share": "redundant_share", "ideal_speedup": "ideal speed-up"})
def closed_form(point: Point, choices: Choices) -> dict[str, float]:
    """The closed forms for the model and the GPUs of a point: token rows per token, shares and ratios."""
    model = load_model(point.model)
    gpus = load_cluster(point.cluster).n_gpus if point.gpus is None else point.gpus
    return asdict(uniform_traffic(model.n_experts, gpus, model.topk if choices.topk is None else choices.topk))
