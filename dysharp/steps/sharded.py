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


def exposed_shards(model: WholeModel, machine: Machine, layout: Layout, layer: int, done: Cost, switched: bool = False) -> Cost:
    """Time by which the traffic of a layer's weights and gradients exceeds the layer's computing `done` beside it.

    Every micro-batch gathers the weights before both passes, in BF16, and scatters the gradients. Where rows of experts pass the same kind of link
    (inside a domain, or NICs), weights get the time that rows leave free. `switched`: switches copy and sum, so that a gather inside a domain fills
    links down, a scatter links up, and the other direction carries one part. NICs carry both in full.
    """
    if layout.fsdp == 1:
        return Cost()
    held = layer_shards(model, layout, layer)
    gather = down = up = 0.0
    for parameters, size, stride in ((held.dense, layout.fsdp, layout.stride("cp")), (held.experts, layout.expert_fsdp, layout.stride("edp"))):
        gathered, scattered = (machine.group(parameters * element, size, stride) for element in (ELEMENT, number("step.gradient_bytes")))
        other = 1 / (size - 1) if switched and 1 < size <= machine.domain // stride else 1.0
        gather, down, up = gather + gathered, down + gathered + other * scattered, up + scattered + other * gathered
    near = layout.fsdp <= machine.domain // layout.stride("cp"), layout.ep * layout.etp <= machine.domain
    busy = (done.forward_wire, done.backward_wire) if near[0] == near[1] else (0.0, 0.0)
    free = max(0.0, done.forward - busy[0]), max(0.0, done.backward + done.weights - busy[1])
    return passes("sharded weights", max(0.0, gather - free[0]), max(0.0, max(down, up) - free[1]))
