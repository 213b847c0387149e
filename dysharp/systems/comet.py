"""COMET, paper form: tiles start as their rows arrive, results leave as tiles finish; a barrier splits the GEMMs."""

from dysharp.program import Discipline, frozen
from dysharp.systems import Costs, Facts, Moves, Shown, system
from dysharp.systems.building import LayerBuilder, in_pairs, mediate


@frozen
class Options:
    """`mediation`: the host counts rows and waits for the counts before Dispatch (building/software_steps.py)."""

    mediation: bool = False


FACTS = Facts(
    source="COMET (MLSys'25); https://github.com/bytedance/flux",
    options=Options,
    moves=Moves("one_copy_per_gpu"),
    costs=Costs(
        permutes=0, drops="the all-gather of layer 0, column slices, SMs reserved for communication, sorting, count copies and barriers of the host"
    ),
    shown=Shown("#CC79A7"),
    today=True,
)


@system("comet", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """GEMM-1 overlaps Dispatch, GEMM-2 overlaps Combine, row by row. Combine starts after the GPU's own GEMM-1."""
    layer.dispatch_puts(by_rows=True)
    combine = layer.combine_puts(Discipline.READY_FIFO)
    in_pairs(layer, combine.of_useful_row, FACTS.costs)
    if options.mediation:
        mediate(layer, counts=True, permutes=False)
