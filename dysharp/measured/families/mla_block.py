"""A block of latent attention on one GPU, from the first projection to the last, by the kernels of a serving step; with and without an indexer.

Prompts with an indexer are timed without a graph: each kernel takes a launch, measured on an H100's host, times what the GPU's host takes.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dysharp.base.arrays import F64
from dysharp.costs.layer import SPARSE_HEADS, OpTime
from dysharp.costs.machine import Machine
from dysharp.costs.operators import light_us
from dysharp.costs.regime import regime_of
from dysharp.measured.family import Case, Constants, family
from dysharp.measured.measurements import CLUSTERS, Measurement, Unsupported, check_cluster, gpu_of, number, whole
from dysharp.model.batch import StepBatch, prompt_batch
from dysharp.model.formats import Formats
from dysharp.serving.layer import attention_ops
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.gpu import Gpu

MODELS = {"DeepseekV3ForCausalLM": "deepseek-v3", "DeepseekV32ForCausalLM": "deepseek-v3.2", "GlmMoeDsaForCausalLM": "glm-5"}
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
BESIDE = ("norms", "attention all-reduce")
"""Parts of a serving step that a measured block does not have."""
NATIVE_NORM, NATIVE_ROPE = (8, 36.0), (14, 24.0)
"""Kernels of PyTorch and bytes a value: of a norm, of positions (aiconfigurator collector/vllm/collect_mla_module.py, vLLM 0.24.0 config/vllm.py,
ir/ops/layernorm.py, rotary_embedding/deepseek_scaling_rope.py)."""
INDEXER = {"": 0, "keys": 9, "whole": 17}
"""What runs of an indexer -> kernels beside its products: nothing where a layer takes another's choice; keys alone, their product included (SGLang
nsa_indexer.py, `_forward_cuda_k_only`); all (vLLM deepseek_v2.py, `Indexer.forward`; SGLang's are as many)."""
FLASHMLA_HEADS = {"hopper": 64, "blackwell": 128}
"""Heads of FlashMLA's sparse kernel for prompts (TensorRT-LLM sparse/dsa/flash_mla.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCase(Case):
    """`batch` requests with `queries` new tokens each after `past` cached ones; `heads` on this GPU. `decodes`: the absorbed form.

    `indexer`: what runs of it (`INDEXER`). `eager`: a host launches the kernels (aiconfigurator, collect_mla_module.py of vllm, `use_cuda_graph`, and
    of sglang). `flash`: prompts by FlashMLA.
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
    eager: bool
    flash: bool
    native: bool
    weights: str
    kv: str


def closed_us(case: BlockCase, gpu: Gpu, constants: Constants) -> F64:
    """The sum of the block's kernels, with the gaps of a graph between them, or the host's launches where they take longer."""
    machine = _machine(case.gpu, tuple(sorted(constants.items())))
    shapes = np.broadcast_arrays(*(np.atleast_1d(x) for x in (case.heads, case.batch, case.queries, case.past)))
    return np.array([_block_us(case, machine, *map(float, shape)) for shape in zip(*shapes, strict=True)])


@lru_cache(maxsize=64)
def _machine(gpu: str, constants: tuple[tuple[str, float], ...]) -> Machine:
    """Kernels of an engine in a benchmark."""
    return Machine(replace(load_cluster(CLUSTERS[gpu]), constants=constants), replace(regime_of("serving"), long=False))


def _block_us(case: BlockCase, machine: Machine, heads: float, batch: float, queries: float, past: float) -> float:
    model = load_whole(case.model)
    replica = Replica(model, Formats(attention=case.weights, kv=case.kv), ServeLayout(tp=round(model.attention.heads / heads)), machine)
    step = StepBatch(decodes=batch, context=past) if case.decodes else prompt_batch(batch * queries, queries, past)
    absent, small, a = BESIDE if case.indexer == "whole" else (*BESIDE, "indexer"), INDEXER[case.indexer], model.attention
    ops = [op for op in attention_ops(replica, step, model.n_layers - 1) if op.name not in absent]
    if case.flash:
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


@family("mla-block", belongs=lambda m: m.kind.startswith("mla_block_"), closed_us=closed_us)
@family("sparse-block", belongs=lambda m: m.kind.startswith("dsa_block_"), closed_us=closed_us)
def case(m: Measurement) -> BlockCase:
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
    kernel, decodes = str(config.get("kernel", "")).lower(), m.kind.endswith("generation")
    few = m.system.startswith("SGLang") and not decodes and past + queries <= load_whole(model).attention.index_top
    kv = "fp8" if config.get("kv_cache_dtype" if sparse else "kv_dtype") == "fp8" else "bf16"
    return BlockCase(
        gpu=gpu, model=model, heads=float(heads), batch=batch, queries=queries, past=past, decodes=decodes,
        indexer="" if not sparse or "skip_indexer" in kernel else "keys" if few else "whole",
        eager=sparse and not decodes and not m.system.startswith("TensorRT"), flash=sparse and "flashmla" in kernel,
        native=m.system.startswith("vLLM") and (sparse or gpu != "b200"), weights=weights, kv=kv, dtypes=(weights, kv),
        shape=f"{m.kind} {model} heads={heads}",
    )  # fmt: skip
