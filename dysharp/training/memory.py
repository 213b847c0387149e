"""Memory of every pipeline rank at its peak: state, activations in flight, what a backward pass adds, buffers outside the allocator.

Closed forms per chunk; the schedule's own order says how many micro-batches of which chunk a rank holds at once.

Activations that a layer saves for its backward pass are listed tensor by tensor, with what recomputation drops of them. Bytes are per token of the
context rank (`Layout.tokens`). BF16 and flash attention, which saves no scores. With tensor parallelism, everything outside attention and FFN lies on
the sequence parallel shard.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, field
from typing import Annotated, Any

from pydantic import Field

from dysharp.base import Amounts, ConfigError, GiB, Numbers, Texts, check_word, frozen, show
from dysharp.model import PLAIN, Chunk, Layout, Recipe, chunks_of, dummy_bytes, padded_vocab, rank_parameters, state_bytes
from dysharp.model.operators import Cut, LayerOperator, Weight, layer_operators
from dysharp.specs.fields import check_fields
from dysharp.specs.whole import Flag, WholeModel
from dysharp.training.schedules import Schedule
from dysharp.training.schedules.cells import BACKWARD, DGRAD, FORWARD

BF16, FP8, FP32 = 2, 1, 4
MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts")
"""Sets of tensors that Megatron can compute again (--recompute-modules)."""
FULL = "full"
FC2_OUTPUT = "expert FC2 output"


@frozen
class Saving:
    """What is kept between forward and backward pass. Raises `ConfigError`."""

    recompute: Texts = ()
    """Modules that are computed again; ("full",): whole layers, from their inputs."""
    fc2_output: Flag = False
    """Gate weights are applied behind the experts, so their outputs are kept."""
    sequence_parallel: Flag = True
    fused_loss: Flag = True
    """The loss keeps BF16 logits; else FP32."""
    imbalance: Annotated[float, Field(strict=True, ge=1, le=1e4)] = 1.0
    """Rows of the most loaded rank's experts over the mean."""

    def __post_init__(self) -> None:
        check_fields(self, "saving")
        for module in self.recompute:
            check_word(module, (*MODULES, FULL), f"recompute: found {show(module)}, expected modules")


@frozen
class _Held:
    """A tensor that is saved, by its bytes per token: what `operators.SavedTensor` is under a layout and a recipe."""

    op: str
    bytes: float
    module: str = ""
    linear: bool = False


def _cut(layout: Layout, saving: Saving) -> Cut:
    return layout.cut if saving.sequence_parallel else layout.cut._replace(shard=1)


def saved_of_layer(model: WholeModel, layout: Layout, kind: str, saving: Saving, recipe: Recipe = PLAIN) -> tuple[_Held, ...]:
    """Every tensor that one layer of a kind (`WholeModel.stack`) saves without recomputation."""
    rows = _expert_rows(model, layout, saving) if "E" in kind else 0.0
    found = []
    for op in layer_operators(model, kind, _cut(layout, saving)):
        for one in op.saves:
            if one.op != FC2_OUTPUT or saving.fc2_output:
                fixed = one.narrow if recipe.narrow and one.narrow else one.fixed
                found.append(_Held(one.op, (fixed + one.kept * _element(op, recipe)) * (rows if one.routed else 1), one.module, one.linear))
    return tuple(found)


def _expert_rows(model: WholeModel, layout: Layout, saving: Saving) -> float:
    """Rows of the most loaded rank's experts per token. Expert tensor parallel ranks gather the rows of each other."""
    assert model.layer is not None
    return model.layer.topk * layout.etp * saving.imbalance / _cut(layout, saving).shard


def is_dropped(saved: _Held, saving: Saving) -> bool:
    """Whether recomputation drops a tensor. "moe" drops everything behind the FFN's norm; "full" all but the input of the layer."""
    if FULL in saving.recompute:
        return saved.op != "block input"
    inside_moe = saved.module in ("moe", "moe_act", "shared_experts")
    return saved.module in saving.recompute or (inside_moe and "moe" in saving.recompute)


def head_bytes(model: WholeModel, layout: Layout, saving: Saving) -> float:
    """Bytes per token that the head and its loss hold in a backward pass: norm, logits, the gathered input and its gradient."""
    logits = (BF16 if saving.fused_loss else FP32) * padded_vocab(model, layout) / layout.tp
    return 2 * BF16 * model.hidden / _cut(layout, saving).shard + logits + 2 * BF16 * model.hidden


