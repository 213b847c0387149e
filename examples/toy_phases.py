"""toy-phases: a Dispatch kernel, a permutation, the GEMMs, and a Combine kernel, one after the other."""

from dataclasses import dataclass

from dysharp.program import Discipline
from dysharp.systems import Costs, Facts, Moves, Shown, system
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.paper_layers import copy_per_gpu


@dataclass(frozen=True, slots=True)
class Options:
    """`form`: "paper", "real" or "auto" (real on hw-* clusters). `compute` = False leaves the GEMMs out."""

    form: str = "auto"
    compute: bool = True


FACTS = Facts(
    source="docs/writing-a-system.md",
    options=Options,
    moves=Moves("one_copy_per_gpu"),
    costs=Costs(permutes=1, fused=False, drops="launches, barriers and the pace of stores (form real has them)"),
    shown=Shown("#2F4F4F"),
)


def plan_real(layer: LayerBuilder, options: Options) -> None:
    """As the paper form, with two launches, the pace of stores, and a barrier behind each transfer."""
    start = layer.delay("dispatch.launch", layer.costs.kernel_ps)
    puts = layer.dispatch_puts(Discipline.READY_FIFO)
    stores = layer.paced("dispatch", puts, layer.costs.stores_ps(layer.sent_bytes))
    layer.wait_each(stores.op, start[stores.node])
    received = layer.barrier_after("dispatch", "received", start, puts)

    finished = one_after_another(layer, received)

    launch = layer.delay("combine.launch", layer.costs.kernel_ps)
    layer.wait_each(launch, finished)
    back = layer.combine_puts(Discipline.READY_FIFO)
    stores = layer.paced("combine", back, layer.costs.stores_ps(layer.back_bytes))
    layer.wait_each(stores.op, launch[stores.node])
    layer.barrier_after("combine", "returned", launch, back)


@system("toy-phases", FACTS, real=plan_real)
def plan_paper(layer: LayerBuilder, options: Options) -> None:
    """Phases, one after the other; a GPU waits for its own rows and GEMMs only."""
    copy_per_gpu(layer)
