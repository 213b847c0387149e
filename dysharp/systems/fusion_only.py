"""Token-centric fusion without in-switch help: Dispatch, GEMMs and Combine all at once, one copy per GPU each way (ablation)."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model
from dysharp.systems.experts import fused
from dysharp.systems.layer import Layer
from dysharp.systems.registry import system
from dysharp.workload import Routing


@dataclass(frozen=True, slots=True)
class Options:
    """`compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived."""

    compute: bool = True


@system(
    "fusion-only",
    source="DySHARP (arXiv 2605.05607) section IV, ablation (e); spec/dysharp.md section 9",
    options=Options,
    traffic="one_copy_per_gpu",
    drops="the addressing that pushes need: counts and offsets are free",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """A token's row leaves as soon as its GPU has finished the token's experts there."""
    layer = Layer(model, cluster, routing, direction, compute=options.compute)
    layer.dispatch_puts()
    combine = layer.combine_puts(Discipline.READY_FIFO)
    fused(layer, combine + layer.push_of_useful_row)
    return layer.build("one_copy_per_gpu")
