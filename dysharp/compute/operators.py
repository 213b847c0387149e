"""Time of operators on one GPU, in microseconds, from its datasheet and the fitted constants.

Every function is pure. It takes numbers or arrays, which broadcast, and returns float64 microseconds. Sizes are in
rows, columns and bytes. `constants`: `specs.fitted.fitted_values()` or a variant. Sources: NVIDIA's matrix
multiplication guide (tile and wave quantisation); DeepGEMM (one persistent block per SM, tiles of 128 rows, rows of an
expert padded to a tile).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.specs.gpu import Gpu

F64 = NDArray[np.float64]
Constants = Mapping[str, float]
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
TILE_ROWS = 128
TILES = ((64, 128), (128, 128), (128, 192), (128, 256), (256, 128), (256, 256))
"""Output tiles of GEMM libraries, rows x columns (cuBLAS, CUTLASS and DeepGEMM on Hopper and Blackwell)."""
SPLITS = (1, 2, 4, 8, 16)
"""Parts into which a library cuts the summed dimension, so that a small output fills the SMs."""
SCALE_BYTES = 4.0 / 128.0
"""Bytes of scales per value: one FP32 scale for 128 FP8 values (DeepSeek-V3, arXiv 2412.19437 section 3.3.2)."""


def arch_of(gpu: Gpu) -> str:
    """Prefix of the constants of an architecture. An architecture without measurements takes those of Hopper."""
    return "blackwell" if gpu.arch == "blackwell" else "hopper"


def hbm_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """Time in which a kernel moves `n_bytes` (reads plus writes) through HBM, without its launch."""
    return np.asarray(n_bytes, np.float64) / (1e3 * gpu.hbm_GBps * constants["hbm.fraction"])


def overlap(first: ArrayLike, second: ArrayLike, power: float) -> F64:
    """The time of a pipeline with two costs: their sum for `power` 1, their maximum for a large `power`."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    large = np.maximum(np.maximum(a, b), 1e-300)
    return np.asarray(large * ((a / large) ** power + (b / large) ** power) ** (1 / power))


def launch_us(gpu: Gpu, constants: Constants) -> float:
    """Start and drain of one kernel on the device, without the host: prologue, first loads, last stores."""
    return constants["gpu.kernel_us"]


def sustained_flops_per_us(gpu: Gpu, constants: Constants, dtype: str) -> float:
    """Dense tensor rate of the whole GPU under load: the datasheet peak times the sustained part."""
    kind = "fp8" if dtype == "fp4" else dtype
    return 1e6 * gpu.peak_TFLOPS(dtype) * constants[f"{arch_of(gpu)}.{kind}_sustained"]


def memory_kernel_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """A memory-bound kernel (permute, quantise, activation, reduce): one launch, and `n_bytes` through HBM."""
    return launch_us(gpu, constants) + hbm_us(gpu, constants, n_bytes)


def gemm_us(
    gpu: Gpu, constants: Constants, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, rowwise: bool = False
) -> F64:
    """Dense GEMM `[m, k] x [k, n]` in a CUDA graph: start, then tensor cores (whole waves) overlapped with HBM.

    The library takes the fastest of `TILES` and `SPLITS`. A split writes and reads FP32 partial sums. `rowwise`:
    CUTLASS templates of FP8 with one scale per row, without split-K.
    """
    m, n, k = (np.asarray(x, np.float64) for x in (m, n, k))
    element = ELEMENT_BYTES[dtype]
    moved = element * (m * k + n * k) + 2.0 * m * n
    part = constants["gemm.rowwise_part"] if rowwise else 1.0
    per_sm = part * sustained_flops_per_us(gpu, constants, dtype) / gpu.n_sms
    best = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape), np.inf)
    for rows, columns in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        for split in (1,) if rowwise else SPLITS:
            waves = np.ceil(tiles * split / gpu.n_sms)
            compute = waves * 2 * rows * columns * (k / split) / (per_sm * _tile_rate(rows, columns))
            compute = compute + waves * constants["gemm.tile_us"]
            memory = hbm_us(gpu, constants, moved + (8.0 * split * m * n if split > 1 else 0.0))
            best = np.minimum(best, overlap(compute, memory, constants["sm.overlap"]))
    return launch_us(gpu, constants) + best


def _tile_rate(rows: int, columns: int) -> float:
    """Part of the tensor rate that shared memory can feed. Smaller tiles load more per multiply-add (256 x 128: 1)."""
    return min(1.0, (rows * columns / (rows + columns)) / (128 * 256 / (128 + 256)))


def grouped_gemm_us(gpu: Gpu, constants: Constants, rows: ArrayLike, groups: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str) -> F64:
    """Grouped GEMM: `groups` experts with `rows` rows (padded to tiles of `TILE_ROWS`) and weights `[n, k]` each."""
    rows, groups, n, k = (np.asarray(x, np.float64) for x in (rows, groups, n, k))
    element = ELEMENT_BYTES[dtype]
    per_sm = sustained_flops_per_us(gpu, constants, dtype) / gpu.n_sms
    moved = groups * (element * (rows * k + n * k) + 2.0 * rows * n)
    compute = np.full(np.broadcast_shapes(rows.shape, groups.shape, n.shape, k.shape), np.inf)
    for columns in (64, 128, 192, 256):
        tiles = groups * np.ceil(rows / TILE_ROWS) * np.ceil(n / columns)
        waves = np.ceil(tiles / gpu.n_sms)
        each = 2 * TILE_ROWS * columns * k / (per_sm * _tile_rate(TILE_ROWS, columns)) + constants["gemm.tile_us"]
        compute = np.minimum(compute, waves * each)
    return launch_us(gpu, constants) + overlap(compute, hbm_us(gpu, constants, moved), constants["sm.overlap"])
