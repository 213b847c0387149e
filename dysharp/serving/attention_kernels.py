"""Attention of one layer in a serving step, kernel by kernel: grouped queries (GQA, MHA) and latent attention (MLA).

MLA decodes in the absorbed form: queries are brought into the latent space, and all heads read one latent vector per cached token. Prompts use the
other form, which expands keys and values per head (DeepSeek-V3, arXiv 2412.19437; FlashMLA). With sparse attention only prompts that see no more
tokens than are chosen use it; others use the absorbed form, where each query reads its own tokens.
"""

from collections.abc import Iterator
from dataclasses import replace

from dysharp.costs.attention import Attention
from dysharp.costs.linear_attention import PASSES, STATE_BYTES, DeltaNet, prefill_us, update_us
from dysharp.serving.precisions import compute_dtype
from dysharp.serving.work import ELEMENT, Batch, Op, Replica
from dysharp.specs.whole import Attention as Whole
from dysharp.specs.whole import LinearAttention

SPARSE_HEADS = 64
"""Least heads of FlashMLA's sparse kernel for prompts; a GPU with fewer pads its queries."""


def kv_heads(heads: int, tp: int) -> int:
    """Key and value heads of one GPU: with more GPUs than heads each head has copies."""
    return max(1, heads // tp)


def kv_token_bytes(replica: Replica, layer: int) -> float:
    """Bytes that one GPU of an attention group caches per token in layer number `layer`."""
    a, c = replica.model.attention, replica.formats.kv_bytes
    if a.mla:
        return (a.kv_rank + a.rope_dim) * c + index_bytes(a)
    return 2 * kv_heads(a.kv_heads, replica.layout.tp) * a.head_dim * c


def state_bytes(replica: Replica) -> float:
    """Bytes that one GPU of an attention group holds of a request in a layer with linear attention: the state, and the tokens of the convolution."""
    a = replica.model.linear
    return 0.0 if a is None else (a.state * STATE_BYTES + a.mixed * (a.convolution - 1) * ELEMENT) / replica.layout.tp


def index_bytes(a: Whole) -> float:
    """Bytes of a token's key in the indexer's cache: FP8 and a scale (FlashMLA, README)."""
    return a.index_dim + 4.0 if a.index_dim else 0.0


def attention_ops(replica: Replica, batch: Batch, number: int) -> Iterator[Op]:
    """The kernels of layer number `number` from the first norm to the sum over the group."""
    model = replica.model
    yield replica.small("norms", batch.tokens, model.hidden)
    if model.is_linear(number) and model.linear is not None:
        yield from _linear(replica, model.linear, batch)
    else:
        yield from _mla(replica, batch) if model.attention.mla else _gqa(replica, batch, model.windowed(number))
    yield replica.all_reduce("attention all-reduce", batch.tokens)


def _gqa(r: Replica, batch: Batch, windowed: bool) -> Iterator[Op]:
    a, tp, hidden = r.model.attention, r.layout.tp, r.model.hidden
    heads, shared = a.heads // tp, kv_heads(a.kv_heads, tp)
    width = (heads + 2 * shared) * a.head_dim
    yield r.linear("qkv", "attention", batch.tokens, width + a.gated * heads * a.head_dim, hidden)
    yield r.small("rope and cache", batch.tokens, width, 1 + a.qk_norm)
    yield from _core(r, batch, heads, shared, a.head_dim, a.head_dim, a.window if windowed else 0)
    if a.gated:
        yield r.small("attention gate", batch.tokens, heads * a.head_dim)
    yield r.linear("attention out", "attention", batch.tokens, hidden, heads * a.head_dim)


def _linear(r: Replica, a: LinearAttention, batch: Batch) -> Iterator[Op]:
    """Gated delta net: projections, the convolution, states, a gated norm, the projection back."""
    tp, hidden, values = r.layout.tp, r.model.hidden, a.value_heads * a.value_dim
    yield r.linear("qkv", "attention", batch.tokens, (a.mixed + values) / tp, hidden)
    yield r.linear("decay", "attention", batch.tokens, 2 * a.value_heads / tp, hidden)
    yield r.small("convolution", batch.tokens, a.mixed / tp)
    call = DeltaNet(batch.decodes, batch.queries, max(1.0, a.key_heads / tp), a.value_heads / tp, a.key_dim, a.value_dim)
    if batch.decodes:
        yield Op("linear attention decode", update_us(r.rates.gpu, r.rates.constants, call))
    if batch.prompts:
        new = _new(batch)
        prompt = replace(call, sequences=batch.prompts / new, tokens=new)
        yield Op("linear attention prefill", prefill_us(r.rates.gpu, r.rates.constants, prompt), PASSES)
    yield r.small("attention gate", batch.tokens, values / tp)
    yield r.linear("attention out", "attention", batch.tokens, hidden, values / tp)


def _mla(r: Replica, batch: Batch) -> Iterator[Op]:
    a, hidden = r.model.attention, r.model.hidden
    heads, latent = a.heads // r.layout.tp, a.kv_rank + a.rope_dim
    yield r.linear("q and kv down", "attention", batch.tokens, a.q_rank + latent, hidden)
    yield r.small("latent norms", batch.tokens, a.q_rank + latent)
    yield r.linear("q up", "attention", batch.tokens, heads * a.qk_dim, a.q_rank or hidden)
    yield r.small("rope and cache", batch.tokens, heads * a.rope_dim + latent)
    yield from _index(r, a, batch)
    rows, new = batch.decodes * batch.queries, _new(batch)
    sparse = bool(a.index_top) and batch.past + new > a.index_top
    latents = rows + batch.prompts * sparse
    if latents:
        absorbed = r.rates.experts(latents, heads, a.kv_rank, a.nope_dim, "bf16", ELEMENT)
        yield Op("absorbed projections", absorbed + r.rates.experts(latents, heads, a.v_dim, a.kv_rank, "bf16", ELEMENT), 2)
    if rows:
        seen = min(batch.context, a.index_top or batch.context)
        yield from _core(r, replace(batch, prompts=0.0, context=seen), heads, 1, latent, a.kv_rank, latent=True)
    if batch.prompts and sparse:
        chosen = Attention(
            batch=batch.prompts / new, queries=new, past=batch.past, heads=max(heads, SPARSE_HEADS), kv_heads=1, qk_dim=latent, v_dim=a.kv_rank,
            window=a.index_top, packed=True,
        )  # fmt: skip
        yield Op("attention prefill", r.rates.prefill(chosen))
    elif batch.prompts:
        expanded = batch.prompts * (1 + batch.past / new)  # cached tokens are expanded again
        yield r.linear("kv up", "attention", expanded, heads * (a.nope_dim + a.v_dim), a.kv_rank)
        yield from _core(r, replace(batch, decodes=0.0), heads, heads, a.qk_dim, a.v_dim)
    yield r.linear("attention out", "attention", batch.tokens, hidden, heads * a.v_dim)


def _index(r: Replica, a: Whole, batch: Batch) -> Iterator[Op]:
    """The indexer of sparse attention, whole on every GPU: projections, scores of all cached tokens, the choice."""
    if not a.index_heads:
        return
    yield r.linear("indexer", "attention", batch.tokens, a.index_heads * a.index_dim, a.q_rank)
    yield r.linear("indexer", "attention", batch.tokens, a.index_dim + a.index_heads, r.model.hidden)
    if batch.decodes:
        yield Op("indexer", 2 * r.rates.memory(batch.decodes * batch.context * index_bytes(a)), 2)
    if batch.prompts:
        yield Op("indexer", r.rates.gemm(batch.prompts, max(1.0, batch.seen), a.index_heads * a.index_dim, compute_dtype(r.rates.gpu, "fp8"), 1.0), 2)


def _new(batch: Batch) -> float:
    """Tokens of one prompt in the step."""
    return max(1.0, 2 * (batch.seen - batch.past))


def _core(r: Replica, batch: Batch, heads: int, shared: int, qk: int, v: int, window: int = 0, *, latent: bool = False) -> Iterator[Op]:
    """The kernels that multiply queries, keys and values. FP8 caches are multiplied in FP8."""
    kv = r.formats.kv
    call = Attention(
        batch=batch.decodes, queries=batch.queries, past=batch.context, heads=heads, kv_heads=shared, qk_dim=qk, v_dim=v, window=window,
        dtype=compute_dtype(r.rates.gpu, kv), kv_dtype=kv, latent=latent,
    )  # fmt: skip
    if batch.decodes:
        yield Op("attention decode", r.rates.decode(call), 2)
    if batch.prompts:
        new = _new(batch)
        yield Op("attention prefill", r.rates.prefill(replace(call, batch=batch.prompts / new, queries=new, past=batch.past, latent=False)))
