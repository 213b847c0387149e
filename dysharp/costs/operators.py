"""Time of operators on one GPU, in microseconds, from its datasheet and the fitted constants.

Every function is pure. It takes numbers or arrays, which broadcast, and returns float64 microseconds. Sizes are in
rows, columns and bytes. `constants`: `specs.fitted.fitted_values()` or a variant. Source of tile and wave quantisation:
NVIDIA's matrix multiplication guide. `gemm_tiles` has the tiles.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, f64
from dysharp.costs.gemm_tiles import BF16_PER_CLOCK, FP32_LANES, Problem, feed, hides_stores, promoted, tiles_of
from dysharp.model.formats import FORMATS
from dysharp.specs import Gpu, load_gpu

Constants = Mapping[str, float]
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": FORMATS["nvfp4"].weight_bytes}
"""Bytes of a value. 16 values of NVFP4 share a scale of a byte, which goes through shared memory with them (PTX ISA, tcgen05.mma, scale_vec::4X)."""
CAST_BYTES = 2.0 + 1.0
"""Bytes that a cast of one value moves: it reads BF16 and writes FP8."""
SCALE_BYTES = 4.0 / 128.0
"""Bytes of scales per value: one FP32 scale for 128 FP8 values (DeepSeek-V3, arXiv 2412.19437 section 3.3.2)."""


def arch_of(gpu: Gpu) -> str:
    """Prefix of the constants of an architecture. An architecture without measurements takes the constants of Hopper."""
    return "blackwell" if gpu.arch == "blackwell" else "hopper"


def hbm_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """Time in which a kernel moves `n_bytes` (reads plus writes) through HBM, without its launch."""
    return f64(n_bytes) / (1e3 * gpu.hbm_GBps * constants["hbm.fraction"])


def overlap(first: ArrayLike, second: ArrayLike, power: float) -> F64:
    """The time of a pipeline with two costs: their sum for `power` 1, their maximum for a large `power`."""
    a, b = f64(first), f64(second)
    large = np.maximum(np.maximum(a, b), 1e-300)
    return np.asarray(large * ((a / large) ** power + (b / large) ** power) ** (1 / power))


def launch_us(gpu: Gpu, constants: Constants) -> float:
    """Start and drain of one kernel on the device, without the host: prologue, first loads, last stores."""
    return constants["gpu.kernel_us"]


def light_us(gpu: Gpu, constants: Constants) -> float:
    """Start and drain of a kernel without products: a cast, a copy, RoPE, a sum of partial results. As long as any on two dies (Blackwell)."""
    return constants["gpu.kernel_us" if gpu.arch == "blackwell" else "attention.light_us"]


def sustained_flops_per_us(gpu: Gpu, constants: Constants, dtype: str) -> float:
    """Dense tensor rate of the whole GPU under load: what its power sustains, at most the datasheet peak.

    Power sustains a part of the rate that all tensor cores have at the boost clock. An H20's datasheet peak is below this rate.
    """
    kind = "fp8" if dtype == "fp4" else dtype
    peak = gpu.peak_TFLOPS(dtype)
    sheet = gpu.datasheet  # a changed rate of one type says nothing about the clock of another
    at_boost = max(peak, peak * sheet.n_sms * _clock_MHz(sheet) * BF16_PER_CLOCK[sheet.arch] / 1e6 / sheet.bf16_TFLOPS)
    return 1e6 * min(peak, at_boost * constants[f"{arch_of(gpu)}.{kind}_sustained"])


def _clock_MHz(sheet: Gpu) -> float:
    """The boost clock, or what a known power makes of B200's: C V^2 f with V as f, so that the power of an SM goes as the cube of its clock."""
    fitted = load_gpu("b200")
    return fitted.boost_MHz * (sheet.power_W / fitted.power_W * fitted.n_sms / sheet.n_sms) ** (1 / 3) if sheet.power_W else sheet.boost_MHz


KEPT = {"hopper.bf16": 701 / 797, "hopper.fp8": 701 / 797, "blackwell.fp8": 1.0}
"""Part of its benchmark rate that a GEMM keeps in long runs. Hopper: 701 TFLOPS at large M (DeepGEMM's table of BF16) over what
`hopper.bf16_sustained` gives an H100, for FP8 too. Blackwell FP8: rates of benchmarks are 0.53 of the peak already, and no row of long FP8 GEMMs is
known; chosen with measured steps in sight. Blackwell BF16 is fitted: `attention.steady_part`."""


def kept_part(gpu: Gpu, constants: Constants, dtype: str, library: str) -> float:
    """Part of the sustained rate that power leaves a GEMM in a run of hours, as training and serving are.

    Published rates of AMD's GPUs are those of long runs. DeepGEMM's FP8 on Hopper adds sums on the FP32 lanes too (`gemm_tiles.promoted`), so power
    leaves it no more than Blackwell's BF16: chosen with served rows and SGLang's table of operators in sight.
    """
    if gpu.arch.startswith("cdna"):
        return 1.0
    kind = f"{arch_of(gpu)}.{'fp8' if dtype == 'fp4' else dtype}"
    doubly = kind == "hopper.fp8" and library.startswith("deepgemm")
    return constants["attention.steady_part"] if doubly else KEPT.get(kind, constants["attention.steady_part"])


