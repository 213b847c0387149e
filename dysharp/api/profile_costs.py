"""What the kernels of a profile should take: by the shapes of the framework's calls, or by a model under a layout. Folds over `costs`."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from dysharp.base import F64, Amounts, ConfigError, Texts, frozen
from dysharp.costs import AttentionCall, Machine, machine_of
from dysharp.costs.exchange import BOUNDS, Peers, Rows, exchange, least_us
from dysharp.measured.intervals import Asked, Interval, interval_of
from dysharp.model import ROW_BYTES, Formats, StepBatch
from dysharp.model.operators import NORMS, POSITIONS, RESIDUAL, ROUTER, UP, Core, LayerOperator, MemoryOp, Weight, is_routed, operators
from dysharp.planning.space import SYSTEMS
from dysharp.profiles.reader import GROUP, Call, Profile
from dysharp.profiles.recognise import Labels
from dysharp.runs import row_options
from dysharp.runs.run import run
from dysharp.serving.layout import ServeLayout
from dysharp.serving.step import step_time
from dysharp.serving.work import Replica
from dysharp.specs import Cluster, WholeModel, list_clusters, load_cluster
from dysharp.training import Block, routed_rows
from dysharp.training.recipe import MODULES

BYTES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "long int": 8, "long": 8, "int": 4}
"""Names of types in a profile -> bytes of an element; others have one."""
NCCL_BYTES = {"Float": 4, "Int": 4, "BFloat16": 2, "Half": 2, "Short": 2, "Double": 8, "Long": 8}
"""The same of collectives, whose types have other names."""
GEMMS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Operators of PyTorch -> number of the first operand."""
ATTENTION = ("aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward", "aten::_scaled_dot_product_efficient_attention",
             "aten::_scaled_dot_product_cudnn_attention")  # fmt: skip
MOST = 1 << 53
"""Elements of a collective, and ranks: no profile has as many."""
HEADS_FIRST = "scaled_dot"
"""Their operands are [batch, heads, tokens, width], those of the others [batch, tokens, heads, width]."""
COLLECTIVES = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter"}
STREAMS = ("elementwise", "copy", "norm", "activation", "positions", "optimizer", "cast")
"""Operators that memory limits: every input is read once, and a result as large as the largest input is written."""
REDUCES = tuple(f"aten::{name}" for name in ("mean", "sum", "max", "amax", "min", "amin", "argmax", "argmin", "all", "any", "norm", "var", "std"))
"""Operators of PyTorch whose result is small beside their input."""
FILLS = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::masked_fill_", "aten::normal_", "aten::uniform_")
"""Operators that write a tensor in place and do not read it."""
UNSAID = ("aten::gather", "aten::index", "aten::index_select", "aten::embedding", *GEMMS, *ATTENTION)
"""Operators whose inputs do not say what a kernel that memory limits moves: rows of a table, or work space of a product."""
FAMILIES = {"GEMM": "dense-gemm", "weight gradients": "dense-gemm", "grouped GEMM": "grouped-gemm", "attention": "attention",
            "attention backward": "attention", "dispatch": "deepep-dispatch", "combine": "deepep-combine", "all-reduce": "nccl"}  # fmt: skip
"""Operator -> family of measured rows whose residuals make its interval; others have that of memory-bound operators."""
PIECES = {NORMS: "norm", RESIDUAL: "norm", POSITIONS: "positions", UP: "positions", ROUTER: "router"}
"""Piece of a layer -> operator of its kernels that memory limits; others are activations."""
SERVED = {"norms": "norm", "latent norms": "norm", "rope and cache": "positions", "attention decode": "attention", "experts": "grouped GEMM",
          "router": "router", "embedding": "embedding", "sampling": "sampling", "convolution": "linear attention", "attention gate": "activation",
          "linear attention decode": "linear attention", "attention all-reduce": "all-reduce", "FFN all-reduce": "all-reduce",
          "dispatch": "dispatch", "combine": "combine", "q and k norm": "norm"}  # fmt: skip
"""Part of a step of `serve` -> operator; others are GEMMs. Permutations and casts of experts are in their part."""


ALIKE = {"alltoall": "megatron-a2a"}
"""Dispatcher of a recipe -> system that moves rows alike."""
UP_PRODUCTS = 2
"""Products of MLA up from its latent vectors."""


