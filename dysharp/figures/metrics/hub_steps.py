"""MoE-Hub end to end: its layers beside attention, router and shared experts at the rates of a measured H800."""

from dataclasses import replace
from functools import lru_cache

from dysharp.costs import Machine
from dysharp.figures.metric import Seen, metric, quotient
from dysharp.model import Layout
from dysharp.specs import choice_str, load_cluster, load_whole
from dysharp.specs.choices import Scalar, overridden
from dysharp.training import Block, TrainingRecipe

MODELS = {"paper-mixtral-8x7b": "mixtral-8x7b", "paper-qwen2-moe": "qwen2-moe", "paper-phi-3.5-moe": "phi-3.5-moe"}
"""Model of the paper's table -> the public model with its attention and shared experts."""
MEASURED = "hw-dgx-h800"


@lru_cache(maxsize=256)
def _beside_us(model: str, cluster: str, gpus: int, tokens: int, host: bool, choices: tuple[tuple[str, Scalar], ...]) -> tuple[float, float]:
    """Time of everything but the experts of a layer, forward and backward. `choices`: the changed choices, which tell cached times apart."""
    layout = Layout(ep=gpus, dp=gpus)
    cost = Block(load_whole(model), Machine(load_cluster(cluster)), layout, tokens, TrainingRecipe(host=host)).layer(0, None)
    return cost.forward, cost.backward + cost.weights


def beside_us(here: Seen) -> tuple[float, float]:
    """The same at a point, with the choices of this moment: one sequence of the point's tokens per GPU."""
    rate = choice_str("paper_step.hub_rate")
    gpus = here.point.gpus or load_cluster(here.point.cluster).n_gpus
    cluster = here.point.cluster if rate == "peak" else MEASURED
    return _beside_us(MODELS[here.point.model], cluster, gpus, here.point.tokens or 0, rate == "launched", tuple(sorted(overridden().items())))


def _time_us(here: Seen, both: bool) -> float | None:
    """A layer of the model, forward or both passes; None where the figure lacks the backward pass."""
    ahead, behind = beside_us(here)
    if not both:
        return here.time_us + ahead
    back = here.at(replace(here.point, direction="bwd"))
    return here.time_us + ahead + back.time_us + behind if back else None


def _ratio(here: Seen, other: Seen, both: bool = False) -> float | None:
    if here.point.direction != "fwd":
        return None
    return quotient(_time_us(here, both), _time_us(other, both))


# Time of a layer with what is beside its experts, divided by the same of `over`.
metric("end_to_end_over", "time of a whole model", compares=True)(_ratio)
metric("both_passes_over", "time of a whole model, forward and backward", compares=True)(lambda here, other: _ratio(here, other, both=True))


@metric("best_end_to_end_over", "time of a whole model with the best options of the figure", compares=True)
def _best_end_to_end_over(here: Seen, other: Seen) -> float | None:
    """The same metric at the system's fastest point on the workload."""
    return _ratio(here, other) if here.is_fastest else None


@metric("beside_moe", "work beside the MoE layer over a forward pass of the whole model")
def _beside_moe(here: Seen) -> float | None:
    """Share of what is beside the experts in the forward time of a layer of the model."""
    if here.point.direction != "fwd":
        return None
    ahead = beside_us(here)[0]
    return ahead / (ahead + here.time_us)
