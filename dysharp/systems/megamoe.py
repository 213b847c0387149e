"""Mega MoE: one persistent kernel pulls rows, runs both GEMMs as tiles fill and pushes every expert's row back."""

import numpy as np

from dysharp.costs.operators import CAST_BYTES
from dysharp.program import I64, Discipline, frozen
from dysharp.systems import Costs, Facts, Form, Moves, Ships, Shown, system
from dysharp.systems.building import LayerBuilder, fused

ROWS = ("rows", "mxfp8", "nvfp4")
"""Formats of the rows that the kernel pulls and pushes."""
BARRIERS = 3  # over all GPUs: before the pulls, before the sums, after the clearing of buffers
COUNTS = 1  # exchanges before the barriers: the number of rows of every expert


@frozen
class Options(Form):
    """Options of Mega MoE.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `dispatch` | format of dispatched rows: "rows" (the model's), "mxfp8" or "nvfp4" |
    | `combine` | format of the experts' results: "rows", "mxfp8" or "nvfp4" |
    | `weights` | format of weights: "model" (the type of the GEMMs), "fp4", "mxfp8" or "nvfp4" |
    | `cast` | the quantisation of the input runs before the kernel; real form only |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds the launch, the exchange of counts, barriers, the pace of pulls and pushes, and the sum at the
    source. `building.formats` holds the bytes of each format. GEMMs run at the FP4 rate where rows and weights are
    "nvfp4", else at the model's rate. On hw clusters the height of tiles follows the expected rows of an expert,
    in both forms.
    """

    dispatch: str = "rows"
    combine: str = "rows"
    weights: str = "model"
    cast: bool = True
    compute: bool = True


FACTS = Facts(
    source="https://github.com/deepseek-ai/DeepGEMM (Mega MoE, pull requests 304 and 316)",
    options=Options,
    moves=Moves("one_copy_per_expert", formats=ROWS, results=ROWS),
    costs=Costs(
        permutes=0,
        fused=True,
        drops="launch, the exchange of counts, barriers, the pace of pulls and pushes, the sum at the source (form real has them); Dispatch pushes "
        "in the order in which the kernel pulls (the same bytes the same way); rings of limited size; it has no backward pass of its own",
    ),
    shown=Shown("#7A0403"),
    ships=Ships(
        "DeepGEMM csrc/apis/mega.hpp: SM100, FP8 rows, FP4 weights, SwiGLU; kernels for other formats and GPUs are not its release",
        ("blackwell",),
        {"fp8": {"dispatch": "mxfp8", "weights": "fp4"}},
        step=128,
        expert_step=128,
        gated=True,
        phases=("decode", "prefill"),
        phases_source="DeepGEMM csrc/apis/mega.hpp: forward only",
    ),
)


def plan_real(layer: LayerBuilder, options: Options) -> None:
    """The persistent kernel from its launch to the last barrier: pulls and pushes share the links, tiles share the SMs."""
    stores = layer.pools(1, "stores")
    # The exchanges that are no barriers: counts, and what else the fit finds.
    before = max(COUNTS, layer.costs.value("fused.barriers") - BARRIERS)
    quantise = layer.costs.memory_ps(layer.tokens * layer.model.hidden * CAST_BYTES) if options.cast else 0
    start = layer.delay("launch", quantise + layer.costs.kernel_ps + round(before * layer.costs.sync_ps))
    counted = layer.barrier("dispatch", "counted", start)
    pulls = layer.dispatch_rows(Discipline.READY_FIFO, _pull_order(layer))
    layer.paced("dispatch", pulls, layer.costs.stores_ps(layer.sent_bytes), pools=stores, begun=counted)
    pushes = layer.combine_rows(Discipline.READY_FIFO)
    fused(layer, layer.paced("combine", pushes, layer.costs.stores_ps(layer.back_bytes), pools=stores).of_useful_row)
    returned = layer.barrier_after("combine", "returned", counted, pushes)
    rows, sums = (layer.counted(gpu) for gpu in (layer.p.row_source, layer.p.sent_source))
    moved = rows * layer.back_bytes + sums * layer.model.row_bytes
    layer.delay("combined", [layer.costs.stream_ps(n) for n in moved.tolist()], after=returned)
    layer.barrier("end", "cleaned", returned)  # the buffers are ready for the next call


@system("megamoe", FACTS, real=plan_real)
def plan_paper(layer: LayerBuilder, options: Options) -> None:
    """Dispatch, GEMMs and Combine overlap tile by tile. Each expert returns its own row of a token."""
    layer.dispatch_rows(order=_pull_order(layer), by_rows=True)
    fused(layer, layer.combine_rows(Discipline.READY_FIFO).of_useful_row)


def _pull_order(layer: LayerBuilder) -> I64:
    """The useful rows in the order in which receivers pull them: by expert, and for one expert by source in turn."""
    local = layer.p.slot % layer.routing.placement.slots_per_gpu
    turn = (layer.p.row_gpu - layer.p.row_source) % layer.n_gpus
    return np.lexsort((turn, layer.p.row_token % layer.tokens, local, layer.p.row_source))
