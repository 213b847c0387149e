"""A whole block of MLA attention on one GPU (DeepSeek-V3): projections, norms, RoPE, cache, attention, beyond the bars.

Nothing is fitted to its rows: each part is the form of its own family.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dysharp.arrays import F64
from dysharp.compute import operators
from dysharp.compute.attention import attention_us, decode_us, mla_decode, mla_prefill
from dysharp.measured.config_json import number
from dysharp.measured.family import Case, Constants, Level, family
from dysharp.measured.measurements import Measurement, Unsupported
from dysharp.measured.scope import gpu_of
from dysharp.specs.gpu import Gpu

HIDDEN, QUERY_RANK, LATENT, ROPE, NOPE, VALUES = 7168.0, 1536.0, 512.0, 64.0, 128.0, 128.0
"""DeepSeek-V3's config.json."""
DTYPES = {"bfloat16": "bf16", "fp8_block": "fp8", "fp8": "fp8", "nvfp4": "fp4"}
LIBRARIES = {"bf16": "cublas", "fp8": "deepgemm", "fp4": "cutlass"}
SMALL = 3.0
"""Kernels beside products: norms of both latents, RoPE with the write of the cache (models/deepseek_v2.py of vLLM, mlaKernels.cu of TensorRT-LLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCase(Case):
    """`batch` requests of `queries` new tokens with `heads` heads on this GPU. `dtype`: of the projections; `multiplies`: of prefill attention."""

    dtype: str
    multiplies: str
    kv_dtype: str
    decodes: bool
    batch: float
    queries: float
    past: float
    heads: float


def closed_us(case: BlockCase, gpu: Gpu, constants: Constants) -> F64:
    """All kernels of the block one behind the other."""
    tokens = np.asarray(case.batch, np.float64) * case.queries
    heads, qk = np.asarray(case.heads, np.float64), NOPE + ROPE

    def linear(n: ArrayLike, k: ArrayLike) -> F64:
        time = operators.gemm_us(gpu, constants, tokens, n, k, case.dtype, library=LIBRARIES[case.dtype])
        if case.dtype == "bf16":
            return time
        moved = tokens * k * (operators.ELEMENT_BYTES["bf16"] + operators.ELEMENT_BYTES[case.dtype])
        return np.asarray(time + operators.light_us(gpu, constants) + operators.hbm_us(gpu, constants, moved))

    total = linear(QUERY_RANK + LATENT + ROPE, HIDDEN) + linear(heads * qk, QUERY_RANK) + linear(HIDDEN, heads * VALUES)
    width = QUERY_RANK + 2 * LATENT + 2 * ROPE + heads * ROPE
    total = total + SMALL * operators.light_us(gpu, constants) + operators.hbm_us(gpu, constants, 4.0 * tokens * width)
    if case.decodes:
        for n, k in ((LATENT, NOPE), (VALUES, LATENT)):
            total = total + operators.gemm_us(gpu, constants, tokens, n, k, "bf16", groups=heads)
        return total + decode_us(gpu, constants, mla_decode(case.batch, case.past, heads, case.queries, case.kv_dtype))
    joined = operators.light_us(gpu, constants) + operators.hbm_us(gpu, constants, 4.0 * tokens * heads * qk)  # keys with their positions
    call = mla_prefill(case.batch, case.queries, case.past, heads, case.multiplies)
    return total + linear(heads * (NOPE + VALUES), LATENT) + joined + attention_us(gpu, constants, call)


@family(
    "mla-block", belongs=lambda m: m.kind in ("mla_block_context", "mla_block_generation"), closed_us=closed_us, in_bars=False, level=Level.GPU,
    order=63,
)  # fmt: skip
def case(measurement: Measurement) -> BlockCase:
    """The case of a latency in the columns of `docs/measurements.md`."""
    config, gpu = measurement.config, gpu_of(measurement)
    if measurement.system.startswith("vLLM"):
        raise Unsupported("timed with the host's launches, whose number is not stated")
    written = str(config.get("gemm_dtype"))
    if written not in DTYPES:
        raise Unsupported(f"projections in {written[:20]}")
    stored = "fp8" if config.get("kv_dtype") == "fp8" else "bf16"
    return BlockCase(
        gpu=gpu, dtype=DTYPES[written], multiplies="fp8" if config.get("dtype") == "fp8" else "bf16", kv_dtype=stored,
        decodes=measurement.kind == "mla_block_generation", batch=number(measurement, "batch"), queries=number(measurement, "q_len"),
        past=number(measurement, "past_len"), heads=number(measurement, "heads"), dtypes=(DTYPES[written],),
        shape=f"{measurement.kind} heads={config.get('heads')} {written} {stored}",
    )  # fmt: skip
