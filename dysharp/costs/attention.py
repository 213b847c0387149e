"""Time of core attention on one GPU, in microseconds: a pass over many queries (flash tiles), its backward pass, and decode.

One call is `AttentionCall`. Its numbers may be arrays, which broadcast; every function returns float64. Sources of the form: FlashAttention-3
(arXiv 2407.08608): tiles of queries against blocks of keys, two products and a softmax per block that overlap; split keys when there are few tiles.
Products run at the sustained tensor rate of `operators`. The softmax of a block takes an exponential per score and the arithmetic around it.

Tiles of released kernels (queries of a tile, keys of a block):

| kernel | source |
|---|---|
| FlashAttention-3 on Hopper | Dao-AILab/flash-attention, hopper/tile_size.h (`tile_size_fwd_sm90`) and hopper/heuristics.h |
| TensorRT-LLM's fmha_v2 on Hopper | names of NVIDIA/TensorRT-LLM's kernels: fmha_v2_flash_attention_bf16_64_256_S_64_tma_ws_sm90 |
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, f64
from dysharp.costs.gemm_tiles import FP32_LANES, SMEM_BYTES
from dysharp.costs.operators import ELEMENT_BYTES, Constants, hbm_us, launch_us, light_us, overlap, sustained_flops_per_us
from dysharp.specs import Gpu

ROWS, COLUMNS = 128.0, 128.0
"""Queries of a tile and keys of a block: FlashAttention-3 section 3.3 has 128 x 128 at width 128; cuDNN and TensorRT-LLM have tiles of 128 rows."""
DECODE_ROWS = 64.0
"""Queries of a tile in decode before Blackwell, but for FlashAttention, whose tiles stay as they are.

