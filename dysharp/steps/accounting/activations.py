"""Activations that a layer saves for its backward pass, tensor by tensor, and what recomputation drops of them.

Bytes are per token of the context rank (`Layout.tokens`). BF16 and flash attention, which saves no scores. With tensor parallelism, everything
outside attention and FFN lies on the sequence parallel shard.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dysharp.errors import ConfigError, nearest
from dysharp.specs.fields import check_fields, show
from dysharp.specs.whole import Flag, WholeModel
from dysharp.steps.accounting.state import padded_vocab
from dysharp.steps.layout import Layout

BF16, FP8, FP32 = 2, 1, 4
ROUTER_BYTES = 12
"""Per expert: scores, map and row map of the router, FP32 or INT32 each."""
MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts")
"""Sets of tensors that Megatron can compute again (--recompute-modules)."""
DISCARDED = ("mla_up_proj", "layernorm", "moe_act")
"""Modules whose output alone is dropped, and computed again when its first consumer's backward pass starts."""
FULL = "full"


@dataclass(frozen=True, slots=True)
class Saving:
    """What is kept between forward and backward pass. Raises `ConfigError`."""

    recompute: tuple[str, ...] = ()
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
            if module not in (*MODULES, FULL):
                raise ConfigError(f"recompute: found {show(module)}, expected modules{nearest(module, (*MODULES, FULL))}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that is saved: bytes per token, the module that drops it, and whether it is the input of a linear."""

    op: str
    bytes: float
    module: str = ""
    linear: bool = False


def saved_of_layer(
    model: WholeModel, layout: Layout, moe: bool, saving: Saving, fp8: bool = False, linear: bool = False
) -> tuple[Saved, ...]:  # fmt: skip
    """Every tensor that one layer saves without recomputation. `linear`: its attention is linear."""
    attention = _linear_attention(model, layout, saving, fp8) if linear else _attention(model, layout, saving, fp8)
    return (*attention, *(_moe(model, layout, saving, fp8) if moe else _dense(model, layout, saving, fp8)))


def _shard(layout: Layout, saving: Saving) -> int:
    return layout.tp if saving.sequence_parallel else 1


def _attention(model: WholeModel, layout: Layout, saving: Saving, fp8: bool) -> Iterator[Saved]:
    a, t, hidden = model.attention, layout.tp, model.hidden
    shard, linear = _shard(layout, saving), FP8 if fp8 else BF16
    yield Saved("block input", BF16 * hidden / shard)
    yield Saved("norm output", linear * hidden / shard, "layernorm", linear=True)
    if a.mla:
        down = 2 * a.q_rank + 2 * a.kv_rank + a.rope_dim
        yield Saved("down projections and norms", BF16 * down)
        queries = a.heads * a.qk_dim
        yield Saved("q, k, v", BF16 * (2 * queries + a.heads * a.v_dim) / t, "mla_up_proj")
    else:
        yield Saved("q, k, v", BF16 * (a.heads / t + 2 * max(a.kv_heads / t, 1)) * a.head_dim)
    yield Saved("attention output", (BF16 * a.heads * a.value_dim + FP32 * a.heads) / t, linear=True)
    if layout.cp > 1:  # heads are exchanged behind the kernel, which keeps its own output
        yield Saved("output before the context exchange", BF16 * a.heads * a.value_dim / t)
    yield Saved("FFN norm input", BF16 * hidden / shard)
    yield Saved("FFN norm output", BF16 * hidden / shard, "layernorm", linear=True)  # the router reads it in BF16


def _linear_attention(model: WholeModel, layout: Layout, saving: Saving, fp8: bool) -> Iterator[Saved]:
    """Inputs of the projections, of the convolution and of the gated norm; states of chunks are made again in the backward pass."""
    a, t, hidden = model.linear, layout.tp, model.hidden
    assert a is not None
    shard, kept, values = _shard(layout, saving), FP8 if fp8 else BF16, a.value_heads * a.value_dim
    yield Saved("block input", BF16 * hidden / shard)
    yield Saved("norm output", kept * hidden / shard, "layernorm", linear=True)
    yield Saved("linear q, k, v before and behind the convolution", BF16 * 2 * a.mixed / t)
    yield Saved("gate, strength and decay", (BF16 * values + FP32 * 2 * a.value_heads) / t)
    yield Saved("linear output before and behind its norm", (BF16 + kept) * values / t, linear=True)
    yield Saved("FFN norm input", BF16 * hidden / shard)
    yield Saved("FFN norm output", BF16 * hidden / shard, "layernorm", linear=True)


def _dense(model: WholeModel, layout: Layout, saving: Saving, fp8: bool) -> Iterator[Saved]:
    inner, t = model.dense_hidden, layout.tp
    yield Saved("FC1 output", BF16 * (model.dense_matrices - 1) * inner / t, "mlp")
    yield Saved("activation", (FP8 if fp8 else BF16) * inner / t, "mlp", linear=True)


def _moe(model: WholeModel, layout: Layout, saving: Saving, fp8: bool) -> Iterator[Saved]:
    layer, t, shard = model.layer, layout.tp, _shard(layout, saving)
    assert layer is not None
    linear, up = FP8 if fp8 else BF16, layer.n_matrices - 1
    yield Saved("router", ROUTER_BYTES * layer.n_experts / shard, "moe")
    if model.shared_hidden:
        yield Saved("shared FC1 output", BF16 * up * model.shared_hidden / t, "shared_experts")
        yield Saved("shared activation", linear * model.shared_hidden / t, "shared_experts", linear=True)
    rows = expert_rows(model, layout, saving)
    yield Saved("permuted rows", linear * rows * model.hidden, "moe", linear=True)
    yield Saved("expert FC1 output", BF16 * up * rows * layer.expert_hidden / layout.etp, "moe")
    yield Saved("expert activation", linear * rows * layer.expert_hidden / layout.etp, "moe_act", linear=True)
    if saving.fc2_output:
        yield Saved("expert FC2 output", BF16 * rows * model.hidden, "moe")


def expert_rows(model: WholeModel, layout: Layout, saving: Saving) -> float:
    """Rows of the most loaded rank's experts per token. Expert tensor parallel ranks gather the rows of each other."""
    assert model.layer is not None
    return model.layer.topk * layout.etp * saving.imbalance / _shard(layout, saving)


def is_dropped(saved: Saved, saving: Saving) -> bool:
    """Whether recomputation drops a tensor. "moe" drops everything behind the FFN's norm; "full" all but the input of the layer."""
    if FULL in saving.recompute:
        return saved.op != "block input"
    inside_moe = saved.module in ("moe", "moe_act", "shared_experts")
    return saved.module in saving.recompute or (inside_moe and "moe" in saving.recompute)


def head_bytes(model: WholeModel, layout: Layout, saving: Saving) -> float:
    """Bytes per token that the head and its loss hold in a backward pass: norm, logits, the gathered input and its gradient."""
    shard = _shard(layout, saving)
    logits = (BF16 if saving.fused_loss else FP32) * padded_vocab(model, layout) / layout.tp
    return 2 * BF16 * model.hidden / shard + logits + 2 * BF16 * model.hidden


def layer_transient(model: WholeModel, layout: Layout, moe: bool, saving: Saving) -> float:
    """Bytes per token that a layer's backward pass holds beside what is saved: gradients of the activation's input, the gathered gradient."""
    if not moe:
        return BF16 * (model.dense_matrices - 1) * model.dense_hidden / layout.tp + BF16 * model.hidden
    assert model.layer is not None
    rows, up = expert_rows(model, layout, saving), model.layer.n_matrices - 1
    return rows * (BF16 * up * model.layer.expert_hidden / layout.etp + BF16 * model.hidden)


def gradient_bytes(model: WholeModel, layout: Layout, moe: bool, saving: Saving) -> float:
    """Bytes per token of the output gradients that wait for a delayed weight gradient: one per linear of a layer."""
    a, t = model.attention, layout.tp
    queries = a.heads * (2 * a.qk_dim + a.v_dim) / t + a.q_rank + a.kv_rank + a.rope_dim if a.mla else (a.heads + 2 * a.kv_heads) * a.head_dim / t
    outputs = queries + model.hidden
    if not moe:
        return BF16 * (outputs + (model.dense_matrices - 1) * model.dense_hidden / t + model.hidden)
    assert model.layer is not None
    rows, up = expert_rows(model, layout, saving), model.layer.n_matrices - 1
    shared = up * model.shared_hidden / t + (model.hidden if model.shared_hidden else 0)
    return BF16 * (outputs + shared + rows * (up * model.layer.expert_hidden / layout.etp + model.hidden))
