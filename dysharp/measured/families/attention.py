"""Core attention of one layer on one GPU: prefill, decode, MLA, training forward and backward, by a rate form."""

from dataclasses import dataclass, replace

import numpy as np

from dysharp.base import F64, Amounts
from dysharp.costs import attention, moe
from dysharp.costs.attention import COLUMNS, DECODE_ROWS, FLASH_AMPERE, ROWS, AttentionCall, Tile, attention_us, decode_us, flash_tile, fmha_tile
from dysharp.costs.attention import LATENT as LATENT_TILE
from dysharp.costs.operators import ELEMENT_BYTES, hbm_us, light_us, quantise_us
from dysharp.measured.families import Case, Constants, Measurement, family, gpu_of, number
from dysharp.specs import Gpu, load_gpu

KINDS = (
    "attention_context", "attention_generation", "attention_bidirectional", "attention_train_fwd", "attention_train_bwd",
    "mla_context", "mla_generation",
)  # fmt: skip
NOPE, ROPE, LATENT, VALUES = 128.0, 64.0, 512.0, 128.0
"""Widths of MLA (DeepSeek-V3, arXiv 2412.19437 section 4.2): a head's part without and with position, the latent, a head of values."""
XQA_HEADS, XQA_TOKENS, XQA_BLOCKS = 32.0, 128.0, 4.0
"""Limits of `_masked`: heads that share keys, cached tokens of a block, least blocks by SMs."""
FLASHINFER = "vllm_flashinfer_trtllmprefill"
"""Name in rows of vLLM's prompts by TensorRT-LLM's kernels in FlashInfer."""
CAST, STORE = 3.0, 2.0
"""Bytes per value of a cast from BF16 to FP8, and of a copy of FP8 values into the cache."""


@dataclass(frozen=True, kw_only=True)
class _AttentionCase(Case, AttentionCall):
    """One call.

    | field | meaning |
    |---|---|
    | `decodes` | one query per request against a cache |
    | `direction` | "forward", "backward" |
    | `kernels`, `around_bytes` | kernels of the engine around the tiles, in the same timing, and the bytes that they move |
    | `cast_values` | values of the cache that are cast to BF16 first |
    | `alone` | there is no cache, so that the call lacks one kernel of its start, the write (meaning of `attention.start_us`) |
    | `writes` | the call writes its keys and values into the cache, while the attention kernel starts |
    | `eager` | the host launches the call, so it takes at least a launch |
    """

    decodes: bool
    direction: str
    kernels: float = 0.0
    around_bytes: float = 0.0
    cast_values: float = 0.0
    alone: bool = False
    writes: bool = False
    eager: bool


def _closed_us(case: _AttentionCase, gpu: Gpu, constants: Constants) -> F64:
    """Tiles, blocks and memory (`costs.attention`), after the engine's kernels around them."""
    around = (case.kernels - case.alone) * light_us(gpu, constants) + hbm_us(gpu, constants, case.around_bytes)
    around = around + np.where(case.cast_values, quantise_us(gpu, constants, case.cast_values), 0.0)
    if case.writes:
        around = around + np.maximum(0.0, attention.cached_us(gpu, constants, case) - constants["attention.start_us"])
    if case.decodes:
        return around + decode_us(gpu, constants, case)
    time = around + attention_us(gpu, constants, case, "backward" if case.direction == "backward" else "forward")
    return np.maximum(time, moe.host_us(gpu, constants, 1.0)) if case.eager else time


