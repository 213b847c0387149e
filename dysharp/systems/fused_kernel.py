"""Row and weight formats, and the tiles of fused kernels: on a real GPU those of Mega MoE, for all that computes and communicates in one kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dysharp.compute import Tiling
from dysharp.errors import ConfigError
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.deepep import fp8_row_bytes
from dysharp.systems.layer import Layer
from dysharp.workload import Routing

MX_BLOCK = 32  # values that share an 8-bit scale (OCP MX)
NV_BLOCK = 16  # values that share one in NVFP4
WEIGHTS: Mapping[str, float | None] = {"model": None, "fp4": 0.5 + 1 / MX_BLOCK, "mxfp8": 1 + 1 / MX_BLOCK, "nvfp4": 0.5 + 1 / NV_BLOCK}
"""Bytes of a weight with its part of a scale; None: those of the GEMMs' type."""
ROW_STEP = 16  # a partial tile is multiplied up to a multiple of so many rows
TILE_ROWS = ((8.5, 16), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128), (np.inf, 192))
"""Rows per expert that are expected at most -> rows of a tile: DeepGEMM's block configuration of Mega MoE."""


def mxfp8_row_bytes(hidden: int) -> int:
    """A token in FP8 with an 8-bit scale per 32 elements."""
    return hidden + -(-hidden // MX_BLOCK)


def nvfp4_row_bytes(hidden: int) -> int:
    """A token in FP4 with an 8-bit scale per 16 elements."""
    return -(-hidden // 2) + -(-hidden // NV_BLOCK)


def tile_rows(rows_per_expert: float) -> int:
    """Rows of the kernel's tiles where an expert is expected to have `rows_per_expert`."""
    return next(rows for most, rows in TILE_ROWS if rows_per_expert <= most)


def check_word(where: str, found: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError unless `found` is one of `known`."""
    if found not in known:
        raise ConfigError(f"{where}: found {found!r}, expected {' or '.join(known)}")


def fused_tiling(cluster: Cluster, routing: Routing, weights: str = "model", dtype: str | None = None) -> Tiling:
    """Tiles of a fused kernel with weights in the format `weights`; on a paper's cluster those of every system."""
    if not cluster.gpu:
        return Tiling(choice_int("gemm.tile_rows"), None, WEIGHTS[weights], dtype)
    high = tile_rows(routing.n_tokens * routing.topk / routing.n_experts)
    return Tiling(high, ROW_STEP, WEIGHTS[weights], dtype, cluster.fitted["fused.rate"])


def formatted_layer(
    system: str, model: Model, cluster: Cluster, routing: Routing, direction: str, *, dispatch: str, weights: str, compute: bool, one_kernel: bool
) -> Layer:
    """A layer in the formats asked for. `dispatch`: "rows" sends the model's, "fp8" those of DeepEP, "mxfp8" those of Mega MoE; `one_kernel`: with
    the tiles of a fused kernel, else a library's.
    """
    sizes = {"rows": model.row_bytes, "fp8": fp8_row_bytes(model.hidden), "mxfp8": mxfp8_row_bytes(model.hidden)}
    check_word(f"{system}.dispatch", dispatch, tuple(sizes))
    check_word(f"{system}.weights", weights, tuple(WEIGHTS))
    tiling = fused_tiling(cluster, routing, weights) if one_kernel else Tiling(choice_int("gemm.tile_rows"), None, WEIGHTS[weights])
    return Layer(model, cluster, routing, direction, compute=compute, sent_bytes=sizes[dispatch], tiling=tiling)
