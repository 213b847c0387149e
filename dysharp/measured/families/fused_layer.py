"""One kernel per MoE layer: Mega MoE and its variants."""

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dysharp.base import F64, PS_PER_US, AnyMapping, Texts, frozen_keywords
from dysharp.costs import moe
from dysharp.engine.burst.run import run_burst
from dysharp.measured.ep_kernels import cluster_of, on_line, sent_dtype
from dysharp.measured.expert_loads import LayerCase, expert_loads, layer_fields
from dysharp.measured.family import Constants, family
from dysharp.measured.measurements import SCALED_FP4, Measurement, Unsupported, check_cluster, dtype_of, gpu_of, label
from dysharp.measured.predictions import HashableConstants, hashable_constants
from dysharp.specs import Gpu, Model
from dysharp.systems import get_system
from dysharp.workload import Routing, make_routing, routing_from

NEAR, FAR = 4096, 8192
"""Tokens per GPU of the two runs that define the line. An expert has many tiles in these runs."""
MOST_TOKENS = 1 << 15
"""Largest number of tokens of all GPUs in such runs. With more GPUs, each GPU has fewer tokens."""
MX_SCALE = 1 / 32  # one 8-bit scale for 32 values (OCP MX)
WEIGHT_BYTES = {"fp8": 1.0, "fp4": 0.5 + MX_SCALE, "nvfp4": SCALED_FP4, "mxfp8": 1 + MX_SCALE}
ACT_BYTES = {"fp8": 1 + MX_SCALE, "mxfp8": 1 + MX_SCALE, "nvfp4": SCALED_FP4}
BACK_BYTES = {"rows": 2.0, "mxfp8": 1 + MX_SCALE, "nvfp4": SCALED_FP4}
"""Bytes per value, scales included."""
KERNEL_ALONE = "DeepGEMM MegaMoE"
SM90_KERNEL = "SM90 MegaMoE"
"""Systems of the library's measurements, which time the kernel without the quantisation of its input.

The kernel for SM90 has FP8 weights (DeepGEMM csrc/jit_kernels/heuristics/sm90_mega_moe.hpp).
"""
OPERANDS = {SM90_KERNEL: ("fp8", "fp8"), "MegaMoE nvfp4_cutedsl": ("nvfp4", "nvfp4"), "MegaMoE mxfp8_cutedsl": ("mxfp8", "mxfp8")}
"""First words of a system -> formats of activations and weights where the measurement names none; others: FP8 and FP4."""


@frozen_keywords
class FusedCase(LayerCase):
    """One layer of gated experts.

    | field | meaning |
    |---|---|
    | `distribution` | rows over experts: "balanced" (in turn), "random" (uniform) or a power law of `expert_loads` |
    | `acts`, `weights` | formats of the GEMMs' operands |
    | `back` | option `combine` of the system: format of the results |
    | `cast` | whether the quantisation of the input is part of the time |
    """

    distribution: str = "random"
    acts: str = "mxfp8"
    weights: str = "fp4"
    back: str = "rows"
    cast: bool = True

    def run_key(self) -> Hashable:
        return replace(self, tokens=0, rows=0.0, touched=0.0)

    def effort(self) -> int:
        """Token rows of the larger run."""
        return 2 * min(self.gpus * self.tokens, MOST_TOKENS) * self.topk


def _belongs(m: Measurement) -> bool:
    """Whether a measurement is of a fused layer. COMET's two halves of a layer count, too."""
    return m.kind == "moe_layer_fused" or (m.kind in ("moe_layer0", "moe_layer1") and m.system.startswith("COMET"))


def _closed_us(case: FusedCase, gpu: Gpu, constants: Constants) -> F64:
    """One persistent kernel (`costs.moe`)."""
    return moe.fused_layer_us(
        gpu,
        constants,
        rows=case.rows,
        touched=case.touched,
        hidden=case.hidden,
        inter=case.inter,
        gpus=case.gpus,
        dispatch_bytes=ACT_BYTES[case.acts] * case.hidden,
        combine_bytes=BACK_BYTES[case.back] * case.hidden,
        weight_bytes=WEIGHT_BYTES[case.weights],
        rate_dtype="fp4" if case.acts == "nvfp4" else "fp8",
        cast=np.asarray(case.tokens) * case.hidden if case.cast else 0.0,
    )


