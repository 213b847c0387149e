"""Mega MoE: one persistent kernel pulls rows, runs both GEMMs as tiles fill and pushes every expert's row back, over symmetric memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import fused
from dysharp.systems.building.formats import row_bytes
from dysharp.systems.building.fused_kernel import fused_tiling
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software import is_real
from dysharp.systems.building.software_steps import SoftwareSteps
from dysharp.systems.registry import Ships, system
from dysharp.workload import Routing

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
ROWS = ("rows", "mxfp8", "nvfp4")
"""What the kernel pulls and pushes."""
BARRIERS = 3  # of all GPUs: before rows are pulled, before they are summed, after the buffers are cleared
COUNTS = 1  # exchange in front of them: the rows of every expert


@dataclass(frozen=True, slots=True)
class Options:
    """`form` "real" (default on hw-* clusters): launch, the exchange of counts, barriers, the pace of pulls and pushes, the sum at the source.
    On real GPUs tiles are as high as the rows that an expert is expected to have, in both forms.

    `dispatch`: "rows" sends the model's rows, "mxfp8" a byte per element and a scale byte per 32 of them, "nvfp4" half a byte and a scale byte
    per 16 of them; `combine`: the same for the experts' results. `weights`: "model" in the GEMMs' type, "fp4" half a byte per weight and a scale
    byte per 32 of them, "mxfp8" and "nvfp4" as rows. GEMMs run at the model's rate, at that of FP4 where rows and weights are "nvfp4". `cast`:
    with the quantisation of the input in front of the kernel, in the real form. `compute` = False leaves the GEMMs out: pure communication.
    """

    form: str = "auto"
    dispatch: str = "rows"
    combine: str = "rows"
    weights: str = "model"
    cast: bool = True
    compute: bool = True


@system(
    "megamoe",
    source="https://github.com/deepseek-ai/DeepGEMM (Mega MoE, pull requests 304 and 316); spec/baselines.md section 3",
    options=Options,
    traffic="one_copy_per_expert",
    permutes=0,
    fused=True,
    row_formats=ROWS,
    colour="#7A0403",
    ships=Ships(
        "DeepGEMM csrc/apis/mega.hpp: SM100, FP8 rows, FP4 weights, SwiGLU; kernels for other formats and GPUs are not its release",
        ("blackwell",),
        {"fp8": {"dispatch": "mxfp8", "weights": "fp4"}},
        step=128,
        expert_step=128,
        gated=True,
    ),
    drops="launch, the exchange of counts, barriers, the pace of pulls and pushes, the sum at the source (form real has them); Dispatch pushes "
    "in the order in which the kernel pulls (the same bytes the same way); rings of limited size; it has no backward pass of its own",
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """Everything at once, tile by tile; a token's expert rows come back one by one."""
    sent = row_bytes("megamoe.dispatch", options.dispatch, ROWS, model)
    back = row_bytes("megamoe.combine", options.combine, ROWS, model)
    real = is_real(options.form, cluster)
    dtype = "fp4" if options.dispatch == options.weights == "nvfp4" else None
    tiling = fused_tiling("megamoe", cluster, routing, options.weights, dtype)
    layer = LayerBuilder(model, cluster, routing, direction, compute=options.compute, sent_bytes=sent, back_bytes=back, tiling=tiling)
    if real:
        _Fused(layer).layer_pass(cast=options.cast)
        return layer.build("one_copy_per_expert")
    layer.dispatch_rows(order=_pull_order(layer))
    back = layer.combine_rows(Discipline.READY_FIFO)
    fused(layer, _of_useful_row(layer, back + np.arange(len(layer.row_of))))
    return layer.build("one_copy_per_expert")


def _pull_order(layer: LayerBuilder) -> I64:
    """Useful rows as they leave: receivers pull their first expert's rows from all sources in turn, then their second's."""
    local = layer.p.slot % layer.routing.placement.slots_per_gpu
    turn = (layer.row_gpu - layer.row_source) % layer.n_gpus
    return np.lexsort((turn, layer.row_token % layer.tokens, local, layer.row_source))


def _of_useful_row(layer: LayerBuilder, ops: I64) -> I64:
    """`[useful rows]` in token order, of `ops` in `row_push_order`."""
    out = np.empty(len(ops), np.int64)
    out[layer.row_push_order] = ops
    return out


class _Fused(SoftwareSteps):
    """One kernel; pulls and pushes share the links, tiles the SMs."""

    def layer_pass(self, *, cast: bool) -> None:
        """From the launch to the sums; `cast`: from the quantisation of the input."""
        layer, costs, stores = self.layer, self.costs, self.stores()
        # Counts by expert, and the quantised input, which takes as long as the rest of the fitted exchanges.
        before = max(COUNTS, costs.value("fused.barriers") - BARRIERS) if cast else COUNTS
        start = self.delay("launch", costs.kernel_ps + round(before * costs.sync_ps))
        counted = self.barrier("dispatch", "counted", start, 0)
        order = _pull_order(layer)
        node, to = layer.row_source[order], layer.row_gpu[order]
        puts = layer.dispatch_rows(Discipline.READY_FIFO, order) + np.arange(len(order))
        self.release(counted, self.paced("dispatch", puts, node, to, costs.stores_ps(layer.sent_bytes), pools=stores), node)
        back = layer.row_push_order
        node, to = layer.row_gpu[back], layer.row_source[back]
        puts = layer.combine_rows(Discipline.READY_FIFO) + np.arange(len(back))
        fused(layer, _of_useful_row(layer, self.paced("combine", puts, node, to, costs.stores_ps(layer.back_bytes), pools=stores)))
        returned = self.behind("combine", "returned", counted, puts, node)
        rows, sums = (np.bincount(of, minlength=layer.n_gpus) for of in (layer.row_source, layer.sent_source))
        moved = rows * layer.back_bytes + sums * layer.model.row_bytes
        self.each_waits(returned, self.delay("combined", [costs.stream_ps(n) for n in moved.tolist()]))
        self.barrier("end", "cleaned", returned, 0)  # the buffers are ready for the next call
