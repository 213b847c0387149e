"""Whole layers in paper form that several systems share.

A GPU waits for its own rows and GEMMs only; no kernel, barrier or SM costs time.

`formatted_layer`: GEMM tiles and formats of systems that compute and communicate in one kernel. On an hw cluster these systems have the tiles of
Mega MoE.
"""

import numpy as np

from dysharp.base.arrays import I64
from dysharp.costs import Tiling
from dysharp.program import Discipline, Program
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building.between.two_hop import two_hops
from dysharp.systems.building.experts import one_after_another
from dysharp.systems.building.formats import WEIGHT_BYTES, check, row_bytes
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.facts import Moves
from dysharp.workload import Routing


def one_copy_per_gpu(layer: LayerBuilder, moves: Moves) -> Program:
    """Dispatch, one GEMM after the other, Combine.

    A token is sent once to each of its GPUs, and each GPU sends one sum back. Over several NVLink domains a token goes once to each
    remote domain, which forwards it (`between.two_hop`).
    """
    if layer.cluster.domains > 1:
        two_hops(layer)
    else:
        layer.dispatch_puts()
        finished = one_after_another(layer)
        layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)
    return layer.build(moves)


def one_copy_per_expert(layer: LayerBuilder, moves: Moves, there: I64 | None = None, back: I64 | None = None) -> Program:
    """Dispatch, one GEMM after the other, Combine. Every (token, expert) travels as a separate row in both operators.

    `there`, `back`: the useful rows in the order in which Dispatch and Combine send them (default: as in
    `dispatch_rows` and `combine_rows`).
    """
    layer.dispatch_rows(order=there)
    finished = one_after_another(layer)
    layer.wait_first(layer.combine_rows(Discipline.PROGRAM_ORDER, back), finished)
    return layer.build(moves)


ROWS = ("rows", "fp8", "mxfp8")
"""Row formats that Dispatch may send: the model's rows, DeepEP's FP8 rows, Mega MoE's FP8 rows."""
ROW_STEP = 16  # the rows of a partial tile are rounded up to a multiple of this
TILE_ROWS = ((8.5, 16), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128), (np.inf, 192))
"""(largest number of expected rows per expert, rows of a tile): block configurations of Mega MoE in DeepGEMM."""
HOPPER_STEP = 64  # rows of an operation of Hopper's tensor cores
HOPPER_ROWS = ((64.5, 64), (np.inf, 128))
"""As `TILE_ROWS`, of the kernel for Hopper (DeepGEMM csrc/jit_kernels/heuristics/sm90_mega_moe.hpp: 64 or 128 rows)."""


def tile_rows(rows_per_expert: float, arch: str = "blackwell") -> int:
    """Rows of the kernel's tiles, for experts with `rows_per_expert` expected rows."""
    heights = TILE_ROWS if arch == "blackwell" else HOPPER_ROWS
    return next(rows for most, rows in heights if rows_per_expert <= most)


def fused_tiling(system: str, cluster: Cluster, routing: Routing, weights: str = "model", dtype: str | None = None) -> Tiling:
    """Tiles of a fused kernel that reads weights in the format `weights`, an option of `system`.

    On a paper cluster every system has the same tiles.
    """
    check(f"{system}.weights", weights, WEIGHT_BYTES)
    if not cluster.gpu:
        return Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights], dtype)
    arch = cluster.own_gpu.arch
    high = tile_rows(routing.n_tokens * routing.topk / routing.n_experts, arch)
    step, fitted = ROW_STEP if arch == "blackwell" else HOPPER_STEP, cluster.fitted
    return Tiling(high, step, WEIGHT_BYTES[weights], dtype, fitted["fused.rate"], fitted["fused.tile_us"])


def formatted_layer(
    system: str, model: Model, cluster: Cluster, routing: Routing, direction: str, *, dispatch: str, weights: str, compute: bool, one_kernel: bool
) -> LayerBuilder:
    """A layer with rows in the format `dispatch` and weights in the format `weights`. Both are options of `system`.

    `one_kernel`: True: tiles of a fused kernel. False: tiles of a GEMM library.
    """
    sent = row_bytes(f"{system}.dispatch", dispatch, ROWS, model)
    check(f"{system}.weights", weights, WEIGHT_BYTES)
    tiling = fused_tiling(system, cluster, routing, weights) if one_kernel else Tiling(choice_int("gemm.tile_rows"), None, WEIGHT_BYTES[weights])
    return LayerBuilder(model, cluster, routing, direction, compute=compute, sent_bytes=sent, tiling=tiling)
