"""Lower bound: communication takes no time, experts run at full speed; all tensors are still produced."""

from dysharp.program import frozen
from dysharp.systems.building import LayerBuilder, as_tiles_fill, check
from dysharp.systems.facts import Change, Costs, Facts, Moves, Reach, Shown
from dysharp.systems.registry import FUSED_GEMMS, system

GEMMS = ("library", FUSED_GEMMS, f"{FUSED_GEMMS}-second")


@frozen
class Options:
    """`gemms`: the GEMM variant, which sets the tiles.

    | gemms | meaning |
    |---|---|
    | library | tiles of a GEMM library; on hw-* clusters an activation and casts run between the GEMMs |
    | fused | tiles of a fused kernel, whose SMs prefer tiles of the first GEMM |
    | fused-second | the same; SMs prefer the second GEMM, as in fused systems: memory is busy from early on |
    | auto | on hw-* clusters all variants run and the fastest Row is returned; on paper clusters "library" |

    `weights`: format of weights, "model", "fp4", "mxfp8" or "nvfp4".
    """

    gemms: str = "auto"
    weights: str = "model"


FACTS = Facts(
    source="MoE-Hub (arXiv 2605.05888), ideal MoE layer",
    options=Options,
    moves=Moves("none"),
    costs=Costs(permutes=0, fused=False, gemms=GEMMS),
    reach=Reach(no_switch=("paper",)),
    shown=Shown(
        "#C6C6C6",
        Change("communication for free", "transfers take no time, the fastest GEMM variant runs; no change to communication can gain more", rank=3),
    ),
    bound=True,
)


@system("ideal", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """The Program. All sums exist as soon as all results exist."""
    check("ideal.gemms", options.gemms, ("auto", *GEMMS))
    layer.dispatch_free()
    layer.combine_free(layer.join_tiles(as_tiles_fill(layer, second_first=options.gemms == GEMMS[-1]).results))
