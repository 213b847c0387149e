"""Memory of one GPU of a replica: weights, KV of a request, buffers, and the largest batch."""

from math import sqrt

from dysharp.base import frozen
from dysharp.model import Weight, cache_bytes, counted_weights, whole_mtp_layer
from dysharp.serving.engine import Engine
from dysharp.serving.work import ELEMENT, Replica

COLLECTIVE_BYTES = 0.4e9
"""Buffers of NCCL (aiconfigurator@095f58a, h100_sxm.yaml: 0.34 to 0.41 GB)."""
ACTIVATION_WIDTHS = 14.0
"""Activations of a step in widths of its queries (aiconfigurator@095f58a, base_backend.py: 10 to 28 by family)."""


@frozen
class ServeMemory:
    """Bytes of one GPU. `requests`: the most of an attention group at once; `tokens`: cached tokens of a group."""

    weights: float
    buffers: float
    token: float
    """KV of a token."""
    request: float
    """KV of a request of full length."""
    free: float
    """Left for KV."""
    mean: float
    deviation: float
    """KV of a request that is somewhere in its output, and its standard deviation."""

    @property
    def tokens(self) -> int:
        """Tokens of KV that fit."""
        return max(0, int(self.free / self.token))

    @property
    def requests(self) -> int:
        """Requests that fit at once: engines take a block when a token needs it, and requests are evenly advanced; two deviations stay free."""
        if self.free < self.request:
            return 0
        root = (sqrt(self.deviation**2 + self.mean * self.free) - self.deviation) / self.mean
        return max(1, int(root**2))


def weight_bytes(replica: Replica) -> float:
    """Bytes of the weights that one GPU holds; of several stages the one with the head, and with the MTP layers, which share embedding and head
    (DeepSeek-V3, README_WEIGHTS.md)."""
    first, ends = replica.layout.pp == 1 or (replica.mtp and replica.model.mtp), {"embedding", "head"}
    held = [(w, n if w.part in ends else n * replica.stage_part) for w, n in counted_weights(replica.model) if first or w.part != "embedding"]
    if replica.mtp:
        held += [(weight, replica.model.mtp) for weight in whole_mtp_layer(replica.model)]
    return sum(times * _weight(replica, weight) for weight, times in held)


def _weight(replica: Replica, weight: Weight) -> float:
    """Engines keep the matrix that joins an MTP layer whole and in BF16 (vLLM deepseek_mtp.py, SGLang deepseek_nextn.py: eh_proj)."""
    layout, layer, part = replica.layout, replica.model.layer, weight.part
    held = weight.parameters / (1 if weight.split == "none" else layout.tp)
    if weight.split == "experts" and layer is not None:
        held = weight.parameters * (1 + layout.slots / layer.n_experts) / (layout.ep * layout.moe_tp)
    narrow = (weight.product and part != "MTP") or part == "routed experts"
    return held * (replica.formats.of(part).weight_bytes if narrow else ELEMENT)


def kv_bytes(replica: Replica, tokens: float) -> float:
    """KV of one request of `tokens` tokens on one GPU of its attention group, of several stages as of the weights."""
    parts = ((replica.stage_part, False), (1, True))[: 1 + replica.mtp]
    return sum(part * cache_bytes(replica.model, tokens, replica.formats.kv_bytes, replica.layout.cut, mtp) for part, mtp in parts)


def memory_of(replica: Replica, engine: Engine, isl: float, osl: float = 0.0, step_tokens: float | None = None, spread: float = 0.0) -> ServeMemory:
    """The memory of one GPU for requests of `isl` input and `osl` output tokens, whose lengths have a `spread` (`Scenario`)."""
    a, length, total = replica.model.attention, isl + osl, replica.machine.cluster.hbm_bytes
    weights = weight_bytes(replica)
    step = min(engine.step_tokens, step_tokens or engine.step_tokens)
    buffers = ELEMENT * step * max(a.heads * a.value_dim / replica.layout.tp, replica.model.hidden) * ACTIVATION_WIDTHS + COLLECTIVE_BYTES
    free = (total - weights - buffers) * engine.memory_part if engine.of_free else total * engine.memory_part - weights - buffers
    whole, made = kv_bytes(replica, length), (1 + engine.reserved) / 2
    output = 2 * (whole - kv_bytes(replica, isl + osl / 2))
    mean = whole - output * (1 - made * (1 + spread))  # long outputs are met more often, somewhere in their middle
    varies = (1 + 3 * spread) * (made**2 + (1 - engine.reserved) ** 2 / 12) - ((1 + spread) * made) ** 2 + spread * (isl / max(1.0, osl)) ** 2
    return ServeMemory(weights, buffers, whole / length, whole, max(0.0, free), mean, output * sqrt(varies))
