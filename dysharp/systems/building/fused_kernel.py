"""The tiles of fused kernels: on a real GPU those of Mega MoE, for all that computes and communicates in one kernel."""

from __future__ import annotations

import numpy as np

from dysharp.compute import Tiling
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.formats import WEIGHT_BYTES, check, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.workload import Routing

ROWS = ("rows", "fp8", "mxfp8")
"""What Dispatch may send: the model's rows, those of DeepEP, those of Mega MoE."""
ROW_STEP = 16  # a partial tile is multiplied up to a multiple of so many rows
TILE_ROWS = ((8.5, 16), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128), (np.inf, 192))
"""Rows per expert that are expected at most -> rows of a tile: DeepGEMM's block configuration of Mega MoE."""


def tile_rows(rows_per_expert: float) -> int:
    """Rows of the kernel's tiles where an expert is expected to have `rows_per_expert`."""
    return next(rows for most, rows in TILE_ROWS if rows_per_expert <= most)


def fused_tiling(system: str, cluster: Cluster, routing: Routing, weights: str = "model", dtype: str | None = None) -> Tiling:
    """Tiles of a fused kernel with weights in the format `weights` (option of `system`); on a paper's cluster those of every system."""
    check(f"{system}.weights", weights, WEIGHT_BYTES)
    if not cluster.gpu:
        return Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights], dtype)
    high = tile_rows(routing.n_tokens * routing.topk / routing.n_experts)
    return Tiling(high, ROW_STEP, WEIGHT_BYTES[weights], dtype, cluster.fitted["fused.rate"])


def formatted_layer(
    system: str, model: Model, cluster: Cluster, routing: Routing, direction: str, *, dispatch: str, weights: str, compute: bool, one_kernel: bool
) -> LayerBuilder:
    """A layer in the formats asked for; `one_kernel`: with the tiles of a fused kernel, else a library's."""
    sent = row_bytes(f"{system}.dispatch", dispatch, ROWS, model)
    check(f"{system}.weights", weights, WEIGHT_BYTES)
    tiling = fused_tiling(system, cluster, routing, weights) if one_kernel else Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights])
    return LayerBuilder(model, cluster, routing, direction, compute=compute, sent_bytes=sent, tiling=tiling)
