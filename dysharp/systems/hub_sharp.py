"""hub-sharp: MoE-Hub's address-free stores with a list of regions, multicast and summed in DySHARP's switches."""

from dataclasses import dataclass

from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model, choice_int, choice_str
from dysharp.systems.building.experts import fused
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.sums import combine_pushes
from dysharp.systems.facts import SUMS, Costs, Facts, Moves, Reach, Shown
from dysharp.systems.moe_hub import FACTS as MOE_HUB
from dysharp.systems.registry import system
from dysharp.workload import Routing

ROWSP_MC = Framing("st.rowsp.mc", targets_per_ext=8)
"""A header with row id and offset, then MallocIDs of 16 bits."""
RED_ROWSP = Framing("red.rowsp")
"""A header with origin, token and expected count."""


@dataclass(frozen=True, slots=True)
class Options:
    """`dispatch_window`, `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py).

    `reduction`: sources "pull" sums through the switch, or GPUs "push" contributions to them (docs/design/0013, Push form). `sum_places`: sums
    of one source that the switch holds at once (push), 0 = as many as fit the reduction buffers of its ports in every case.
    `al_misses`: misses of the AL TLB that a hub has under way at once; 0 = as many as rows at line rate need.
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch_window: int = choice_int("hub_sharp.dispatch_window")
    combine_window: int = choice_int("hub_sharp.combine_window")
    al_misses: int = choice_int("hub.al_misses")
    reduction: str = choice_str("hub_sharp.reduction")
    sum_places: int = choice_int("hub_sharp.sum_places")
    compute: bool = True


FACTS = Facts(
    source="MoE-Hub (arXiv 2605.05888) and DySHARP (arXiv 2605.05607) combined; docs/design/0013-moe-hub.md",
    options=Options,
    moves=Moves("multicast"),
    costs=Costs(permutes=0, fused=True, drops="announcements of totals, entries of the row map that a hub has to write back"),
    reach=Reach(stays=MOE_HUB.reach.stays, switch=SUMS),
    shown=Shown("#337700"),
)


@system("hub-sharp", FACTS)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """One store per token names its regions. The row tables of the hubs place it; a pull reads their map in memory, a push needs none."""
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute)
    layer.al_misses = options.al_misses
    dispatch, combine = layer.windows(ROWSP_MC, options.dispatch_window, options.combine_window)
    layer.dispatch_multicast(dispatch, ROWSP_MC, by_rows=True, asks=False)
    if options.reduction == "push":
        back = combine_pushes(layer, RED_ROWSP, options.sum_places)
    else:
        back = layer.combine_pulls(Discipline.SMALLEST_KEY, combine, ROWSP_MC)
    fused(layer, back.of_useful_row)
    return layer.build(FACTS.moves)
