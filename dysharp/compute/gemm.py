"""Time of one thread-block task of a grouped GEMM: tensor cores or memory, whichever is slower, at a static share per SM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dysharp.specs import Cluster, choice_int, choice_str

ELEMENT_BYTES = {"fp8": 1, "bf16": 2}


def gemm_gang(columns: int) -> int:
    """Thread-block tasks that cover one row tile of `columns` output columns."""
    return -(-columns // choice_int("gemm.tile_cols"))


def tile_task_ps(
    cluster: Cluster, dtype: str, columns: int, depth: int, tile_rows: int, rows_per_expert: float
) -> NDArray[np.int64]:
    """`[tile_rows + 1]` ps of one task of a row tile by its rows; a partial tile costs the tensor cores a whole one.

    Tensor cores run at the peak of `dtype`; memory moves the tile's share of the activations (read once per gang), of the BF16 output
    and of the weights: all of them per tile (`gemm.weight_reuse` = "tile") or once per expert of mean load and layer ("layer": a tile
    pays for its rows of `rows_per_expert`, so a hot expert pays more than one read and a cold one less). An SM has 1/n_sms of both
    (spec/dysharp.md section 10.2; design section 4, static share).
    """
    tile_cols = choice_int("gemm.tile_cols")
    n_tasks = gemm_gang(columns)
    element = ELEMENT_BYTES[dtype]
    flops = 2 * tile_rows * tile_cols * depth
    compute_ps = -(-flops * 1_000_000 * cluster.n_sms // cluster.peak_flops_per_us(dtype))
    rows = np.arange(tile_rows + 1)
    share = 1.0 if choice_str("gemm.weight_reuse") == "tile" else np.minimum(1.0, rows / max(rows_per_expert, 1.0))
    weights = element * depth * columns / n_tasks * share
    moved = rows * depth * element / n_tasks + rows * columns / n_tasks * 2 + weights
    memory_ps = np.ceil(moved * 1_000_000 * cluster.n_sms / cluster.hbm_bytes_per_us).astype(np.int64)
    return np.maximum(compute_ps, memory_ps)
