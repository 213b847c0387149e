"""What a step costs: cells of every stage, sends, buckets of gradients and parameters, optimizer, as integer picoseconds for `step_graph`.

`beside`: weights that data parallel ranks share (FSDP), gathered before a layer's passes, gradients scattered behind them, and offloaded tensors,
beside the layers around it. A plan takes the same functions.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from dysharp.base import Numbers, frozen, us_to_ps
from dysharp.costs import Machine, number
from dysharp.model import PLAIN, Chunk, Layout, RankParameters, Recipe, chunks_of, rank_parameters
from dysharp.specs import WholeModel
from dysharp.training.block import Block
from dysharp.training.cost import BlockTimes, EpTimes, PassCost, collectives, passes
from dysharp.training.graph import StepTimes
from dysharp.training.moe_block import ELEMENT
from dysharp.training.recipe import TrainingRecipe
from dysharp.training.schedules import Times
from dysharp.training.wires import WireTimes, beyond, host_copy, ring, rows, send, sharing


def layer_shards(model: WholeModel, layout: Layout, layer: int) -> RankParameters:
    """Parameters of a layer on one rank while it is gathered."""
    return rank_parameters(model, layout, [Chunk(layer, 1)])


def with_rows(machine: Machine, layout: Layout, done: PassCost) -> PassCost:
    """A layer with the wires that its rows of experts hold."""
    return replace(done, forward_wires=rows(machine, layout, done.forward_wire), backward_wires=rows(machine, layout, done.backward_wire))


def _shard_wires(model: WholeModel, machine: Machine, layout: Layout, layer: int, switched: bool, recipe: Recipe) -> tuple[WireTimes, WireTimes]:
    """What the sharing of a layer's weights holds in a forward and in a backward pass.

    Every micro-batch gathers the weights before both passes, in BF16, and scatters the gradients. `switched`: switches copy and sum, so that a
    gather inside a domain fills links down, a scatter links up, and the other direction carries one part. NICs carry both in full.
    """
    ahead = down = up = WireTimes()
    held = layer_shards(model, layout, layer)
    for parameters, size, stride in ((held.dense, layout.fsdp, layout.stride("cp")), (held.experts, layout.expert_fsdp, layout.stride("edp"))):
        gathered, scattered = (sharing(machine, parameters * element, size, stride) for element in (ELEMENT, recipe.gradients))
        other = 1 / (size - 1) if switched and 1 < size <= machine.domain // stride else 1.0
        ahead, down, up = ahead + gathered, down + gathered + other * scattered, up + scattered + other * gathered
    return ahead, down if down.most > up.most else up


def beside(
    model: WholeModel, machine: Machine, layout: Layout, layer: int, done: PassCost, switched: bool = False, offloaded: float = 0.0,
    recipe: Recipe = PLAIN,
) -> PassCost:  # fmt: skip
    """What a layer takes beyond `done` (with its rows on wires) for shared weights, and for `offloaded` bytes."""
    shards, copy = _shard_wires(model, machine, layout, layer, switched, recipe), host_copy(machine, offloaded)
    ahead = beyond(done.forward, done.forward_wires, shards[0], copy)
    behind = beyond(done.backward + done.weights, done.backward_wires, shards[1], copy)
    late = passes("sharded weights", ahead[0], behind[0]) if layout.fsdp > 1 else PassCost()
    late = replace(late, forward_shards=late.forward, backward_shards=late.backward)
    late += collectives("host copies", ahead[1], behind[1]) if offloaded else PassCost()
    return replace(late, forward_wires=shards[0] + copy, backward_wires=shards[1] + copy)


def late_sends(done: PassCost, sent: WireTimes) -> tuple[float, float]:
    """Time by which one send in every pass, beside all else on its wires, makes the passes of a chunk longer."""
    return beyond(done.forward, done.forward_wires, sent)[0], beyond(done.backward + done.weights, done.backward_wires, sent)[0]


BUCKET, BUCKET_PER_REPLICA = 40_000_000, 1_000_000
"""Parameters of a bucket: the larger of the two, the second for each data-parallel rank (Megatron-LM, param_and_grad_buffer.py)."""
MOST_BUCKETS = 64
Kind = str
"""`Block.kind` of a layer."""


@frozen
class StepCosts:
    """`stages`: the cost of a micro-batch on every stage, in the order of the model. `times`: all of the step."""

    machine: Machine
    layout: Layout
    stages: tuple[PassCost, ...]
    times: StepTimes

    def on_part(self, part: float) -> "StepCosts":
        """The same with computing on `part` of the SMs, because communication holds the others during the whole step."""
        if part == 1:
            return self
        stages = tuple(one.on_part(part) for one in self.stages)
        return replace(self, stages=stages, times=replace(self.times, cells=_cells(stages, self.times.cells.hop, self.times.cells.pairs is not None)))


def _cells(stages: tuple[PassCost, ...], hop: float, pairs: bool) -> Times:
    merged = {(f, b): us_to_ps(one.pair_with(other)) for f, one in enumerate(stages) for b, other in enumerate(stages)} if pairs else None
    return Times(
        tuple(us_to_ps(one.forward) for one in stages), tuple(us_to_ps(one.backward) for one in stages),
        tuple(us_to_ps(one.weights) for one in stages), hop, 1, merged,
    )  # fmt: skip


def step_costs(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, ep: EpTimes | None, copies: int = 1,
    training_recipe: TrainingRecipe | None = None, merged: Mapping[Kind, BlockTimes] | None = None,
) -> StepCosts:  # fmt: skip
    """The costs of a step. `copies`: how often a stage exists (2: DualPipe). `ep`: Rows of a MoE layer; a dispatcher in the recipe replaces them.

    `merged`: times of MoE blocks by kind, from merged Programs, in place of the sums of their parts.
    """
    own = training_recipe or TrainingRecipe()
    chunks = chunks_of(model, layout)
    block = Block(model, machine, layout, sequence, own)
    kinds = moe_kinds(block)
    known: dict[Kind, PassCost] = {}
    for kind, one in (merged or {}).items():
        done = block.layer(kinds[kind], ep).as_merged(one)
        known[kind] = done + beside(model, machine, layout, kinds[kind], done, recipe=own.state)
    sent = send(machine, ELEMENT * model.between * block.tokens / layout.tp, layout)
    stages = tuple(_chunk(block, chunk, ep, known, sent if layout.pp > 1 else WireTimes()) for chunk in chunks)
    held = [rank_parameters(model, layout, [chunk]) for chunk in chunks]
    cells = _cells(stages, us_to_ps(machine.latency(layout)), ep is not None)
    exchanged = [[exchanged_us(machine, layout, one, copies, element) for one in held] for element in own.state.exchanged]
    reduce = tuple(
        _buckets(own, layout, at, exchanged[0][at], held[at], one.backward_wires, one.backward + one.weights)[::-1] for at, one in enumerate(stages)
    )
    ahead = replace(own, overlap_dp=own.overlap_dp and own.overlap_gather)
    gather = tuple(_buckets(ahead, layout, at, exchanged[1][at], held[at], one.forward_wires, one.forward) for at, one in enumerate(stages))
    update = tuple(us_to_ps(update_us(machine, layout, one, copies, own, own.state)) for one in held)
    busy = us_to_ps(max(sent.near, sent.far))
    return StepCosts(machine, layout, stages, StepTimes(cells, busy, reduce, gather, update, late_gather=not ahead.overlap_dp))


def moe_kinds(block: Block) -> dict[Kind, int]:
    """Kind of MoE layer -> the last layer of this kind."""
    return {block.model.kind(number): number for number in range(block.model.n_layers) if block.model.is_moe(number)}


def _chunk(block: Block, chunk: Chunk, ep: EpTimes | None, known: dict[Kind, PassCost], sent: WireTimes) -> PassCost:
    def shared(number_of: int, layer: PassCost) -> PassCost:
        done = with_rows(block.machine, block.layout, layer)
        return done + beside(block.model, block.machine, block.layout, number_of, done, recipe=block.training_recipe.state)

    cost = block.ends(chunk.embedding, 0, chunk.head, ep)
    for _ in range(chunk.mtp):
        cost += shared(block.model.n_layers - 1, block.ends(False, 1, 0, ep))
    for number_of in chunk.layers():
        kind = block.model.kind(number_of)
        if kind not in known:
            known[kind] = shared(number_of, block.layer(number_of, ep))
        cost += known[kind]
    late = late_sends(cost, sent)
    return cost + passes("sends", *late) if any(late) else cost


def n_buckets(layout: Layout, held: RankParameters, training_recipe: TrainingRecipe) -> int:
    """Buckets of what a rank holds: dense and expert parameters pass in equal steps, each over its own group. Without overlap there is one."""
    n = math.ceil((held.dense + held.experts) / max(BUCKET, BUCKET_PER_REPLICA * layout.dp))
    return min(MOST_BUCKETS, max(1, n)) if training_recipe.overlap_dp else 1


def exchanged_us(machine: Machine, layout: Layout, held: RankParameters, copies: int, element: float) -> tuple[float, WireTimes]:
    """Time of gradients or parameters of `element` bytes, one group after the other, and what they hold.

    Of sharded weights, only groups that share them exchange anything: the others' traffic is that of every layer.
    """
    shared, of_experts = layout.fsdp, layout.expert_fsdp
    dense = ring(machine, held.dense * element / shared, layout.dp * layout.cp * copies // shared, layout.stride("cp") * shared)
    experts = ring(machine, held.experts * element / of_experts, layout.edp * copies // of_experts, layout.stride("edp") * of_experts)
    return dense.most + experts.most, dense + experts


def beside_pass(alone: float, own: WireTimes, others: WireTimes, pass_us: float) -> float:
    """Time of an exchange that takes `alone`, where a pass of `pass_us` has `others` on its wires, evenly: they leave the exchange the rest.

    Behind the pass the exchange has the wires alone.
    """
    ways = ((own.near, others.near), (own.far, others.far), (own.host, others.host))
    return max([alone, *(one / (1 - held / pass_us) if one + held < pass_us else one + held for one, held in ways if one)])


def _buckets(
    training_recipe: TrainingRecipe, layout: Layout, chunk: int, whole: tuple[float, WireTimes], held: RankParameters, others: WireTimes,
    pass_us: float,
) -> Numbers:  # fmt: skip
    """Times of a chunk's buckets, first the one with no pass of its chunk beside it: the first gather, or the last reduce-scatter.

    Meanwhile a rank with later chunks runs their passes, so that all buckets of those share their wires.
    """
    n, (alone, own) = n_buckets(layout, held, training_recipe), whole
    if not alone:
        return ()
    late = us_to_ps((beside_pass(alone, own, others, pass_us) if training_recipe.overlap_dp else alone) / n)
    return (us_to_ps(alone / n) if chunk < layout.pp else late, *(late,) * (n - 1))


SCALE, LOOK, CLIP_AND_READ = 2, 1, 3
"""Times that scaling a gradient, looking for NaN, and Adam with its clipping (`step.optimizer_bytes`), move it through memory."""


def update_us(machine: Machine, layout: Layout, held: RankParameters, copies: int, own: TrainingRecipe, recipe: Recipe = PLAIN) -> float:
    """The optimizer on a rank's shard of what it holds, with the norm of its gradients, and the zeroing of all gradients; memory-bound.

    `recipe`: whether data parallel ranks share it, else a rank has all, and how wide gradients are: Adam reads BF16 gradients as they are, and widens
    BF16 moments before and behind (Transformer Engine, fused_adam.py), whose traffic is no smaller. With `plain_ddp` gradients of several replicas
    are scaled before they are reduced, and all are looked through for NaN.
    """
    replicas = recipe.sharing(layout, copies)
    shard = held.dense / replicas[0] + held.experts / replicas[1]
    element, adam = recipe.gradients, number("step.optimizer_bytes") - CLIP_AND_READ * (PLAIN.gradients - recipe.gradients)
    held = RankParameters(held.dense / layout.fsdp, held.experts / layout.expert_fsdp)
    passes = 1 + (LOOK + SCALE * (layout.dp * layout.cp > 1) if own.plain_ddp else 0)
    return machine.update((adam + element) * shard + passes * element * (held.dense + held.experts))
