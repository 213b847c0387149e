"""Output tiles that GEMM libraries choose, and how fast shared memory feeds the tensor cores of an SM.

A tile is the part of the output that one SM computes at a time. On Blackwell two SMs compute a pair of tiles together.

| library | rule | source |
|---|---|---|
| "cublas" | the fastest tile, with a split that fills the SMs or none | NVIDIA, Matrix Multiplication Background (DU-09799), 2.3 |
| "cutlass-untuned" | one | TensorRT-LLM thop/fp4Gemm.cpp: getDefaultGemmConfig |
| "cutlass" | by rows and columns, no split | vLLM csrc/quantization/w8a8/cutlass/c3x: scaled_mm_sm90_fp8_dispatch.cuh, _sm100_ |
| "marlin" | the fastest tile, all with the instruction of Ampere | vLLM csrc/quantization/marlin/marlin.cu: thread_config_t; fused_marlin_moe.py |
| "trtllm-gen" | as low as an expert's rows | FlashInfer csrc/trtllm_fused_moe_kernel_launcher.cu: computeSelectedTileN |
| "trtllm-gen-blocks" | the same up to 64, of FP8 with FP32 scales of blocks | vLLM flashinfer_utils.py: calculate_tile_tokens_dim; kernels "dsFp8" |
| "deepgemm" | fewest waves, then the fullest last wave | DeepGEMM get_best_configs (jit_kernels/gemm.py), heuristics/sm100.hpp |
| "ck" | the fastest tile; steps along the summed dimension wait for memory | ROCm/aiter a8w8_blockscale_tuned_gemm.csv (304 units) |
| "aiter-triton" | the same for shapes with an entry | aiter's Triton kernel: vLLM _aiter_ops.py, is_triton_gemm_w8a8_tuned |
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dysharp.base import F64, Numbers, entry_of
from dysharp.specs import Gpu

GUIDE_TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Typical tiles of cuBLAS, rows x columns."""
ALIGNMENT = 128
"""Rows to which DeepGEMM's contiguous layout pads an expert; also the rows of its tiles there."""
SMEM_BYTES = 128.0
"""Bytes per clock that an SM writes to, or reads from, its shared memory (NVIDIA Hopper tuning guide)."""

BF16_PER_CLOCK = {"ampere": 2048.0, "ada": 1024.0, "hopper": 4096.0, "blackwell": 8192.0, "cdna3": 2048.0, "cdna4": 4096.0}
"""Dense BF16 operations per clock of an SM's tensor cores: white papers of A100 and H100; B200: twice Hopper's; Ada: datasheet of L40S.

CDNA: of a compute unit's matrix cores, from the datasheets' peak rates, units and clocks.
"""
MARLIN_TILES = tuple((rows, columns) for rows in (8, 16, 32, 48, 64) for columns in (64, 128, 256))
WIDENED = 2 / 64
"""Clocks in which registers widen a weight: two instructions on 64 lanes (vLLM csrc/quantization/marlin/dequant.h with scales: 7 for
four INT4, 9 for four FP4; CUDA programming guide: 64 logical operations per clock)."""
FP32_LANES = 128
"""FP32 operations per clock of an SM (NVIDIA Hopper architecture white paper)."""
SUMMED = 128
"""Products per scale."""
UNTUNED = (128.0, 256.0)
"""TensorRT-LLM's tile of FP4 on Blackwell where no tuner ran (thop/fp4Gemm.cpp, getDefaultGemmConfig): its sums and scales fill the tensor memory."""
CK_TILES = ((16.0, 64.0, 0.55 / 256), (64.0, 64.0, 0.83 / 256), (128.0, 128.0, 1.67 / 128))
"""Composable Kernel's block-scaled FP8 on CDNA 3: rows, columns, microseconds of a tile for one of the summed dimension (aiter@118ba06: K 7168 takes
18.4 us and K 512 4.1 us whatever the columns, 26.1 us with 256 rows, 1496 us with 16384 x 4608)."""
TRITON_SHAPES = ((512, 7168), (1024, 8192), (3072, 1536), (4096, 7168), (4608, 7168), (7168, 256), (7168, 2048), (8192, 1024), (8192, 32768),
                 (32768, 8192))  # fmt: skip
