"""How long the operators of a layer (`model.operators`) take on a `Machine`, in microseconds: one statement for serving, training and plans.

MLA decodes in the absorbed form: queries are brought into the latent space, and all heads read one latent vector per cached token. Prompts use the
other form, which expands keys and values per head (DeepSeek-V3, arXiv 2412.19437; FlashMLA). With sparse attention only prompts that see no more
tokens than are chosen use it; others use the absorbed form, where each query reads its own tokens.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dysharp.costs.attention import AttentionCall, pairs
from dysharp.costs.linear_attention import PASSES, SCAN_PASSES, DeltaNet
from dysharp.costs.machine import Machine
from dysharp.model import Formats, StepBatch, WeightFormat, index_bytes
from dysharp.model.operators import BF16, FP32, Core, DeltaNetState, LayerOperator, MemoryOp, Weight

SPARSE_HEADS = 64
"""Least heads of FlashMLA's sparse kernel for prompts; a GPU with fewer pads its queries."""
SPARSE_KEYS = 64
"""Keys of a block of that kernel (FlashMLA, csrc/sm90/prefill/sparse: B_TOPK)."""


FEW_COLUMNS = 8
"""Columns of the smallest product of tensor cores (PTX ISA, wgmma n8): a gate of one column reads its rows in BF16 and is limited by memory."""


class OpTime(NamedTuple):
    """Device time of one part of a layer, in microseconds, and the kernels that it launches."""

    name: str
    us: float
    kernels: int = 1


class Routed(NamedTuple):
    """Rows of the experts of one rank: `each` of `groups` experts has so many, times each of `levels`."""

    each: float
    groups: float
    levels: tuple[float, ...] = (1.0,)


class _Gradients(NamedTuple):
    """Microseconds of a backward pass: of inputs, and of weights."""

    inputs: float
    weights: float = 0.0


def kernels(machine: Machine, op: LayerOperator, batch: StepBatch, formats: Formats, routed: Routed | None = None) -> Iterator[OpTime]:
    """The kernels of one operator, forward, without its casts; none for vectors and for what goes between GPUs."""
    if isinstance(op, Weight) and op.product:
        yield OpTime(op.name, product(machine, op, batch.tokens, formats, routed))
    elif isinstance(op, MemoryOp) and (launched := op.kernels if machine.regime.fused else op.steps[0]):
        yield OpTime(op.name, machine.memory(moved_bytes(machine, op, batch.tokens, routed), launched), launched)
    elif isinstance(op, Core):
        yield from (_latent if op.latent else _grouped)(machine, op, batch, formats)
    elif isinstance(op, DeltaNetState):
        yield from _state(machine, op, batch)


def rows_of(op: Weight | MemoryOp, tokens: float, routed: Routed | None) -> float:
    """Rows that an operator works on."""
    return tokens * op.rows if routed is None else routed.each * routed.groups


def moved_bytes(machine: Machine, op: MemoryOp, tokens: float, routed: Routed | None = None) -> float:
    """Bytes that the kernels of a memory-bound operator read and write, forward."""
    return BF16 * rows_of(op, tokens, routed) * (op.kernels * op.served if machine.regime.fused else op.forward)


def product(machine: Machine, op: Weight, tokens: float, formats: Formats, routed: Routed | None = None) -> float:
    """A product of rows with a weight, forward."""
    form, dtype = machine_format(machine, op, formats)
    if op.exact and machine.regime.fused:
        return machine.lanes(op.rows * tokens, op.n, op.k)
    if op.n < FEW_COLUMNS:
        return machine.memory(BF16 * op.rows * tokens * op.k)
    if routed is None:
        return machine.gemm(op.rows * tokens, op.n, op.k, dtype, weight_bytes=form.weight_bytes)
    return machine.gemm(routed.each, op.n, op.k, dtype, routed.groups, weight_bytes=form.weight_bytes, levels=routed.levels)


def machine_format(machine: Machine, op: Weight, formats: Formats) -> tuple[WeightFormat, str]:
    """(format of a weight, type of its products on this machine)."""
    form = formats.of(op.part if op.n >= FEW_COLUMNS else "")
    return form, machine.products(form.compute)


