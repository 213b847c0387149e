"""Operators around attention and experts on one GPU: training GEMMs, norms, casts, absorbed projections, LM head, by rate forms."""

from dataclasses import replace

import numpy as np

from dysharp.base import F64, f64, frozen_keywords
from dysharp.costs import operators
from dysharp.costs.attention import passes_us
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, family, gpu_of, number
from dysharp.specs import Gpu, load_gpu

PASSES = {
    ("rmsnorm", "liger"): 2.0,
    ("rmsnorm", "torch"): 3.0,
    ("rmsnorm", "megatron"): 3.0,
    ("layernorm", "huggingface"): 3.0,
    ("swiglu", "liger_in_place"): 3.0,
    ("cross_entropy", "liger"): 3.0,
}
"""(operator, provider) -> reads and writes of a value in the forward kernel.

One kernel reads and writes each value once; PyTorch's norms read twice, for the statistics and for the result; SwiGLU reads two inputs;
Liger's cross entropy reads twice and writes gradients (src/liger_kernel/ops, aten/src/ATen/native/cuda/layer_norm_kernel.cu).
"""
TABLE_READERS = ("liger", "torch_compile")
"""Providers whose embedding is one kernel."""
ELEMENTWISE = ("rmsnorm", "layernorm", "swiglu", "cross_entropy", "embedding", "add_rmsnorm", "rope")
GEMMS = ("gemm_dense", "grouped_gemm_train", "mla_absorb_bmm", "lm_head_cross_entropy", "mlp_swiglu_whole")
SINGLE = ("quantize_static", "quantize_scale_compute")
MIXING_KERNELS = {"pre": 2.0, "post": 1.0}
"""Kernels of a hyper-connection: before a layer a product and the mean, which read all streams each and write a row; behind it one that reads all
streams and a row and writes all streams (vLLM, model_executor/kernels/mhc/tilelang)."""
UNFUSED = "unfused code or a backward pass: its reads and writes are not stated"
EVENTS = 2.0
"""Kernel starts in a measurement between two events without a graph: the events themselves take about one (triton.testing.do_bench)."""
LOSS_BYTES = 2.0 + 4.0 + 4.0 + 4.0
"""Bytes per logit of a loss in FP32 outside of the GEMM: read BF16 and write FP32, then read and write the logarithms."""
SCALE_KERNELS, SCALE_PASSES = 3.0, 2.0
"""Kernels of SGLang's cast with one scale of the input: clear, maximum, cast (layers/quantization/fp8_kernel.py); the last two pass over rows."""
KERNELS_AROUND_CAST, AROUND_CAST = 3.0, 6.0 + 8.0 + 2.0
"""PyTorch's kernels beside SGLang's static cast, their bytes: BF16 over an FP32 scale, clamp, copy (aiconfigurator, collect_computescale.py)."""
BLOCKS_PER_CLOCK = 1.0
"""Thread blocks with an atomic on one address that a GPU takes per clock (NVIDIA, Kepler GK110 white paper)."""
READ_BYTES = 36.0
"""Bytes per clock and SM that kernels read from L2: 34.5 to 37 on A100, H100 and H200 (RRZE gpu-benches@3088b33, gpu-l2-cache)."""
LOOP, POWER_WINDOW_US = 100.0, 25e3
"""Calls of a loop (SimuMax, test_gemm_efficiency.py), and the time over which a GPU averages its power (arXiv 2312.02741). A shorter loop runs at
what power allows or at the full clock, as the loops before it left the mean."""
GATED = 3.0
"""Matrices of a gated MLP; also the GEMMs of a step for one of its forward pass: forward, data gradient, weight gradient."""


@frozen_keywords
class GemmsCase(Case):
    """`calls` calls of `groups` GEMMs `[m, k] x [k, n]` one behind the other, beside `moved` bytes of memory-bound kernels.

    `sums`: bytes per output value of gradients that a weight gradient reads and writes in the same kernel. `steady`: of a long loop.
    `short`: a weight gradient of few rows, whose sums do not hide behind its products (chosen after its rows were seen).
    `cast_rows`, `cast_values`: rows or values of the input that are cast to FP8 first, by SGLang and by TensorRT-LLM.
    `replayed`: alone in a graph, which starts a gap behind the one before (aiconfigurator collect_mla_bmm.py, collect_mhc_module.py).
    `near`: part of its bytes that are operands of a replayed call, which stay in L2 (`_near`).
    """

    dtype: str
    m: float
    n: float
    k: float
    groups: float = 1.0
    calls: float = 1.0
    sums: float = 0.0
    moved: float = 0.0
    cast_rows: float = 0.0
    cast_values: float = 0.0
    near: float = 0.0
    replayed: bool = False
    steady: bool = False
    short: bool = False


