"""toy-push: one kernel pushes rows, runs the experts tile by tile, and pushes sums back."""

from dataclasses import dataclass

from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model
from dysharp.systems import system
from dysharp.systems.building.experts import fused
from dysharp.systems.building.layer import LayerBuilder
from dysharp.workload import Routing


@dataclass(frozen=True, slots=True)
class Options:
    """`compute` = False leaves the GEMMs out: pure communication."""

    compute: bool = True


@system(
    "toy-push",
    source="docs/writing-a-system.md",
    options=Options,
    traffic="one_copy_per_gpu",
    permutes=0,
    fused=True,
    colour="#8B4513",
    drops="the launch, the flags and the pace of stores",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """A token goes once to each of its GPUs; each GPU sends one sum back as soon as the token's rows are finished."""
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute)
    layer.dispatch_puts()
    back = layer.combine_puts(Discipline.READY_FIFO)
    fused(layer, back.of_useful_row)
    return layer.build("one_copy_per_gpu")