They are the rows of the smallest matrix instruction of Hopper and Blackwell (PTX ISA, wgmma m64, tcgen05 m64).
"""
SWAPPED = 8.0, 32.0
"""Least and most queries of a tile of TensorRT-LLM's generated kernels for Blackwell, a power of two: keys are the rows of a product with few queries
(fmhaKernels.h: SwapsMmaAbForGeneration, KeepsMmaAbForGeneration)."""
CLUSTER = 16.0
"""Thread blocks of a cluster at most (the same source, CgaSmemReduction)."""
FEW, STEP, LONGEST = 16.0, 256.0, 1024.0
"""Heads of a tile of few; keys of a step, of which a part has one; keys of a part up to which more than 32 heads take such tiles (the same)."""
UNSPLIT, MARGIN = 4.0, 1.1
"""Blocks of keys that FlashAttention-3 does not split (hopper/heuristics.h); what an SM may have of an even share of all blocks
(hopper/flash_prepare_scheduler.cu)."""
MASKED_VALUES = 32 * 32 * 8 / 650
"""Keys' and values' numbers per clock and SM of masked multi-head attention: 32 warps by registers, a thread's vector of 8 numbers a wait
(TensorRT-LLM, decoderMaskedMultiheadAttentionLaunch.h, ...Template.h), 650 clocks (RRZE gpu-benches, gpu-latency, H100)."""
EXP_PER_CLOCK = 16.0
"""Exponentials per clock of an SM: FlashAttention-3 section 3.1, 3.9 TFLOPS of special functions on H100."""
DOUBLED_EXP = ("b300", "gb300")
"""GPUs with twice that rate: NVIDIA on Blackwell Ultra, "2x attention-layer acceleration", 10.7 against 5 T exponentials per second."""
TURNS = 2.0
"""Passes of a value through shared memory where it is turned: read, written."""
MISS_CLOCKS = 1000.0
"""Clocks of a load from memory (arXiv 2512.02189, Hopper)."""
TOKEN_THREADS, SM_THREADS, WARP, WAITS = 512.0, 2048.0, 32.0, 2.0
"""Threads of a block that writes a token into the cache, at most, and of an SM; waits for a head: its key, its value (vLLM csrc/cache_kernels.cu)."""
TINY = 1e-9
Direction = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """Core attention of one layer on one GPU: `batch` requests with `queries` new tokens each, after `past` cached tokens.

    | field | meaning |
    |---|---|
    | `heads`, `kv_heads` | query heads and key-value heads on this GPU |
    | `qk_dim`, `v_dim` | width of a head of queries and keys, and of values |
    | `window` | keys that a query sees at most; 0: all |
    | `causal` | a query sees the keys up to its own place; else every query sees all keys |
    | `dtype` | of the products: "bf16", "fp8" |
    | `kv_dtype` | of the keys and values in memory |
    | `latent` | the values are part of the keys and are read with them (MLA with absorbed projections) |
    | `lanes` | decode at the rate of an SM's FP32 lanes (TensorRT-LLM's XQA kernels: products of few rows) |
    | `masked` | decode with a thread block for each request and head (TensorRT-LLM's masked multi-head attention) |
    | `rows`, `columns` | queries of a tile and keys of a block |
    | `whole` | one SM goes through all keys of a tile, however few tiles there are |
    | `packed` | queries of all heads of a key-value head fill a tile (FlashAttention-3); else a tile has queries of one head; decode always packs |
    | `longest_first` | tiles with most blocks start first (FlashAttention-3, hopper/tile_scheduler.hpp; FlashAttention-4, arXiv 2603.05451) |
    """

    batch: ArrayLike
    queries: ArrayLike
    past: ArrayLike = 0
    heads: ArrayLike
    kv_heads: ArrayLike
    qk_dim: ArrayLike
    v_dim: ArrayLike
    window: ArrayLike = 0
    causal: bool = True
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    latent: bool = False
    packed: bool = False
    longest_first: bool = False
    whole: bool = False
    lanes: bool = False
    masked: bool = False
    rows: ArrayLike = ROWS
    columns: ArrayLike = COLUMNS


def pairs(call: AttentionCall) -> F64:
    """Pairs of a query and a key that the query sees, for one head and one request."""
    n, past, window = map(f64, (call.queries, call.past, call.window))
    if not call.causal:
        return np.asarray(n * (past + n))
    cap = np.where(window > 0, window, np.inf)
    growing = np.clip(cap - past, 0, n)  # queries that see all keys before them
    return np.asarray(growing * past + growing * (growing + 1) / 2 + np.where(n > growing, (n - growing) * np.minimum(cap, 1e18), 0.0))


def _product_widths(call: AttentionCall, direction: Direction) -> F64:
    """Widths of all products of a query and a key. Backward: three of keys and two of values (FlashAttention-2, arXiv 2307.08691, section 3.1)."""
    qk, v = f64(call.qk_dim), f64(call.v_dim)
    return np.asarray(3 * qk + 2 * v if direction == "backward" else qk + v)


def attention_flops(call: AttentionCall, direction: Direction = "forward") -> F64:
    """FLOPs of the products over the pairs of `pairs`."""
    return np.asarray(2 * f64(call.batch) * np.asarray(call.heads) * _product_widths(call, direction) * pairs(call))


def attention_us(gpu: Gpu, constants: Constants, call: AttentionCall, direction: Direction = "forward") -> F64:
    """Attention over many queries (training, prefill, chunks of prefill after cached tokens).

    Unless `longest_first`, tiles start in order of their places (TensorRT-LLM fmhaKernels.h, computeNumCtas; fmha_v2: FlashInfer pull request 3575;
    cuDNN's open kernels before cudnn-frontend pull request 585): a longest one starts last, when SMs have no more than what is left of theirs.
    Backward, a tile has keys, of which the first ones see most queries. A tile loads its queries before its first block and stores its outputs after
    its last block, while nothing else of the tile runs; the loads of keys and values overlap with the blocks. Behind a cache few tiles are split as
    in decode.
    """
    b, n, past, window = map(f64, (call.batch, call.queries, call.past, call.window))
    shared, height, columns = sharing(call), f64(call.rows), f64(call.columns)
    rows, own = np.ceil(n * shared / height), np.minimum(height / shared, n)  # tiles of a head, and places of queries in a tile
    whole = np.ceil((past + n) / columns)
    first = np.ceil((past + own) / columns) if call.causal else whole
    most = np.where(window > 0, np.ceil((window + own - 1) / columns) + 1, np.inf)  # a window begins and ends inside blocks
    tiles = b * f64(call.heads) / shared * rows
    parts = np.where((past > 0) & (not call.whole), _parts(gpu, tiles, np.minimum(first, most)), 1.0)
    tiles = tiles * parts
    block = _block_us(gpu, constants, call, call.rows, direction)
    tile = constants["attention.tile_us"] + hbm_us(gpu, constants, _own_bytes(call, direction)) * gpu.n_sms / tiles
    longest, shortest = (np.minimum(blocks, most) / parts * block + tile for blocks in (whole, first))
    mean, waves = _mean_blocks(rows, first, whole, most) / parts * block + tile, tiles / gpu.n_sms
    last = (np.ceil(waves) - waves) * shortest + (0.0 if call.longest_first or direction == "backward" else longest - mean)
    compute = np.maximum(longest, waves * mean + last)
    sums = np.where(parts > 1, light_us(gpu, constants), 0.0)
    return constants["attention.start_us"] + sums + overlap(compute, hbm_us(gpu, constants, _key_bytes(call, direction)), constants["sm.overlap"])


def _parts(gpu: Gpu, tiles: F64, blocks: F64) -> F64:
    """Parts of a tile's blocks of keys that different SMs take where tiles are fewer (TensorRT-LLM, fmhaKernels.h: computeNumCtas)."""
    return np.asarray(np.minimum(blocks, np.maximum(1.0, np.floor(gpu.n_sms / tiles))))


def _flash_parts(gpu: Gpu, tiles: F64, blocks: F64) -> F64:
    """The same in FlashAttention-3's decode (docs/notebook/2026-11-30-parts-and-writes-found.md)."""
    return np.where(blocks > UNSPLIT, np.ceil(blocks / np.ceil(MARGIN * tiles * blocks / gpu.n_sms)), 1.0)


def _mean_blocks(rows: F64, first: F64, last: F64, most: F64) -> F64:
    """Mean over `rows` tiles of their blocks, which grow evenly from `first` to `last`, `most` at most."""
    slope = np.where(rows > 1, (last - first) / np.maximum(rows - 1, 1), 0.0)
    free = np.clip(np.floor((np.minimum(most, last) - first) / np.maximum(slope, TINY)) + 1, 0, rows)  # tiles below `most`
    free = np.where((slope > 0) | (first > most), free, rows)
    return np.asarray((free * first + slope * free * (free - 1) / 2 + np.where(rows > free, (rows - free) * np.minimum(most, last), 0.0)) / rows)


def decode_us(gpu: Gpu, constants: Constants, call: AttentionCall) -> F64:
    """Attention of a few queries per request against a cache.

    The heads of one key-value head share tiles. With fewer tiles than SMs the blocks of a tile are split into parts, whose results a second kernel
    adds. On Blackwell a persistent kernel loads the next tile while it computes, so tiles start in half of the time; the first tile has no tile
    before it. Up to `CLUSTER` parts meet in one cluster.
    """
    if call.masked:
        return _masked_us(gpu, constants, call)
    if call.latent and not call.packed and gpu.arch == "blackwell":
        return _latent_us(gpu, constants, call)
    b, n, past, kv, window = map(f64, (call.batch, call.queries, call.past, call.kv_heads, call.window))
    persistent, queries = gpu.arch == "blackwell" and not call.packed, n * f64(call.heads) / kv
    rows = f64(call.rows if call.packed else np.clip(2 ** np.ceil(np.log2(queries)), *SWAPPED) if persistent else DECODE_ROWS)
    tiles, columns = b * kv * np.ceil(queries / rows), f64(call.columns)
    blocks = np.ceil((past + n) / columns) - np.floor(np.where(window > 0, np.maximum(past + 1 - window, 0), 0) / columns)
    parts = (_flash_parts if call.packed else _parts)(gpu, tiles, blocks)
    block = _lanes_us(gpu, call) if call.lanes else _block_us(gpu, constants, call, rows, "forward")
    start, waves = constants["attention.tile_us"] * (1.0 if call.packed else DECODE_ROWS / ROWS), np.ceil(tiles * parts / gpu.n_sms)
    compute = (waves + persistent) * start + waves * np.ceil(blocks / parts) * block + hbm_us(gpu, constants, _own_bytes(call))
    sums = np.where(parts > (CLUSTER if persistent else 1), light_us(gpu, constants), 0.0)
    return constants["attention.start_us"] + sums + overlap(compute, hbm_us(gpu, constants, _key_bytes(call)), constants["sm.overlap"])


def _latent_us(gpu: Gpu, constants: Constants, call: AttentionCall) -> F64:
    """Decode against latent keys by TensorRT-LLM's generated kernels for Blackwell, which FlashInfer has, too.

    Tiles of `FEW` heads load keys and values apart; shared memory takes each once and gives it to the tensor cores once. Else tiles have
    `DECODE_ROWS` heads, which use half of a tensor core, but in pairs of SMs from 128 heads on. A tile fills the shared memory, so the next one
    waits for its end; half of the first one's start is the kernel's. Source: fmhaKernels.h (`useSwapsMmaAbMlaGenKernel`, `computeNumCtas`).
    """
    b, n, past, heads = map(f64, (call.batch, call.queries, call.past, call.heads))
    keys, ctas = past + n, b * n * np.ceil(heads / FEW)
    few = (heads <= 2 * FEW) | ((ctas <= gpu.n_sms) & (keys <= LONGEST * _parts(gpu, ctas, np.ceil(keys / STEP))))
    tiles = np.where(few, ctas, b * n * np.ceil(heads / DECODE_ROWS))
    parts = _parts(gpu, tiles, np.ceil(keys / STEP))
    products = _block_us(gpu, constants, call, np.where(few, FEW, np.where(heads < 2 * DECODE_ROWS, ROWS, DECODE_ROWS)), "forward")
    loads = 2 * COLUMNS * ELEMENT_BYTES[call.kv_dtype] * np.add(call.qk_dim, np.where(few, call.v_dim, 0)) / (SMEM_BYTES * gpu.boost_MHz)
    tile = constants["attention.tile_us"] + np.ceil(keys / parts / COLUMNS) * np.maximum(products, loads)
    compute = np.ceil(tiles * parts / gpu.n_sms) * tile - constants["attention.tile_us"] / 2 + hbm_us(gpu, constants, _own_bytes(call))
    sums = np.where((parts > CLUSTER) | (parts > 1) & ~few, light_us(gpu, constants), 0.0)
    return constants["attention.start_us"] + sums + overlap(compute, hbm_us(gpu, constants, _key_bytes(call)), constants["sm.overlap"])


def _lanes_us(gpu: Gpu, call: AttentionCall) -> F64:
    """A block of keys against the queries of one key-value head at the rate of the FP32 lanes of an SM."""
    products = COLUMNS * np.multiply(call.queries, call.heads) * np.add(call.qk_dim, call.v_dim)
    return np.asarray(products / (np.asarray(call.kv_heads) * FP32_LANES * gpu.boost_MHz))


def _masked_us(gpu: Gpu, constants: Constants, call: AttentionCall) -> F64:
    """Decode on the FP32 lanes, one thread block for each request and head, which starts as a small kernel does: masked multi-head attention.

    A head reads the keys that it shares again (`MASKED_VALUES`). Idle SMs take parts of the keys (multi-block mode).
    """
    waves = f64(call.batch) * f64(call.heads) / gpu.n_sms
    values = waves * np.asarray(call.queries) * _visible(call) * np.add(call.qk_dim, call.v_dim)
    work = np.maximum(np.maximum(1.0, waves) * constants["attention.light_us"], values / (MASKED_VALUES * gpu.boost_MHz))
    return constants["attention.start_us"] + overlap(work, hbm_us(gpu, constants, _key_bytes(call)), constants["sm.overlap"])


def sharing(call: AttentionCall) -> F64:
    """Query heads that share a tile: the heads of one key-value head if the call is `packed`."""
    heads, kv = f64(call.heads), f64(call.kv_heads)
    return np.asarray(heads / kv if call.packed else np.ones_like(heads / kv))


def _block_us(gpu: Gpu, constants: Constants, call: AttentionCall, rows: ArrayLike, direction: Direction) -> F64:
    """A block of keys against a tile of `rows` queries on one SM. Its softmax overlaps with its products, but not in the backward pass.

    Hopper multiplies FP8 by K alone, so values are turned in the shared memory that feeds the products (FlashAttention-3, section 3.3).
    """
    scores = f64(rows) * f64(call.columns)
    rate = sustained_flops_per_us(gpu, constants, call.dtype) / gpu.n_sms
    exponentials = EXP_PER_CLOCK * (2 if gpu.name in DOUBLED_EXP else 1) * gpu.boost_MHz  # of one SM in a microsecond
    softmax = scores / (exponentials * constants["attention.softmax_part"])
    turned = TURNS * f64(call.columns) * f64(call.v_dim) / (SMEM_BYTES * gpu.boost_MHz) if (gpu.arch, call.dtype) == ("hopper", "fp8") else 0.0
    products = 2 * scores * _product_widths(call, direction) / rate + turned
    if direction == "backward":
        return np.asarray(products + softmax)
    return overlap(products, softmax, constants["sm.overlap"])


def _own_bytes(call: AttentionCall, direction: Direction = "forward") -> F64:
    """Bytes of queries, as wide as the products, and of outputs, BF16; backward also of their gradients."""
    b, n, h = map(f64, (call.batch, call.queries, call.heads))
    widths = ELEMENT_BYTES[call.dtype] * f64(call.qk_dim) + ELEMENT_BYTES["bf16"] * f64(call.v_dim)
    return np.asarray(b * n * h * widths * (2 if direction == "backward" else 1))


def _visible(call: AttentionCall) -> F64:
    """Keys of a request that its queries see."""
    n, past, window = map(f64, (call.queries, call.past, call.window))
    return np.asarray(np.where(window > 0, np.minimum(past + n, window + n - 1), past + n))


def _key_bytes(call: AttentionCall, direction: Direction = "forward") -> F64:
    """Bytes of visible keys and values, once; backward also of their gradients."""
    width = (2 if direction == "backward" else 1) * (f64(call.qk_dim) if call.latent else np.add(call.qk_dim, call.v_dim))
    return np.asarray(ELEMENT_BYTES[call.kv_dtype] * f64(call.batch) * _visible(call) * np.asarray(call.kv_heads) * width)


def cached_us(gpu: Gpu, constants: Constants, call: AttentionCall) -> F64:
    """The write of new keys and values into a paged cache that is ordered by head: a thread block for each token, a warp for each head.

    A block waits for the token's place, then for each key and value of its warps in turn (vLLM csrc/cache_kernels.cu,
    reshape_and_cache_flash_kernel, "HND layout").
    """
    batch, new, kv, width = map(f64, (call.batch, call.queries, call.kv_heads, call.qk_dim))
    tokens, threads = batch * new, np.minimum(kv * width, TOKEN_THREADS)
    waits = 1 + WAITS * np.ceil(kv / np.ceil(threads / WARP))
    waited = tokens * threads / (gpu.n_sms * SM_THREADS) * waits * MISS_CLOCKS / gpu.boost_MHz
    moved = tokens * kv * np.add(width, call.v_dim, dtype=np.float64) * (ELEMENT_BYTES["bf16"] + ELEMENT_BYTES[call.kv_dtype])
    return np.asarray(light_us(gpu, constants) + np.maximum(waited, hbm_us(gpu, constants, moved)))


def passes_us(gpu: Gpu, constants: Constants, values: ArrayLike, passes: float, element: float = 2.0, kernels: int = 1) -> F64:
    """Memory-bound kernels (norm, RoPE, activation, residual) that read and write `values` `passes` times in all."""
    return kernels * launch_us(gpu, constants) + hbm_us(gpu, constants, passes * element * f64(values))


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
FLASH_AMPERE = Tile(128, 64)
"""FlashAttention-2 at width 128 on A100 (csrc/flash_attn/src/flash_fwd_launch_template.h). Two thread blocks share an SM: products of one are beside
the softmax of the other, though Ampere's matrix instructions are synchronous."""
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