@frozen_keywords
class _MemoryCase(Case):
    """Memory-bound kernels that move `moved` bytes, and one that casts `cast_values` to FP8. `replayed`, `near`: as above."""

    moved: float
    kernels: float
    cast_values: float = 0.0
    near: float = 0.0
    replayed: bool = False


def _closed_us(case: GemmsCase | _MemoryCase, gpu: Gpu, constants: Constants) -> F64:
    """GEMMs by tiles and power, other kernels by their bytes (`costs.operators`, `costs.attention.passes_us`)."""
    gap, part, near = case.replayed * constants["serving.gap_us"], constants["hbm.fraction"], np.asarray(case.near)
    inside = max(part, READ_BYTES * gpu.n_sms * gpu.boost_MHz / (1e3 * gpu.hbm_GBps))
    constants = {**constants, "hbm.fraction": 1 / (near / inside + (1 - near) / part)}  # type: ignore[dict-item]
    if isinstance(case, _MemoryCase):
        streams = gap + np.asarray(case.kernels) * operators.light_us(gpu, constants) + operators.hbm_us(gpu, constants, case.moved)
        return streams + np.where(case.cast_values, operators.quantise_us(gpu, constants, case.cast_values), 0.0)
    kept = operators.kept_part(gpu, constants, case.dtype, "cublas") if case.steady else 1.0
    one, fresh = (operators.gemm_us(gpu, constants, case.m, case.n, case.k, case.dtype, groups=case.groups, kept=part) for part in (kept, 1.0))
    one = np.where(LOOP * one * np.asarray(case.calls) < POWER_WINDOW_US, np.sqrt(one * fresh), one)
    values, start = f64(case.m) * case.n * case.groups, operators.launch_us(gpu, constants)
    sums = operators.hbm_us(gpu, constants, case.sums * values)
    summed = start + operators.overlap(one - start, sums, constants["sm.overlap"])
    if case.short:  # sums behind the products, in place of the results that `gemm_us` stores
        products = start + 2 * values * case.k / operators.sustained_flops_per_us(gpu, constants, case.dtype)
        summed = np.maximum(one - operators.hbm_us(gpu, constants, 2.0 * values), products) + sums
    return gap + np.asarray(case.calls) * summed + passes_us(gpu, constants, case.moved, 1.0, 1.0, 0) + _cast_us(case, gpu, constants)


def _near(gpu: str, read: float, written: float) -> float:
    """Part of a call's bytes that it reads from L2 when it is replayed: its operands, if they fit there with its results (`READ_BYTES`)."""
    return read / (read + written) if 0 < read + written < 1e6 * load_gpu(gpu).l2_MB else 0.0


def _cast_us(case: GemmsCase, gpu: Gpu, constants: Constants) -> F64:
    """The cast of a batched GEMM's input, with a thread block for each row: the scale is found first, by atomics (`SCALE_KERNELS`)."""
    blocks = f64(case.cast_rows) / (BLOCKS_PER_CLOCK * gpu.boost_MHz)
    own = SCALE_KERNELS * operators.light_us(gpu, constants) + SCALE_PASSES * blocks
    quantised = operators.quantise_us(gpu, constants, case.cast_values)
    return np.asarray(np.where(case.cast_rows > 0, own, 0.0) + np.where(case.cast_values > 0, quantised, 0.0))


def is_training_gemm(m: Measurement) -> bool:
    """Whether a GEMM is of a training benchmark, which names its pass; the families of GEMMs judge the others."""
    return m.kind == "grouped_gemm_train" or (m.kind == "gemm_dense" and "pass_" in m.config)


@family("hyper-connection", belongs=lambda m: m.kind == "hyper_connection", closed_us=_closed_us)
@family("operator", belongs=lambda m: is_training_gemm(m) or m.kind in (*ELEMENTWISE, *GEMMS[2:], *SINGLE), closed_us=_closed_us)
def _case(measurement: Measurement) -> GemmsCase | _MemoryCase:
    """The case of a latency in the columns of `docs/measurements.md`."""
    kind = measurement.kind
    if is_training_gemm(measurement):
        return _training(measurement)
    if kind == "mla_absorb_bmm":
        return _absorbed(measurement)
    if kind == "lm_head_cross_entropy":
        return _head(measurement)
    if kind == "mlp_swiglu_whole":
        return _mlp(measurement)
    return _memory(measurement)


def _gemms(m: Measurement, rows: float, n: float, k: float, *, dtype: str = "bf16", **rest: float | bool) -> GemmsCase:
    return GemmsCase(gpu=gpu_of(m), dtype=dtype, m=rows, n=n, k=k, dtypes=(dtype,), shape=f"{m.kind} n={n:g} k={k:g}", **rest)  # type: ignore[arg-type]


