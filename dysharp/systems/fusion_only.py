"""Token-centric fusion without in-switch computing: Dispatch, GEMMs and Combine overlap, one copy per GPU each way."""

from dysharp.program import Discipline, frozen
from dysharp.systems import Change, Costs, Facts, Moves, Shown, system
from dysharp.systems.building import ROWS, LayerBuilder, fused


@frozen
class Options:
    """`dispatch`: format of rows, "rows" (the model's), "fp8" or "mxfp8".

    `weights`: format of weights, "model", "fp4", "mxfp8" or "nvfp4".
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch: str = "rows"
    weights: str = "model"
    compute: bool = True


FACTS = Facts(
    source="DySHARP (arXiv 2605.05607) section IV, ablation (e)",
    options=Options,
    moves=Moves("one_copy_per_gpu", formats=ROWS),
    costs=Costs(permutes=0, fused=True, drops="the addresses of pushed rows: counts and offsets cost nothing"),
    shown=Shown(
        "#56B4E9",
        Change(
            "overlap by rows", "one kernel with the tiles of Mega MoE on today's switches; Dispatch, GEMMs and Combine overlap row by row", rank=1
        ),
    ),
)


@system("fusion-only", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """A GPU returns the partial sum of a token as soon as it has computed its experts of the token."""
    layer.dispatch_puts(by_rows=True)
    combine = layer.combine_puts(Discipline.READY_FIFO)
    fused(layer, combine.of_useful_row)