def layer_transient(model: WholeModel, layout: Layout, kind: str, saving: Saving) -> float:
    """Bytes per token that a layer's backward pass holds beside what is saved: gradients of the activation's input, the gathered gradient."""
    rows = _expert_rows(model, layout, saving) if "E" in kind else 1.0
    part = {"E": "routed experts", "-": "dense FFN"}.get(kind[-1], "attention")
    first = next(op for op in _products(model, layout, kind, saving) if op.part == part)
    return rows * BF16 * (first.n + model.hidden)


def _products(model: WholeModel, layout: Layout, kind: str, saving: Saving) -> Iterator[Weight]:
    ops = layer_operators(model, kind, _cut(layout, saving))
    return (op for op in ops if isinstance(op, Weight) and op.product and op.part != "router")


def gradient_bytes(model: WholeModel, layout: Layout, kind: str, saving: Saving, recipe: Recipe = PLAIN) -> float:
    """Bytes per token of the output gradients that wait for a delayed weight gradient: one per linear of a layer, whole where ranks share rows.

    Of a linear in FP8, they wait as its product takes them (Transformer Engine, module/linear.py).
    """
    rows = _expert_rows(model, layout, saving) if "E" in kind else 1.0
    products = _products(model, layout, kind, saving)
    return sum(_element(op, recipe) * op.n * (rows if op.split == "experts" else 1.0) for op in products)


def _element(op: LayerOperator, recipe: Recipe) -> int:
    """Bytes of an element that a linear keeps."""
    return FP8 if isinstance(op, Weight) and op.part in recipe.fp8 else BF16


ROW_BYTES = 2
"""BF16, the wider of the two formats that cross the wire."""
DEEPEP_SMS = 20
"""SMs of DeepEP's training default; two SMs are a channel."""
DEEPEP_NVL_TOKENS, DEEPEP_RDMA_TOKENS = 256, 128
"""Rows of a channel's receive queue per peer (deepseek-ai/DeepEP, deep_ep/buffer.py: default configurations)."""
NODE_GPUS = 8
DISPATCHERS = ("alltoall", "deepep", "uccl", "hybrid-ep")
"""Systems that training has closed forms of; those of a plan beside them are forms of `planning.experts`."""


def buffer_bytes(dispatcher: str, model: WholeModel, layout: Layout, sequence: int) -> float:
    """Bytes per GPU that `dispatcher` holds outside the allocator. Raises `ConfigError` for an unknown name.

    | dispatcher | bytes |
    |---|---|
    | alltoall | 0: its tensors come from the allocator |
    | deepep, uccl | queues: channels x peers x rows, over NVLink, and twice over RDMA beyond a node |
    | hybrid-ep | an upper bound: the rows of all ranks of the expert group, for Dispatch and for Combine |
    """
    check_word(dispatcher, DISPATCHERS, f"dispatcher {show(dispatcher)}: unknown")
    if dispatcher == "alltoall" or model.layer is None or layout.ep == 1:
        return 0.0
    row = ROW_BYTES * model.layer.hidden
    if dispatcher == "hybrid-ep":
        return 2.0 * row * layout.ep * layout.tokens(sequence) / layout.tp
    channels, peers, nodes = DEEPEP_SMS // 2, min(layout.ep, NODE_GPUS), -(-layout.ep // NODE_GPUS)
    over_nics = 2 * channels * nodes * DEEPEP_RDMA_TOKENS * row if nodes > 1 else 0
    return float(channels * peers * DEEPEP_NVL_TOKENS * row + over_nics)


RESERVED = 1.053
"""Bytes that the caching allocator reserves for a byte that it hands out: median of 19 measured peaks, 1.028 to 1.093 (SimuMax, docs/b200)."""
CAP = 0.9
"""Part of a GPU's memory that the allocator may take: of `step`, `model` and `plan` alike."""
CAP_LINE = f"Memory: the allocator may take {CAP:.0%} of a GPU's; CUDA, NCCL and buffers of dispatchers need the rest."
GATHERED = 2
"""Layers of sharded weights that are gathered at once: one computes, the next one arrives."""
LINES = ("weights", "gradients", "optimizer", "activations", "recomputed layer", "dummy gradients", "backward pass")
"""Lines of memory that the allocator hands out, in the order in which they are taken."""


def _chunks(n: int) -> str:
    return f"{n} chunk{'s' * (n != 1)}"