"""Columns and summed dimensions with an entry in aiter's Triton kernel on CDNA 3; 2112 x 7168 came later (aiter PR #1930)."""
NO_ENTRY_US = 128.8 / 7168
"""The same without an entry (aiter PR #1232: 2112 x 7168 takes 129, 127 and 117 us with 64, 128 and 256 rows)."""
SPLIT_ROWS, PART = 32, 512
"""Rows up to which entries split the summed dimension, and a part of it (aiter's MI300X-GEMM-A8W8_BLOCKSCALE-N=7168-K=2048.json and others). Without
a split all shapes take the time of those without an entry: 123, 30, 34 us for 7168, 1536, 2048 (InferenceX issue #863, 64 rows on MI325X)."""
FULL_ROWS, HALF = 128, 0.5
"""Rows of a product that fill a tensor core of Blackwell, and the part that fewer rows use (PTX ISA, tcgen05.mma: M 64 and 128 of one SM)."""


class _Tiles(NamedTuple):
    """A choice for each of many GEMMs, `[...]`, or several of each, `[tiles, ...]`: rows and columns of a tile, parts of the summed dimension, used
    part of a tensor core; least microseconds of a tile for one of the summed dimension."""

    rows: F64
    columns: F64
    split: F64 | float = 1.0
    core: F64 | float = 1.0
    step_us: F64 | float = 0.0


class Problem(NamedTuple):
    """`groups` GEMMs `[m, k] x [k, n]`, arrays of one shape."""

    m: F64
    n: F64
    k: F64
    groups: F64


def tiles_of(library: str, gpu: Gpu, problem: Problem) -> list[_Tiles]:
    """The tiles among which `library` takes the fastest. Raises ConfigError for an unknown library."""
    return list(entry_of(library, LIBRARIES, f"GEMM library {library!r}: unknown")(gpu, problem))


def hides_stores(library: str, gpu: Gpu) -> bool:
    """Whether an SM stores a tile while its tensor cores work on the next tile.

    Blackwell's sums lie in tensor memory, which holds two tiles, but not of `UNTUNED`. On Hopper sums lie in registers; vLLM's CUTLASS kernels
    ("ping-pong") have two groups of warps that take turns, DeepGEMM's and cuBLAS's large tiles have one.
    """
    return library == "cutlass" or _paired(library, gpu)


def _paired(library: str, gpu: Gpu) -> bool:
    """Whether two SMs compute a pair of tiles together. A tile of `UNTUNED` has one (ClusterShape_1x1x1)."""
    return gpu.arch == "blackwell" and library != "cutlass-untuned"


def promoted(library: str, gpu: Gpu, dtype: str, peak_flops_per_us: float) -> float:
    """Part of the tensor peak that a kernel reaches beside the scaling of its sums.

    DeepGEMM on Hopper adds the tensor cores' FP8 sums of 128 products to FP32 sums, with one operation per sum on the
    FP32 lanes of the SM, while the tensor cores wait (DeepGEMM README, "FP8 two-level accumulation"; 0.8 on an H800,
    whose best measured rate is 1550 of 1979 TFLOPS). Blackwell's tensor cores apply scales themselves, but no FP32 scales (`_blocks`).
    """
    if dtype != "fp8" or not library.startswith("trtllm-gen-blocks" if gpu.arch == "blackwell" else "deepgemm"):
        return 1.0
    per_clock = peak_flops_per_us / (2 * gpu.n_sms * gpu.boost_MHz)
    return 1 / (1 + per_clock / (FP32_LANES * SUMMED))


