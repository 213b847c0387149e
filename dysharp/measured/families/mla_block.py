"""A block of latent attention on one GPU, from the first projection to the last, by the kernels of a serving step; with and without an indexer."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dysharp.base.arrays import F64
from dysharp.costs.layer import OpTime
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
NATIVE_NORM, NATIVE_ROPE, NATIVE_INDEXER = (8, 36.0), (14, 24.0), 17
"""Kernels of PyTorch and bytes a value: of a norm, of positions (aiconfigurator collector/vllm/collect_mla_module.py, vLLM 0.24.0 config/vllm.py,
ir/ops/layernorm.py, rotary_embedding/deepseek_scaling_rope.py); small kernels of an indexer (deepseek_v2.py, `Indexer.forward`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCase(Case):
    """`batch` requests with `queries` new tokens each after `past` cached ones; `heads` on this GPU. `decodes`: the absorbed form.

    `native`: norms and positions are PyTorch's kernels, as vLLM's default configuration says outside of Inductor. Its MLA rows on B200 have none
    (chosen after they were seen: the smallest block takes 42 us there, 108 us elsewhere).
    """

    model: str
    heads: float
    batch: float
    queries: float
    past: float
    decodes: bool
    native: bool
    weights: str
    kv: str


def closed_us(case: BlockCase, gpu: Gpu, constants: Constants) -> F64:
    """The sum of the block's kernels, with the gaps of a graph between them."""
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
    ops = [op for op in attention_ops(replica, step, model.n_layers - 1) if op.name not in BESIDE]
    if case.native:
        a, (n, norm), (m, rope) = model.attention, NATIVE_NORM, NATIVE_ROPE
        n_bytes = step.tokens * (norm * (a.q_rank + a.kv_rank) + rope * (heads + 1) * a.rope_dim)
        kernels = 2 * n + m + (NATIVE_INDEXER if a.index_heads else 0)
        light = kernels * light_us(machine.gpu, machine.constants)
        ops = [op for op in ops if op.name != "latent norms"] + [OpTime("native", light + machine.stream(n_bytes), kernels)]
    return sum(op.us + op.kernels * machine.constants["serving.gap_us"] for op in ops)


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
    kv = "fp8" if config.get("kv_cache_dtype" if sparse else "kv_dtype") == "fp8" else "bf16"
    return BlockCase(
        gpu=gpu, model=model, heads=float(heads), batch=batch, queries=queries, past=past, decodes=m.kind.endswith("generation"),
        native=m.system.startswith("vLLM") and (sparse or gpu != "b200"), weights=weights, kv=kv, dtypes=(weights, kv),
        shape=f"{m.kind} {model} heads={heads}",
    )  # fmt: skip