@family("attention", belongs=lambda m: m.kind in KINDS, closed_us=_closed_us)
def _case(measurement: Measurement) -> _AttentionCase:
    """The case of a latency in the columns of `docs/measurements.md`."""
    config, kind = measurement.config, measurement.kind
    kernel, engine = str(config.get("kernel", "")), measurement.system.split()[0]
    gpu, shape = gpu_of(measurement), _widths(measurement, kernel)
    bidirectional = kind == "attention_bidirectional"
    batch, queries = (number(measurement, key) for key in (("batch_size", "isl") if bidirectional else ("batch", "q_len")))
    heads, past = number(measurement, "num_heads" if bidirectional else "heads"), number(measurement, "past_len") if "past_len" in config else 0.0
    kv_heads = 1.0 if shape["absorbed"] else heads if bidirectional or kind.startswith("mla") else number(measurement, "kv_heads")
    stored = "fp8" if config.get("kv_dtype") == "fp8" else "bf16"
    by_decode_kernel = kind == "attention_context" and queries == 1 and "TensorRT" not in engine
    decodes = kind in ("attention_generation", "mla_generation") or by_decode_kernel
    flash = "fa3" in kernel or "fa2" in kernel or kernel.startswith(("flash_attention", "vllm_vit_flash"))
    eager = str(config.get("timing", "")).startswith("eager")
    # A label "bfloat16" beside an FP8 cache: FlashAttention and vLLM's prompts by FlashInfer widen the cache, other kernels multiply in FP8.
    dtype = "fp8" if config.get("dtype") == "fp8" or (stored == "fp8" and not flash and kernel != FLASHINFER) else "bf16"
    window = number(measurement, "window") if config.get("window") else 0.0
    arch, tile = load_gpu(gpu).arch, Tile(ROWS, COLUMNS)
    if flash and arch == "hopper":
        together = queries * heads / kv_heads
        tile = LATENT_TILE if shape["absorbed"] else flash_tile(shape["qk"], stored, together, window=window > 0, causal=not bidirectional)
    elif flash and arch in ("ampere", "ada"):
        tile = FLASH_AMPERE
    elif engine == "TensorRT-LLM" and arch != "blackwell" and not decodes:
        tile = fmha_tile(shape["qk"], dtype) if arch == "hopper" else Tile(DECODE_ROWS, COLUMNS)
    own_decode = engine == "TensorRT-LLM" and kind == "attention_generation" and kernel == "torch_flow"
    masked = own_decode and _masked(measurement, load_gpu(gpu))
    found = _AttentionCase(
        gpu=gpu, batch=batch, queries=queries, past=past, heads=heads, kv_heads=kv_heads, qk_dim=shape["qk"], v_dim=shape["v"], window=window,
        causal=not bidirectional, dtype=dtype, kv_dtype=stored, latent=bool(shape["absorbed"]), packed=flash, longest_first=flash,
        masked=masked, lanes=own_decode and not masked and arch != "blackwell", rows=tile.rows, columns=tile.columns, decodes=decodes,
        direction="backward" if kind.endswith("bwd") else "forward", alone=bidirectional or kind.startswith("attention_train"), eager=eager,
        launches=1.0 if eager else 0.0, dtypes=(stored,),
        shape=" ".join(f"{key}={config[key]}" for key in ("heads", "kv_heads", "head_dim", "window", "kv_dtype", "kernel") if key in config),
    )  # fmt: skip
    return _with_surroundings(found, engine, kernel, kind)


