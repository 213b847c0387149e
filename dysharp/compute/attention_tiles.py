"""Tiles of released attention kernels: queries of a tile, and keys of a block.

| kernel | source |
|---|---|
| FlashAttention-3 on Hopper | Dao-AILab/flash-attention, hopper/tile_size.h (`tile_size_fwd_sm90`) and hopper/heuristics.h |
| TensorRT-LLM's fmha_v2 on Hopper | names of NVIDIA/TensorRT-LLM's kernels: fmha_v2_flash_attention_bf16_64_256_S_64_tma_ws_sm90 |
"""

from typing import NamedTuple

ONE_GROUP = 64.0
"""Queries that one group of warps takes."""


class Tile(NamedTuple):
    """`rows` queries against blocks of `columns` keys."""

    rows: float
    columns: float


FLASH = {
    "bf16": ((64, Tile(192, 128), Tile(192, 160)), (96, Tile(192, 144), Tile(192, 128)), (128, Tile(128, 128), Tile(128, 128)),
             (192, Tile(128, 112), Tile(128, 96)), (256, Tile(128, 80), Tile(128, 64))),
    "fp8": ((64, Tile(192, 160), Tile(192, 160)), (96, Tile(192, 128), Tile(192, 128)), (128, Tile(128, 224), Tile(128, 224)),
            (192, Tile(128, 160), Tile(128, 160)), (256, Tile(128, 128), Tile(128, 64))),
}  # fmt: skip
"""Type of keys -> (largest width of a head, causal tile, tile with a window)."""
ALONE = {
    ("bf16", 64): Tile(ONE_GROUP, 192),
    ("bf16", 128): Tile(ONE_GROUP, 128),
    ("fp8", 64): Tile(ONE_GROUP, 128),
    ("fp8", 128): Tile(ONE_GROUP, 96),
}
"""Type of keys and width -> the tile where one group of warps takes all queries."""
UNMASKED = {("bf16", 64): Tile(192, 192), ("bf16", 128): Tile(128, 176)}
"""The same, where every query sees every key."""
LATENT = Tile(ONE_GROUP, 64)
"""The absorbed form of MLA."""


def flash_tile(width: float, dtype: str, queries: float, *, window: bool = False, causal: bool = True) -> Tile:
    """FlashAttention-3's tile for heads of `width`. `queries`: of all heads that share keys. `dtype`: of the keys in memory."""
    limit, plain, windowed = next((row for row in FLASH[dtype] if width <= row[0]), FLASH[dtype][-1])
    found = windowed if window else plain if causal else UNMASKED.get((dtype, limit), plain)
    return ALONE.get((dtype, limit), found) if queries <= ONE_GROUP else found


def fmha_tile(width: float, dtype: str) -> Tile:
    """TensorRT-LLM's tile before Blackwell for heads of `width`: 64 queries for each of two groups of warps."""
    if dtype == "fp8":
        return Tile(ONE_GROUP, 256.0 if width <= 128 else 128.0)
    return Tile(ONE_GROUP, 256.0 if width <= 64 else 128.0 if width <= 128 else 64.0)
