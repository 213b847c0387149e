"""Times of today's EP kernels from their Programs on the burst engine: the prediction that `validate` judges for them.

A Program is run on few tokens and continued along the line through its two largest runs: every op beyond them is one of the same kind on the
same resources. `tests/analysis/test_programs.py` holds that line against full runs. Which row asks for which Program: `predictors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.contention import sm_contention_us
from dysharp.analysis.layer_queries import expert_loads
from dysharp.analysis.surroundings import PERMUTES, around
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.specs import Model, load_cluster
from dysharp.systems import allreduce, get_system
from dysharp.systems.hybrid_ep import CHUNK_TOKENS
from dysharp.systems.registry import GATED_MATRICES
from dysharp.units import PS_PER_US
from dysharp.workload import Routing, make_routing, routing_from

CLUSTERS = {"h100-sxm": "hw-dgx-h100", "h200-sxm": "hw-dgx-h200", "h800": "hw-dgx-h800", "b200": "hw-dgx-b200", "gb200": "hw-gb200-tray"}
"""Packaged GPU -> the cluster of one node of it."""
NEAR, FAR = 256, 512
"""Tokens per GPU of the two runs that carry the line."""
MANY_GPUS, FEWER = 16, 2
"""Above so many GPUs the two runs have half the tokens: a run has GPUs times as many."""


@dataclass(frozen=True, slots=True)
class EpCase:
    """One measured case: `tokens` per GPU, `n_sm` SMs of DeepEP's normal kernels (others use all), FP8 rows with scales out, BF16 back."""

    gpu: str
    gpus: int
    hidden: int
    experts: int
    topk: int
    tokens: int
    n_sm: int
    fp8: bool = True


@dataclass(frozen=True, slots=True)
class FusedCase:
    """One measured layer of a fused kernel: gated experts of `inter` columns, `tokens` per GPU.

    `distribution`: "balanced" (experts in turn), "random" (uniform) or a power law of `layer_queries.expert_loads`. `rows`, `weights`, `back`:
    formats of Mega MoE's options `dispatch`, `weights`, `combine`; `cast`: with the quantisation of the input.
    """

    gpu: str
    gpus: int
    hidden: int
    inter: int
    experts: int
    topk: int
    tokens: int
    distribution: str = "random"
    rows: str = "mxfp8"
    weights: str = "fp4"
    back: str = "rows"
    cast: bool = True


FUSED_NEAR, FUSED_FAR = 4096, 8192
"""Tokens per GPU of the two runs that carry the line of a fused layer: tiles of an expert are many there."""
FUSED_TOKENS = 1 << 15
"""Most tokens of all GPUs in such a run: with more GPUs an expert has its tiles from fewer tokens of each."""
Frozen = tuple[tuple[str, float], ...]
Options = tuple[tuple[str, Any], ...]


def deepep_us(case: EpCase, constants: Mapping[str, float]) -> tuple[float, float]:
    """(dispatch, combine) in us of DeepEP normal kernels with a cached handle, under uniform routing."""
    _, dispatch, combine = _continued(("deepep", "uniform"), (("dispatch", "fp8" if case.fp8 else "rows"), ("n_sm", case.n_sm)), case, constants)
    return dispatch, combine


def ll_us(case: EpCase, constants: Mapping[str, float]) -> tuple[float, float]:
    """(dispatch, combine) in us of DeepEP low-latency kernels, send and receive parts, device time, under uniform routing."""
    _, dispatch, combine = _continued(("deepep-ll", "uniform"), (("dispatch", "fp8" if case.fp8 else "rows"),), case, constants)
    return dispatch, combine


def trtllm_us(case: EpCase, sides: str, payload: str, constants: Mapping[str, float], back: str = "rows") -> tuple[float, float, float]:
    """(prepare, dispatch, combine) in us of TensorRT-LLM's all-to-all under its benchmark's balanced routing; one-sided prepares nothing.

    `sides`: "one" or "two"; `payload` and `back`: options `dispatch` and `combine` of the system.
    """
    options = (("combine", back), ("dispatch", payload), ("sides", sides))
    return _continued(("trtllm-a2a", "balanced"), options, case, constants)


def hybrid_us(case: EpCase, constants: Mapping[str, float], *, kernels: bool) -> tuple[float, float]:
    """(dispatch, combine) in us of Hybrid-EP with a cached handle, under uniform routing: of its kernels alone, or with launches and the copies
    out of the exchange buffer and into it.

    SMs take turns at chunks, so the line is drawn through runs in which every SM has as many.
    """
    turn = case.n_sm * CHUNK_TOKENS
    options = (("dispatch", "fp8" if case.fp8 else "rows"), ("n_sm", case.n_sm), ("permute", False))
    marks = ("dispatch.launch", "received", "combine.launch") if kernels else ("scan", "permute", "permute")
    start, received, back, end = _line(("hybrid-ep", "uniform"), options, case, constants, marks, (turn, 2 * turn))
    return received - start, end - back