def feed(gpu: Gpu, library: str, dtype_bytes: float, peak_flops_per_us: float, rows: F64, columns: F64) -> F64:
    """Part of the tensor peak that shared memory sustains for a tile.

    Both operands are written once and read once. Each SM of a pair holds half of the second operand.
    """
    clocks = rows * columns / (peak_flops_per_us / (2 * gpu.n_sms * gpu.boost_MHz))
    shared = columns / 2 if _paired(library, gpu) else columns
    return np.minimum(1.0, clocks / (2 * (rows + shared) * dtype_bytes / SMEM_BYTES))


def _marlin(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    """Weights narrower than products, which registers widen, with `mma`, which every GPU since Ampere has. An H20's SM has a quarter of Hopper's
    tensor rate, which its lanes do not wait for."""
    sheet, whole = gpu.datasheet, BF16_PER_CLOCK[gpu.arch]
    own = whole / max(1, round(whole * sheet.n_sms * sheet.boost_MHz / 1e6 / sheet.bf16_TFLOPS))
    used = min(BF16_PER_CLOCK["ampere"], own)
    yield from _split(gpu, p, MARLIN_TILES, [used / own * rows / (rows + WIDENED * used / 2) for rows, _ in MARLIN_TILES])


def _cublas(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    yield from _split(gpu, p, GUIDE_TILES, [HALF if gpu.arch == "blackwell" and rows < FULL_ROWS else 1.0 for rows, _ in GUIDE_TILES])


def _split(gpu: Gpu, p: Problem, sides: tuple[tuple[int, int], ...], cores: list[float]) -> Iterator[_Tiles]:
    """All tiles `[sides, ...]` without a split, and with as many parts as fill the SMs once."""
    high, wide, core = np.array([*zip(*sides, strict=True), cores]).reshape(3, -1, *[1] * p.m.ndim)
    tiles = p.groups * np.ceil(p.m / high) * np.ceil(p.n / wide)
    yield _Tiles(high, wide, core=core)
    yield _Tiles(high, wide, np.maximum(1.0, gpu.n_sms // tiles), core)


def _cutlass(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    """On Blackwell two SMs share a tile of 256 rows, or one of 128 rows up to 256 rows of input. Up to 64 rows the operands are swapped."""
    if gpu.arch == "blackwell":
        rows, plain = np.select([p.m <= 16, p.m <= 256], [32.0, 64.0], 128.0), (p.m == 64) & (p.k < 4096)
        yield _Tiles(rows, np.where(plain, 64.0, 128.0), core=np.where((p.m > 64) & (p.m <= 256) | plain, HALF, 1.0))
    else:
        narrow = p.n <= 1280
        rows = np.select([p.m <= 16, p.m <= 64, p.m <= 128], [16.0, np.where(narrow, 16.0, 64.0), 64.0], 128.0)
        yield _Tiles(rows, np.where(p.m <= 64, 64.0, 128.0))


def _trtllm_gen(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    yield _Tiles(np.clip(2 ** np.ceil(np.log2(np.maximum(p.m, 1.0))), 8.0, 128.0), np.full_like(p.m, 128.0))


def _blocks(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    """An instruction has 64 of the 128 weights of a tile, so shared memory writes the rows once and reads them twice (kernels of TensorRT-LLM:
    t128x64x128_m64x64x32_cga1x1x1_dsFp8)."""
    rows = np.clip(2 ** np.ceil(np.log2(np.maximum(p.m, 1.0))), 8.0, 64.0)
    fed = rows * 128 / BF16_PER_CLOCK[gpu.arch] / ((2 * 128 + 3 * rows) / SMEM_BYTES)
    yield _Tiles(rows, np.full_like(rows, 128.0), core=np.minimum(HALF, fed))


def _ck(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    for rows, columns, step_us in CK_TILES:
        yield _Tiles(np.full_like(p.m, rows), np.full_like(p.m, columns), step_us=step_us)


def _aiter_triton(gpu: Gpu, p: Problem) -> Iterator[_Tiles]:
    entry = np.any([(p.n == n) & (p.k == k) for n, k in TRITON_SHAPES], axis=0)
    split = np.where(entry & (p.m <= SPLIT_ROWS), np.ceil(p.k / PART), 1.0)
    for tiles in _ck(gpu, p):
        waves = np.ceil(p.groups * np.ceil(p.m / tiles.rows) * np.ceil(p.n / tiles.columns) / gpu.n_sms)
        yield tiles._replace(split=split, step_us=np.where(entry, np.maximum(tiles.step_us * (split == 1), NO_ENTRY_US / waves / split), NO_ENTRY_US))


def _deepgemm(gpu: Gpu, p: Problem, layout: str = "dense") -> Iterator[_Tiles]:
    choose = _blackwell_block if gpu.arch == "blackwell" else _hopper_block
    blocks = [choose(gpu.n_sms, layout, *(int(np.ceil(x)) for x in one)) for one in zip(*(np.ravel(x) for x in p), strict=True)]
    rows, columns = (np.array(side, np.float64).reshape(p.m.shape) for side in zip(*blocks, strict=True))
    yield _Tiles(rows, columns)


LIBRARIES: dict[str, Callable[[Gpu, Problem], Iterable[_Tiles]]] = {
    "cublas": _cublas,
    "cutlass": _cutlass,
    "cutlass-untuned": lambda gpu, p: [_Tiles(*(np.full_like(p.m, side) for side in UNTUNED))],
    "marlin": _marlin,
    "trtllm-gen": _trtllm_gen,
    "trtllm-gen-blocks": _blocks,
    "ck": _ck,
    "aiter-triton": _aiter_triton,
    "deepgemm": _deepgemm,
    "deepgemm-contiguous": functools.partial(_deepgemm, layout="contiguous"),
    "deepgemm-masked": functools.partial(_deepgemm, layout="masked"),
}
"""Name of a library, with the layout of DeepGEMM's grouped kernels -> its choice of tiles."""


def _last(blocks: int, n_sms: int) -> int:
    """Tiles of the last wave."""
    return blocks % n_sms or n_sms


@functools.lru_cache(maxsize=4096)
def _hopper_block(n_sms: int, layout: str, m: int, n: int, k: int, groups: int) -> tuple[int, int]:
    """DeepGEMM on SM90. Among equals: narrower tiles of the same rows, lower tiles of the same columns, else wider."""
    best, best_key = (0, 0), (0, 0)
    for rows in (ALIGNMENT,) if layout == "contiguous" else (64, 128, 256):
        for columns in (*range(16, 129, 8), 144, 160):
            if rows > 128 and columns > 128:
                continue
            blocks = -(-m // rows) * -(-n // columns) * groups
            key = (-(-blocks // n_sms), -_last(blocks, n_sms))
            same_rows, same_columns = rows == best[0], columns == best[1]
            tie = (columns < best[1]) if same_rows else (same_columns and rows < best[0]) or columns > best[1]
            if best == (0, 0) or key < best_key or (key == best_key and tie):
                best, best_key = (rows, columns), key
    return best


@functools.lru_cache(maxsize=4096)
def _blackwell_block(n_sms: int, layout: str, m: int, n: int, k: int, groups: int) -> tuple[int, int]:
    """DeepGEMM on SM100: one wave, else pairs of SMs, then fewest waves, fullest last wave, smallest sides."""
    if layout != "dense":
        return ALIGNMENT, 128
    lowest = 32 if m <= 32 else 64 if m <= 64 else 128
    candidates = [(lowest, columns, 2 - paired, 1) for columns in (16, *range(32, 257, 32)) for paired in (0, 1)]
    candidates += [(rows, 128, 1, 2 - paired) for rows in range(16, 257, 16) for paired in (0, 1)]

    def key(block: tuple[int, int, int, int]) -> Numbers:
        rows, columns, down, across = block
        blocks = -(-m // rows) * -(-n // columns) * groups
        waves = -(-blocks // n_sms)
        return (waves > 1, 2 - down * across, waves, -_last(blocks, n_sms), rows + columns, rows * columns)

    legal = [b for b in candidates if -(-m // b[0]) % b[2] == 0 and -(-n // b[1]) % b[3] == 0 and n_sms % (b[2] * b[3]) == 0]
    return min(legal, key=key)[:2]
