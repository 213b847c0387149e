"""What the kernels of a profile should take: by the shapes of the framework's calls, or by a model under a layout. Folds over `costs`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dysharp.base.arrays import F64
from dysharp.base.errors import ConfigError
from dysharp.base.values import frozen
from dysharp.costs.attention import AttentionCall
from dysharp.costs.layer import Routed, gradients, kernels, machine_format
from dysharp.costs.machine import Machine, machine_of
from dysharp.measured.intervals import Asked, Interval, interval_of
from dysharp.model import operators as model_ops
from dysharp.model.batch import StepBatch
from dysharp.model.formats import Formats
from dysharp.model.operators import Core, LayerOperator, MemoryOp, Weight, is_routed
from dysharp.profiles.reader import Call, Profile
from dysharp.specs import Cluster
from dysharp.specs.catalog import list_clusters, load_cluster
from dysharp.specs.whole import WholeModel
from dysharp.training.block import Block
from dysharp.training.moe_block import exchange
from dysharp.training.recipe import SMS

BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "long int": 8, "long": 8, "int": 4}
"""Names of types in a profile -> bytes of an element; others have one."""
GEMMS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operators of PyTorch -> number of the first operand."""
ATTENTION = ("aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward", "aten::_scaled_dot_product_efficient_attention",
             "aten::_scaled_dot_product_cudnn_attention")  # fmt: skip
HEADS_FIRST = "scaled_dot"
"""Their operands are [batch, heads, tokens, width], those of the others [batch, tokens, heads, width]."""
COLLECTIVES = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter"}
STREAMS = ("elementwise", "copy", "norm", "activation", "positions", "optimizer", "cast")
"""Operators that memory limits: every input is read once, and a result as large as the largest input is written."""
FAMILIES = {"GEMM": "dense-gemm", "weight gradients": "dense-gemm", "grouped GEMM": "grouped-gemm", "attention": "attention",
            "attention backward": "attention", "dispatch": "deepep-dispatch", "combine": "deepep-combine", "all-reduce": "nccl"}  # fmt: skip
"""Operator -> family of measured rows whose residuals make its interval; others have that of memory-bound operators."""
PIECES = {model_ops.NORMS: "norm", model_ops.RESIDUAL: "norm", model_ops.POSITIONS: "positions", model_ops.UP: "positions",
          model_ops.ROUTER: "router", model_ops.PERMUTATIONS: "permutation"}  # fmt: skip


@frozen
class Expected:
    """What an operator should take, in microseconds; `floor`: what its FLOPs take at the peak of a datasheet, or its bytes beyond the cache."""

    us: float
    floor: float = 0.0


def cluster_of(profile: Profile, cluster: str | None) -> Cluster:
    """The cluster that was given, or the smallest packaged one with the GPU that the profile names. Raises ConfigError where none is known."""
    if cluster:
        return load_cluster(cluster)
    found = [c for c in map(load_cluster, list_clusters()) if c.family == "hw" and c.gpu.split("-")[0].upper() in profile.gpu.upper().split()]
    if not found:
        raise ConfigError(f"{profile.path}: found the GPU {profile.gpu or 'unnamed'!r}, expected --cluster with a cluster of it")
    found.sort(key=lambda c: ((c.max_gpus or c.n_gpus) < profile.ranks, c.max_gpus or c.n_gpus, c.name))
    return found[0]


def interval(machine: Machine, operator: str, us: float) -> Interval:
    """The interval of a prediction of an operator."""
    family = FAMILIES.get(operator, "operator")
    kind = "communication kernels" if operator in ("dispatch", "combine", "all-reduce") else "kernels"
    return interval_of(Asked(kind, family, machine.gpu.name, us))


