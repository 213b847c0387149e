"""UCCL-EP, normal kernels: DeepEP V1's kernels; between nodes processors of the hosts write to the NICs.

Inside an NVLink domain the kernels do what DeepEP's do. Its low-latency kernels are DeepEP's there, too: `deepep-ll`.
"""

from dataclasses import dataclass, replace

from dysharp.program import Program
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems import deepep
from dysharp.systems.building.between.deepep_internode import Internode
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.formats import ROWS_OR_FP8, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.paper_layers import one_copy_per_gpu
from dysharp.systems.facts import Shown
from dysharp.systems.registry import system
from dysharp.workload import Routing


@dataclass(frozen=True, slots=True)
class Options:
    """Options of UCCL-EP's normal kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the communication kernels; real form only |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    form: str = "auto"
    n_sm: int = choice_int("uccl_ep.n_sm")
    dispatch: str = "rows"
    compute: bool = True


FACTS = replace(
    deepep.FACTS,
    source="https://github.com/uccl-project/uccl (ep, normal)",
    options=Options,
    costs=replace(deepep.FACTS.costs, drops=f"{deepep.FACTS.costs.drops}; the time of the proxies on the host (no form has it)"),
    reach=replace(deepep.FACTS.reach, assumes="proxies of the hosts that cost no time"),
    shown=Shown("#1F78B4"),
)


def _layer(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> LayerBuilder:
    sent = row_bytes("uccl-ep.dispatch", options.dispatch, ROWS_OR_FP8, model)
    return LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent)


def plan_real(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """The paper form with the software costs of DeepEP's kernels."""
    layer = _layer(model, cluster, routing, direction, options)
    kernels = (Internode if cluster.domains > 1 else deepep.Channels)(layer, options.n_sm, "uccl-ep")
    kernels.combine(one_after_another(layer, kernels.dispatch(), FACTS.costs))
    return layer.build(FACTS.moves)


@system("uccl-ep", FACTS, real=plan_real)
def plan_paper(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Dispatch, one GEMM after the other, Combine. A GPU waits for its own rows and GEMMs only."""
    return one_copy_per_gpu(_layer(model, cluster, routing, direction, options), FACTS.moves)
