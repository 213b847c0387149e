"""Weights that data parallel ranks share (FSDP): gathered before a layer's passes, gradients scattered behind them, beside the layers around it."""

from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.state import RankParameters, rank_parameters
from dysharp.steps.cost import Cost, passes
from dysharp.steps.dispatchers import ELEMENT
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine, number
from dysharp.steps.stages import Chunk


def layer_shards(model: WholeModel, layout: Layout, layer: int) -> RankParameters:
    """Parameters of a layer on one rank while it is gathered."""
    return rank_parameters(model, layout, [Chunk(layer, 1)])


def exposed_shards(model: WholeModel, machine: Machine, layout: Layout, layer: int, done: Cost) -> Cost:
    """What the traffic of a layer's weights and gradients is longer than a layer's computing `done`, which it runs beside.

    Every micro-batch gathers the weights before both passes, in BF16, and scatters the gradients.
    """
    if layout.fsdp == 1:
        return Cost()
    held = layer_shards(model, layout, layer)

    def moved(element: float) -> float:
        dense = machine.group(held.dense * element, layout.fsdp, layout.stride("cp"))
        return dense + machine.group(held.experts * element, layout.expert_fsdp, layout.stride("edp"))

    gather, scatter = moved(ELEMENT), moved(number("step.gradient_bytes"))
    return passes("sharded weights", max(0.0, gather - done.forward), max(0.0, gather + scatter - done.backward - done.weights))
