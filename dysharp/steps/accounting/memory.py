"""Memory of every pipeline rank at its peak: state, activations in flight, what a backward pass adds, buffers outside the allocator.

Closed forms per chunk; the schedule's own order says how many micro-batches of which chunk a rank holds at once.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from dysharp.errors import ConfigError
from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.activations import BF16, Saving, gradient_bytes, head_bytes, is_dropped, layer_transient, saved_of_layer
from dysharp.steps.accounting.state import Recipe, dummy_bytes, rank_parameters, state_bytes
from dysharp.steps.layout import Layout
from dysharp.steps.schedules import Schedule
from dysharp.steps.schedules.cells import BACKWARD, DGRAD, FORWARD
from dysharp.steps.stages import Chunk, chunks_of
from dysharp.units import GiB

RESERVED = 1.053
"""Bytes that the caching allocator reserves for a byte that it hands out: median of 19 measured peaks, 1.028 to 1.093 (SimuMax, docs/b200)."""
GATHERED = 2
"""Layers of sharded weights that are gathered at once: one computes, the next one arrives."""
LINES = ("weights", "gradients", "optimizer", "activations", "recomputed layer", "dummy gradients", "backward pass")
"""Lines of memory that the allocator hands out, in the order in which they are taken."""


def _chunks(n: int) -> str:
    return f"{n} chunk{'s' * (n != 1)}"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one pipeline rank at its peak."""

    rank: int
    lines: dict[str, float]
    """{line of `LINES`: bytes}."""
    held: dict[int, int]
    """{chunk: micro-batches whose activations are held at the peak}."""
    ops: dict[str, float]
    """{saved tensor: bytes at the peak}: the parts of "activations"."""
    parameters: float
    stages: tuple[int, ...]
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of all pipeline ranks. `fixed`: bytes outside the allocator (buffers of the dispatcher, CUDA context, NCCL channels) by name."""

    model: str
    ranks: tuple[RankMemory, ...]
    fixed: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> RankMemory:
        """The rank that takes most."""
        return max(self.ranks, key=lambda rank: rank.allocated)

    def reserved(self, rank: RankMemory) -> float:
        """Bytes that the device must have for `rank`."""
        return rank.allocated * RESERVED + sum(self.fixed.values())


def memory_of(
    model: WholeModel, layout: Layout, sequence: int, recipe: Recipe, saving: Saving, schedule: Schedule, fixed: Mapping[str, float] | None = None
) -> Memory:
    """Memory of a step. Stage s of `schedule` is chunk s of `layout`. Raises `ConfigError` where their numbers differ."""
    chunks = chunks_of(model, layout)
    if schedule.stages != len(chunks) or schedule.ranks != layout.pp:
        found = f"found a schedule of {schedule.ranks} ranks and {schedule.stages} stages"
        raise ConfigError(f"layout for {model.name}: {found}, expected {layout.pp} ranks and {len(chunks)} chunks")
    one = [_Chunk.of(model, layout, sequence, recipe, saving, chunk) for chunk in chunks]
    held_by: list[set[int]] = [set() for _ in range(schedule.ranks)]
    for rank, cell in schedule.cells():
        held_by[rank].add(cell.stage)
    ranks = [_rank(model, layout, sequence, recipe, schedule, rank, one, sorted(stages)) for rank, stages in enumerate(held_by)]
    return Memory(model.name, tuple(ranks), dict(fixed or {}))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Bytes of one micro-batch on one chunk."""

    chunk: Chunk
    ops: dict[str, float]
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
        kinds = [(model.is_moe(n), model.is_linear(n)) for n in chunk.layers()] + [(model.layer is not None, False)] * chunk.mtp
        ops: dict[str, float] = {}
        for_weights = again = transient = 0.0
        for moe, linear in kinds:
            tensors = saved_of_layer(model, layout, moe, saving, recipe.fp8, linear)
            for one in tensors:
                ops[one.op] = ops.get(one.op, 0.0) + (0.0 if is_dropped(one, saving) else one.bytes * tokens)
            kept = sum(one.bytes for one in tensors if one.linear)  # also what the backward pass has computed again
            for_weights += (kept + gradient_bytes(model, layout, moe, saving)) * tokens
            again = max(again, tokens * sum(one.bytes for one in tensors if is_dropped(one, saving)))
            transient = max(transient, tokens * layer_transient(model, layout, moe, saving))
        received = tokens * BF16 * model.hidden / layout.tp if layout.pp > 1 and not chunk.head else 0.0
        at_head = tokens * head_bytes(model, layout, saving) * chunk.head
        return cls(chunk, {op: n for op, n in ops.items() if n}, for_weights, again, max(transient + received, at_head))