@frozen
class _RankMemory:
    """Bytes of one pipeline rank at its peak."""

    rank: int
    lines: Amounts
    """{line of `LINES`: bytes}."""
    held: dict[int, int]
    """{chunk: micro-batches whose activations are held at the peak}."""
    ops: Amounts
    """{saved tensor: bytes at the peak}: the parts of "activations"."""
    parameters: float
    stages: Numbers
    """Chunks whose weights it holds."""
    waiting: int = 0
    """Chunks in flight at the peak whose backward pass is done, but for its weight gradients."""

    @property
    def in_flight(self) -> str:
        """The chunks in flight at the peak, in words: those before their backward pass, and those whose weight gradients wait."""
        held = sum(self.held.values())
        if self.waiting and not held:
            return f"{_chunks(self.waiting)} in flight that wait for weight gradients"
        return f"{_chunks(held)} in flight" + (f", {self.waiting} more wait for weight gradients" if self.waiting else "")

    @property
    def allocated(self) -> float:
        """Bytes handed out at the peak (`torch.cuda.max_memory_allocated`)."""
        return sum(self.lines.values())


@frozen
class TrainingMemory:
    """Memory of all pipeline ranks. `fixed`: bytes outside the allocator (buffers of the dispatcher, CUDA context, NCCL channels) by name."""

    model: str
    ranks: tuple[_RankMemory, ...]
    fixed: Amounts = field(default_factory=dict)

    @property
    def peak(self) -> _RankMemory:
        """The rank that takes most."""
        return max(self.ranks, key=lambda rank: rank.allocated)

    def reserved(self, rank: _RankMemory) -> float:
        """Bytes that the device must have for `rank`."""
        return rank.allocated * RESERVED + sum(self.fixed.values())

    def limit(self, hbm_bytes: float) -> float:
        """What `reserved` may be on a device of `hbm_bytes`: `CAP`, and in the rest what lies outside the allocator by name."""
        return CAP * hbm_bytes + min(sum(self.fixed.values()), (1 - CAP) * hbm_bytes)


def memory_of(
    model: WholeModel, layout: Layout, sequence: int, recipe: Recipe, saving: Saving, schedule: Schedule, fixed: Mapping[str, float] | None = None
) -> TrainingMemory:
    """Memory of a step. Stage s of `schedule` is chunk s of `layout`. Raises `ConfigError` where their numbers differ."""
    chunks = chunks_of(model, layout)
    if schedule.stages != len(chunks) or schedule.ranks != layout.pp:
        found = f"found a schedule of {schedule.ranks} ranks and {schedule.stages} stages"
        raise ConfigError(f"layout for {model.name}: {found}, expected {layout.pp} ranks and {len(chunks)} chunks (pp x vpp)")
    one = [_Chunk.of(model, layout, sequence, recipe, saving, chunk) for chunk in chunks]
    held_by: list[set[int]] = [set() for _ in range(schedule.ranks)]
    for rank, cell in schedule.cells():
        held_by[rank].add(cell.stage)
    ranks = [_rank(model, layout, sequence, recipe, schedule, rank, one, sorted(stages)) for rank, stages in enumerate(held_by)]
    return TrainingMemory(model.name, tuple(ranks), dict(fixed or {}))


@frozen
class _Chunk:
    """Bytes of one micro-batch on one chunk."""

    chunk: Chunk
    ops: Amounts
    for_weights: float
    """Bytes that a delayed weight gradient still needs."""
    again: float
    """Dropped bytes of the layer that drops most."""
    transient: float

    @property
    def saved(self) -> float:
        return sum(self.ops.values())

    @classmethod
    def of(cls, model: WholeModel, layout: Layout, sequence: int, recipe: Recipe, saving: Saving, chunk: Chunk) -> "_Chunk":
        tokens = layout.tokens(sequence)
        kinds = [model.kind(n) for n in chunk.layers()] + [model.kind(model.n_layers)] * chunk.mtp
        ops: Amounts = {}
        for_weights = again = transient = 0.0
        for kind in kinds:
            tensors = saved_of_layer(model, layout, kind, saving, recipe)
            for one in tensors:
                ops[one.op] = ops.get(one.op, 0.0) + (0.0 if is_dropped(one, saving) else one.bytes * tokens)
            kept = sum(one.bytes for one in tensors if one.linear)  # also what the backward pass has computed again
            for_weights += (kept + gradient_bytes(model, layout, kind, saving, recipe)) * tokens
            again = max(again, tokens * sum(one.bytes for one in tensors if is_dropped(one, saving)))
            transient = max(transient, tokens * layer_transient(model, layout, kind, saving))
        transient += tokens * BF16 * model.between / layout.tp if layout.pp > 1 and not chunk.head else 0.0
        if (at_head := tokens * head_bytes(model, layout, saving) * chunk.head) > again + transient:  # gone before a layer is computed again
            again, transient = 0.0, at_head
        return cls(chunk, {op: n for op, n in ops.items() if n}, for_weights, again, transient)


