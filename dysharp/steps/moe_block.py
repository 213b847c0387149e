"""Routed experts of a layer as closed forms (dispatch, permutations, experts), and the exchange of context parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dysharp.steps.cost import Cost, passes
from dysharp.steps.dispatchers import ELEMENT, exchange
from dysharp.steps.machine import PERMUTE
from dysharp.steps.practice import SMS

if TYPE_CHECKING:
    from dysharp.steps.block import Block


EXPERT_TENSOR: tuple[Literal["all_gather", "reduce_scatter"], ...] = ("all_gather", "reduce_scatter")


def routed(block: Block) -> dict[str, Cost]:
    """Pieces of routed experts under the dispatcher of the practice, with balanced routing."""
    layer, layout, machine = block.model.layer, block.layout, block.machine
    assert layer is not None
    tokens = block.tokens / layout.tp
    rows, local, inner = tokens * layer.topk * layout.etp, max(1, layer.n_experts // layout.ep), layer.expert_hidden // layout.etp
    sent = exchange(machine, layout, layer, tokens, block.practice)
    wire = sent.dispatch + sent.combine
    parts = {"dispatch and combine": 2 * wire}
    moved = Cost(wire, wire, 0.0, wire, wire, wire, wire, parts=parts)
    width = ELEMENT * layer.hidden
    own, back = (tokens + rows, 2 * rows if local > 1 else 0) if block.practice.dispatcher == "alltoall" else (0.0, tokens * sent.received + rows)
    permuted = 2 * width * (own + back)
    up = layer.n_matrices - 1
    per, gemm, kind = rows / local, machine.gemm, block.dtype
    products = [
        (gemm(per, n, k, kind, local), gemm(per, k, n, kind, local), gemm(n, k, per, kind, local, True))
        for n, k in ((up * inner, layer.hidden), (layer.hidden, inner))
    ]
    forward, backward, weights = (sum(way) for way in zip(*products, strict=True))
    experts = Cost(forward, backward, weights, parts={"experts": forward + backward + weights})
    experts += block.casts(kind, rows * (layer.hidden + inner), rows * (layer.hidden + up * inner))
    active = ELEMENT * rows * inner
    return {
        "exchange": moved,
        "permutations": passes("permutations", *2 * (block.machine.memory(permuted, PERMUTE),)),
        "experts": experts,
        "expert activation": block.memory("activation", (up + 1) * active, (2 * up + 1) * active),
    }


def expert_tensor(block: Block) -> dict[str, Cost]:
    """Ranks that share an expert gather the rows that each received, and scatter the sums of their results; the backward pass mirrors it."""
    layer, layout = block.model.layer, block.layout
    if layer is None or layout.etp == 1:
        return {}
    moved = ELEMENT * layer.hidden * block.tokens / layout.tp * layer.topk * layout.etp
    both = sum(block.machine.collective(kind, moved, layout.etp, layout.stride("etp")) for kind in EXPERT_TENSOR)
    return {"expert tensor parallel": passes("expert tensor parallel", both, both)}


def context_exchange(block: Block, core: Cost) -> Cost:
    """Context parallel ranks: heads change places with tokens around the kernel ("a2a"), or keys and values go round beside it ("p2p")."""
    a, layout, tokens = block.model.attention, block.layout, block.tokens
    c = layout.cp
    if c == 1:
        return Cost()
    kv = a.heads if a.mla else a.kv_heads
    queries, keys = ELEMENT * a.heads * a.qk_dim * tokens / layout.tp, ELEMENT * kv * (a.qk_dim + a.value_dim) * tokens / layout.tp
    stride = layout.stride("cp")
    if block.practice.context == "a2a":
        out = ELEMENT * a.heads * a.value_dim * tokens / layout.tp
        one = block.machine.collective("alltoall", queries + keys, c, stride) + block.machine.collective("alltoall", out, c, stride)
        return Cost(one, one, parts={"context parallel": 2 * one})
    ring = block.machine.group(keys * c, c, stride)
    late = max(0.0, ring - core.forward), max(0.0, 2 * ring - core.backward)
    return Cost(*late, parts={"context parallel": sum(late)})


def contended(block: Block) -> float:
    """Part of the SMs that EP communication holds while other computing runs."""
    sms = SMS[block.practice.dispatcher]
    return sms / block.machine.cluster.n_sms
