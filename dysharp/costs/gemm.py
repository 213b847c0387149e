"""One thread-block task of a grouped GEMM: its time on the tensor cores of an SM, and its memory bytes."""

from typing import NamedTuple

import numpy as np

from dysharp.base import F64, I32, I64, PS_PER_US, frozen
from dysharp.costs.gemm_tiles import hides_stores
from dysharp.costs.operators import ELEMENT_BYTES, hbm_us, sustained_flops_per_us
from dysharp.model import FORMATS, formats_of
from dysharp.specs import Cluster, Model, choice_int, choice_str

ACCUMULATOR_BYTES = 4  # weight gradients are FP32 sums
# Most tasks in the gang of a weight gradient: about twice the SMs of a GPU. More tasks would only slow the simulation.
MOST_TASKS = 256


@frozen
class Tiling:
    """How a grouped GEMM cuts its rows and stores its weights, if it departs from the choices."""

    rows: int
    """Rows of a tile."""
    row_step: int | None = None
    """A partial tile costs its rows rounded up to this number. None: it costs a whole tile."""
    weight_bytes: float | None = None
    """Memory bytes of one weight with its scales. None: the bytes of `dtype`."""
    dtype: str | None = None
    """Type of the operands. None: the type of the model."""
    part: float = 1.0
    """Part of the sustained tensor rate that the GEMM reaches on an hw cluster."""
    fill_us: float | None = None
    """Time of a tile on an hw cluster that no other tile hides. None: that of a GEMM library."""
    shared: bool = False
    """True: one kernel computes all parts of an expert slot (`Placement.parts`), so the parts share the reads of its weights."""


class GemmTask(NamedTuple):
    """Costs of one task by the rows of its tile, `[tile_rows + 1]` int64."""

    ps: I64
    """Picoseconds."""
    bytes: I64
    """Bytes from the memory that all SMs share (`Program.task_bytes`)."""


def narrow_bytes(model: Model, direction: str = "fwd") -> float | None:
    """Memory bytes of a weight of an expert, with its scales, where the checkpoint has fewer than the products. None: those of the products, as in
    every backward pass, for nothing here trains such weights."""
    held = formats_of(model.checkpoint).experts if "," in model.checkpoint else model.checkpoint
    form = FORMATS.get(held, FORMATS.get(held.partition("-")[0])) if direction == "fwd" else None
    return form.weight_bytes if form and form.weight_bytes < ELEMENT_BYTES[model.gemm_dtype] else None


