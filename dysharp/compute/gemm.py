"""One thread-block task of a grouped GEMM: its time on the tensor cores of an SM and what it moves through memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dysharp.compute.operators import sustained_flops_per_us
from dysharp.specs import Cluster, choice_int, choice_str
from dysharp.units import PS_PER_US

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
ELEMENT_BYTES: Mapping[str, float] = {"fp4": 0.5, "fp8": 1, "bf16": 2}
ACCUMULATOR_BYTES = 4  # a weight gradient adds up in FP32
MOST_TASKS = 256  # in the gang of a weight gradient, about twice the SMs of a GPU: more of them only cost simulation


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a grouped GEMM cuts its rows and stores its weights, where it departs from the choices: `rows` of a tile; `row_step`, the rows that a
    partial tile costs are rounded up to it; `weight_bytes` of one weight with its scales in memory; `dtype` of its operands;
    `part` of the sustained rate on a real GPU.
    """

    rows: int
    row_step: int | None = None
    weight_bytes: float | None = None
    dtype: str | None = None
    part: float = 1.0


class Task(NamedTuple):
    """`[tile_rows + 1]` by the rows of a tile: ps of one task, and the bytes it takes from the memory that is shared (`Program.task_bytes`).

    On a paper cluster nothing is shared: an SM has 1/n_sms of the memory's bandwidth and `ps` is the longer of the two times (a
    static share of the bandwidth).
    """

    ps: I64
    bytes: I64


def gemm_gang(columns: int) -> int:
    """Thread-block tasks that cover one row tile of `columns` output columns."""
    return -(-columns // choice_int("gemm.tile_cols"))


def tile_task(
    cluster: Cluster,
    dtype: str,
    columns: int,
    depth: int,
    tile_rows: int,
    weight_share: F64,
    epilogue_bytes: int = 0,
    *,
    row_step: int | None = None,
    weight_bytes: float | None = None,
    part: float = 1.0,
) -> Task:
    """Of a row tile; a partial one costs the tensor cores a whole one, or its rows rounded up to `row_step` of them.

    Tensor cores run at the peak of `dtype`; memory moves the tile's share of the activations (read once per gang), of the BF16 output, of
    `epilogue_bytes` per row and of the weights: `weight_share`, `[tile_rows + 1]` by rows (`mean_share`, `tile_share`).
    `weight_bytes`: of one weight with its scales, where weights are narrower than `dtype`. `part`: of the sustained rate on a real GPU.
    """
    n_tasks, element = gemm_gang(columns), ELEMENT_BYTES[dtype]
    rows = np.arange(tile_rows + 1)
    weights = (element if weight_bytes is None else weight_bytes) * depth * columns / n_tasks * weight_share
    moved = rows * depth * element / n_tasks + rows * columns / n_tasks * 2 + weights + rows * epilogue_bytes / n_tasks
    paid = [tile_rows] if row_step is None else [min(tile_rows, -(-row // row_step) * row_step) for row in range(tile_rows + 1)]
    return _task(cluster, [_compute_ps(cluster, dtype, depth, each, part) for each in paid], moved)


def weight_grad_gang(columns: int, depth: int) -> int:
    """Thread-block tasks that cover the gradient of `columns` by `depth` weights: output tiles, neighbours in one task where they are many."""
    return gemm_gang(columns) * _tasks_down(columns, depth)


def _tasks_down(columns: int, depth: int) -> int:
    """Tasks along the depth: one per `gemm.tile_cols` of it (a tile of a gradient is square), fewer where the gang would grow too large."""
    return min(gemm_gang(depth), max(1, MOST_TASKS // gemm_gang(columns)))


def weight_grad_task(cluster: Cluster, dtype: str, columns: int, depth: int, tile_rows: int, weight_share: F64) -> Task:
    """Of a row tile's part in the gradient of `columns` by `depth` weights.

    `[columns, rows] x [rows, depth]`: the row tile is a step along the summed dimension, a partial tile costs the tensor cores a whole
    step, and the operations are those of the forward GEMM with these weights. Memory reads both operands once per gang and reads and
    writes the FP32 gradient as the forward GEMM reads its weights (`weight_share`). Same `dtype` as the forward GEMM (DeepSeek-V3, arXiv
    2412.19437 section 3.3.1: Fprop, Dgrad, Wgrad in FP8).
    """
    n_tasks = weight_grad_gang(columns, depth)
    task_depth = -(-gemm_gang(depth) * choice_int("gemm.tile_cols") // _tasks_down(columns, depth))
    rows = np.arange(tile_rows + 1)
    gradient = 2 * ACCUMULATOR_BYTES * depth * columns / n_tasks * weight_share
    moved = rows * (columns + depth) * ELEMENT_BYTES[dtype] / n_tasks + gradient
    return _task(cluster, [_compute_ps(cluster, dtype, task_depth, tile_rows)], moved)


def _compute_ps(cluster: Cluster, dtype: str, depth: int, tile_rows: int, part: float = 1.0) -> int:
    """Of `tile_rows` by `gemm.tile_cols` by `depth` multiply-adds; on a real GPU at the sustained rate, with a tile's prologue and epilogue."""
    flops = 2 * tile_rows * choice_int("gemm.tile_cols") * depth
    if not cluster.gpu:
        return -(-flops * PS_PER_US * cluster.n_sms // cluster.peak_flops_per_us(dtype))
    fitted = cluster.fitted
    rate = sustained_flops_per_us(cluster.own_gpu, fitted, dtype) * part / cluster.n_sms
    return round((flops / rate + fitted["gemm.tile_us"]) * PS_PER_US)


def mean_share(tile_rows: int, rows_per_expert: float) -> F64:
    """`[tile_rows + 1]` part of an expert's weights (or of their gradient) that a tile moves, by its rows: all of them (`gemm.weight_reuse` =
    "tile"), or once per expert of mean load and layer ("layer": a tile pays for its rows of `rows_per_expert`, so a hot expert pays more than
    one read and a cold one less).
    """
    if choice_str("gemm.weight_reuse") == "tile":
        return np.ones(tile_rows + 1)
    return np.minimum(1.0, np.arange(tile_rows + 1) / max(rows_per_expert, 1.0))


def tile_share(tile_rows: int, rows: I32, tiles_of_expert: I32) -> F64:
    """The same where every expert's weights are read once, whatever its load: its tiles run together and find them in the L2 cache.

    `rows` and `tiles_of_expert`: of every tile, how many rows it has and its expert has tiles. A tile pays for one part in as many; tiles of
    one height pay the mean over them, so that the sum over all is exact.
    """
    if choice_str("gemm.weight_reuse") == "tile":
        return np.ones(tile_rows + 1)
    count = np.bincount(rows, minlength=tile_rows + 1)
    parts = np.bincount(rows, weights=1 / tiles_of_expert, minlength=tile_rows + 1)
    return np.where(count > 0, parts / np.maximum(count, 1), 1.0)


def _task(cluster: Cluster, compute_ps: list[int], moved: F64) -> Task:
    """`compute_ps`: by rows, or one for all."""
    compute = np.broadcast_to(np.array(compute_ps, np.int64), moved.shape)
    if cluster.shared_memory_rate:
        return Task(compute, np.ceil(moved).astype(np.int64))
    share_ps = np.ceil(moved * PS_PER_US * cluster.n_sms / cluster.hbm_bytes_per_us).astype(np.int64)
    return Task(np.maximum(compute, share_ps), np.zeros_like(compute))