def memory_kernel_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike) -> F64:
    """A memory-bound kernel (permute, quantise, activation, reduce): one launch, and `n_bytes` through HBM."""
    return launch_us(gpu, constants) + hbm_us(gpu, constants, n_bytes)


def gemm_us(
    gpu: Gpu, constants: Constants, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, library: str = "cublas", groups: ArrayLike = 1,
    kept: float = 1.0,
    weight_bytes: float | None = None,
) -> F64:  # fmt: skip
    """`groups` GEMMs `[m, k] x [k, n]` in one kernel: start, then tensor cores overlapped with HBM.

    The library takes the fastest of its tiles (`gemm_tiles`). SMs work in whole waves of tiles, at the tensor peak or
    at the rate at which shared memory feeds a tile. All SMs together multiply no faster than the sustained rate: the
    power limit lowers the clock of a busy GPU, and idle SMs of a last wave need little power. A split writes and reads
    FP32 partial sums, which a second kernel adds (cuBLAS: splitKreduce_kernel). `kept`: part of the
    sustained rate that power leaves in a long run. `weight_bytes`: of a weight in memory, if not as wide as the products.
    """
    arrays = map(f64, (m, n, k, groups))
    p = Problem(*np.broadcast_arrays(*arrays))
    element, peak = ELEMENT_BYTES[dtype], 1e6 * gpu.peak_TFLOPS(dtype)
    reached = peak * promoted(library, gpu, dtype, peak)
    sustained = sustained_flops_per_us(gpu, constants, dtype) * kept
    powered = 2 * p.m * p.n * p.k * p.groups / sustained
    held = element if weight_bytes is None else weight_bytes
    moved = p.groups * (element * p.m * p.k + held * p.n * p.k + 2.0 * p.m * p.n)
    best = np.full(p.m.shape, np.inf)
    for rows, columns, split, core, step_us in tiles_of(library, gpu, p):
        waves = np.ceil(p.groups * np.ceil(p.m / rows) * np.ceil(p.n / columns) * split / gpu.n_sms)
        stored = hbm_us(gpu, constants, 2.0 * rows * columns * gpu.datasheet.n_sms) * (1.0 if hides_stores(library, gpu) else waves)
        rate = reached / gpu.n_sms * np.minimum(core, feed(gpu, library, element, peak, rows, columns))
        tile = np.maximum(2 * rows * columns * (p.k / split) / rate, p.k * step_us)
        compute = waves * (tile + constants["gemm.tile_us"]) + stored
        memory = hbm_us(gpu, constants, moved + np.where(split > 1, 8.0 * split * p.m * p.n * p.groups, 0.0))
        added = np.where(split > 1, light_us(gpu, constants), 0.0)
        times = overlap(np.maximum(compute, powered), memory, constants["sm.overlap"]) + added
        best = np.minimum(best, times.reshape(-1, *best.shape).min(axis=0))
    return launch_us(gpu, constants) + best


def fp32_us(gpu: Gpu, constants: Constants, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> F64:
    """A GEMM `[m, k] x [k, n]` of FP32 values on the lanes of the SMs, in cuBLAS's tiles."""
    p = Problem(*np.broadcast_arrays(*map(f64, (m, n, k, 1.0))))
    best = np.full(p.m.shape, np.inf)
    for rows, columns, split, *_ in tiles_of("cublas", gpu, p):
        waves = np.ceil(np.ceil(p.m / rows) * np.ceil(p.n / columns) * split / gpu.n_sms)
        compute = waves * (rows * columns * (p.k / split) / (FP32_LANES * gpu.boost_MHz) + constants["gemm.tile_us"])
        moved = 4.0 * (p.m * p.k + p.n * p.k + p.m * p.n) + np.where(split > 1, 8.0 * split * p.m * p.n, 0.0)
        added = np.where(split > 1, light_us(gpu, constants), 0.0)
        times = overlap(compute, hbm_us(gpu, constants, moved), constants["sm.overlap"]) + added
        best = np.minimum(best, times.reshape(-1, *best.shape).min(axis=0))
    return launch_us(gpu, constants) + best


def grouped_gemm_us(
    gpu: Gpu, constants: Constants, rows: ArrayLike, groups: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, *, masked: bool = False
) -> F64:
    """Grouped GEMM of DeepGEMM: `groups` experts with `rows` rows and weights `[n, k]` each.

    `masked`: every expert has a buffer of its own. Else experts lie one after the other, padded to whole tiles.
    """
    return gemm_us(gpu, constants, rows, n, k, dtype, library="deepgemm-masked" if masked else "deepgemm-contiguous", groups=groups)


def quantise_us(gpu: Gpu, constants: Constants, values: ArrayLike) -> F64:
    """A kernel that casts `values` from BF16 to FP8. Its limit is HBM, or the values that an SM casts per clock."""
    count = f64(values)
    issued = count / (gpu.n_sms * gpu.boost_MHz * constants["sm.quantise_values"])
    return launch_us(gpu, constants) + np.maximum(issued, hbm_us(gpu, constants, count * CAST_BYTES))