FP8_COPY = 2
"""Bytes of a weight in FP8 that is written by column: read once, written once."""


@frozen
class _Expected:
    """What an operator should take, in microseconds; `floor`: what its FLOPs take at the peak of a datasheet, or its bytes beyond the cache."""

    us: float
    floor: float = 0.0


def cluster_of(profile: Profile, cluster: str | None) -> Cluster:
    """The cluster that was given, or the smallest packaged one with the GPU that the profile names. Raises ConfigError where none is known."""
    if cluster:
        return load_cluster(cluster)
    words = set(profile.gpu.upper().replace("-", " ").split())
    board = set() if words & {"PCIE", "NVL"} else {"SXM"}  # of a GPU that has several; others do not say it
    found = [c for c in map(load_cluster, list_clusters()) if c.family == "hw" and set(c.gpu.upper().split("-")) <= words | board]
    if not found:
        raise ConfigError(f"{profile.path}: found the GPU {profile.gpu or 'unnamed'!r}, expected --cluster with a cluster of it")
    found.sort(key=lambda c: ((c.max_gpus or c.n_gpus) < profile.ranks, c.max_gpus or c.n_gpus, c.name))
    return found[0]


def interval(machine: Machine, operator: str, us: float) -> Interval:
    """The interval of a prediction of an operator."""
    family = FAMILIES.get(operator, "operator")
    kind = "communication kernels" if operator in ("dispatch", "combine", "all-reduce") else "kernels"
    return interval_of(Asked(kind, family, machine.gpu.name, us))


