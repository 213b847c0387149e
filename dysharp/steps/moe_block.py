"""Routed experts of a layer as closed forms (dispatch, permutations, experts), and the exchange of context parallel ranks."""

from dataclasses import dataclass
from typing import Literal

from dysharp.specs.whole import WholeModel
from dysharp.steps.cost import Cost, passes
from dysharp.steps.dispatchers import ELEMENT, exchange
from dysharp.steps.layout import Layout
from dysharp.steps.machine import PERMUTE, Machine
from dysharp.steps.practice import ANY_LAYOUT, CAST_BYTES, SMS, Practice

NO_PRACTICE = Practice()
EXPERT_TENSOR: tuple[Literal["all_gather", "reduce_scatter"], ...] = ("all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Basis:
    """What closed forms of a layer are computed from: one model on one machine under one layout. `sequence`: tokens."""

    model: WholeModel
    machine: Machine
    layout: Layout
    sequence: int
    practice: Practice = NO_PRACTICE

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before tensor parallelism cuts them."""
        return self.layout.tokens(self.sequence)

    @property
    def dtype(self) -> str:
        """Type of the GEMMs."""
        return self.practice.dtype or (self.model.layer.gemm_dtype if self.model.layer else "bf16")

    def casts(self, kind: str, inputs: float, gradients: float) -> Cost:
        """Casts of `inputs` elements forward and of `gradients` elements backward."""
        per = CAST_BYTES[kind] if self.practice.dtype else 0.0
        per -= kind == "fp8" and self.machine.arch in ANY_LAYOUT
        return self.memory("casts", per * inputs, per * gradients) if per > 0 else Cost()

    def memory(self, name: str, forward: float, backward: float) -> Cost:
        """Kernels that move `forward` and `backward` bytes."""
        return passes(name, self.machine.memory(forward), self.machine.memory(backward))


def routed(block: Basis) -> dict[str, Cost]:
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


def expert_tensor(block: Basis) -> dict[str, Cost]:
    """Ranks that share an expert gather the rows that each received, and scatter the sums of their results; the backward pass mirrors it."""
    layer, layout = block.model.layer, block.layout
    if layer is None or layout.etp == 1:
        return {}
    moved = ELEMENT * layer.hidden * block.tokens / layout.tp * layer.topk * layout.etp
    both = sum(block.machine.collective(kind, moved, layout.etp, layout.stride("etp")) for kind in EXPERT_TENSOR)
    return {"expert tensor parallel": passes("expert tensor parallel", both, both)}


def context_exchange(block: Basis, core: Cost) -> Cost:
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


def contended(block: Basis) -> float:
    """Part of the SMs that EP communication holds while other computing runs."""
    sms = SMS[block.practice.dispatcher]
    return sms / block.machine.cluster.n_sms
