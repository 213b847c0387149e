"""Blocks of a model on one GPU, as sums of their kernels.

Latent attention from the first projection to the last, by the kernels of a serving step, with and without an indexer: prompts with one are
timed without a graph, so each kernel takes a launch, measured on an H100's host, times what the GPU's host takes. Whole pieces by PyTorch, as
`dysharp measure` runs them: a decoder layer with its gradients, a decode step in a graph, with what eager PyTorch does in more kernels than others.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dysharp.base import F64, frozen_keywords
from dysharp.costs import SPARSE_HEADS, AttentionCall, Machine, OpTime, Routed, gradients, kernels, light_us, rows_of
from dysharp.costs.regime import Name, regime_of
from dysharp.measured.families import CLUSTERS, Case, Constants, Measurement, Unsupported, check_cluster, family, gpu_of, number, whole
from dysharp.model import Formats, StepBatch, prompt_batch
from dysharp.model.operators import ACTIVATION, DENSE, POSITIONS, LayerOperator, MemoryOp, RowExchange, Weight, is_routed, operators
from dysharp.serving.layer import attention_ops, layer_ops
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import Gpu, WholeModel, list_whole_models, load_cluster, load_gpu, load_whole

MODELS = {"DeepseekV3ForCausalLM": "deepseek-v3", "DeepseekV32ForCausalLM": "deepseek-v3.2", "GlmMoeDsaForCausalLM": "glm-5"}
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
CORES = ("attention decode", "attention prefill")
"""Core attention among the operators of a serving step."""
BESIDE = ("norms", "attention all-reduce")
"""Parts of a serving step that a measured block does not have."""
NATIVE_NORM, NATIVE_ROPE = (8, 36.0), (14, 24.0)
"""Kernels of PyTorch and bytes a value: of a norm, of positions (aiconfigurator collector/vllm/collect_mla_module.py, vLLM 0.24.0 config/vllm.py,
ir/ops/layernorm.py, rotary_embedding/deepseek_scaling_rope.py)."""
INDEXER = {"": 0, "keys": 9, "whole": 17}
"""What runs of an indexer -> kernels beside its products: nothing where a layer takes another's choice; keys alone, their product included (SGLang
nsa_indexer.py, `_forward_cuda_k_only`); all (vLLM deepseek_v2.py, `Indexer.forward`; SGLang's are as many)."""
TRTLLM_INDEXER, FLASHMLA_DECODE, CHOSEN = 11, 4, 64.0
"""Kernels of TensorRT-LLM's decode beside the products of its indexer (two casts, norm, positions, two copies, two joins with quantisation, scales of
gates, store of keys, reset of choices: sparse/dsa/indexer.py), and beside FlashMLA's kernel (join, padding, places, copy: sparse/dsa/flash_mla.py);
keys of its step."""
FLASHMLA_HEADS = {"hopper": 64, "blackwell": 128}
"""Heads of FlashMLA's sparse kernel for prompts (TensorRT-LLM sparse/dsa/flash_mla.py)."""
FEW_HEADS = 32
"""Heads below which vLLM takes FlashMLA's kernel of decode for prompts over an FP8 cache (flashmla_sparse.py, MIN_HEADS_FOR_BF16_PREFILL)."""


@frozen_keywords
class BlockCase(Case):
    """`batch` requests with `queries` new tokens each after `past` cached ones; `heads` on this GPU. `decodes`: the absorbed form.

    `indexer`: what runs of it (`INDEXER`). `trtllm`: it is of TensorRT-LLM's decode. `eager`: a host launches the kernels (aiconfigurator,
    collect_mla_module.py of vllm, `use_cuda_graph`, and of sglang). `flash`: prompts by FlashMLA. `places`: a thread block for each token passes over
    all chosen places: TensorRT-LLM's decode on Hopper, and prompts by FlashMLA's kernel of decode over FP8 caches (SGLang's `flashmla_kv`; vLLM with
    `FEW_HEADS`).
    `native`: norms and positions are PyTorch's kernels, as vLLM's default configuration says outside of Inductor. Its MLA rows on B200 have none
    (chosen after they were seen: the smallest block takes 42 us there, 108 us elsewhere).
    """

    model: str
    heads: float
    batch: float
    queries: float
    past: float
    decodes: bool
    indexer: str
    trtllm: bool
    eager: bool
    flash: bool
    places: bool
    native: bool
    weights: str
    kv: str


def _closed_us(case: BlockCase, gpu: Gpu, constants: Constants) -> F64:
    """The sum of the block's kernels, with the gaps of a graph between them, or the host's launches where they take longer."""
    machine = _machine(case.gpu, tuple(sorted(constants.items())))
    shapes = np.broadcast_arrays(*(np.atleast_1d(x) for x in (case.heads, case.batch, case.queries, case.past)))
    return np.array([_block_us(case, machine, *map(float, shape)) for shape in zip(*shapes, strict=True)])


@lru_cache(maxsize=64)
def _machine(gpu: str, constants: tuple[tuple[str, float], ...], regime: Name = "serving") -> Machine:
    """Kernels of an engine, or of a training framework, in a benchmark."""
    return Machine(replace(load_cluster(CLUSTERS[gpu]), constants=constants), replace(regime_of(regime), long=False))


def _block_us(case: BlockCase, machine: Machine, heads: float, batch: float, queries: float, past: float) -> float:
    model = load_whole(case.model)
    replica = Replica(model, Formats(attention=case.weights, kv=case.kv), ServeLayout(tp=round(model.attention.heads / heads)), machine)
    step = StepBatch(decodes=batch, context=past) if case.decodes else prompt_batch(batch * queries, queries, past)
    absent, small, a = BESIDE if case.indexer == "whole" else (*BESIDE, "indexer"), INDEXER[case.indexer], model.attention
    ops = [op for op in attention_ops(replica, step, model.n_layers - 1) if op.name not in absent]
    if case.trtllm:
        beside = TRTLLM_INDEXER + FLASHMLA_DECODE * case.places
        ops.append(OpTime("beside", beside * light_us(machine.gpu, machine.constants), beside))
    if case.places:
        latent, shared = a.kv_rank + a.rope_dim, max(heads, SPARSE_HEADS)
        call = AttentionCall(
            batch=step.tokens, queries=1, past=a.index_top - 1, heads=shared, kv_heads=1, qk_dim=latent, v_dim=a.kv_rank, latent=True, packed=True,
            whole=True, rows=SPARSE_HEADS, columns=CHOSEN,
        )  # fmt: skip
        ops = [op._replace(us=machine.attention(call)) if op.name in CORES else op for op in ops]
    elif case.flash:
        padded = FLASHMLA_HEADS[machine.gpu.arch] / max(heads, SPARSE_HEADS)
        ops = [op._replace(us=op.us * max(1.0, padded)) if op.name == "attention prefill" else op for op in ops]
    if case.native:
        (n, norm), (m, rope) = NATIVE_NORM, NATIVE_ROPE
        n_bytes = step.tokens * (norm * (a.q_rank + a.kv_rank) + rope * (heads + 1) * a.rope_dim)
        kernels, small = 2 * n + m + small, 0
        light = kernels * light_us(machine.gpu, machine.constants)
        ops = [op for op in ops if op.name != "latent norms"] + [OpTime("native", light + machine.stream(n_bytes), kernels)]
    launches = case.eager * (small + sum(op.kernels for op in ops))
    host = launches * machine.constants["h100.host_call_us"] * machine.cluster.host_factor
    return max(host, sum(op.us + op.kernels * machine.constants["serving.gap_us"] for op in ops))


@family("mla-block", belongs=lambda m: m.kind.startswith("mla_block_"), closed_us=_closed_us)
@family("sparse-block", belongs=lambda m: m.kind.startswith("dsa_block_"), closed_us=_closed_us)
def _case(m: Measurement) -> BlockCase:
    """The case of a latency. Rows with an indexer name their lengths otherwise."""
    config, sparse = m.config, m.kind.startswith("dsa")
    model, weights = MODELS.get(str(config.get("architecture"))), FORMATS.get(str(config.get("gemm_type" if sparse else "gemm_dtype")))
    if model is None or weights is None:
        raise Unsupported("a model or a format of weights that is not packaged")
    batch, queries, past = (number(m, key) for key in (("batch_size", "isl", "step") if sparse else ("batch", "q_len", "past_len")))
    heads, all_heads = whole(number(m, "num_heads" if sparse else "heads"), "heads"), load_whole(model).attention.heads
    if all_heads % heads:
        raise Unsupported(f"{heads} heads, which do not divide the {all_heads} of {model}")
    gpu = gpu_of(m)
    check_cluster(gpu, 1)
    kernel, decodes, trtllm = str(config.get("kernel", "")).lower(), m.kind.endswith("generation"), sparse and m.system.startswith("TensorRT")
    few = m.system.startswith("SGLang") and not decodes and past + queries <= load_whole(model).attention.index_top
    flash = sparse and not decodes and "flashmla" in kernel
    if flash and load_gpu(gpu).arch not in FLASHMLA_HEADS:
        raise Unsupported(f"FlashMLA's sparse kernel, which is of {' and '.join(FLASHMLA_HEADS)} GPUs")
    widened = kernel == "flash_attn" and not decodes  # prompts of vLLM's MLA (v1/attention/backends/mla/common.py): keys of the projection, in BF16
    kv = "fp8" if config.get("kv_cache_dtype" if sparse else "kv_dtype") == "fp8" and not widened else "bf16"
    return BlockCase(
        gpu=gpu, model=model, heads=float(heads), batch=batch, queries=queries, past=past, decodes=decodes,
        indexer="" if not sparse or "skip_indexer" in kernel else "keys" if few else "whole",
        trtllm=trtllm and decodes, eager=sparse and not decodes and not trtllm,
        flash=flash,
        places=load_gpu(gpu).arch == "hopper" and trtllm if decodes else sparse and _by_decode_kernel(m.system, kernel, kv, heads),
        native=m.system.startswith("vLLM") and (sparse or gpu != "b200"), weights=weights, kv=kv, dtypes=(weights, kv),
        shape=f"{m.kind} {model} heads={heads}",
    )  # fmt: skip


def _by_decode_kernel(system: str, kernel: str, kv: str, heads: int) -> bool:
    """Whether prompts go through FlashMLA's kernel of decode."""
    return "flashmla_kv" in kernel or (system.startswith("vLLM") and "flashmla" in kernel and kv == "fp8" and heads < FEW_HEADS)


HEAD, GATED = 128, 3
"""Elements of a head, and matrices of a FFN, that are measured."""
EAGER = {POSITIONS: (3, 20.0, 20.0), ACTIVATION: (2, 10.0, 26.0), DENSE: (2, 10.0, 26.0)}
"""Piece -> kernels of a forward pass, bytes of a value forward and backward: queries and keys as FP32, turned as complex numbers and cast back; SiLU
and a product, whose gradients are joined (`_layer` and `_gated` of `api.measuring`)."""
EAGER_DECODE, EAGER_EXPERTS = 7, 12
"""Kernels of a decode step's layer beyond those of an engine: positions, a second write to the cache, additions, activation; with experts also their
choice, sort, ends of groups, copies, parts and sum (as above)."""


@frozen_keywords
class _WholeCase(Case):
    """`layers` like the last one. `batch` sequences of `tokens`, backward too if `back`; `decodes`: one token each, behind `tokens` cached ones."""

    model: str
    layers: float
    batch: float
    tokens: float
    back: bool
    decodes: bool


def _whole_us(case: _WholeCase, gpu: Gpu, constants: Constants) -> F64:
    """The sum of kernels, and of gaps in a graph."""
    machine = _machine(case.gpu, tuple(sorted(constants.items())), "serving" if case.decodes else "training")
    shapes = zip(*np.broadcast_arrays(*(np.atleast_1d(x) for x in (case.layers, case.batch, case.tokens))), strict=True)
    one = _decode_us if case.decodes else _layer_us
    return np.array([layers * one(machine, load_whole(case.model), float(batch), float(tokens), case.back) for layers, batch, tokens in shapes])


def _layer_us(machine: Machine, model: WholeModel, batch: float, tokens: float, back: bool) -> float:
    rows, experts = batch * tokens, model.layer
    routed = Routed(rows * experts.topk / experts.n_experts, experts.n_experts) if experts else None
    step = prompt_batch(rows, tokens)
    return sum(us for op in operators(model, model.n_layers - 1) for us in _passes(machine, op, step, routed, back))


def _passes(machine: Machine, op: LayerOperator, step: StepBatch, routed: Routed | None, back: bool) -> Iterator[float]:
    """One operator forward, and backward: weight gradients are results of a GEMM, on which nothing is summed."""
    if isinstance(op, RowExchange) and routed:  # rows to their experts or back, in one kernel each way
        yield (1 + back) * machine.permute(4.0 * routed.each * routed.groups * op.width)
        return
    routed = routed if is_routed(op) else None
    if isinstance(op, MemoryOp) and op.piece in EAGER:
        n, *moved = EAGER[op.piece]
        values = rows_of(op, step.tokens, routed) * op.served / (2 if op.piece == POSITIONS else 3)
        yield sum(machine.memory(one * values, n) for one in moved[: 1 + back])
    else:
        yield sum(one.us for one in kernels(machine, op, step, Formats(), routed))
        if back:
            yield gradients(machine, op, step, Formats(), routed, frozen=True).inputs
        if back and isinstance(op, Weight) and op.product:
            each, groups = (routed.each, routed.groups) if routed else (op.rows * step.tokens, None)
            yield machine.gemm(op.n, op.k, each, "bf16", groups)


def _decode_us(machine: Machine, model: WholeModel, batch: float, context: float, back: bool) -> float:
    ops = layer_ops(Replica(model, Formats(), ServeLayout(), machine, even=True), StepBatch(decodes=batch, context=context), model.n_layers - 1)
    more, gap = EAGER_DECODE + (EAGER_EXPERTS if model.layer else 0), machine.constants["serving.gap_us"]
    return sum(op.us + op.kernels * gap for op in ops) + more * (light_us(machine.gpu, machine.constants) + gap)


def unlike(model: WholeModel) -> str:
    """What is not in a layer that `dysharp measure` runs; "": nothing."""
    a, layer = model.attention, model.layer
    others = a.kind != "gqa" or a.window or a.sinks or a.gated or a.qkv_bias or a.out_bias or model.linear or model.stack
    if others or a.head_dim != HEAD:
        return f"its attention is not plain grouped queries of {HEAD} elements"
    other = model.shared_hidden or model.latent_experts or model.expert_bias or model.dense_bias
    return "its FFN is not plain and gated" if other or (layer.n_matrices if layer else model.dense_matrices) != GATED else ""


@family("decoder-block", belongs=lambda m: m.kind == "decoder_block", closed_us=_whole_us)
@family("decode-step", belongs=lambda m: m.kind == "decode_step", closed_us=_whole_us)
def _whole_case(m: Measurement) -> _WholeCase:
    """The case of a latency in BF16."""
    config, decodes = m.config, m.kind == "decode_step"
    if config.get("dtype") != "bf16" or config.get("model") not in list_whole_models():
        raise Unsupported("a type that is not bf16, or a model that is not packaged")
    model = load_whole(config["model"])
    if why := unlike(model):
        raise Unsupported(f"layers of {model.name}: {why}")
    check_cluster(gpu := gpu_of(m), 1)
    return _WholeCase(
        gpu=gpu, model=model.name, layers=number(m, "layers") if decodes else 1.0, batch=number(m, "batch"),
        tokens=number(m, "context" if decodes else "tokens"), back=config.get("pass") == "forward and backward", decodes=decodes, dtypes=("bf16",),
        shape=f"{m.kind} {model.name}",
    )  # fmt: skip