def cast_us(machine: Machine, op: Weight, tokens: float, formats: Formats) -> float:
    """Casts of the input of a product, forward: a kernel that reads BF16 and writes the type of the product; 0 for BF16."""
    exact = op.exact and machine.regime.fused
    per = BF16 + FP32 if exact else machine.cast_bytes(machine_format(machine, op, formats)[1])
    return machine.memory(per * op.rows * tokens * op.k) if per else 0.0


def gradients(
    machine: Machine, op: LayerOperator, batch: StepBatch, formats: Formats, routed: Routed | None = None, frozen: bool = False
) -> _Gradients:
    """The backward pass of one operator, without casts. `frozen`: weights have no gradients."""
    if isinstance(op, Weight) and op.product:
        dtype = machine_format(machine, op, formats)[1]
        rows, groups = (op.rows * batch.tokens, None) if routed is None else (routed.each, routed.groups)
        weights = 0.0 if frozen else machine.gemm(op.n, op.k, rows, dtype, groups, accumulate=True)
        return _Gradients(machine.gemm(rows, op.k, op.n, dtype, groups), weights)
    if isinstance(op, MemoryOp) and op.steps[1]:
        return _Gradients(machine.memory(BF16 * op.backward * rows_of(op, batch.tokens, routed), op.steps[1]))
    if isinstance(op, Core):
        call = _chosen(op, batch) if _is_sparse(op, batch) else _expanded(machine, op, batch, op.kv_heads)
        return _Gradients(machine.attention(call, "backward"))
    if isinstance(op, DeltaNetState):
        return _Gradients(machine.delta_net(_call(op, batch), "backward"))
    return _Gradients(0.0)


def _expanded(machine: Machine, op: Core, batch: StepBatch, kv_heads: float) -> AttentionCall:
    """Prompts, with keys and values per head: on Hopper by FlashAttention-3, which vLLM and SGLang take there.

    Behind a cache heads that share keys share tiles (hopper/heuristics.h: should_pack_gqa).
    """
    return AttentionCall(
        batch=op.ranks * batch.prompts / batch.new, queries=batch.new, past=batch.past, heads=op.heads, kv_heads=kv_heads, qk_dim=op.qk_dim,
        v_dim=op.v_dim, window=op.window, packed=batch.past > 0, longest_first=bool(machine.cluster.gpu) and machine.gpu.arch == "hopper",
    )  # fmt: skip


def _call(op: DeltaNetState, batch: StepBatch) -> DeltaNet:
    return DeltaNet(batch.prompts / batch.new, batch.new, op.key_heads, op.value_heads, op.key_dim, op.value_dim, scan=op.scan)


def _grouped(machine: Machine, op: Core, batch: StepBatch, formats: Formats) -> Iterator[OpTime]:
    """Grouped queries."""
    if batch.decodes:
        call = AttentionCall(
            batch=batch.decodes, queries=batch.queries, past=batch.context, heads=op.heads, kv_heads=op.kv_heads, qk_dim=op.qk_dim, v_dim=op.v_dim,
            window=op.window, dtype=machine.products(formats.kv), kv_dtype=formats.kv,
        )  # fmt: skip
        yield OpTime("attention decode", machine.decode(call), 2)
    if batch.prompts:
        yield OpTime("attention prefill", machine.attention(_in_cache(machine, _expanded(machine, op, batch, op.kv_heads), formats)))


def _in_cache(machine: Machine, call: AttentionCall, formats: Formats) -> AttentionCall:
    """FP8 caches are multiplied in FP8."""
    return replace(call, dtype=machine.products(formats.kv), kv_dtype=formats.kv)


