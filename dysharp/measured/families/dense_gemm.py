"""Dense GEMMs of a library, by a rate form."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.compute import moe, operators
from dysharp.measured.config_json import dtype_of, number
from dysharp.measured.family import F64, Case, Constants, Level, family
from dysharp.measured.measurements import Measurement, Unsupported
from dysharp.measured.scope import gpu_of
from dysharp.specs.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCase(Case):
    """`[m, k] x [k, n]`. `timing`: "graph", "profiler" (the kernel alone) or "eager" (launched by the host).

    `rowwise`: FP8 with one scale per row.
    """

    dtype: str
    timing: str
    rowwise: bool
    m: float
    n: float
    k: float


def closed_us(case: GemmCase, gpu: Gpu, constants: Constants) -> F64:
    """Tiles, waves and HBM (`compute.operators`)."""
    time = operators.gemm_us(gpu, constants, case.m, case.n, case.k, case.dtype, rowwise=case.rowwise)
    if case.timing == "profiler":  # no gap between kernels
        return time - operators.launch_us(gpu, constants)
    return moe.linear_us(gpu, constants, time, case.m, case.k) if case.timing == "eager" else time


@family(
    "dense-gemm",
    belongs=lambda m: m.kind in ("gemm_dense", "gemm_max"),
    closed_us=closed_us,
    level=Level.GPU,
    order=60,
)
def case(measurement: Measurement) -> GemmCase:
    """The case of a latency, of TFLOPS, or of GB/s of both operands and a BF16 result."""
    gpu, config = gpu_of(measurement), measurement.config
    if measurement.kind == "gemm_max":
        raise Unsupported("a maximum over shapes, without its shape")
    m, n, k = (number(measurement, key) for key in "mnk")
    dtype = dtype_of(measurement, "dtype", expected=("fp8", "bf16"))
    eager = "eager" in str(config.get("timing", ""))
    element = operators.ELEMENT_BYTES[dtype]
    work = {"TFLOPS": 2 * m * n * k / 1e6, "GB/s": (element * (m * k + n * k) + 2 * m * n) / 1e3}
    return GemmCase(
        gpu=gpu,
        dtype=dtype,
        timing="eager" if eager else "profiler" if measurement.system == "DeepGEMM" else "graph",
        rowwise="Cutlass" in str(config.get("kernel", "")),
        m=m,
        n=n,
        k=k,
        work=work.get(measurement.unit, 0.0),
        dtypes=(dtype,),
        launches=moe.LINEAR_CALLS if eager else 0.0,
        shape=f"n={n:g} k={k:g}",
    )
