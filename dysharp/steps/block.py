"""Time of one layer, of the embedding and of the head on one GPU, by part: GEMMs, attention and memory-bound kernels as closed forms.

The routed experts with dispatch and combine are not here: their time is a Row (`EpTimes`). What is not counted stands in `NOT_MODELLED`.
"""

from dataclasses import dataclass, field, fields, replace

from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.flops import core_flops, mean_context
from dysharp.steps.accounting.weights import Weight, head_weights, layer_weights, mtp_weights
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine

NOT_MODELLED = (
    "host launches between kernels", "recomputation of single modules", "casts to FP8", "SMs that communication takes from attention",
    "overlap of tensor-parallel communication", "a network that sends, gradients and EP share", "variation between layers of one model",
)  # fmt: skip
_ROWS = ("out", "FC2", "shared FC2")
"""Weights that tensor parallelism cuts along their inputs."""
ELEMENT = 2
"""Bytes of an activation (BF16)."""


@dataclass(frozen=True, slots=True)
class EpTimes:
    """One MoE layer under an EP system, from its Rows, in microseconds: experts, dispatch and combine of a forward and of a backward pass.

    `exposed`: a transfer runs and nothing computes. `wire`: from the first transfer to the last, at most their sum.
    """

    forward: float
    backward: float
    forward_exposed: float = 0.0
    backward_exposed: float = 0.0
    forward_wire: float = 0.0
    backward_wire: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of a part of a model on one GPU. `backward` is without weight gradients.

    `*_exposed` is EP communication inside the passes that nothing hides; `*_wire` is all EP communication, for merged pairs.
    """

    forward: float = 0.0
    backward: float = 0.0
    weights: float = 0.0
    forward_exposed: float = 0.0
    backward_exposed: float = 0.0
    forward_wire: float = 0.0
    backward_wire: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """Forward, backward and weight gradients together, by name."""

    def __add__(self, other: "Cost") -> "Cost":
        numbers = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost) if f.name != "parts"}
        parts = {name: self.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in [*self.parts, *other.parts]}
        return Cost(**numbers, parts=parts)

    def recomputed(self) -> "Cost":
        """The same with a forward pass before each backward pass."""
        again = {f"backward{what}": getattr(self, f"backward{what}") + getattr(self, f"forward{what}") for what in ("", "_exposed", "_wire")}
        return replace(self, **again, parts=self.parts | {"recomputation": self.forward})

    def pair_with(self, backward: "Cost") -> float:
        """This forward pass merged with the backward pass of another chunk: as long as its computing or its EP communication, whichever is longer.

        The parts that a chain of one micro-batch exposes are hidden by the other micro-batch (DeepSeek-V3 section 3.2.1).
        """
        computed = self.forward - self.forward_exposed + backward.backward - backward.backward_exposed + backward.weights
        return min(max(computed, self.forward_wire + backward.backward_wire), self.forward + backward.backward + backward.weights)


@dataclass(frozen=True, slots=True)
class Block:
    """Closed forms of one model on one machine under one layout, for `tokens` tokens of a micro-batch on a rank."""

    model: WholeModel
    machine: Machine
    layout: Layout
    sequence: int

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before tensor parallelism cuts them."""
        return self.layout.tokens(self.sequence)

    @property
    def dtype(self) -> str:
        """Type of the GEMMs."""
        return self.model.layer.gemm_dtype if self.model.layer else "bf16"

    def layer(self, number: int, ep: EpTimes | None) -> Cost:
        """Layer `number`; `ep`: its routed experts, for a MoE layer."""
        moe = self.model.is_moe(number)
        cost = self._attention(number) + self._norms()
        for weight in layer_weights(self.model, moe):
            if weight.part != "routed experts" and weight.product:
                cost += self._linear(weight)
        inner = self.model.shared_hidden if moe else self.model.dense_hidden
        if inner:
            moved = 3 * ELEMENT * self.tokens * inner / self.layout.tp
            cost += self._memory("activation", moved, 5 / 3 * moved) + self._gathers("tensor parallel")
        return cost + (self._experts(ep) if moe and ep else Cost())

    def ends(self, embedding: bool, mtp: int, head: bool, ep: EpTimes | None) -> Cost:
        """Embedding, MTP layers, and the head with its loss."""
        cost = Cost()
        rows = ELEMENT * self.model.hidden * self.tokens / self.layout.tp
        if embedding:
            cost += self._memory("embedding", 2 * rows, 2 * rows)
        for _ in range(mtp):
            joining = [weight for weight in mtp_weights(self.model) if weight.product]
            cost += self.layer(self.model.n_layers, ep)
            for weight in joining:
                cost += self._linear(weight)
        for _ in range(mtp + head):  # every prediction has a head
            cost += self._head()
        return cost

    def _head(self) -> Cost:
        logits = self.tokens * self.model.vocab / self.layout.tp
        cost = self._memory("loss", 4 * 3 * logits, 4 * 2 * logits)
        for weight in head_weights(self.model):
            if weight.product:
                cost += self._linear(weight, "bf16")
        return cost

    def _linear(self, weight: Weight, dtype: str | None = None) -> Cost:
        """A product with a weight matrix: forward, gradient of its input, gradient of the weight."""
        t = self.layout.tp
        kind = dtype or ("bf16" if weight.part == "router" else self.dtype)
        rows, outputs, inputs = float(self.tokens), float(weight.outputs), float(weight.inputs)
        if weight.split == "none":
            rows /= t
        elif weight.name in _ROWS:
            inputs /= t
        else:
            outputs /= t
        gemm = self.machine.gemm
        return _cost(weight.part, gemm(rows, outputs, inputs, kind), gemm(rows, inputs, outputs, kind), gemm(outputs, inputs, rows, kind))

    def _attention(self, number: int) -> Cost:
        """Core attention, positions, and the gathers of tensor parallelism."""
        a, t = self.model.attention, self.layout.tp
        window = a.window if self.model.windowed(number) else 0
        flops = core_flops(self.model, mean_context(self.sequence, window)) * self.tokens / t
        core = _cost("core attention", self.machine.attention(flops, "forward"), self.machine.attention(flops, "backward"))
        heads = a.heads + (a.heads if a.mla else a.kv_heads)
        moved = 2 * ELEMENT * self.tokens * heads * a.qk_dim / t
        return core + self._memory("positions", moved, moved) + self._gathers("tensor parallel")

    def _norms(self) -> Cost:
        """Norms (read and write), and two additions to the residual stream (two reads and a write)."""
        rows = ELEMENT * self.model.hidden * self.tokens / self.layout.tp
        norms = self.model.norms_per_layer
        return self._memory("norms and residual", (2 * norms + 6) * rows, (3 * norms + 4) * rows)

    def _experts(self, ep: EpTimes) -> Cost:
        """Routed experts from Rows. Their weight gradients leave the Row at the rate of GEMMs: as much as forward has FLOPs, at most half of it."""
        layer = self.model.layer
        assert layer is not None
        flops = 2 * self.tokens / self.layout.tp * layer.topk * layer.hidden * layer.expert_hidden * layer.n_matrices
        weights = min(self.machine.flops(flops, layer.gemm_dtype), ep.backward / 2)
        whole = {"routed experts, dispatch, combine": ep.forward + ep.backward}
        return Cost(
            ep.forward, ep.backward - weights, weights, ep.forward_exposed, ep.backward_exposed, ep.forward_wire, ep.backward_wire, whole
        )  # fmt: skip

    def _memory(self, name: str, forward: float, backward: float) -> Cost:
        return _cost(name, self.machine.memory(forward), self.machine.memory(backward))

    def _gathers(self, name: str) -> Cost:
        """A gather and a reduce-scatter of the sequence forward, three of them backward."""
        if self.layout.tp == 1:
            return Cost()
        one = self.machine.group(ELEMENT * self.model.hidden * self.tokens, self.layout.tp, 1)
        return _cost(name, 2 * one, 3 * one)


def _cost(name: str, forward: float, backward: float, weights: float = 0.0) -> Cost:
    return Cost(forward, backward, weights, parts={name: forward + backward + weights})