def _rank(
    model: WholeModel, layout: Layout, sequence: int, recipe: Recipe, schedule: Schedule, rank: int, chunks: Sequence[_Chunk], stages: Sequence[int]
) -> _RankMemory:
    own = [chunks[stage].chunk for stage in stages]
    parameters = rank_parameters(model, layout, own)
    activations, held, ops, waiting = _peak(schedule, rank, chunks)
    most = max((chunks[stage] for stage in stages), key=lambda chunk: chunk.again + chunk.transient)
    lines = state_bytes(parameters, rank_parameters(model, layout, own, recipe.fp8), layout, recipe, schedule.directions)
    if layout.fsdp > 1:
        largest = _largest_layer(model, layout, own)
        lines["weights"] += GATHERED * BF16 * largest
        lines["gradients"] += recipe.gradients * largest
    lines |= {
        "activations": activations,
        "recomputed layer": most.again, "dummy gradients": dummy_bytes(model, layout, own), "backward pass": most.transient,
    }
    return _RankMemory(rank, lines, held, ops, parameters.dense + parameters.experts, tuple(stages), waiting)


def _largest_layer(model: WholeModel, layout: Layout, chunks: Sequence[Chunk]) -> float:
    """Parameters of the largest layer of `chunks` on one rank."""
    kinds = {model.kind(layer): layer for chunk in chunks for layer in chunk.layers()}
    return max((sum(astuple(rank_parameters(model, layout, [Chunk(layer, 1)]))) for layer in kinds.values()), default=0.0)


def _peak(schedule: Schedule, rank: int, chunks: Sequence[_Chunk]) -> tuple[float, dict[int, int], Amounts, int]:
    """Most bytes of activations that a rank holds in its order, the micro-batches of each chunk then, and the bytes by tensor.

    +1 at a forward pass, -1 behind its backward pass. Behind a backward pass without weight gradients, their inputs stay until they are done.
    A pair counts as one step.
    """
    counts: dict[int, int] = {}
    waiting: dict[int, int] = {}
    best: tuple[float, dict[int, int], dict[int, int]] = (0.0, {}, {})
    for slot in schedule.slots[rank]:
        for cell in slot:
            step = 1 if cell.kind == FORWARD else -1 if cell.kind in (BACKWARD, DGRAD) else 0
            counts[cell.stage] = counts.get(cell.stage, 0) + step
            if cell.kind not in (FORWARD, BACKWARD):
                waiting[cell.stage] = waiting.get(cell.stage, 0) + (1 if cell.kind == DGRAD else -1)
        now = sum(n * chunks[stage].saved for stage, n in counts.items()) + sum(n * chunks[stage].for_weights for stage, n in waiting.items())
        if now > best[0]:
            best = (now, dict(counts), dict(waiting))
    bytes_now, held, late = best
    ops: Amounts = {}
    for stage, n in held.items():
        for op, one in chunks[stage].ops.items():
            ops[op] = ops.get(op, 0.0) + n * one
    if any(late.values()):
        ops["for delayed weight gradients"] = sum(n * chunks[stage].for_weights for stage, n in late.items())
    return bytes_now, {stage: n for stage, n in held.items() if n}, ops, sum(late.values())


class DoesNotFit(ConfigError):
    """A layout whose `memory` a GPU does not hold."""

    def __init__(self, message: str, memory: TrainingMemory) -> None:
        super().__init__(message)
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.memory)


def check_memory(memory: TrainingMemory, hbm_bytes: float, where: str) -> None:
    """Raise `DoesNotFit` with the line that breaks the memory of `where` (a GPU): the first at which the sum of the fullest rank exceeds `CAP`."""
    rank, capacity_bytes = memory.peak, memory.limit(hbm_bytes)
    if memory.reserved(rank) <= capacity_bytes:
        return
    taken = [*rank.lines.items(), ("allocator", rank.allocated * (RESERVED - 1))]
    sums = list(itertools.accumulate((size for _, size in taken), initial=sum(memory.fixed.values())))
    at = next((i for i, total in enumerate(sums[1:]) if total > capacity_bytes), len(taken) - 1)
    (line, size), before = taken[at], sums[at]
    held = f" of {rank.in_flight}" if line == "activations" else ""
    most = f"{capacity_bytes / GiB:.1f} of the {hbm_bytes / GiB:.1f} GiB of {where}"
    need = f"found {memory.reserved(rank) / GiB:.1f} GiB on pipeline rank {rank.rank}, expected at most {most}"
    on_top = f"{line}{held} ({size / GiB:.1f} GiB) come on top of {before / GiB:.1f} GiB"
    raise DoesNotFit(f"layout for {memory.model}: memory: {need}; {on_top}", memory)
