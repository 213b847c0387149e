"""Every weight of a model, once: parameters, FLOPs and bytes of state follow from this table; parameters that a model has, and that a token uses.

Matrices are named as Megatron stores them: queries, keys and values in one, gate and up in one.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dysharp.specs.whole import Attention, LinearAttention, WholeModel

Part = Literal["embedding", "attention", "norms", "router", "dense FFN", "routed experts", "shared experts", "head", "MTP"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "norms", "router", "dense FFN", "routed experts", "shared experts", "head", "MTP")
Split = Literal["tp", "none", "experts"]
"""Over which ranks a weight is cut: tensor parallel, not at all, expert and expert tensor parallel."""


@dataclass(frozen=True, slots=True)
class Weight:
    """`count` equal matrices `[outputs, inputs]`, of which a token uses `used`; a vector has `inputs` 1 and no product."""

    part: Part
    name: str
    inputs: int
    outputs: int
    count: int = 1
    used: int = 1
    split: Split = "tp"
    product: bool = True
    """Whether a token is multiplied with it. Else it is a vector or a table that is looked up."""

    @property
    def parameters(self) -> int:
        """Parameters of all `count`."""
        return self.inputs * self.outputs * self.count

    @property
    def active(self) -> int:
        """Parameters that a token uses."""
        return self.inputs * self.outputs * self.used

    @property
    def macs(self) -> int:
        """Multiplications of a token, forward: 2 FLOPs each."""
        return self.active if self.product else 0


def _vector(part: Part, name: str, elements: int, count: int = 1, used: int = 1, split: Split = "none") -> Weight:
    return Weight(part, name, 1, elements, count, used, split, product=False)


def _attention(model: WholeModel) -> Iterator[Weight]:
    a, hidden = model.attention, model.hidden
    yield from _mla(a, hidden) if a.mla else _gqa(a, hidden)
    if a.out_bias:
        yield _vector("attention", "out bias", hidden)
    if a.sinks:
        yield _vector("attention", "sinks", a.heads, split="tp")


def _gqa(a: Attention, hidden: int) -> Iterator[Weight]:
    rows = ((1 + a.gated) * a.heads + 2 * a.kv_heads) * a.head_dim
    yield Weight("attention", "qkv", hidden, rows)
    yield Weight("attention", "out", a.heads * a.head_dim, hidden)
    if a.qkv_bias:
        yield _vector("attention", "qkv bias", rows, split="tp")
    if a.qk_norm:
        yield _vector("attention", "q and k norm", ((a.heads + a.kv_heads) if a.qk_norm_joint else 2) * a.head_dim)


def _linear(a: LinearAttention, hidden: int) -> Iterator[Weight]:
    """Transformers, models/qwen3_next: queries, keys, values and gate in one; strength and decay in another; one norm vector for all heads."""
    values = a.value_heads * a.value_dim
    yield Weight("attention", "linear in", hidden, a.mixed + values)
    yield Weight("attention", "linear rates", hidden, 2 * a.value_heads)
    yield _vector("attention", "convolution", a.mixed * a.convolution, split="tp")
    yield _vector("attention", "decay", 2 * a.value_heads, split="tp")
    yield _vector("attention", "linear norm", a.value_dim)
    yield Weight("attention", "linear out", values, hidden)


def _mla(a: Attention, hidden: int) -> Iterator[Weight]:
    """Down projections are replicated over tensor parallel ranks (Megatron-LM, multi_latent_attention.py)."""
    queries = a.heads * a.qk_dim
    if a.q_rank:
        yield Weight("attention", "q down", hidden, a.q_rank, split="none")
        yield _vector("attention", "q norm", a.q_rank)
    yield Weight("attention", "q up", a.q_rank or hidden, queries)
    yield Weight("attention", "kv down", hidden, a.kv_rank + a.rope_dim, split="none")
    yield _vector("attention", "kv norm", a.kv_rank)
    if a.index_heads:
        yield Weight("attention", "index queries", a.q_rank, a.index_heads * a.index_dim, split="none")
        yield Weight("attention", "index key and weights", hidden, a.index_dim + a.index_heads, split="none")
        yield _vector("attention", "index norm", 2 * a.index_dim)
    yield Weight("attention", "kv up", a.kv_rank, a.heads * (a.nope_dim + a.v_dim))
    yield Weight("attention", "out", a.heads * a.v_dim, hidden)


def _experts(model: WholeModel) -> Iterator[Weight]:
    layer, hidden = model.layer, model.hidden
    assert layer is not None
    n, k, inner = layer.n_experts, layer.topk, layer.expert_hidden
    first = inner * (layer.n_matrices - 1)
    yield Weight("router", "router", hidden, n, split="none")
    if model.router_bias:
        yield _vector("router", "router bias", n)
    yield Weight("routed experts", "expert FC1", hidden, first, n, k, "experts")
    yield Weight("routed experts", "expert FC2", inner, hidden, n, k, "experts")
    if model.expert_bias:
        yield _vector("routed experts", "expert biases", first + hidden, n, k, "experts")
    if model.shared_hidden:
        yield Weight("shared experts", "shared FC1", hidden, model.shared_hidden * (layer.n_matrices - 1))
        yield Weight("shared experts", "shared FC2", model.shared_hidden, hidden)
    if model.shared_gate:
        yield Weight("shared experts", "shared gate", hidden, 1, split="none")


def _dense(model: WholeModel) -> Iterator[Weight]:
    first = model.dense_hidden * (model.dense_matrices - 1)
    yield Weight("dense FFN", "FC1", model.hidden, first)
    yield Weight("dense FFN", "FC2", model.dense_hidden, model.hidden)
    if model.dense_bias:
        yield _vector("dense FFN", "biases", first + model.hidden)


def _norm(model: WholeModel, name: str, count: int = 1) -> Weight:
    return _vector("norms", name, model.hidden * model.norm_vectors, count, count)


@functools.cache
def layer_weights(model: WholeModel, moe: bool, linear: bool = False) -> tuple[Weight, ...]:
    """The weights of one layer, with experts or with a dense FFN, with attention or with linear attention."""
    ffn = _experts(model) if moe else _dense(model)
    attention = _linear(model.linear, model.hidden) if linear and model.linear else _attention(model)
    return (*attention, _norm(model, "layer norms", model.norms_per_layer), *ffn)


@functools.cache
def embedding_weights(model: WholeModel) -> tuple[Weight, ...]:
    """The table of token vectors, and of positions where they are learned. A token looks up one row, which counts as nothing used."""
    table = Weight("embedding", "embedding", model.hidden, model.vocab, used=0, product=False)
    positions = Weight("embedding", "positions", model.hidden, model.positions, used=0, split="none", product=False)
    return (table, positions) if model.positions else (table,)


@functools.cache
def head_weights(model: WholeModel) -> tuple[Weight, ...]:
    """The last norm and the head. A tied head has no parameters of its own (`count` 0), but a product."""
    head = Weight("head", "head", model.hidden, model.vocab, count=0 if model.tied else 1)
    bias = (_vector("head", "head bias", model.vocab, split="tp"),) if model.head_bias else ()
    return (_norm(model, "last norm"), head, *bias)


@functools.cache
def mtp_weights(model: WholeModel) -> tuple[Weight, ...]:
    """One MTP layer besides its transformer layer: the joining matrix [hidden, 2 hidden] and three norms. Embedding and head are shared."""
    return (Weight("MTP", "joining", 2 * model.hidden, model.hidden, split="none"), _norm(model, "MTP norms", 3))


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters. MTP layers are apart: the totals of model cards are without them."""

    parts: dict[Part, int]
    """{part: all parameters}; "MTP" is not in `total`."""
    active_parts: dict[Part, int]
    """{part: parameters that a token uses}; the embedding counts 0."""

    @property
    def total(self) -> int:
        """All parameters, without MTP."""
        return sum(n for part, n in self.parts.items() if part != "MTP")

    @property
    def active(self) -> int:
        """Used by a token, with the head and without the embedding."""
        return sum(n for part, n in self.active_parts.items() if part != "MTP")

    @property
    def active_inner(self) -> int:
        """Used by a token between embedding and head."""
        return self.active - self.active_parts["head"]

    @property
    def active_both(self) -> int:
        """Used by a token, counting the whole embedding and the head; a tied matrix counts twice."""
        return self.active + self.parts["embedding"]


