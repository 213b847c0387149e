"""Linear attention on one GPU by the forms that serving has: states of a gated delta net, and the convolution before them."""

from dataclasses import replace

import numpy as np

from dysharp.base import F64, frozen_keywords
from dysharp.costs.linear_attention import CONVOLVED, DeltaNet, convolution_us, fused_prefill_us, prefill_us, update_us
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, family, gpu_of, number
from dysharp.specs import Gpu

CONVOLUTION, STATES = "causal_conv1d", "gated_delta_rule"
"""Parts of the names of kernels."""


@frozen_keywords
class _LinearCase(Case):
    """`sequences` of `tokens` new tokens each. `part`: the convolution over `width` channels, or the states of `value_heads`.

    `decodes`: states that take one token; prompts go through them chunk by chunk. `fused`: in one kernel.
    `taps`: rows that the convolution sees; `blocks`: its thread blocks where each sequence and channel has one.
    """

    part: str
    sequences: float
    tokens: float
    width: float
    key_heads: float
    value_heads: float
    key_dim: float
    value_dim: float
    taps: float
    blocks: float
    decodes: bool
    fused: bool


def _closed_us(case: _LinearCase, gpu: Gpu, constants: Constants) -> F64:
    """`costs.linear_attention`; a convolution reads and writes each value once, in decode also the rows that it keeps.

    Collectors replay a graph of one call, which starts a gap behind the one before (aiconfigurator, `benchmark_with_power` with `repeat_n` 1).
    """
    gap = constants["serving.gap_us"]
    if case.part == CONVOLUTION:
        rows = case.tokens + (case.taps - 1 if case.decodes else 0.0)
        again = np.where((np.asarray(case.blocks) > 0) | case.decodes, 0.0, (case.taps - 1) * np.ceil(case.tokens / CONVOLVED))
        values = case.sequences * case.width
        return gap + convolution_us(gpu, constants, 4.0 * values * rows, case.blocks, 2.0 * values * again)
    fields = (case.sequences, case.tokens, case.key_heads, case.value_heads, case.key_dim, case.value_dim)
    calls = [DeltaNet(*map(float, call)) for call in zip(*np.broadcast_arrays(*(np.atleast_1d(x) for x in fields)), strict=True)]
    if case.decodes:
        return gap + np.array([update_us(gpu, constants, call) for call in calls])
    return gap + np.array([(fused_prefill_us if case.fused else prefill_us)(gpu, constants, call) for call in calls])


@family("linear-attention", belongs=lambda m: m.kind.startswith("linear_attention_"), closed_us=_closed_us)
def _case(m: Measurement) -> _LinearCase:
    """The case of a latency."""
    kernel, delta = str(m.config.get("kernel")), m.kind.endswith("gdn")
    keys, values = (number(m, key) if delta else 0.0 for key in ("num_k_heads", "num_v_heads"))
    key_dim, value_dim = (number(m, key) if delta else 0.0 for key in ("head_k_dim", "head_v_dim"))
    found = _LinearCase(
        gpu=gpu_of(m), part=CONVOLUTION, sequences=number(m, "batch_size"), tokens=number(m, "seq_len"),
        width=2 * keys * key_dim + values * value_dim, key_heads=keys, value_heads=values, key_dim=key_dim, value_dim=value_dim,
        taps=number(m, "d_conv"), blocks=0.0, decodes=m.config.get("phase") == "generation", fused="flashinfer" in kernel,
        shape=f"{kernel} {m.config.get('model_name')}",
    )  # fmt: skip
    if kernel.startswith(CONVOLUTION):
        width = found.width if delta else number(m, "nheads") * number(m, "head_dim") + 2 * number(m, "n_groups") * number(m, "d_state")
        own = m.system.startswith(("TensorRT-LLM", "SGLang 0.5.10")) and not found.decodes  # else a Triton kernel, whose blocks take many channels
        return replace(found, width=width, blocks=found.sequences * width if own else 0.0)
    if STATES not in kernel:
        raise Unsupported("a kernel of linear attention without a form")
    return replace(found, part=STATES)
