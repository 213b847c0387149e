"""FLOPs of a token: forward, data gradients and weight gradients, by part; a flash kernel's extra products apart.

A matrix of n parameters takes 2n FLOPs forward, 2n for the gradient of its input, 2n for its own. Core attention has no weights: its backward
pass counts twice the forward pass in every convention, and a flash kernel executes 5 products for 2.
"""

from dataclasses import dataclass

from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.parameters import counted_weights, whole_mtp_layer

FLASH_BACKWARD = 2.5
"""Products of a flash kernel's backward pass for one of its forward pass (it computes the scores again)."""
CORE = "core attention"


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs per token. `forward` by part; "core attention" is one of its parts."""

    forward: dict[str, float]

    @property
    def forward_total(self) -> float:
        """Forward."""
        return sum(self.forward.values())

    @property
    def data_gradients(self) -> float:
        """Gradients of inputs: as many as forward; of core attention twice, because it has no weights."""
        return self.forward_total + self.forward[CORE]

    @property
    def weight_gradients(self) -> float:
        """Gradients of weights."""
        return self.forward_total - self.forward[CORE]

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward_total + self.data_gradients + self.weight_gradients

    @property
    def executed(self) -> float:
        """With the products that a flash kernel does again; without recomputed layers."""
        return self.total + (FLASH_BACKWARD - 2) * self.forward[CORE]


def mean_context(sequence: int, window: int = 0) -> float:
    """Tokens that a causal query sees, averaged over a sequence as formulas count them: s / 2, exact with a window shorter than s."""
    if window and window < sequence:
        return window - window * (window - 1) / (2 * sequence)
    return sequence / 2


def core_flops(model: WholeModel, context: float) -> float:
    """Forward FLOPs of one layer's core attention per token, which sees `context` tokens: scores and weighted values. An indexer scores all."""
    a = model.attention
    chosen = min(context, a.index_top) if a.index_top else context
    return 2 * chosen * a.heads * (a.qk_dim + a.value_dim) + 2 * context * a.index_heads * a.index_dim


STATE_PRODUCTS = 3
"""Products of a token with the state of linear attention: what the state holds for its key, the update, the answer (arXiv 2412.06464)."""


def linear_flops(model: WholeModel) -> float:
    """Forward FLOPs per token of all layers with linear attention, besides their weights."""
    return 2.0 * STATE_PRODUCTS * model.linear.state * model.linear_layers if model.linear else 0.0


def contexts(model: WholeModel, sequence: int) -> list[float]:
    """Mean context of every layer, MTP behind the last; 0 of linear attention."""
    layers = range(model.n_layers + model.mtp)
    return [0.0 if model.is_linear(n) else mean_context(sequence, model.attention.window if model.windowed(n) else 0) for n in layers]


def flops_of(model: WholeModel, sequence: int, mtp: bool = True) -> Flops:
    """FLOPs per token of sequences of `sequence` tokens. `mtp`: with the layers, joining matrices and heads of further predictions."""
    forward: dict[str, float] = {}
    for weight, times in counted_weights(model):
        if weight.macs:
            forward[weight.part] = forward.get(weight.part, 0.0) + 2.0 * weight.macs * times
    if mtp and model.mtp:
        head = 2.0 * model.vocab * model.hidden
        forward["MTP"] = model.mtp * (head + sum(2.0 * weight.macs for weight in whole_mtp_layer(model)))
    seen = contexts(model, sequence)
    forward[CORE] = linear_flops(model) + sum(core_flops(model, context) for context in seen[: model.n_layers + (model.mtp if mtp else 0)])
    return Flops(forward)