def _masked(m: Measurement, gpu: Gpu) -> bool:
    """Whether TensorRT-LLM decodes by its masked multi-head attention; else by tensor cores.

    Source: xqaDispatcher.cpp (Blackwell), decoderXQAImplJIT.cpp and kernelUtils.cpp (before): few heads share keys, or too many; a BF16 cache
    that is longer than the window; fewer thread blocks than a quarter of the SMs, with 128 cached tokens to a block.
    The stored source has a limit of 16 heads for Blackwell; a row of the measured version with 32 is not masked, so both have 32.
    """
    heads, kv_heads, past = (number(m, key) for key in ("heads", "kv_heads", "past_len"))
    if gpu.arch == "blackwell":
        return heads / kv_heads > XQA_HEADS
    window = number(m, "window") if m.config.get("window") else 0.0
    cyclic = m.config.get("kv_dtype") != "fp8" and 0 < window < past + 1
    blocks = kv_heads * number(m, "batch") * max(1.0, past // XQA_TOKENS)
    return heads == kv_heads or heads / kv_heads > XQA_HEADS or cyclic or blocks * XQA_BLOCKS < gpu.n_sms


def _widths(m: Measurement, kernel: str) -> Amounts:
    if m.kind.startswith("mla"):
        # SGLang's FlashAttention backend absorbs the projections in prefill, too.
        if m.kind == "mla_generation" or kernel == "flash_attention":
            return {"qk": LATENT + ROPE, "v": LATENT, "absorbed": 1.0}
        return {"qk": NOPE + ROPE, "v": VALUES, "absorbed": 0.0}
    if m.kind.startswith("attention_train"):
        return {"qk": number(m, "qk_dim"), "v": number(m, "v_dim"), "absorbed": 0.0}
    width = number(m, "head_dim")
    return {"qk": width, "v": width, "absorbed": 0.0}


def _with_surroundings(case: _AttentionCase, engine: str, kernel: str, kind: str) -> _AttentionCase:
    """The kernels that an engine runs in the timed call besides attention.

    | engine | kernels |
    |---|---|
    | TensorRT-LLM, prefill | offsets of requests; RoPE with the write of the cache (kernels/unfusedAttentionKernels) |
    | TensorRT-LLM, decode | the second of them, but for masked attention and FP8 caches on Hopper, which have it inside (decoderXQAImplJIT.cpp) |
    | SGLang with an FP8 cache | casts of queries, keys and values, the last two copied into the cache (srt/mem_cache/memory_pool.py) |
    | the same by FlashAttention-3 | casts of keys and values into the cache (chosen after its rows were seen) |
    | SGLang, MLA decode of TensorRT-LLM's kernels with a BF16 cache | the parts of queries are joined (layers/attention/trtllm_mla_backend.py) |
    | SGLang, FlashAttention-3, FP8 latent | new rows are cast into the cache, all of it to BF16 (layers/attention/flashattention_backend.py) |
    | vLLM, FlashInfer, prefill | the same by head, while attention starts (`enable_pdl`); an FP8 cache is widened first (backends/flashinfer.py) |
    | vLLM, FlashAttention | `reshape_and_cache_flash` (v1/attention/backends/flash_attn.py) |
    """
    stored, sizes = ELEMENT_BYTES[case.kv_dtype], (case.batch, case.queries, case.heads, case.kv_heads, case.qk_dim, case.v_dim)
    batch, new, heads, shared, qk, v = (float(np.asarray(x)) for x in sizes)
    queries, keys = batch * new * heads * qk, batch * new * shared * (qk + v)
    kernels, moved = 0.0, 0.0
    if kernel == "flash_attention" and case.latent and stored == 1:
        cached = batch * (float(np.asarray(case.past)) + new) * shared * qk
        return replace(case, kv_dtype="bf16", kernels=2.0, around_bytes=CAST * batch * new * shared * qk, cast_values=cached)
    if engine == "TensorRT-LLM" and not case.decodes:
        kernels, moved = 2.0, (queries + keys) * (2.0 + stored)
        if kind == "mla_context":
            latent = batch * new * (LATENT + ROPE)
            kernels, moved = (3.0, moved + latent * (2.0 + stored)) if stored == 1 else (2.0, latent * (2.0 + stored))
    elif kernel == "torch_flow" and kind == "attention_generation" and not case.masked and (stored == 2 or load_gpu(case.gpu).arch != "hopper"):
        kernels, moved = 1.0, (queries + keys) * (2.0 + stored)
    elif engine == "SGLang" and case.kv_dtype == "fp8" and kind != "mla_generation":
        kernels, moved = (2.0, CAST * keys) if kernel == "fa3" else (3.0, CAST * queries + (CAST + STORE) * keys)
    elif kernel == FLASHINFER:
        widened = stored == 1 and case.dtype == "bf16"
        kept = batch * (float(np.asarray(case.past)) + new) * shared * (qk + v)
        return replace(case, writes=True, kernels=float(widened), around_bytes=widened * CAST * kept)
    elif kernel == "trtllm_mla" and case.decodes and stored == 2:
        kernels, moved = 1.0, 2 * stored * queries
    elif engine == "vLLM" and kernel.startswith("vllm_flash_attn_fa") and kind != "attention_bidirectional":
        kernels, moved = (1.0, keys * (2.0 + stored)) if stored == 2 else (2.0, keys * (2.0 + stored) + CAST * queries)
    return replace(case, kernels=kernels, around_bytes=moved)
