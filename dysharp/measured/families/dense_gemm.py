"""Dense GEMMs of a library, by a rate form."""


import numpy as np

from dysharp.base import F64, f64, frozen_keywords
from dysharp.costs import moe, operators
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, dtype_of, family, gpu_of, number
from dysharp.measured.families.operator import is_training_gemm
from dysharp.model import FORMATS
from dysharp.specs import Gpu, load_gpu

ENGINES = ("vLLM", "SGLang", "TensorRT-LLM")
"""Serving engines: their FP8 and FP4 linear layers take BF16 inputs."""
SCALED_BYTES = 2.0
"""Bytes per value that the search for the largest input reads."""
PACKS = 5.0
"""Kernels that pack FP32 scales for Blackwell's tensor cores: those of the input; those of weights after a count, a division and a gather of rows
(DeepGEMM csrc/apis/layout.hpp, transform_sf_into_required_layout). So in SGLang's table of operators; its server packs scales of weights once."""
WEIGHT_ONLY = {"int8_wo": 1.0, "int4_wo": FORMATS["int4"].weight_bytes}
"""Bytes of a weight that registers widen to BF16."""


@frozen_keywords
class _GemmCase(Case):
    """`[m, k] x [k, n]` by `library` of `costs.gemm_tiles`.

    | field | meaning |
    |---|---|
    | `quantises` | the time includes a cast of the input from BF16 to FP8 or FP4 |
    | `streams` | the cast is as fast as memory; else SMs limit it (`costs.operators.quantise_us`) |
    | `scale_kernels` | kernels that find the scale of the whole input before the cast |
    | `packs` | `PACKS` where scales are not packed before |
    | `eager` | the host launches each kernel; else a CUDA graph or a profiler times the device alone |
    """

    dtype: str
    library: str
    quantises: bool
    streams: bool
    scale_kernels: float
    packs: float
    eager: bool
    weight_bytes: float
    m: float
    n: float
    k: float


def closed_us(case: _GemmCase, gpu: Gpu, constants: Constants) -> F64:
    """Tiles, waves, power and HBM (`costs.operators`)."""
    time = operators.gemm_us(gpu, constants, case.m, case.n, case.k, case.dtype, library=case.library, weight_bytes=case.weight_bytes)
    if case.eager:
        return moe.linear_us(gpu, constants, time, case.m, case.k)
    values = f64(case.m * case.k)
    searched = np.where(np.asarray(case.scale_kernels) > 0, operators.hbm_us(gpu, constants, SCALED_BYTES * values), 0.0)
    scale = (case.scale_kernels + case.packs) * operators.launch_us(gpu, constants) + searched
    if not case.quantises:
        return time
    moved = values * (operators.ELEMENT_BYTES["bf16"] + operators.ELEMENT_BYTES[case.dtype])
    cast = operators.memory_kernel_us(gpu, constants, moved) if case.streams else operators.quantise_us(gpu, constants, values)
    return time + scale + cast


def _library_of(kernel: str, system: str, dtype: str) -> str:
    """The library of a measurement: DeepGEMM, CUTLASS (vLLM's FP8 and every FP4 kernel), else cuBLAS (also behind PyTorch).

    TensorRT-LLM's layers are timed without its tuner (aiconfigurator collector/trtllm/collect_gemm.py); those with scales of blocks are DeepGEMM's.
    """
    untuned = {"nvfp4": "cutlass-untuned", "fp8_block": "deepgemm"} if system.startswith("TensorRT-LLM") else {}
    if "deepgemm" in (kernel + system).lower() or dtype in untuned:
        return untuned.get(dtype, "deepgemm")
    return "cutlass" if dtype == "nvfp4" or kernel.startswith("Cutlass") or "sgl_kernel_fp8" in kernel else "cublas"


@family("dense-gemm", belongs=lambda m: m.kind in ("gemm_dense", "gemm_max") and not is_training_gemm(m), closed_us=closed_us)
def case(measurement: Measurement) -> _GemmCase:
    """The case of a latency, of TFLOPS, or of GB/s of both operands and a BF16 result."""
    gpu, config = gpu_of(measurement), measurement.config
    kernel = str(config.get("kernel", ""))
    if measurement.kind == "gemm_max":
        raise Unsupported("a maximum over shapes, without its shape")
    if config.get("flag") == "host_bound":
        raise Unsupported("its collector marks it: the host's launches take the time")
    m, n, k = (number(measurement, key) for key in "mnk")
    held = WEIGHT_ONLY.get(str(config.get("dtype")))
    found = "bf16" if held else dtype_of(measurement, "dtype", expected=("fp8", "bf16", "nvfp4", *WEIGHT_ONLY))
    dtype = {"nvfp4": "fp4"}.get(found, found)
    timing, per_tensor = str(config.get("timing", "")), config.get("dtype") == "fp8"
    engine, eager = measurement.system.split()[0], "eager" in timing
    element = operators.ELEMENT_BYTES[dtype]
    weight = held or element
    work = {"TFLOPS": 2 * m * n * k / 1e6, "GB/s": (element * m * k + weight * n * k + 2 * m * n) / 1e3}
    return _GemmCase(
        gpu=gpu,
        dtype=dtype,
        library="marlin" if held else _library_of(kernel, measurement.system, str(config.get("dtype"))),
        weight_bytes=weight,
        # vLLM's FP8 linear layers cast their BF16 input (aiconfigurator collector/vllm/collect_gemm.py: static scale).
        # SGLang's and TensorRT-LLM's do, too; TensorRT-LLM finds one scale of the input first (kernels/quantization.cu): clear, maximum, division.
        quantises=eager or kernel.startswith("Cutlass") or (dtype != "bf16" and engine in ENGINES),
        # Measured casts (`quantize_static`) and kernels/quantization.cu: vectors of 16 bytes. vLLM casts FP8 with a block per token.
        streams=dtype == "fp4" or engine in ENGINES[1:],
        scale_kernels=3.0 if engine == "TensorRT-LLM" and per_tensor else 0.0,
        packs=PACKS if kernel.startswith("sglang_deepgemm") and load_gpu(gpu).arch == "blackwell" else 0.0,
        eager=eager,
        m=m,
        n=n,
        k=k,
        work=work.get(measurement.unit, 0.0),
        dtypes=(dtype,),
        launches=moe.LINEAR_CALLS if eager else 0.0,
        shape=f"n={n:g} k={k:g}",
    )