def _absorbed(m: Measurement) -> GemmsCase:
    """A projection per head. An FP8 call casts its input first: per_tensor_quant_mla_fp8 of SGLang, fp8_quantize_1x128 of TensorRT-LLM."""
    kernel, tokens, n, k, heads = str(m.config.get("kernel")), *(number(m, key) for key in ("tokens", "n", "k", "heads"))
    dtype = "fp8" if m.config.get("dtype") == "fp8" and "dequant" not in kernel else "bf16"
    rows = tokens * heads if dtype == "fp8" and kernel.startswith("sglang") else 0.0
    values = tokens * heads * k if dtype == "fp8" and kernel.startswith("trtllm") else 0.0
    near = _near(gpu_of(m), operators.ELEMENT_BYTES[dtype] * heads * (tokens + n) * k, 2.0 * tokens * heads * n)
    return _gemms(m, tokens, n, k, groups=heads, dtype=dtype, cast_rows=rows, cast_values=values, near=near, replayed=True)


def _training(m: Measurement) -> GemmsCase:
    """A GEMM of Transformer Engine; its grouped GEMM is one GEMM per expert (common/gemm/cublaslt_gemm.cu, multi-stream)."""
    n, k, config = number(m, "n"), number(m, "k"), m.config
    if m.kind == "gemm_dense":
        summed = 8.0 if config.get("accumulate") and config.get("out_dtype") == "fp32" else 4.0 if config.get("accumulate") else 0.0
        return _gemms(m, number(m, "m"), n, k, sums=summed, steady=True)
    rows, groups = number(m, "m_per_group"), number(m, "groups")
    if config.get("stage") == "bwd_grad_w":
        return _gemms(m, n, k, rows, calls=groups, sums=8.0 if config.get("main_grad") == "fp32" else 4.0, steady=True, short=True)
    return _gemms(m, rows, n, k, calls=groups, steady=True)


def _head(m: Measurement) -> GemmsCase:
    rows, n, k = number(m, "BT"), number(m, "V"), number(m, "H")
    passes = 1.0 if m.config.get("pass") == "forward" else GATED
    return _gemms(m, rows, n, k, calls=passes, moved=rows * n * LOSS_BYTES * (1.0 if passes == 1 else 2.0))


def _mlp(m: Measurement) -> GemmsCase:
    if m.config.get("pass") != "forward":
        raise Unsupported(UNFUSED)
    rows, inner = number(m, "B") * number(m, "T"), number(m, "intermediate_size")
    return _gemms(m, rows, inner, number(m, "hidden_size"), calls=GATED, moved=PASSES["swiglu", "liger_in_place"] * 2.0 * rows * inner)


def _memory(m: Measurement) -> _MemoryCase:
    config, kind = m.config, m.kind
    if kind == "quantize_static":
        values = number(m, "m") * number(m, "k")
        if m.system.startswith("SGLang"):
            return replace(_moves(m, values * AROUND_CAST, KERNELS_AROUND_CAST), cast_values=values)
        return _moves(m, values * operators.CAST_BYTES)
    if kind == "hyper_connection":
        if (place := str(config.get("op_name"))) not in MIXING_KERNELS:
            raise Unsupported(f"no place of the mixing, expected {' or '.join(MIXING_KERNELS)}")
        sites, streams = number(m, "num_sites"), number(m, "hc_mult")
        rows = number(m, "num_tokens") * number(m, "hidden_size") * sites
        written = 2.0 * rows * (1.0 if place == "pre" else streams)
        found = _moves(m, 2.0 * rows * (2 * streams + 1), sites * MIXING_KERNELS[place])
        return replace(found, near=_near(found.gpu, found.moved - written, written), replayed=True)
    if config.get("pass") != "forward":
        raise Unsupported(UNFUSED)
    element = 4.0 if config.get("dtype") == "torch.float32" else 2.0
    provider = str(config.get("provider"))
    if kind == "embedding" and provider in TABLE_READERS:
        values = number(m, "B") * number(m, "T") * number(m, "D")
        return _moves(m, element * (values + min(values, number(m, "V") * number(m, "D"))), EVENTS)
    if (kind, provider) not in PASSES:
        raise Unsupported(UNFUSED)
    rows = number(m, "M") if kind == "layernorm" else number(m, "B") * number(m, "S")
    width = number(m, {"rmsnorm": "H", "layernorm": "N", "swiglu": "ffn_local"}.get(kind, "V"))
    return _moves(m, PASSES[kind, provider] * element * rows * width, 1.0 if "graph" in str(config.get("timing")) else EVENTS)


def _moves(m: Measurement, moved: float, kernels: float = 1.0) -> _MemoryCase:
    return _MemoryCase(gpu=gpu_of(m), moved=moved, kernels=kernels, shape=f"{m.kind} {m.config.get('provider', m.config.get('kernel', ''))}")