def program_us(case: FusedCase, constants: Constants) -> float:
    """A layer under Mega MoE: a run, or the line through the two largest."""
    far = min(FAR, MOST_TOKENS // case.gpus)
    near, key = far * NEAR // FAR, hashable_constants(constants)
    # A power law keeps the expert loads of the whole case in every run, so such cases share no runs.
    tokens = case.tokens if case.distribution.startswith("power") else 0
    shape = replace(case, tokens=tokens, rows=0.0, touched=0.0)
    return on_line(case.tokens, (near, far), lambda tokens: (_run(shape, tokens, key),))[0]


@lru_cache(maxsize=512)
def _run(shape: FusedCase, tokens: int, constants: HashableConstants) -> float:
    cluster = cluster_of(shape.gpu, shape.gpus, constants)
    model = shape.model(tokens, 3, "fp8")
    megamoe = get_system("megamoe")
    dispatch = "nvfp4" if shape.acts == "nvfp4" else "mxfp8"
    options = megamoe.options(
        form="real", dispatch=dispatch, weights="model" if shape.weights == "fp8" else shape.weights, combine=shape.back, cast=shape.cast
    )
    program = megamoe.plan(model, cluster, _routing(shape, model, tokens), "fwd", options)
    return run_burst(program)[0].time_ps / PS_PER_US


def _routing(shape: FusedCase, model: Model, tokens: int) -> Routing:
    if shape.distribution == "balanced":
        return _in_turn(shape, tokens)
    if shape.distribution == "random":
        return make_routing("uniform", model, shape.gpus, tokens)
    loads = expert_loads(shape.gpus, shape.experts, shape.topk, shape.tokens, shape.distribution)
    return _loaded_routing(loads, shape.gpus, shape.topk, tokens)


def _in_turn(shape: FusedCase, tokens: int) -> Routing:
    """Choices go to the GPUs in turn, and on each of them to its experts in turn."""
    choice = np.arange(shape.gpus * tokens * shape.topk)
    local = shape.experts // shape.gpus
    expert = choice % shape.gpus * local + choice // shape.gpus % local
    return routing_from(expert.astype(np.int32).reshape(-1, shape.topk), shape.experts, shape.gpus)


def _loaded_routing(loads: F64, gpus: int, topk: int, tokens: int) -> Routing:
    """Experts with rows in proportion to `[experts]` loads, dealt to `tokens` of each GPU in a seeded random order.

    An expert has at most one row of a token.
    """
    n_tokens = gpus * tokens
    share = np.minimum(loads / loads.sum() * n_tokens * topk, n_tokens)
    rows = np.floor(share).astype(np.int64)
    by_rest = np.argsort(-(share - rows), kind="stable")
    while missing := n_tokens * topk - int(rows.sum()):
        rows[by_rest[rows[by_rest] < n_tokens][:missing]] += 1
    token = np.random.default_rng(0).permutation(n_tokens)
    expert = np.empty((n_tokens, topk), np.int32)
    expert[token] = np.repeat(np.arange(len(loads), dtype=np.int32), rows).reshape(topk, n_tokens).T
    return routing_from(expert, len(loads), gpus)


def _dtypes_of(model: Model, options: AnyMapping) -> Texts:
    """Data types of the dispatched rows and of the weights."""
    weights = options.get("weights")
    return sent_dtype("dispatch", model, options), f"weights {model.gemm_dtype if weights in (None, 'model') else weights}"


@family("fused-layer", belongs=_belongs, closed_us=_closed_us, program_us=program_us, dtypes_of=_dtypes_of)
def _case(m: Measurement) -> FusedCase:
    """A latency, TFLOPS of a gated expert's three matrices, or GB/s of all rows out and back, the own GPU's too."""
    gpu = gpu_of(m)
    if "MegaMoE" not in m.system:
        several = m.kind == "moe_layer_fused"
        raise Unsupported("a layer of several kernels, not one" if several else "a tensor-parallel layer: no closed form yet")
    distribution = str(m.config.get("distribution", "random"))
    read = layer_fields(m, distribution)
    formats = next((pair for words, pair in OPERANDS.items() if m.system.startswith(words)), ("fp8", "fp4"))
    acts = dtype_of(m, "acts", expected=tuple(ACT_BYTES), default=formats[0])
    weights = dtype_of(m, "weights", expected=tuple(WEIGHT_BYTES), default=formats[1])
    back = "mxfp8" if "combine_mxfp8" in m.system else "nvfp4" if "combine_nvfp4" in m.system else "rows"
    check_cluster(gpu, read["gpus"])
    rows, hidden = read["tokens"] * read["topk"], read["hidden"]
    work = {"TFLOPS": 2 * rows * 3 * hidden * read["inter"] / 1e6, "GB/s": rows * (ACT_BYTES[acts] * hidden + BACK_BYTES[back] * hidden) / 1e3}
    return FusedCase(
        **read,
        gpu=gpu,
        distribution=distribution,
        acts=acts,
        weights=weights,
        back=back,
        cast=m.system != KERNEL_ALONE and not m.system.startswith(SM90_KERNEL),
        work=work.get(m.unit, 0.0),
        dtypes=(f"dispatch {'mxfp8' if acts == 'fp8' else acts}", f"weights {weights}"),
        shape=label(m, "hidden", "inter", "experts", "topk"),
    )
