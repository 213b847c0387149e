"""DeepEP normal kernels: push, one copy per distinct GPU each way, operators one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.program import Discipline, Program, Tail
from dysharp.specs import Cluster, Model
from dysharp.systems.experts import one_after_another
from dysharp.systems.layer import Layer
from dysharp.systems.registry import system
from dysharp.workload import Routing


@dataclass(frozen=True, slots=True)
class Options:
    """`compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived."""

    compute: bool = True


@system(
    "deepep",
    source="https://github.com/deepseek-ai/DeepEP (V1, normal); spec/baselines.md section 1",
    options=Options,
    traffic="one_copy_per_gpu",
    drops="channels of SM pairs, ring queues, notify kernels, the receiver's copy-out and the host's wait for counts",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, then one GEMM after the other, then Combine on each GPU; the only waits are each GPU's own."""
    layer = Layer(model, cluster, routing, direction, compute=options.compute)
    layer.dispatch_puts()
    finished = one_after_another(layer)
    combine = layer.combine_puts(Discipline.PROGRAM_ORDER)
    layer.all_of_gpu_wait(Tail.OP_DONE, finished, combine, layer.p.gpu[layer.push_order])
    return layer.build("one_copy_per_gpu")
