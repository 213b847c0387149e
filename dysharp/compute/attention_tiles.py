"""Tiles of released attention kernels: queries of a tile, and keys of a block.

| kernel | source |
|---|---|
| FlashAttention-3 on Hopper | Dao-AILab/flash-attention, hopper/tile_size.h (`tile_size_fwd_sm90`) and hopper/heuristics.h |
| TensorRT-LLM's fmha_v2 on Hopper | NVIDIA/TensorRT-LLM, cpp/kernels/fmha_v2/setup.py (warp-specialised kernels) |
"""

from typing import NamedTuple

ONE_GROUP = 64.0
"""Queries that one group of warps takes."""


class Tile(NamedTuple):
    """`rows` queries against blocks of `columns` keys."""

    rows: float
    columns: float


def flash_tile(width: float, dtype: str, queries: float, *, window: bool = False, causal: bool = True, latent: bool = False) -> Tile:
    """FlashAttention-3's tile for heads of `width`. `queries`: of all heads that share keys. `latent`: the absorbed form of MLA."""
    if latent:
        return Tile(ONE_GROUP, 64.0)
    alone = queries <= ONE_GROUP
    if dtype == "fp8":
        if alone and width in (64, 128):
            return Tile(ONE_GROUP, 128.0 if width == 64 else 96.0)
        if width <= 96:
            return Tile(192.0, 160.0 if width <= 64 else 128.0)
        return Tile(128.0, 224.0 if width <= 128 else 160.0 if width <= 192 else 64.0 if window else 128.0)
    if width <= 64:
        return Tile(ONE_GROUP, 192.0) if alone else Tile(192.0, 160.0 if window else 128.0 if causal else 192.0)
    if width <= 96:
        return Tile(192.0, 128.0 if window else 144.0)
    if width <= 128:
        return Tile(ONE_GROUP if alone else 128.0, 128.0 if causal else 176.0)
    if width <= 192:
        return Tile(128.0, 96.0 if window else 112.0)
    return Tile(128.0, 64.0 if window else 80.0)


def fmha_tile(width: float, dtype: str) -> Tile:
    """TensorRT-LLM's tile before Blackwell for heads of `width`: 64 queries for each of two groups of warps."""
    if dtype == "fp8":
        return Tile(ONE_GROUP, 256.0 if width <= 128 else 128.0)
    return Tile(ONE_GROUP, 256.0 if width <= 64 else 128.0 if width <= 128 else 64.0)
