"""How the experts of a layer run: the grouped GEMMs of a pass, and three schedules of them over row tiles.

Forward: GEMM-1, then GEMM-2 of every tile. Backward: GEMM-2's data gradient, then GEMM-1's, each with a weight gradient beside it that only
fills SM slots nobody else wants; all have to finish, nothing waits for them (docs/design/0005).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dysharp.compute import Task, gemm_gang, mean_share, tile_share, tile_task, weight_grad_gang, weight_grad_task
from dysharp.program import Discipline, Head, Kind, Program, Tail, Template
from dysharp.specs import Model
from dysharp.systems.building.layer import LayerBuilder

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
STORED_BYTES = 2  # an element between two GEMMs, as their outputs: BF16
FILLER = 2  # prio of weight gradients, behind both GEMMs that results wait for


@dataclass(frozen=True, slots=True)
class Gemm:
    """A grouped GEMM: `columns` by `depth` weights (or their gradient). `epilogue_bytes`: moved per row beyond the GEMM's own output."""

    fn: str
    operator: str
    src: str
    dst: str
    columns: int
    depth: int
    epilogue_bytes: int = 0
    of_weights: bool = False


Stage = tuple[Gemm, ...]  # what results wait for, then what nothing waits for; all wait for the same


def stages(model: Model, direction: str) -> tuple[Stage, Stage]:
    """The GEMMs of a pass. Gated experts (three matrices) have gate and up columns in GEMM-1, so `dh` is twice as wide as `a`."""
    hidden, mid = model.hidden, model.expert_hidden
    inner = mid * (model.n_matrices - 1)
    if direction == "fwd":
        return (Gemm("gemm1", "gemm1", "expert.x", "expert.a", inner, hidden),), (Gemm("gemm2", "gemm2", "expert.a", "expert.y", hidden, mid),)
    # The epilogue reads the stored pre-activation h (a follows from it) and writes dh instead of the GEMM's own columns.
    epilogue = STORED_BYTES * (inner + inner - mid)
    return (
        Gemm("gemm2_dgrad", "gemm2", "expert.dy", "expert.dh", mid, hidden, epilogue),
        Gemm("gemm2_wgrad", "gemm2", "expert.dy", "w2.grad", hidden, mid, of_weights=True),
    ), (
        Gemm("gemm1_dgrad", "gemm1", "expert.dh", "expert.dx", hidden, inner),
        Gemm("gemm1_wgrad", "gemm1", "expert.dh", "w1.grad", inner, hidden, of_weights=True),
    )


def _add(layer: LayerBuilder, second_first: bool = True) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ops of both stages on the GPUs' SMs, in tile order: the first op of each GEMM.

    The second stage first lets results leave early (spec/dysharp.md decision 23); the first one first packs the SMs best when nothing has
    to leave.
    """
    pools = [layer.b.pool(g, layer.cluster.n_sms) for g in range(layer.n_gpus)]
    issuer = layer.per_gpu(Discipline.READY_FIFO, "sm", pools)[layer.tile_gpu]
    out = []
    for stage, prio in zip(stages(layer.model, layer.direction), (int(second_first), int(not second_first)), strict=True):
        first = []
        for gemm in stage:
            duration = layer.b.duration(*_task(layer, gemm))
            tasks = weight_grad_gang(gemm.columns, gemm.depth) if gemm.of_weights else gemm_gang(gemm.columns)
            template = layer.b.template(
                Template(gemm.fn, Kind.COMPUTE, gemm.operator, gemm.fn, tasks=tasks, duration=duration, src=gemm.src, dst=gemm.dst)
            )
            urgency = FILLER if gemm.of_weights else prio
            first.append(layer.b.ops(template, layer.tile_gpu, issuer=issuer, prio=urgency, rows=layer.tile_rows, key=layer.tiles))
        out.append(tuple(first))
    return out[0], out[1]


def _task(layer: LayerBuilder, gemm: Gemm) -> Task:
    tiling = layer.tiling
    shape = layer.cluster, tiling.dtype or layer.model.gemm_dtype, gemm.columns, gemm.depth, tiling.rows, _weight_share(layer)
    if gemm.of_weights:
        return weight_grad_task(*shape)
    return tile_task(*shape, gemm.epilogue_bytes, row_step=tiling.row_step, weight_bytes=tiling.weight_bytes, part=tiling.part)


def _weight_share(layer: LayerBuilder) -> F64:
    """Part of an expert's weights that a tile moves by its rows: exact on a real GPU, for experts of mean load on a paper cluster."""
    if layer.cluster.gpu:
        return tile_share(layer.tiling.rows, layer.tile_rows, layer.tiles_of_expert)
    occupied = max(1, int((np.bincount(layer.p.slot) > 0).sum()))
    return mean_share(layer.tiling.rows, len(layer.p.slot) / occupied)


