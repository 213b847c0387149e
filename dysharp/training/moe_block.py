"""Routed experts of a layer as closed forms (dispatch, permutations, experts), and the exchange of context parallel ranks.

Dispatch and combine by dispatcher are `costs.exchange` under balanced routing. They stand in for a Row where a step must be quick: validation of
measured steps, and searches over layouts.
"""

from dataclasses import replace
from typing import Literal

from dysharp.base import frozen
from dysharp.costs import Machine, Routed, gradients, kernels, machine_format, rows_of
from dysharp.costs import exchange as costs
from dysharp.model import COPIES, Formats, Layout, StepBatch, linears, prompt_batch
from dysharp.model.operators import ACTIVATION, COUNTS, EXCHANGE, EXPERTS, PERMUTATIONS, LayerOperator, Weight, is_routed, operators
from dysharp.specs import Model, WholeModel
from dysharp.training.cost import PassCost, collectives, passes
from dysharp.training.recipe import SINGLE, SMS, TrainingRecipe

ELEMENT = 2
PROBABILITY = 4
PAD_COPIES = 2
"""Copies of all rows each way where FP8 pads those of an expert: in and out (Megatron-LM, experts.py, TEGroupedMLP.forward)."""


def exchange(machine: Machine, layout: Layout, layer: Model, tokens: float, training_recipe: TrainingRecipe) -> costs.ExchangeTimes:
    """`tokens`: of a micro-batch on one rank, after tensor parallelism cut them. Rows are BF16 both ways, and no kernel is a low-latency one.

    Hybrid-EP stores the own GPU's rows as all others, and beside a row of Dispatch a probability for each expert of the domain (DeepEP, branch
    hybrid-ep, docs/Hybrid-EP_Implementation.md).
    """
    row, single = float(ELEMENT * layer.hidden), training_recipe.dispatcher == SINGLE
    peers = costs.Peers(layout.ep, stride=layout.stride("ep"))
    beside = PROBABILITY * layer.n_experts * min(1.0, machine.domain / layout.ep) if single else 0.0
    done = costs.exchange(machine, layer, peers, costs.Rows(tokens, row + beside, row), training_recipe.dispatcher, sms=SMS["deepep"])
    own = layout.ep / (layout.ep - 1) if single and layout.ep > 1 else 1.0
    return replace(done, dispatch=own * done.dispatch, combine=own * done.combine)


NO_RECIPE = TrainingRecipe()
LOADED = (EXPERTS, ACTIVATION, PERMUTATIONS)
"""Pieces of routed experts that take as long as on the busiest rank."""
EXPERT_TENSOR: tuple[Literal["all_gather", "reduce_scatter"], ...] = ("all_gather", "reduce_scatter")