def _rank(
    model: WholeModel, layout: Layout, sequence: int, recipe: Recipe, schedule: Schedule, rank: int, chunks: Sequence[_Chunk], stages: Sequence[int]
) -> RankMemory:
    own = [chunks[stage].chunk for stage in stages]
    parameters = rank_parameters(model, layout, own)
    activations, held, ops, waiting = _peak(schedule, rank, chunks)
    lines = state_bytes(parameters, layout, recipe)
    if layout.fsdp > 1:
        largest = _largest_layer(model, layout, own)
        lines["weights"] += GATHERED * BF16 * largest
        lines["gradients"] += recipe.gradients * largest
    lines |= {
        "activations": activations,
        "recomputed layer": max((chunks[stage].again for stage in stages), default=0.0),
        "dummy gradients": dummy_bytes(model, layout, own),
        "backward pass": max((chunks[stage].transient for stage in stages), default=0.0),
    }
    return RankMemory(rank, lines, held, ops, parameters.dense + parameters.experts, tuple(stages), waiting)


def _largest_layer(model: WholeModel, layout: Layout, chunks: Sequence[Chunk]) -> float:
    """Parameters of the largest layer of `chunks` on one rank."""
    kinds = {model.is_moe(layer): layer for chunk in chunks for layer in chunk.layers()}
    return max((sum(astuple(rank_parameters(model, layout, [Chunk(layer, 1)]))) for layer in kinds.values()), default=0.0)


def _peak(schedule: Schedule, rank: int, chunks: Sequence[_Chunk]) -> tuple[float, dict[int, int], dict[str, float], int]:
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
    ops: dict[str, float] = {}
    for stage, n in held.items():
        for op, one in chunks[stage].ops.items():
            ops[op] = ops.get(op, 0.0) + n * one
    if any(late.values()):
        ops["for delayed weight gradients"] = sum(n * chunks[stage].for_weights for stage, n in late.items())
    return bytes_now, {stage: n for stage, n in held.items() if n}, ops, sum(late.values())


def check_memory(memory: Memory, capacity_bytes: float, where: str) -> None:
    """Raise `ConfigError` with the line that breaks the memory of `where` (a GPU): the first at which the sum of the fullest rank exceeds it."""
    rank = memory.peak
    if memory.reserved(rank) <= capacity_bytes:
        return
    taken = [*rank.lines.items(), ("allocator", rank.allocated * (RESERVED - 1))]
    sums = list(itertools.accumulate((size for _, size in taken), initial=sum(memory.fixed.values())))
    at = next((i for i, total in enumerate(sums[1:]) if total > capacity_bytes), len(taken) - 1)
    (line, size), before = taken[at], sums[at]
    held = f" of {rank.in_flight}" if line == "activations" else ""
    need = f"found {memory.reserved(rank) / GiB:.1f} GiB on pipeline rank {rank.rank}, expected at most {capacity_bytes / GiB:.1f} GiB of {where}"
    raise ConfigError(f"layout for {memory.model}: memory: {need}; {line}{held} ({size / GiB:.1f} GiB) come on top of {before / GiB:.1f} GiB")
