"""KV cache: what one request holds on one GPU of its attention group, as a fold over the operators of its layers."""

import functools

from dysharp.model.operators import BF16, FP32, Core, Cut, DeltaNetState, LayerOperator, layer_operators
from dysharp.specs import WholeModel

INDEX_SCALE = 4.0
"""Bytes of the scale of an indexer's key, which is FP8 (FlashMLA, README)."""
SPARSE_SCALES, SHARED_SCALES = 4 / 128, 8.0
"""Bytes of scales of an FP8 entry that sparse attention reads, whose part with position stays BF16: an FP32 per 128 elements, 656 bytes in all for
DeepSeek-V3.2 (FlashMLA, README), 584 where keys are values (SGLang, pull request 37138)."""


def index_bytes(op: Core) -> float:
    """Bytes of a token's key in the indexer's cache: FP8 and a scale."""
    return op.index_dim + INDEX_SCALE if op.index_dim else 0.0


def _token_bytes(op: Core, kv_bytes: float) -> float:
    """Bytes that attention of one layer caches per token or entry, without the indexer's key; `kv_bytes`: of a cached value."""
    if not op.latent:
        return op.kv_heads * (op.qk_dim + op.v_dim) * kv_bytes
    if kv_bytes < BF16 and (op.shared or op.index_heads):
        return op.kv_rank * kv_bytes + op.rope_dim * BF16 + (SHARED_SCALES if op.shared else SPARSE_SCALES * op.kv_rank)
    return op.latent * kv_bytes


def _operator_bytes(op: LayerOperator, tokens: float, kv_bytes: float) -> float:
    """Bytes that an operator keeps of a request of `tokens` tokens: a window keeps its tokens alone, linear attention a state in FP32."""
    if isinstance(op, Core):
        return _token_bytes(op, kv_bytes) * op.kept(tokens) + index_bytes(op) * tokens / (op.pool or 1)
    return op.state * FP32 + op.tail * BF16 if isinstance(op, DeltaNetState) else 0.0


@functools.lru_cache(maxsize=1 << 10)
def _keeping(model: WholeModel, cut: Cut, mtp: bool) -> tuple[tuple[int, LayerOperator], ...]:
    """Operators that keep something of a request, with the number of layers that have them."""
    kinds = {model.kind(model.n_layers): model.mtp} if mtp else model.kinds
    return tuple((times, op) for kind, times in kinds.items() for op in layer_operators(model, kind, cut) if _operator_bytes(op, 1.0, 1.0))


def cache_bytes(model: WholeModel, tokens: float, kv_bytes: float, cut: Cut, mtp: bool = False) -> float:
    """The same of all layers without MTP, or of those of MTP."""
    return sum(times * _operator_bytes(op, tokens, kv_bytes) for times, op in _keeping(model, cut, mtp))