def parameters_of(model: WholeModel) -> Parameters:
    """All parameters of a model by part, to the last one."""
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    active: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for weight, times in counted_weights(model):
        parts[weight.part] += weight.parameters * times
        active[weight.part] += weight.active * times
    for weight in whole_mtp_layer(model):
        parts["MTP"] += weight.parameters * model.mtp
        active["MTP"] += weight.active * model.mtp
    if model.mtp:  # the head is used once more, and is no new parameter
        active["MTP"] += model.vocab * model.hidden * model.mtp
    return Parameters(parts, active)


def counted_weights(model: WholeModel) -> list[tuple[Weight, int]]:
    """Every weight outside MTP with the number of layers that have it."""
    dense = [(w, model.dense_layers) for w in layer_weights(model, moe=False)] if model.dense_layers else []
    full = model.moe_layers - model.linear_layers
    moe = [(w, full) for w in layer_weights(model, moe=True)] if full else []
    moe += [(w, model.linear_layers) for w in layer_weights(model, moe=True, linear=True)] if model.linear_layers else []
    return [(w, 1) for w in embedding_weights(model)] + dense + moe + [(w, 1) for w in head_weights(model)]


def whole_mtp_layer(model: WholeModel) -> tuple[Weight, ...]:
    """The weights of one MTP layer: a transformer layer like the last, the joining matrix, three norms."""
    return (*layer_weights(model, moe=model.layer is not None), *mtp_weights(model))
