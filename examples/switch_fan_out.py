"""few-ports: DySHARP with a switch that copies a packet to at most `fan_out` ports; its sums are whole."""

from dataclasses import dataclass

from dysharp.program import Discipline
from dysharp.systems import Costs, Facts, Moves, system
from dysharp.systems.building import DYMULTIMEM, LayerBuilder, fused
from dysharp.systems.dysharp import counted
from dysharp.workload.traffic import multicast_in_groups


@dataclass(frozen=True, slots=True)
class Options:
    """`fan_out`: most GPUs of one multicast. `compute` = False leaves the GEMMs out."""

    fan_out: int = 2
    compute: bool = True


FACTS = Facts(
    source="examples/switch_fan_out.py", options=Options, moves=Moves(multicast_in_groups, "multicast"),
    costs=Costs(permutes=0, fused=True, drops="as dysharp"),
)  # fmt: skip


@system("few-ports", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """A token leaves once for each group of its GPUs, and its source pulls one sum."""
    dispatch, combine = layer.windows(DYMULTIMEM, 0, 0)
    sent = layer.dispatch_multicast(dispatch, by_rows=True, fan_out=options.fan_out)
    layer.wait_first(sent, layer.target_fetch(counted(layer)))
    fused(layer, layer.combine_pulls(Discipline.SMALLEST_KEY, combine).of_useful_row)