def one_after_another(layer: LayerBuilder, received: I32 | None = None) -> I32:
    """All of a GPU's rows (and `received[gpu]`), then all of the first stage, then all of the second. Returns the JOIN per GPU that ends it."""
    if not layer.compute:
        return layer.gpu_barrier(Tail.TILE_READY, 0, also=received)
    first, second = _add(layer)
    layer.gpu_barrier(Tail.TILE_READY, 0, first, also=received)
    layer.gpu_barrier(Tail.OP_DONE, first[0], second)
    return layer.gpu_barrier(Tail.OP_DONE, second[0])


def in_pairs(layer: LayerBuilder, op_of_useful_row: I64) -> None:
    """COMET: the first stage as tiles fill, a barrier of the GPU, the second; finished rows release `op_of_useful_row` (token order)."""
    if not layer.compute:
        arrived = layer.gpu_barrier(Tail.TILE_READY, 0)
        layer.rows_release(Tail.OP_DONE, arrived[layer.tile_gpu], op_of_useful_row)
        return
    first, second = _add(layer)
    _after_tiles(layer, Tail.TILE_READY, 0, first)
    layer.gpu_barrier(Tail.OP_DONE, first[0], second)
    layer.rows_release(Tail.OP_DONE, second[0] + layer.tiles, op_of_useful_row)


def fused(layer: LayerBuilder, op_of_useful_row: I64) -> None:
    """The first stage as tiles fill, the second behind it, finished rows release `op_of_useful_row` (useful rows in token order)."""
    if not layer.compute:
        layer.rows_release(Tail.TILE_READY, layer.tiles, op_of_useful_row)
        return
    results = as_tiles_fill(layer)
    layer.rows_release(Tail.OP_DONE, results + layer.tiles, op_of_useful_row)


def as_tiles_fill(layer: LayerBuilder, *, second_first: bool = True) -> int:
    """Both stages of a tile as soon as its rows are there. Returns the first op of the GEMM that makes results, in tile order."""
    first, second = _add(layer, second_first)
    _after_tiles(layer, Tail.TILE_READY, 0, first)
    _after_tiles(layer, Tail.OP_DONE, first[0], second)
    return second[0]


def _after_tiles(layer: LayerBuilder, tail: Tail, first: int, heads: tuple[int, ...]) -> None:
    """The ops of every tile in `heads` wait for the tile's own tail."""
    for head in heads:
        layer.b.edges(tail, first + layer.tiles, Head.OP_ISSUE, head + layer.tiles)


def phase_by_phase(layer: LayerBuilder) -> Program:
    """Paper form of one copy per GPU each way: Dispatch, one GEMM after the other, Combine; the only waits are each GPU's own."""
    layer.dispatch_puts()
    finished = one_after_another(layer)
    combine = layer.combine_puts(Discipline.PROGRAM_ORDER)
    layer.all_of_gpu_wait(Tail.OP_DONE, finished, combine, layer.p.gpu[layer.push_order])
    return layer.build("one_copy_per_gpu")


def rows_phase_by_phase(layer: LayerBuilder, there: I64 | None = None, back: I64 | None = None) -> Program:
    """The same with a row per (token, expert), sent in the order `there` and back in the order `back` (default: the layer's own)."""
    back = layer.row_push_order if back is None else back
    layer.dispatch_rows(order=there)
    finished = one_after_another(layer)
    combine = layer.combine_rows(Discipline.PROGRAM_ORDER, back)
    layer.all_of_gpu_wait(Tail.OP_DONE, finished, combine, layer.row_gpu[back])
    return layer.build("one_copy_per_expert")
