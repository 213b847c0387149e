"""What a step costs: cells of every stage, sends, buckets of gradients and parameters, optimizer, as integer picoseconds for `step_graph`.

`exposed_shards`: weights that data parallel ranks share (FSDP), gathered before a layer's passes, gradients scattered behind them, beside the layers
around it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dysharp.base.units import us_to_ps
from dysharp.costs.machine import Machine, number
from dysharp.model.layout import Chunk, Layout, chunks_of
from dysharp.model.state import RankParameters, rank_parameters
from dysharp.specs.whole import WholeModel
from dysharp.training.block import Block
from dysharp.training.cost import BlockTimes, Cost, EpTimes, passes
from dysharp.training.graph import StepTimes
from dysharp.training.moe_block import ELEMENT
from dysharp.training.practice import Practice
from dysharp.training.schedules import Times


def layer_shards(model: WholeModel, layout: Layout, layer: int) -> RankParameters:
    """Parameters of a layer on one rank while it is gathered."""
    return rank_parameters(model, layout, [Chunk(layer, 1)])


def exposed_shards(model: WholeModel, machine: Machine, layout: Layout, layer: int, done: Cost, switched: bool = False) -> Cost:
    """Time by which the traffic of a layer's weights and gradients exceeds the layer's computing `done` beside it.

    Every micro-batch gathers the weights before both passes, in BF16, and scatters the gradients. Where rows of experts pass the same kind of link
    (inside a domain, or NICs), weights get the time that rows leave free. `switched`: switches copy and sum, so that a gather inside a domain fills
    links down, a scatter links up, and the other direction carries one part. NICs carry both in full.
    """
    if layout.fsdp == 1:
        return Cost()
    held = layer_shards(model, layout, layer)
    gather = down = up = 0.0
    for parameters, size, stride in ((held.dense, layout.fsdp, layout.stride("cp")), (held.experts, layout.expert_fsdp, layout.stride("edp"))):
        gathered, scattered = (machine.group(parameters * element, size, stride) for element in (ELEMENT, number("step.gradient_bytes")))
        other = 1 / (size - 1) if switched and 1 < size <= machine.domain // stride else 1.0
        gather, down, up = gather + gathered, down + gathered + other * scattered, up + scattered + other * gathered
    near = layout.fsdp <= machine.domain // layout.stride("cp"), layout.ep * layout.etp <= machine.domain
    busy = (done.forward_wire, done.backward_wire) if near[0] == near[1] else (0.0, 0.0)
    free = max(0.0, done.forward - busy[0]), max(0.0, done.backward + done.weights - busy[1])
    return passes("sharded weights", max(0.0, gather - free[0]), max(0.0, max(down, up) - free[1]))


BUCKET, BUCKET_PER_REPLICA = 40_000_000, 1_000_000
"""Parameters of a bucket: the larger of the two, the second for each data-parallel rank (Megatron-LM, param_and_grad_buffer.py)."""
MOST_BUCKETS = 64
Kind = tuple[bool, bool, bool]
"""`Block.kind` of a layer."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """`stages`: the cost of a micro-batch on every stage, in the order of the model. `times`: all of the step."""

    machine: Machine
    layout: Layout
    stages: tuple[Cost, ...]
    times: StepTimes

    def on_part(self, part: float) -> "StepCosts":
        """The same with computing on `part` of the SMs, because communication holds the others during the whole step."""
        if part == 1:
            return self
        stages = tuple(one.on_part(part) for one in self.stages)
        return replace(self, stages=stages, times=replace(self.times, cells=_cells(stages, self.times.cells.hop, self.times.cells.pairs is not None)))


def _cells(stages: tuple[Cost, ...], hop: float, pairs: bool) -> Times:
    merged = {(f, b): us_to_ps(one.pair_with(other)) for f, one in enumerate(stages) for b, other in enumerate(stages)} if pairs else None
    return Times(
        tuple(us_to_ps(one.forward) for one in stages), tuple(us_to_ps(one.backward) for one in stages),
        tuple(us_to_ps(one.weights) for one in stages), hop, 1, merged,
    )  # fmt: skip


def step_costs(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, ep: EpTimes | None, copies: int = 1, practice: Practice | None = None,
    merged: Mapping[Kind, BlockTimes] | None = None,
) -> StepCosts:  # fmt: skip
    """The costs of a step. `copies`: how often a stage exists (2: DualPipe). `ep`: Rows of a MoE layer; a dispatcher in `practice` replaces them.

    `merged`: times of MoE blocks by kind, from merged Programs, in place of the sums of their parts.
    """
    own = practice or Practice()
    chunks = chunks_of(model, layout)
    block = Block(model, machine, layout, sequence, own)
    kinds = moe_kinds(block)
    known = {kind: block.layer(kinds[kind], ep).as_merged(one) for kind, one in (merged or {}).items()}
    stages = tuple(_chunk(block, chunk, ep, known) for chunk in chunks)
    held = [rank_parameters(model, layout, [chunk]) for chunk in chunks]
    rows = ELEMENT * model.hidden * block.tokens / layout.tp
    busy, latency = machine.send(rows, layout)
    cells = _cells(stages, us_to_ps(latency), ep is not None)
    reduce = tuple(_buckets(machine, layout, one, copies, number("step.gradient_bytes"), own) for one in held)
    gather = tuple(_buckets(machine, layout, one, copies, 2, own) for one in held)
    update = tuple(us_to_ps(_update(machine, layout, one, copies, own)) for one in held)
    return StepCosts(machine, layout, stages, StepTimes(cells, us_to_ps(busy), reduce, gather, update, late_gather=not own.overlap_dp))


def moe_kinds(block: Block) -> dict[Kind, int]:
    """Kind of MoE layer -> the last layer of this kind."""
    return {block.kind(number): number for number in range(block.model.n_layers) if block.model.is_moe(number)}


def _chunk(block: Block, chunk: Chunk, ep: EpTimes | None, known: dict[Kind, Cost]) -> Cost:
    cost = block.ends(chunk.embedding, chunk.mtp, chunk.head, ep)
    for number_of in chunk.layers():
        kind = block.kind(number_of)
        if kind not in known:
            done = block.layer(number_of, ep)
            known[kind] = done + exposed_shards(block.model, block.machine, block.layout, number_of, done)
        cost += known[kind]
    return cost


def _buckets(machine: Machine, layout: Layout, held: RankParameters, copies: int, element: float, practice: Practice) -> tuple[int, ...]:
    """Times of a chunk's buckets: dense and expert parameters pass in equal steps, each over its own group. Without overlap there is one.

    Of sharded weights, only groups that share them exchange anything.
    """
    n = min(MOST_BUCKETS, max(1, math.ceil((held.dense + held.experts) / max(BUCKET, BUCKET_PER_REPLICA * layout.dp))))
    n = n if practice.overlap_dp else 1
    shared, of_experts = layout.fsdp, layout.expert_fsdp  # whose traffic is that of every layer
    whole = machine.group(held.dense * element / shared, layout.dp * layout.cp * copies // shared, layout.stride("cp") * shared)
    whole += machine.group(held.experts * element / of_experts, layout.edp * copies // of_experts, layout.stride("edp") * of_experts)
    return (us_to_ps(whole / n),) * n if whole else ()


SCALE, LOOK = 2, 1
"""Times that scaling a gradient, and looking for NaN, move it through memory."""


def _update(machine: Machine, layout: Layout, held: RankParameters, copies: int, practice: Practice) -> float:
    """The optimizer on a rank's shard of a chunk, with the norm of its gradients, and the zeroing of all gradients; memory-bound.

    With `practice.plain_ddp` gradients of several replicas are scaled before they are reduced, and all are looked through for NaN.
    """
    shard = held.dense / (layout.dp * layout.cp * copies) + held.experts / (layout.edp * copies)
    element = number("step.gradient_bytes")
    held = RankParameters(held.dense / layout.fsdp, held.experts / layout.expert_fsdp)
    turns = 1 + (LOOK + SCALE * (layout.dp * layout.cp > 1) if practice.plain_ddp else 0)
    return machine.memory((number("step.optimizer_bytes") + element) * shard + turns * element * (held.dense + held.experts))
