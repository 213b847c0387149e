"""FLOPs of a token: forward, data gradients and weight gradients, by part; and what frameworks print as model FLOPs.

A matrix of n parameters takes 2n FLOPs forward, 2n for the gradient of its input, 2n for its own. Core attention has no weights: its backward
pass counts twice the forward pass in every convention, and a flash kernel executes 5 products for 2: its extra products are counted separately.

The same model and speed give other TFLOPS under another name or release. Every convention counts 3 x forward (forward, data gradients, weight
gradients) and no recomputation; `Convention` has the parts in which they differ. A training speed converts with the convention of its own release;
compare tokens per second across releases.
"""

from pathlib import Path
from typing import Literal

from dysharp.base import Amounts, frozen, read_toml
from dysharp.model.operators import CORE, Core, DeltaNetState, LayerOperator, operators
from dysharp.model.weights import counted_weights, whole_mtp_layer
from dysharp.specs import WholeModel

FLASH_BACKWARD = 2.5
"""Products of a flash kernel's backward pass for one of its forward pass (it computes the scores again)."""


@frozen
class _Flops:
    """FLOPs per token. `forward` by part; "core attention" is one of its parts."""

    forward: Amounts

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
        """With the products that a flash kernel recomputes; without recomputed layers."""
        return self.total + (FLASH_BACKWARD - 2) * self.forward[CORE]


def mean_context(sequence: int, window: int = 0) -> float:
    """Tokens that a causal query sees, averaged over a sequence as formulas count them: s / 2, exact with a window shorter than s."""
    if window and window < sequence:
        return window - window * (window - 1) / (2 * sequence)
    return sequence / 2


def flops_of(model: WholeModel, sequence: int, mtp: bool = True) -> _Flops:
    """FLOPs per token of sequences of `sequence` tokens. `mtp`: with the layers, joining matrices and heads of further predictions."""
    forward: Amounts = {}
    for weight, times in counted_weights(model):
        if weight.macs:
            forward[weight.part] = forward.get(weight.part, 0.0) + 2.0 * weight.macs * times
    if mtp and model.mtp:
        head = 2.0 * model.vocab * model.hidden
        forward["MTP"] = model.mtp * (head + sum(2.0 * weight.macs for weight in whole_mtp_layer(model)))
    layers = range(model.n_layers + (model.mtp if mtp else 0))
    forward[CORE] = sum(_core_flops(op, sequence) for layer in layers for op in operators(model, layer))
    return _Flops(forward)


FILE = Path(__file__).with_name("conventions.toml")
Window = Literal["exact", "ignored", "half"]
"""Mean context of a windowed layer: exact; as without a window; half the window."""


@frozen
class Convention:
    """Which parts a framework counts."""

    name: str
    counts: str
    """What differs from three times forward, in words."""
    source: str
    router: bool = False
    mtp: bool = True
    causal: bool = True
    """Core attention counts half of all pairs."""
    window: Window = "exact"
    gate_of_silu_only: bool = False
    """An expert counts three matrices only if its gate is SiLU: a clamped gate (GPT-OSS) counts two."""
    rank_norms: bool = True
    """The norms of MLA's ranks count one parameter per element."""
    matrix_passes: int = 3
    """Passes that a matrix counts: forward, data gradients, weight gradients. 2: weights are frozen (LoRA)."""
    core_passes: int = 3
    """The same for core attention, whose backward pass has the FLOPs of two."""


CONVENTIONS = {name: Convention(name, **facts) for name, facts in read_toml(FILE).items()}
MEGATRON = CONVENTIONS["megatron"]


def model_flops(model: WholeModel, sequence: int, convention: Convention = MEGATRON) -> float:
    """Model FLOPs per token, forward and backward, of sequences of `sequence` tokens, as `convention` counts them."""
    mtp = model.mtp if convention.mtp else 0
    matrices = sum(_counted(model, weight.part, weight.weight, weight.macs, convention) * times for weight, times in counted_weights(model))
    matrices += mtp * (model.vocab * model.hidden)
    matrices += mtp * sum(_counted(model, weight.part, weight.weight, weight.macs, convention) for weight in whole_mtp_layer(model))
    if convention.rank_norms:
        seeing = sum(not {*"*wch"}.isdisjoint(model.kind(n)) for n in range(model.n_layers + mtp))
        matrices += seeing * (model.attention.q_rank + model.attention.kv_rank)
    layers = range(model.n_layers + mtp)
    core = sum(_core_flops(op, sequence, convention) for layer in layers for op in operators(model, layer))
    return 2 * convention.matrix_passes * matrices + convention.core_passes * core


def _counted(model: WholeModel, part: str, name: str, macs: int, convention: Convention) -> float:
    if part == "router" and not convention.router:
        return 0
    if name == "expert FC1" and convention.gate_of_silu_only and model.expert_bias:
        return macs / 2  # gate and up are one matrix of twice the width
    return macs


def _core_flops(op: LayerOperator, sequence: int, convention: Convention = MEGATRON) -> float:
    """Forward FLOPs of one operator per token: scores and weighted values, of what an indexer chose; its scores of all; a state. 0 of others."""
    if isinstance(op, DeltaNetState):
        return 2.0 * op.products * op.state
    if not isinstance(op, Core):
        return 0.0
    if op.pool:
        entries = mean_context(sequence, op.pool * op.index_top) / op.pool
        scored = mean_context(sequence) / op.pool * op.index_heads * op.index_dim
        return 2 * (mean_context(sequence, op.window) + entries) * op.heads * (op.qk_dim + op.v_dim) + 2 * scored
    seen = _context(op.window, sequence, convention)
    chosen = min(seen, mean_context(sequence, op.index_top) if convention.causal else op.index_top) if op.index_top else seen
    return 2 * chosen * op.heads * (op.qk_dim + op.v_dim) + 2 * seen * op.index_heads * op.index_dim


def _context(window: int, sequence: int, convention: Convention) -> float:
    if not convention.causal:
        return float(sequence)
    if window and convention.window == "half":
        return min(window, sequence) / 2
    return mean_context(sequence, window if convention.window == "exact" else 0)