@frozen
class Basis:
    """What closed forms of a layer are computed from: one model on one machine under one layout. `sequence`: tokens."""

    model: WholeModel
    machine: Machine
    layout: Layout
    sequence: int
    training_recipe: TrainingRecipe = NO_RECIPE

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before tensor parallelism cuts them."""
        return self.layout.tokens(self.sequence)

    @property
    def dtype(self) -> str:
        """Type of the GEMMs."""
        return self.training_recipe.products(self.model)

    @property
    def formats(self) -> Formats:
        """Formats of a forward pass: weights are copies in the type of the products; the head stays in BF16."""
        return self.training_recipe.formats or linears(COPIES[self.dtype])

    @property
    def batch(self) -> StepBatch:
        """The micro-batch on one rank."""
        return prompt_batch(self.tokens, self.sequence)

    @property
    def held(self) -> float:
        """Part of the SMs that EP communication holds while both run."""
        return SMS[self.training_recipe.dispatcher] / self.machine.cluster.n_sms

    def product(self, op: Weight, rows: Routed | None = None, cast: tuple[bool, bool] = (True, True)) -> PassCost:
        """A product with a weight matrix: forward, gradient of its input, gradient of the weight; casts of its input and output gradient."""
        per = self.machine.cast_bytes(machine_format(self.machine, op, self.formats)[1])
        count = rows_of(op, self.tokens, rows)
        done = self.timed(op, "experts" if op.split == "experts" else op.part, rows)
        moved = (per * count * width if one else 0.0 for one, width in zip(cast, (op.k, op.n), strict=True))
        return done + passes("casts", *(self.machine.memory(n) if n else 0.0 for n in moved)) if per > 0 else done

    def timed(self, op: LayerOperator, label: str, rows: Routed | None = None) -> PassCost:
        """An operator by its own clock, without casts."""
        forward = sum(one.us for one in kernels(self.machine, op, self.batch, self.formats, rows))
        return passes(label, forward, *gradients(self.machine, op, self.batch, self.formats, rows, self.training_recipe.frozen))

    def memory(self, name: str, forward: float, backward: float) -> PassCost:
        """Kernels that move `forward` and `backward` bytes."""
        return passes(name, self.machine.memory(forward), self.machine.memory(backward))


def routed_rows(block: Basis) -> Routed:
    """Rows of the experts of a rank under balanced routing."""
    layer, layout = block.model.layer, block.layout
    assert layer is not None
    local = max(1, layer.n_experts // layout.ep)
    return Routed(block.tokens / layout.tp * layer.topk * layout.etp / local, local)


def routed(block: Basis) -> dict[str, PassCost]:
    """Pieces of routed experts under the dispatcher of the recipe, with balanced routing."""
    layer, layout, machine = block.model.layer, block.layout, block.machine
    assert layer is not None
    tokens = block.tokens / layout.tp
    each = routed_rows(block)
    rows, local = tokens * layer.topk * layout.etp, each.groups
    sent = exchange(machine, layout, layer, tokens, block.training_recipe)
    early = sent.wait + sent.maps  # before a forward pass knows how many rows come
    one, back = sent.dispatch + sent.combine + sent.wait, sent.dispatch + sent.combine + 2 * sent.wait
    counts, moved = (PassCost(f, b, 0.0, f, b, f, b, parts={"dispatch and combine": f + b}) for f, b in ((early, 0.0), (one, back)))
    width = ELEMENT * layer.hidden
    sorts = block.training_recipe.dispatcher == "alltoall"
    own, got = (tokens + rows, 2 * rows if local > 1 else 0) if sorts else (0.0, tokens * sent.received + rows)
    permuted = machine.permute(2 * width * (own + got))
    permuted += machine.memory(PAD_COPIES * 2 * width * rows, PAD_COPIES) if block.training_recipe.pads else 0.0
    found = dict.fromkeys((EXPERTS, ACTIVATION), PassCost())
    fused = block.training_recipe.fused_experts  # kernels that end with the activation and its cast
    for op in operators(block.model, block.model.last_moe, layout.cut):
        if is_routed(op) and isinstance(op, Weight):
            first = op.weight == "expert FC1"
            found[EXPERTS] += block.product(op, each, (first or not fused, not (first and fused)))
        elif is_routed(op) and not fused:
            found[op.piece] += block.timed(op, "activation", each)
    return {COUNTS: counts, EXCHANGE: moved, PERMUTATIONS: passes(PERMUTATIONS, permuted, permuted), **found}


def expert_tensor(block: Basis) -> dict[str, PassCost]:
    """Ranks that share an expert gather the rows that each received, and scatter the sums of their results; the backward pass mirrors it."""
    layer, layout = block.model.layer, block.layout
    if layer is None or layout.etp == 1:
        return {}
    moved = ELEMENT * layer.hidden * block.tokens / layout.tp * layer.topk * layout.etp
    both = sum(block.machine.collective(kind, moved, layout.etp, layout.stride("etp")) for kind in EXPERT_TENSOR)
    return {"expert tensor parallel": collectives("expert tensor parallel", both, both)}
