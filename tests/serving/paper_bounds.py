"""What a decode step, and a whole answer, can gain at most on a paper's machine: peaks of memory, tensor cores and links, and no software.

DySHARP's figure 27 shows 512 tokens after prefill, without numbers; prompt and batch are not stated. One layer of one GPU: weights of attention
and the cache are read, experts with a row are read or computed, rows go out and come back one after the other, a microsecond each.
"""

from dataclasses import dataclass

from dysharp.specs import Cluster
from dysharp.specs.whole import WholeModel
from dysharp.workload.closed import expected_copies

ROW_BYTES = 2
"""Bytes of an activation (BF16) on the links; weights are FP8, cached values BF16."""
PHASE_US = 1.0


@dataclass(frozen=True, slots=True)
class DecodeBound:
    """Microseconds of one layer, and gains: `free`: no communication; `merged`: dispatch beside combine in the switch, R + 1 rows and not 2 R."""

    attention: float
    core: float
    experts: float
    one_way: float
    copies: float

    @property
    def computing(self) -> float:
        """Without communication."""
        return self.attention + self.core + self.experts

    @property
    def layer(self) -> float:
        """Out and back, one after the other."""
        return self.computing + 2 * (self.one_way + PHASE_US)

    @property
    def free(self) -> float:
        """Gain if communication took no time."""
        return self.layer / self.computing

    @property
    def merged(self) -> float:
        """Gain of both directions at once with rows copied and summed in the switch."""
        return self.layer / (self.computing + self.one_way * (self.copies + 1) / self.copies + PHASE_US)


def decode_bound(model: WholeModel, cluster: Cluster, gpus: int, batch: float, context: float) -> DecodeBound:
    """`batch` requests on each of `gpus` GPUs that share the experts, attention whole on each GPU."""
    layer, a = model.layer, model.attention
    assert layer is not None
    assert a.mla
    heads = a.heads * (a.q_rank * a.qk_dim + a.kv_rank * (a.nope_dim + a.v_dim) + a.v_dim * model.hidden)
    weights = model.hidden * (a.q_rank + a.kv_rank + a.rope_dim) + heads
    cached = batch * context * (a.kv_rank + a.rope_dim) * ROW_BYTES
    own = layer.n_experts / gpus
    touched = own * (1 - (1 - layer.topk / layer.n_experts) ** (batch * gpus))
    expert = layer.n_matrices * layer.hidden * layer.expert_hidden
    flops = 2 * batch * layer.topk * expert
    experts = max(touched * expert / cluster.hbm_bytes_per_us, flops / cluster.fp8_flops_per_us)
    copies = expected_copies(gpus, layer.n_experts, layer.topk) * (gpus - 1) / gpus
    sent = batch * copies * layer.hidden * ROW_BYTES / cluster.link_bytes_per_us
    return DecodeBound(weights / cluster.hbm_bytes_per_us, cached / cluster.hbm_bytes_per_us, experts, sent, copies)


def answer_gain(prefill: float, decode: float, prefill_gain: float, decode_gain: float) -> float:
    """Gain of a prompt and its answer from the gains of both parts."""
    return (prefill + decode) / (prefill / prefill_gain + decode / decode_gain)
