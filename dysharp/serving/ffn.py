"""The FFN of one layer in a serving step, kernel by kernel: dense, experts cut by tensor parallelism, experts shared by EP."""

from collections.abc import Iterator
from functools import lru_cache

from dysharp.serving.balance import LEVELS, busiest, levels_of
from dysharp.serving.exchange import BOUNDS, FREE, domain_of, exchange, least_us
from dysharp.serving.precisions import compute_dtype
from dysharp.serving.work import ELEMENT, Batch, Loads, Op, Replica

ROUTER_KERNELS = 3
"""Top-k and softmax or sigmoid, counts per expert, sorted rows (vLLM fused_moe: topk, moe_align_block_size; SGLang alike)."""


@lru_cache(maxsize=1 << 14)
def touched(experts: float, topk: int, total: int, tokens: float, loads: Loads = ()) -> float:
    """Mean experts out of `experts` with at least one row when `tokens` tokens each choose `topk` of `total` by popularity."""
    weights = loads or LEVELS
    each = [min(1.0, topk / total * weight * len(weights) / sum(weights)) for weight in weights]
    return float(experts * sum(1 - (1 - part) ** tokens for part in each) / len(each))


def dense_ops(r: Replica, batch: Batch) -> Iterator[Op]:
    """A dense FFN between its norm and the sum over the group."""
    yield r.small("norms", batch.tokens, r.model.hidden)
    yield from _mlp(r, "dense FFN", batch.tokens, r.model.dense_hidden / r.layout.tp, r.model.dense_matrices)
    yield r.all_reduce("FFN all-reduce", batch.tokens)


def _mlp(r: Replica, part: str, tokens: float, inner: float, matrices: int) -> Iterator[Op]:
    first = r.linear(part, part, tokens, inner * (matrices - 1), r.model.hidden)
    last = r.linear(part, part, tokens, r.model.hidden, inner)
    between = r.rates.memory(ELEMENT * tokens * inner * matrices)
    yield Op(part, first.us + between + last.us, first.kernels + 1 + last.kernels)


def moe_ops(r: Replica, batch: Batch) -> Iterator[Op]:
    """A MoE layer between its norm and the sum or exchange of its outputs."""
    layer, layout = r.model.layer, r.layout
    assert layer is not None
    tokens = batch.tokens
    yield r.small("norms", tokens, r.model.hidden)
    router = r.rates.gemm(tokens, layer.n_experts, r.model.hidden, "bf16", ELEMENT)
    choose = r.small("router", tokens, layer.n_experts, ROUTER_KERNELS)
    yield Op("router", router + choose.us, 1 + ROUTER_KERNELS)
    everybody = (tokens if batch.mean is None else batch.mean) * layout.dp
    experts = expert_op(r, everybody)
    before, behind = moves(r, tokens, everybody, experts.us)
    yield from before
    yield experts
    if r.model.shared_hidden:
        yield from _shared(r, tokens)
    yield from behind


def expert_op(r: Replica, tokens: float) -> Op:
    """The experts of the busiest GPU: `tokens` tokens of all GPUs choose experts, which EP spreads and tensor parallelism cuts."""
    layer, layout = r.model.layer, r.layout
    assert layer is not None
    form = r.formats.of("routed experts")
    dtype = compute_dtype(r.rates.gpu, form.compute)
    groups = touched((layer.n_experts + layout.slots) / layout.ep, layer.topk, layer.n_experts, tokens, r.loads)
    rows = tokens * layer.topk / layout.ep * busiest(r, tokens)
    inner, hidden = layer.expert_hidden / layout.moe_tp, layer.hidden
    each = rows / max(groups, 1e-9)
    levels = levels_of(r.loads)
    first = r.rates.experts(each, groups, inner * (layer.n_matrices - 1), hidden, dtype, form.weight_bytes, levels)
    last = r.rates.experts(each, groups, hidden, inner, dtype, form.weight_bytes, levels)
    casts = 0 if dtype == "bf16" else 1
    between = r.rates.memory(ELEMENT * rows * inner * layer.n_matrices) + casts * r.rates.memory(3 * tokens / layout.ep * hidden)
    summed = r.rates.memory(ELEMENT * (rows + tokens / layout.dp) * hidden)
    return Op("experts", first + between + last + summed, 4 + casts)


def _shared(r: Replica, tokens: float) -> Iterator[Op]:
    """Shared experts on a stream of their own: their launches hide, their bytes and products do not."""
    assert r.model.layer is not None
    for op in _mlp(r, "shared experts", tokens, r.model.shared_hidden / r.layout.tp, r.model.layer.n_matrices):
        yield Op(op.name, max(0.0, op.us - op.kernels * r.rates.floor), op.kernels)


Ops = list[Op]


def moves(r: Replica, tokens: float, everybody: float, experts_us: float) -> tuple[Ops, Ops]:
    """Kernels before and behind the experts. `tokens`: of a step of an attention group, `everybody`: of all groups.

    A layout without attention groups has all tokens everywhere, and sums. One with groups and EP dispatches and combines. A layout with groups and
    experts that are cut gathers all tokens, and scatters sums. The busiest expert GPU gets and sends most rows, and the others wait for it.
    """
    layout = r.layout
    row = ELEMENT * r.model.hidden
    sends = layout.dp > 1 and layout.ep > 1
    if r.ep_system == FREE:
        return [], []
    if layout.dp == 1:
        return [], [r.all_reduce("FFN all-reduce", tokens)]
    if not sends:
        gathered, scattered = (r.rates.collective(kind, layout.stage_gpus, row * everybody) for kind in ("all_gather", "reduce_scatter"))
        return [Op("dispatch", gathered)], [Op("combine", scattered)]
    shared = [Op("combine", r.rates.collective("all_gather", layout.tp, row * tokens))] if layout.tp > 1 else []
    if r.ep_system in BOUNDS and layout.ep <= domain_of(r):
        return [Op("dispatch", least_us(r, tokens / layout.tp, experts_us), 0)], shared
    moved = exchange(r, tokens / layout.tp, busiest(r, everybody))
    return [Op("dispatch", moved.dispatch, moved.kernels // 2)], [Op("combine", moved.combine, moved.kernels // 2), *shared]
