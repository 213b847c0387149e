"""Whole pieces of a model by PyTorch on one GPU, as `dysharp measure` runs them: a decoder layer with its gradients, a decode step in a graph.

Each is a sum over `model.operators` by the kernels of a drained GPU, with what eager PyTorch does in more kernels than Megatron-LM or an engine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dysharp.base.arrays import F64
from dysharp.base.errors import ConfigError
from dysharp.costs.layer import Routed, gradients, kernels, rows_of
from dysharp.costs.machine import Machine
from dysharp.costs.operators import light_us
from dysharp.costs.regime import Name, regime_of
from dysharp.measured.family import Case, Constants, family
from dysharp.measured.measurements import CLUSTERS, Measurement, Unsupported, gpu_of, number
from dysharp.model.batch import StepBatch, prompt_batch
from dysharp.model.formats import Formats
from dysharp.model.operators import ACTIVATION, DENSE, POSITIONS, LayerOperator, MemoryOp, RowExchange, Weight, is_routed, operators
from dysharp.serving.layer import layer_ops
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.gpu import Gpu
from dysharp.specs.whole import WholeModel

EAGER = {POSITIONS: (3, 20.0, 20.0), ACTIVATION: (2, 10.0, 26.0), DENSE: (2, 10.0, 26.0)}
"""Piece -> kernels of a forward pass, bytes of a value forward and backward: queries and keys as FP32, turned as complex numbers and cast back; SiLU
and a product, whose gradients are joined (`_layer` and `_gated` of `api.measuring`)."""
EAGER_DECODE, EAGER_EXPERTS = 7, 12
"""Kernels of a decode step's layer beyond those of an engine: positions, a second write to the cache, additions, activation; with experts also their
choice, sort, ends of groups, copies, parts and sum (as above)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCase(Case):
    """`layers` like the last one. `batch` sequences of `tokens`, backward too if `back`; `decodes`: one token each, behind `tokens` cached ones."""

    model: str
    layers: float
    batch: float
    tokens: float
    back: bool
    decodes: bool


def closed_us(case: WholeCase, gpu: Gpu, constants: Constants) -> F64:
    """The sum of kernels, and of gaps in a graph."""
    machine, model = _machine(case.gpu, "serving" if case.decodes else "training", tuple(sorted(constants.items()))), load_whole(case.model)
    shapes = zip(*np.broadcast_arrays(*(np.atleast_1d(x) for x in (case.layers, case.batch, case.tokens))), strict=True)
    one = _decode_us if case.decodes else _block_us
    return np.array([layers * one(machine, model, float(batch), float(tokens), case.back) for layers, batch, tokens in shapes])


@lru_cache(maxsize=64)
def _machine(gpu: str, regime: Name, constants: tuple[tuple[str, float], ...]) -> Machine:
    return Machine(replace(load_cluster(CLUSTERS[gpu]), constants=constants), replace(regime_of(regime), long=False))


def _block_us(machine: Machine, model: WholeModel, batch: float, tokens: float, back: bool) -> float:
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


@family("decoder-block", belongs=lambda m: m.kind == "decoder_block", closed_us=closed_us)
@family("decode-step", belongs=lambda m: m.kind == "decode_step", closed_us=closed_us)
def case(m: Measurement) -> WholeCase:
    """The case of a latency in BF16."""
    config, decodes = m.config, m.kind == "decode_step"
    if config.get("dtype") != "bf16" or "narrower" in config:
        raise Unsupported("not in BF16, or a rehearsal on narrower layers")
    try:
        model = load_whole(str(config.get("model")))
    except ConfigError as error:
        raise Unsupported(str(error)) from None
    if model.stack or model.attention.kind != "gqa" or model.linear:
        raise Unsupported(f"layers of {model.name}, expected grouped queries in every layer")
    return WholeCase(
        gpu=gpu_of(m), model=model.name, layers=number(m, "layers") if decodes else 1.0, batch=number(m, "batch"),
        tokens=number(m, "context" if decodes else "tokens"), back=config.get("pass") == "forward and backward", decodes=decodes, dtypes=("bf16",),
        shape=f"{m.kind} {model.name}",
    )  # fmt: skip