class ByShape:
    """Expectations of single kernels by the shapes of the calls that launched them. Equal calls are asked once."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self._kept = machine, dict[tuple[str, Call], Expected | None]()

    def of(self, operator: str, call: Call) -> Expected | None:
        """None: its shapes do not say it."""
        key = (operator, call)
        if key not in self._kept:
            self._kept[key] = self._of(operator, call)
        return self._kept[key]

    def _of(self, operator: str, call: Call) -> Expected | None:
        if operator == "GEMM" and call.name in GEMMS:
            return self._gemm(call)
        if operator == "attention" and call.name in ATTENTION:
            return self._attention(call)
        if operator in STREAMS:
            sizes = [math.prod(shape) * BYTES.get(kind, 1) for shape, kind in zip(call.shapes, call.types, strict=False) if shape]
            moved = sum(sizes) + (0 if call.name.endswith("_") else max(sizes, default=0))
            return self._memory(moved) if sizes else None
        return None

    def _memory(self, moved: float) -> Expected:
        gpu = self.machine.gpu
        return Expected(self.machine.memory(moved), max(0.0, moved - 1e6 * gpu.l2_MB) / (1e3 * gpu.hbm_GBps))

    def _gemm(self, call: Call) -> Expected | None:
        first = GEMMS[call.name]
        if len(call.shapes) < first + 2 or len(call.shapes[first]) < 2 or len(call.shapes[first + 1]) < 2:
            return None
        (*batch, m, k), n = call.shapes[first], call.shapes[first + 1][-1]
        dtype, groups = "fp8" if "loat8" in "".join(call.types) else "bf16", math.prod(batch)
        if call.types[first : first + 1] == ("float",) or not m * n * k * groups:
            return None  # FP32 has no clock here
        us = self.machine.gemm(m, n, k, dtype, groups if batch else None)
        return Expected(us, 2 * m * n * k * groups / (1e6 * self.machine.gpu.datasheet.peak_TFLOPS(dtype)))

    def _attention(self, call: Call) -> Expected | None:
        if len(call.shapes) < 3 or any(len(shape) != 4 for shape in call.shapes[:3]):
            return None
        turned = [(b, t, h, d) if HEADS_FIRST in call.name else (b, h, t, d) for b, h, t, d in call.shapes[:3]]
        (b, t, h, d), (_, s, kv, _), (_, _, _, v) = turned
        asked = AttentionCall(batch=b, queries=t, past=max(0, s - t), heads=h, kv_heads=kv, qk_dim=d, v_dim=v)
        return Expected(self.machine.decode(asked) if t == 1 < s else self.machine.attention(asked))


def collective(machine: Machine, operator: str, named: dict[str, object]) -> Expected | None:
    """A collective of NCCL by what PyTorch says of it."""
    count, ranks = named.get("In msg nelems"), named.get("Group size")
    if operator not in COLLECTIVES or not isinstance(count, int) or not isinstance(ranks, int) or not 1 < ranks <= machine.domain:
        return None
    moved = count * BYTES.get(str(named.get("dtype")), 2 if "16" in str(named.get("dtype")) else 4) * (ranks if operator == "all-gather" else 1)
    us = machine.all_reduce(ranks, moved) if operator == "all-reduce" else machine.collective(COLLECTIVES[operator], moved, ranks)
    return Expected(us)


@dataclass(frozen=True)
class ByModel:
    """Expectations by operator of a whole step. `beside`: part of the SMs that EP communication holds."""

    us: dict[str, float]
    beside: float = 0.0


class _Way(NamedTuple):
    forward: int
    backward: int


def trained(block: Block, found: Counter[str], forward: int, backward: int) -> ByModel:
    """`forward` and `backward` passes of one layer of the last kind, by operators that the profile has."""
    us: defaultdict[str, float] = defaultdict(float)
    way, model, machine = _Way(forward, backward), block.model, block.machine
    for op in model_ops.operators(model, model.n_layers - 1, block.layout.cut):
        for name, time in _pass(block, op, way, "weight gradients" in found):
            us[name] += time
    if model.layer and block.layout.ep > 1:
        sent = exchange(machine, block.layout, model.layer, block.tokens / block.layout.tp, block.training_recipe)
        us["dispatch"], us["combine"] = ((forward + backward) * one for one in (sent.dispatch, sent.combine))
    return ByModel(dict(us), SMS[block.training_recipe.dispatcher] / machine.cluster.n_sms)


def _pass(block: Block, op: LayerOperator, way: _Way, apart: bool) -> Iterator[tuple[str, float]]:
    rows = _rows(block) if is_routed(op) else None
    ahead = sum(one.us for one in kernels(block.machine, op, block.batch, block.formats, rows))
    back = gradients(block.machine, op, block.batch, block.formats, rows)
    name = _name(op)
    if isinstance(op, Core):
        yield from ((name, way.forward * ahead), ("attention backward", way.backward * back.inputs))
    else:
        yield from ((name, way.forward * ahead + way.backward * back.inputs), ("weight gradients" if apart else name, way.backward * back.weights))
    if isinstance(op, Weight) and op.product and (per := block.machine.cast_bytes(machine_format(block.machine, op, block.formats)[1])):
        count = block.tokens * op.rows if rows is None else rows.each * rows.groups
        yield "cast", sum(passes * block.machine.memory(per * count * width) for passes, width in zip(way, (op.k, op.n), strict=True))


def _rows(block: Block) -> Routed:
    layer = block.model.layer
    assert layer is not None
    local = max(1, layer.n_experts // block.layout.ep)
    return Routed(block.tokens / block.layout.tp * layer.topk * block.layout.etp / local, local)


def _name(op: LayerOperator) -> str:
    """Operator of a profile."""
    if isinstance(op, Weight):
        return "grouped GEMM" if is_routed(op) else "GEMM"
    if isinstance(op, MemoryOp):
        return PIECES.get(op.piece, "activation")
    return "attention"


def stepped(machine: Machine, model: WholeModel, batch: StepBatch, formats: Formats) -> ByModel:
    """A forward pass of all layers and the head on one GPU, by operators."""
    us: defaultdict[str, float] = defaultdict(float)
    layer, tokens = model.layer, batch.tokens
    for number in range(model.n_layers):
        for op in model_ops.served(model_ops.operators(model, number)):
            rows = None
            if is_routed(op) and layer:
                touched = layer.n_experts * (1 - (1 - layer.topk / layer.n_experts) ** tokens)
                rows = Routed(tokens * layer.topk / touched, touched)
            us[_name(op)] += sum(one.us for one in kernels(machine, op, batch, formats, rows))
    us["GEMM"] += machine.gemm(batch.decodes or 1, model.vocab, model.hidden, "bf16")
    return ByModel(dict(us))


def by_event(machine: Machine, profile: Profile, labels: list[str]) -> tuple[F64, F64]:
    """(expected microseconds, floors) of every event; nan and 0 where shapes do not say them."""
    shapes, us, floor = ByShape(machine), np.full(len(labels), math.nan), np.zeros(len(labels))
    for at, (operator, call) in enumerate(zip(labels, profile.call.tolist(), strict=True)):
        one = collective(machine, operator, profile.collectives[at]) if at in profile.collectives else None
        one = one or (shapes.of(operator, profile.calls[call]) if call >= 0 else None)
        if one:
            us[at], floor[at] = one.us, one.floor
    return us, floor


def machine_for(cluster: Cluster, trains: bool) -> Machine:
    """The clock of a run."""
    return machine_of(cluster, "training" if trains else "serving")