class _ByShape:
    """Expectations of single kernels by the shapes of the calls that launched them. Equal calls are asked once."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.of = machine, cache(self._of)

    def _of(self, operator: str, call: Call) -> _Expected | None:
        """None: its shapes do not say it."""
        if operator == "GEMM" and call.name in GEMMS:
            return self._gemm(call)
        if operator == "attention" and call.name in ATTENTION:
            return self._attention(call)
        if operator in STREAMS and call.name not in UNSAID:
            sizes = [math.prod(shape) * BYTES.get(kind, 1) for shape, kind in zip(call.shapes, call.types, strict=False) if shape]
            written = 0 if call.name in (*FILLS, *REDUCES) else sizes[0] if call.name.endswith("_") and sizes else max(sizes, default=0)
            return self._memory(sum(sizes) + written) if sizes else None
        return None

    def _memory(self, moved: float) -> _Expected:
        gpu = self.machine.gpu
        return _Expected(self.machine.memory(moved), max(0.0, moved - 1e6 * gpu.l2_MB) / (1e3 * gpu.hbm_GBps))

    def _gemm(self, call: Call) -> _Expected | None:
        first = GEMMS[call.name]
        if len(call.shapes) < first + 2 or len(call.shapes[first]) < 2 or len(call.shapes[first + 1]) < 2:
            return None
        (*batch, m, k), n = call.shapes[first], call.shapes[first + 1][-1]
        dtype, groups = "fp8" if "loat8" in "".join(call.types) else "bf16", math.prod(batch)
        if (dtype == "bf16" and BYTES.get("".join(call.types[first : first + 1]) or "c10::Half") != 2) or not m * n * k * groups:
            return None  # FP32, FP64 and integers have no clock here
        us = self.machine.gemm(m, n, k, dtype, groups if batch else None)
        return _Expected(us, 2 * m * n * k * groups / (1e6 * self.machine.gpu.datasheet.peak_TFLOPS(dtype)))

    def _attention(self, call: Call) -> _Expected | None:
        if len(call.shapes) < 3 or any(len(shape) != 4 for shape in call.shapes[:3]):
            return None
        turned = [(b, t, h, d) if HEADS_FIRST in call.name else (b, h, t, d) for b, h, t, d in call.shapes[:3]]
        (b, t, h, d), (_, s, kv, _), (_, _, _, v) = turned
        asked = AttentionCall(batch=b, queries=t, past=max(0, s - t), heads=h, kv_heads=kv, qk_dim=d, v_dim=v)
        return _Expected(self.machine.decode(asked) if t == 1 < s else self.machine.attention(asked))


def _collective(machine: Machine, operator: str, named: dict[str, object]) -> _Expected | None:
    """A collective of NCCL by what PyTorch says of it. Without the ranks of its group it lies in one domain."""
    count, n = named.get("In msg nelems"), named.get("Group size")
    if operator not in COLLECTIVES or not isinstance(count, int) or not isinstance(n, int) or not 0 < count < MOST or not 1 < n < MOST:
        return None
    members, stride = [int(word) for word in re.findall(r"\d+", str(named.get(GROUP, "")))], 1
    if members and members[0] // machine.domain != members[-1] // machine.domain:  # PyTorch writes the last one of a long list, too
        stride = members[1] - members[0]
        if stride < 1 or members[-1] != members[0] + stride * (n - 1) or n * stride <= machine.domain or not machine.cluster.scale_out:
            return None
    elif n > machine.domain:
        return None
    moved = count * NCCL_BYTES.get(str(named.get("dtype")), 1) * (n if operator == "all-gather" else 1)
    if operator == "all-reduce":
        return _Expected(machine.all_reduce(n, moved, stride=stride))
    return _Expected(machine.collective(COLLECTIVES[operator], moved, n, stride))


@dataclass(frozen=True)
class ByModel:
    """Expectations by operator of a whole step. `beside`: part of the SMs that EP communication holds. `other`: times of Dispatch and Combine under
    another system over those that are expected. `pair_bytes`: of one exchange, from a rank to each other rank under balanced routing.
    """

    us: Amounts
    beside: float = 0.0
    other: Callable[[str], Amounts] | None = None
    pair_bytes: Amounts = field(default_factory=dict)


def replayed(model: WholeModel, found: Counter[str], forward_norms: int, forward: int) -> Texts:
    """Modules that a run computes again before their backward pass, by kernels per attention call: more norms, or both up projections of MLA."""
    ops = operators(model, model.last_moe)
    norms = sum(op.kernels for op in ops if isinstance(op, MemoryOp) and op.piece == NORMS)
    norms += sum(isinstance(op, Weight) and op.weight.endswith(" norm") for op in ops)
    products = sum(isinstance(op, Weight) and op.product and not is_routed(op) for op in ops)
    more = found["GEMM"] / max(1, forward) - products * (2 if "weight gradients" in found else 3)
    up = model.attention.mla and UP_PRODUCTS <= more < 2 * UP_PRODUCTS
    twice = round(forward_norms / max(1, norms * forward)) >= 2
    return ("layernorm",) * twice + ("mla_up_proj",) * up


def trained(block: Block, found: Collection[str], forward: int, backward: int, sent: str) -> ByModel:
    """`forward` and `backward` passes of one MoE layer (without experts: of the last layer), by operators that the profile has.

    `sent`: rows of Dispatch, of `formats.ROW_BYTES`.
    """
    us: defaultdict[str, float] = defaultdict(float)
    model, recipe = block.model, block.training_recipe
    again = {piece for module in recipe.recompute for piece in MODULES[module]}
    once = forward
    for op in operators(model, model.last_moe, block.layout.cut):
        rows, name = routed_rows(block) if is_routed(op) else None, _name(op)
        one = block.timed(op, name, rows)
        forward = once + backward * (op.piece in again)
        us[name] += forward * one.forward
        us["attention backward" if isinstance(op, Core) else name] += backward * one.backward
        us["weight gradients" if "weight gradients" in found else name] += backward * one.weights
        if isinstance(op, Weight) and op.product:
            cast = block.product(op, rows)
            us["cast"] += forward * (cast.forward - one.forward) + backward * (cast.backward - one.backward)
            us["transposes"] += backward * block.machine.stream(FP8_COPY * op.n * op.k * (rows.groups if rows else 1))
    if model.layer and block.layout.ep > 1:
        moved = _moved_by(block, sent, recipe.dispatcher)
        us |= {name: (once + backward) * each for name, each in moved.items()}
        peers, tokens = Peers(block.layout.ep), block.tokens / block.layout.tp
        each = tokens * peers.copies(model.layer, peers.ep) / peers.ep * model.layer.hidden
        sizes = {"dispatch": each * ROW_BYTES[sent], "combine": each * ROW_BYTES["bf16"]}
        return ByModel(dict(us), block.held, partial(_over, block, sent), sizes)
    return ByModel(dict(us), block.held)


def _over(block: Block, sent: str, system: str) -> Amounts:
    """Times of Dispatch and Combine under a system over those of the dispatcher: both by closed forms, or both simulated."""
    clock = _moved_by if system in SYSTEMS else _simulated
    other, own = (clock(block, sent, name) for name in (system, block.training_recipe.dispatcher))
    return {name: us / own[name] for name, us in other.items()}


def _simulated(block: Block, sent: str, system: str) -> Amounts:
    """Dispatch and Combine of the Program of a layer with balanced routing."""
    layer, layout, cluster = block.model.layer, block.layout, block.machine.cluster
    assert layer is not None
    if layout.ep > block.machine.domain:
        raise ConfigError(f"what-if: found {system}, which is simulated, on {layout.ep} GPUs, expected {block.machine.domain} of a domain at most")
    name = ALIKE.get(system, system)
    options = row_options(Formats(sent=sent, back="bf16"), [name])
    row = run(name, model=layer, cluster=cluster, gpus=layout.ep, tokens=block.tokens // layout.tp, routing="uniform", options=options)
    return {operator: row.phases_us[operator]["busy"] for operator in ("dispatch", "combine")}


def _moved_by(block: Block, sent: str, system: str) -> Amounts:
    """Dispatch and Combine of one pass under a system of `planning.space.SYSTEMS` or a dispatcher. Hardware that nobody sells is at its best."""
    layer, layout, machine = block.model.layer, block.layout, block.machine
    assert layer is not None
    peers = Peers(layout.ep, layout.etp, layout.stride("ep"), layout.tp)
    rows = Rows(block.tokens / layout.tp, ROW_BYTES[sent] * layer.hidden, ROW_BYTES["bf16"] * layer.hidden)
    if system in BOUNDS:
        each = least_us(machine, layer, peers, rows, system, 0.0) / (rows.sent + rows.back)
        return {"dispatch": rows.sent * each, "combine": rows.back * each}
    one = exchange(machine, layer, peers, rows, system)
    return {"dispatch": one.dispatch, "combine": one.combine}


def _name(op: LayerOperator) -> str:
    """Operator of a profile."""
    if isinstance(op, Weight):
        return "grouped GEMM" if is_routed(op) else "GEMM"
    if isinstance(op, MemoryOp):
        return PIECES.get(op.piece, "activation")
    return "attention"


def stepped(machine: Machine, model: WholeModel, layout: ServeLayout, batch: StepBatch, formats: Formats, steps: int = 1) -> ByModel:
    """Decode `steps` on a GPU of a replica by operators, as `serve` times them. `batch`: of its attention group."""
    us: defaultdict[str, float] = defaultdict(float)
    for name, time in step_time(Replica(model, formats, layout, machine), batch).parts.items():
        us[SERVED.get(name, "GEMM")] += steps * time
    return ByModel(dict(us))


def by_event(machine: Machine, profile: Profile, labels: Labels) -> tuple[F64, F64]:
    """(expected microseconds, floors) of every event; nan and 0 where shapes do not say them. Kernels of one call, as of a split, share its time."""
    shapes, us, floor = _ByShape(machine), np.full(len(labels), math.nan), np.zeros(len(labels))
    for at, (operator, call) in enumerate(zip(labels.tolist(), profile.call.tolist(), strict=True)):
        one = _collective(machine, operator, profile.collectives[at]) if at in profile.collectives else None
        one = one or (shapes.of(operator, profile.calls[call]) if call >= 0 else None)
        if one:
            us[at], floor[at] = one.us, one.floor
    call = profile.call.copy()
    call[[*profile.collectives]] = -1
    _, of = np.unique(np.unique(labels, return_inverse=True)[1] * (1 + len(profile.calls)) + call, return_inverse=True)
    took = np.bincount(of, profile.us)[of]
    part = np.divide(profile.us, took, np.ones(len(took)), where=(call >= 0) & (took > 0))
    return us * part, floor * part


def machine_for(cluster: Cluster, trains: bool) -> Machine:
    """The clock of a run."""
    return machine_of(cluster, "training" if trains else "serving")