def megamoe_us(case: FusedCase, constants: Mapping[str, float]) -> tuple[float]:
    """A layer in us under Mega MoE, one kernel and, with `cast`, what puts its input in front of it."""
    frozen = tuple(sorted(constants.items()))
    far = min(FUSED_FAR, FUSED_TOKENS // case.gpus)
    near = far * FUSED_NEAR // FUSED_FAR
    # Experts of a power law are loaded as with all tokens of the case, whatever the run's: such cases share no runs.
    shape = replace(case, tokens=case.tokens if case.distribution.startswith("power") else 0)
    if case.tokens <= far:
        return (_fused_run(shape, case.tokens, frozen),)
    first, second = (_fused_run(shape, tokens, frozen) for tokens in (near, far))
    return (second + (case.tokens - far) / (far - near) * (second - first),)


def _in_turn(case: FusedCase, tokens: int) -> Routing:
    """Choices go to the GPUs in turn, and on each of them to its experts in turn."""
    choice = np.arange(case.gpus * tokens * case.topk)
    local = case.experts // case.gpus
    expert = choice % case.gpus * local + choice // case.gpus % local
    return routing_from(expert.astype(np.int32).reshape(-1, case.topk), case.experts, case.gpus)


def loaded_routing(loads: NDArray[np.float64], gpus: int, topk: int, tokens: int) -> Routing:
    """Experts with rows in proportion to `loads` (no more of one than tokens), dealt to `tokens` of each GPU in a seeded random order."""
    n_tokens = gpus * tokens
    share = np.minimum(loads / loads.sum() * n_tokens * topk, n_tokens)
    whole = np.floor(share).astype(np.int64)
    spare = np.argsort(-(share - whole), kind="stable")
    while missing := n_tokens * topk - int(whole.sum()):
        room = spare[whole[spare] < n_tokens][:missing]
        whole[room] += 1
    token = np.random.default_rng(0).permutation(n_tokens)
    expert = np.empty((n_tokens, topk), np.int32)
    expert[token] = np.repeat(np.arange(len(loads), dtype=np.int32), whole).reshape(topk, n_tokens).T
    return routing_from(expert, len(loads), gpus)


def _fused_routing(case: FusedCase, model: Model, tokens: int) -> Routing:
    if case.distribution == "balanced":
        return _in_turn(case, tokens)
    if case.distribution == "random":
        return make_routing("uniform", model, case.gpus, tokens)
    loads = expert_loads(case.gpus, case.experts, case.topk, case.tokens, case.distribution)
    return loaded_routing(loads, case.gpus, case.topk, tokens)


@lru_cache(maxsize=512)
def _fused_run(case: FusedCase, tokens: int, constants: Frozen) -> float:
    cluster = replace(load_cluster(CLUSTERS[case.gpu]).with_gpus(case.gpus), constants=constants)
    model = Model("measured", case.hidden, case.inter, case.experts, case.topk, tokens, GATED_MATRICES, 2, "fp8")
    megamoe, routing = get_system("megamoe"), _fused_routing(case, model, tokens)
    options = megamoe.options(form="real", dispatch=case.rows, weights=case.weights, combine=case.back, cast=case.cast)
    program = megamoe.plan(model, cluster, routing, "fwd", options)
    return run_burst(program)[0].time_ps / PS_PER_US


def balanced_routing(gpus: int, experts: int, topk: int, tokens: int) -> Routing:
    """Token i of a GPU to the 8 consecutive GPUs of group i mod (GPUs / 8), one expert each; below 8 GPUs to every GPU, 8 / GPUs experts each."""
    width = min(topk, gpus)
    each, local = topk // width, experts // gpus
    token = np.arange(gpus * tokens)
    place, groups = token % tokens, max(1, gpus // width)
    gpu = (place % groups)[:, None] * width + np.arange(topk)[None, :] // each
    expert = gpu * local + (place[:, None] + np.arange(topk)[None, :] % each) % local
    return routing_from(expert.astype(np.int32), experts, gpus)


def _continued(of: tuple[str, str], options: Options, case: EpCase, constants: Mapping[str, float]) -> tuple[float, float, float]:
    """(prepare, dispatch, combine) of `of` (system, routing): a run, or the line through the two largest."""
    ends = (NEAR, FAR) if case.gpus <= MANY_GPUS else (NEAR // FEWER, FAR // FEWER)
    prepared, received, end = _line(of, options, case, constants, ("prepared", "received"), ends)
    return prepared, received - prepared, end - received


def _line(
    of: tuple[str, str], options: Options, case: EpCase, constants: Mapping[str, float], marks: tuple[str, ...], ends: tuple[int, int]
) -> tuple[float, ...]:
    """When the last ops of the templates `marks` are done, and the end, in us: a run, or the line through runs of `ends` tokens per GPU."""
    frozen, shape = tuple(sorted(constants.items())), replace(case, tokens=0)
    near, far = ends
    if case.tokens <= far:
        return _run(of, options, shape, case.tokens, frozen, marks)
    more = (case.tokens - far) / (far - near)
    pairs = zip(_run(of, options, shape, near, frozen, marks), _run(of, options, shape, far, frozen, marks), strict=True)
    return tuple(b + more * (b - a) for a, b in pairs)


@lru_cache(maxsize=4096)
def _run(of: tuple[str, str], options: Options, case: EpCase, tokens: int, constants: Frozen, marks: tuple[str, ...]) -> tuple[float, ...]:
    """`case` without its own number of tokens, so that cases of one shape share runs."""
    cluster = replace(load_cluster(CLUSTERS[case.gpu]).with_gpus(case.gpus), constants=constants)
    model = Model(
        name="measured",
        hidden=case.hidden,
        expert_hidden=128,
        n_experts=case.experts,
        topk=case.topk,
        tokens_per_gpu=tokens,
        n_matrices=2,
        element_bytes=2,
        gemm_dtype="bf16",
    )
    name, kind = of
    balanced = kind == "balanced"
    routing = balanced_routing(case.gpus, case.experts, case.topk, tokens) if balanced else make_routing(kind, model, case.gpus, tokens)
    system = get_system(name)
    program = system.plan(model, cluster, routing, "fwd", system.options(form="real", compute=False, **dict(options)))
    trace, _ = run_burst(program)
    return (*(_done(program, trace, mark) / PS_PER_US for mark in marks), trace.time_ps / PS_PER_US)


def _done(program: Program, trace: Trace, name: str) -> int:
    """When the last op of the templates called `name` is done; 0 without one."""
    mine = [i for i, template in enumerate(program.templates) if template.name == name]
    return int(trace.done[np.isin(program.ops.template, mine)].max(initial=0))


@dataclass(frozen=True, slots=True)
class LayerCase:
    """One measured layer of kernels in a row. `system`: "deepep" with `n_sm` SMs and rows out in FP8 if `fp8`, or "megatron-a2a".

    `rows`, `touched` and `copies` are those of the GPU with most rows, for what surrounds the Program (`surroundings`); `training` casts rows and
    weights with their transpose.
    """

    system: str
    gpu: str
    gpus: int
    model: Model
    n_sm: int
    fp8: bool
    rows: float
    copies: float
    training: bool
    touched: float


TRAINING_CAST_BYTES = 4  # read in BF16, written in FP8 twice


def layer_us(case: LayerCase, constants: Mapping[str, float]) -> tuple[float]:
    """A whole eager layer under uniform routing in us: transfers and GEMMs by its Program, and what surrounds them."""
    cluster = replace(load_cluster(CLUSTERS[case.gpu]).with_gpus(case.gpus), constants=tuple(sorted(constants.items())))
    model, chosen = case.model, get_system(case.system)
    words: dict[str, Any] = {"n_sm": case.n_sm, "dispatch": "fp8" if case.fp8 else "rows"} if case.system == "deepep" else {}
    routing = make_routing("uniform", model, cluster.n_gpus, model.tokens_per_gpu)
    program = chosen.plan(model, cluster, routing, "fwd", chosen.options(form="real", **words))
    trace, _ = run_burst(program)
    ran = trace.time_ps / PS_PER_US + sm_contention_us(program, trace, words.get("n_sm", 0), cluster.n_sms)
    weights = case.touched * model.n_matrices * model.hidden * model.expert_hidden
    casts = TRAINING_CAST_BYTES * (weights + case.rows * model.expert_hidden) + case.rows * model.hidden if case.training else 0.0
    permutes = PERMUTES.get(case.system, 0)
    near = around(cluster, model, case.rows, case.copies, permutes=permutes, fp8_rows=case.fp8, cast_bytes=casts)
    return (ran + near.device_us + near.host_us,)


@dataclass(frozen=True, slots=True)
class AllReduceCase:
    """One measured all-reduce of `n_bytes` per GPU by `kernel` of `compute.allreduce.KERNELS`. `in_flight`: most bytes under way of each load."""

    gpu: str
    gpus: int
    kernel: str
    n_bytes: int
    in_flight: int


def allreduce_us(case: AllReduceCase, constants: Mapping[str, float]) -> tuple[float]:
    """An all-reduce in us, all of its bytes."""
    cluster = replace(load_cluster(CLUSTERS[case.gpu]).with_gpus(case.gpus), constants=tuple(sorted(constants.items())))
    return (run_burst(allreduce.plan(cluster, case.kernel, case.n_bytes, case.in_flight))[0].time_ps / PS_PER_US,)


RUNS: Mapping[str, Callable[..., tuple[float, ...]]] = {
    "deepep": deepep_us,
    "deepep-ll": ll_us,
    "trtllm-a2a": trtllm_us,
    "hybrid-ep": hybrid_us,
    "megamoe": megamoe_us,
    "layer": layer_us,
    "allreduce": allreduce_us,
}
"""What a row may ask for: name -> function of (case, constants=, further words by name) that returns its parts in us."""