def _latent(machine: Machine, op: Core, batch: StepBatch, formats: Formats) -> Iterator[OpTime]:
    yield from _index(machine, op, batch)
    rows, sparse = batch.decodes * batch.queries, _is_sparse(op, batch)
    if (latents := rows + batch.prompts * sparse) and not op.shared:
        nope = op.qk_dim - op.rope_dim
        absorbed = machine.gemm(latents, op.kv_rank, nope, "bf16", op.heads) + machine.gemm(latents, op.v_dim, op.kv_rank, "bf16", op.heads)
        yield OpTime("absorbed projections", absorbed, 2)
    if rows:
        call = AttentionCall(
            batch=batch.decodes, queries=batch.queries, past=op.seen(batch.context), heads=op.heads, kv_heads=1, qk_dim=op.latent,
            v_dim=op.v_dim if op.shared else op.kv_rank, latent=True, kv_dtype=formats.kv,
            dtype="bf16" if op.shared else machine.products(formats.kv),  # FlashMLA, README: FP8 entries are widened first
        )  # fmt: skip
        yield OpTime("attention decode", machine.decode(call), 2)
    if batch.prompts and sparse:
        yield OpTime("attention prefill", machine.attention(_chosen(op, batch)))
    elif batch.prompts:
        yield OpTime("attention prefill", machine.attention(_in_cache(machine, _expanded(machine, op, batch, op.heads), formats)))


def _chosen(op: Core, batch: StepBatch) -> AttentionCall:
    """Prompts of sparse attention: latent vectors of the tokens that an indexer chose, for all heads.

    Where keys are values, a tile has the heads of one query and goes through its own list of keys (FlashMLA's sparse kernel), of mean length.
    """
    if op.shared:
        own = AttentionCall(batch=1, queries=batch.new, past=batch.past, heads=1, kv_heads=1, qk_dim=1, v_dim=1)
        near, far = (float(pairs(replace(own, window=most))) / batch.new for most in (op.window, op.pool * op.index_top))
        seen = near + (far / op.pool if op.pool else 0.0)
        return AttentionCall(
            batch=op.ranks * batch.prompts / batch.new, queries=batch.new, past=seen, heads=max(op.heads, SPARSE_HEADS), kv_heads=1, qk_dim=op.latent,
            v_dim=op.v_dim, window=seen, packed=True, latent=True, whole=True, rows=SPARSE_HEADS, columns=SPARSE_KEYS,
        )  # fmt: skip
    return AttentionCall(
        batch=op.ranks * batch.prompts / batch.new, queries=batch.new, past=batch.past, heads=max(op.heads, SPARSE_HEADS), kv_heads=1,
        qk_dim=op.latent, v_dim=op.kv_rank, window=op.index_top, packed=True,
    )  # fmt: skip


def _is_sparse(op: Core, batch: StepBatch) -> bool:
    """Whether prompts attend to chosen tokens alone."""
    return op.shared or (bool(op.index_top) and batch.past + batch.new > op.index_top)


def expanded_rows(op: Core, batch: StepBatch) -> float:
    """Cached tokens whose keys and values a step expands per head: those of prompts, which are expanded again, unless attention is sparse."""
    return 0.0 if _is_sparse(op, batch) or not batch.prompts else batch.prompts * (1 + batch.past / batch.new)


def _index(machine: Machine, op: Core, batch: StepBatch) -> Iterator[OpTime]:
    """The indexer of sparse attention, whole on every GPU: scores of all cached tokens or entries, the choice."""
    pool = op.pool or 1
    if op.index_heads and batch.decodes:
        yield OpTime("indexer", machine.memory(2 * batch.decodes * batch.context / pool * index_bytes(op), 2), 2)
    if op.index_heads and batch.prompts:
        yield OpTime("indexer", machine.gemm(batch.prompts, max(1.0, batch.seen / pool), op.index_heads * op.index_dim, machine.products("fp8")), 2)


def _state(machine: Machine, op: DeltaNetState, batch: StepBatch) -> Iterator[OpTime]:
    if batch.decodes:
        call = DeltaNet(batch.decodes, batch.queries, op.key_heads, op.value_heads, op.key_dim, op.value_dim)
        yield OpTime("linear attention decode", machine.delta_update(call))
    if batch.prompts:
        yield OpTime("linear attention prefill", machine.delta_net(_call(op, batch)), SCAN_PASSES if op.scan else PASSES)