def gemm_gang(columns: int) -> int:
    """Thread-block tasks of one row tile with `columns` output columns."""
    return -(-columns // choice_int("gemm.tile_cols"))


def tile_task(
    cluster: Cluster, dtype: str, columns: int, depth: int, tile_rows: int, weight_share: F64, epilogue_bytes: int = 0, *,
    row_step: int | None = None, weight_bytes: float | None = None, part: float = 1.0, fill_us: float | None = None,
) -> GemmTask:  # fmt: skip
    """The task of a row tile in the GEMM `[tile_rows, depth] x [depth, columns]`.

    Tensor cores run at the peak of `dtype`. A partial tile costs them a whole tile, or its rows rounded up to
    `row_step`. Memory moves the task's part of the activations (read once per gang), of the BF16 output, of
    `epilogue_bytes` per row, and of the weights.

    | argument | meaning |
    |---|---|
    | `weight_share` | part of an expert's weights that a tile moves, `[tile_rows + 1]` (`mean_share`, `tile_share`) |
    | `weight_bytes` | memory bytes of one weight with its scales; None: the bytes of `dtype` |
    | `part` | part of the sustained tensor rate that the GEMM reaches on an hw cluster |
    | `fill_us` | time of a tile on an hw cluster that no other tile hides; None: that of a GEMM library |
    """
    n_tasks, element = gemm_gang(columns), ELEMENT_BYTES[dtype]
    rows = np.arange(tile_rows + 1)
    weights = (element if weight_bytes is None else weight_bytes) * depth * columns / n_tasks * weight_share
    moved = rows * depth * element / n_tasks + rows * columns / n_tasks * 2 + weights + rows * epilogue_bytes / n_tasks
    paid = [tile_rows] if row_step is None else [min(tile_rows, -(-row // row_step) * row_step) for row in range(tile_rows + 1)]
    return _task([_compute_ps(cluster, dtype, depth, each, part, fill_us) for each in paid], moved)


def weight_grad_gang(columns: int, depth: int) -> int:
    """Thread-block tasks of the gradient of `columns` by `depth` weights. A large gradient has more tiles per task."""
    return gemm_gang(columns) * _tasks_down(columns, depth)


def _tasks_down(columns: int, depth: int) -> int:
    """Tasks along the depth: one per `gemm.tile_cols` (gradient tiles are square), at most `MOST_TASKS` per gang."""
    return min(gemm_gang(depth), max(1, MOST_TASKS // gemm_gang(columns)))


def weight_grad_task(cluster: Cluster, dtype: str, columns: int, depth: int, tile_rows: int, weight_share: F64) -> GemmTask:
    """The task of a row tile in the gradient of `columns` by `depth` weights: `[columns, rows] x [rows, depth]`.

    The row tile is one step along the summed dimension. A partial tile costs the tensor cores a whole step. The gradient has as many operations as
    the forward GEMM with these weights. Memory reads both operands once per gang. It reads and writes the FP32 gradient in the parts in which the
    forward GEMM reads its weights (`weight_share`). `dtype` is the type of the forward GEMM (DeepSeek-V3, arXiv 2412.19437 section 3.3.1: Fprop,
    Dgrad, Wgrad in FP8).
    """
    n_tasks = weight_grad_gang(columns, depth)
    task_depth = -(-gemm_gang(depth) * choice_int("gemm.tile_cols") // _tasks_down(columns, depth))
    rows = np.arange(tile_rows + 1)
    gradient = 2 * ACCUMULATOR_BYTES * depth * columns / n_tasks * weight_share
    moved = rows * (columns + depth) * ELEMENT_BYTES[dtype] / n_tasks + gradient
    return _task([_compute_ps(cluster, dtype, task_depth, tile_rows)], moved)


def _compute_ps(cluster: Cluster, dtype: str, depth: int, tile_rows: int, part: float = 1.0, fill_us: float | None = None) -> int:
    """Time (ps) of `tile_rows` x `gemm.tile_cols` x `depth` multiply-adds on one SM.

    On an hw cluster at the sustained rate, with `fill_us`: by default prologue and epilogue of a tile, and its store
    where the SM cannot store a tile while it computes the next one. On a paper cluster at `gemm.peak_percent` of the peak rate.
    """
    columns = choice_int("gemm.tile_cols")
    flops = 2 * tile_rows * columns * depth
    if not cluster.gpu:
        return -(-flops * PS_PER_US * cluster.n_sms * 100 // (cluster.peak_flops_per_us(dtype) * choice_int("gemm.peak_percent")))
    gpu, fitted = cluster.own_gpu, cluster.fitted
    rate = sustained_flops_per_us(gpu, fitted, dtype) * part / cluster.n_sms
    if fill_us is None:
        stored = 0.0 if hides_stores("deepgemm", gpu) else float(hbm_us(gpu, fitted, 2 * tile_rows * columns * gpu.datasheet.n_sms))
        fill_us = fitted["gemm.tile_us"] + stored
    return round((flops / rate + fill_us) * PS_PER_US)


def mean_share(tile_rows: int, rows_per_expert: float) -> F64:
    """Part of an expert's weights (or of their gradient) that a tile moves, by the rows of the tile: `[tile_rows + 1]`.

    `gemm.weight_reuse` = "tile": a tile moves all weights. "layer": a tile with r rows moves r / `rows_per_expert` of
    the weights, so an expert of mean load moves its weights once per layer, a hot expert more often, a cold one less.
    """
    if choice_str("gemm.weight_reuse") == "tile":
        return np.ones(tile_rows + 1)
    return np.minimum(1.0, np.arange(tile_rows + 1) / max(rows_per_expert, 1.0))


def tile_share(tile_rows: int, rows: I32, tiles_of_expert: I32) -> F64:
    """As `mean_share`, if memory reads an expert's weights once: its tiles run together and hit in the L2 cache.

    `rows`: rows of every tile. `tiles_of_expert`: for every tile, the number of tiles of its expert. A tile pays 1 /
    `tiles_of_expert` of the weights. Tiles of equal height pay their mean, so that the sum over all tiles is exact.
    """
    if choice_str("gemm.weight_reuse") == "tile":
        return np.ones(tile_rows + 1)
    count = np.bincount(rows, minlength=tile_rows + 1)
    parts = np.bincount(rows, weights=1 / tiles_of_expert, minlength=tile_rows + 1)
    return np.where(count > 0, parts / np.maximum(count, 1), 1.0)


def _task(compute_ps: list[int], moved: F64) -> GemmTask:
    """The Task of these costs. `compute_ps`: by rows, or one number for all rows. `moved`: memory bytes by rows."""
    return GemmTask(np.broadcast_to(np.array(compute_ps, np.int64), moved.shape), np.ceil(moved).astype(np.int64))
