"""toy-push: one kernel pushes rows, runs the experts tile by tile, and pushes sums back."""

from dataclasses import dataclass

from dysharp.program import Discipline
from dysharp.systems import Costs, Facts, Moves, Shown, system
from dysharp.systems.building.experts import fused
from dysharp.systems.building.layer import LayerBuilder


@dataclass(frozen=True, slots=True)
class Options:
    """`compute` = False leaves the GEMMs out: pure communication."""

    compute: bool = True


FACTS = Facts(
    source="docs/writing-a-system.md",
    options=Options,
    moves=Moves("one_copy_per_gpu"),
    costs=Costs(permutes=0, fused=True, drops="the launch, the flags and the pace of stores"),
    shown=Shown("#8B4513"),
)


@system("toy-push", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """A token goes once to each of its GPUs; each GPU sends one sum back as soon as the token's rows are finished."""
    layer.dispatch_puts()
    back = layer.combine_puts(Discipline.READY_FIFO)
    fused(layer, back.of_useful_row)
