"""One step of a replica: one forward pass of prompts and decoding requests, as a sum of kernels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dysharp.compute.collectives import flight_us, link_us
from dysharp.serving.attention_kernels import attention_ops
from dysharp.serving.ffn import dense_ops, moe_ops
from dysharp.serving.work import ELEMENT, Batch, Op, Replica

SAMPLING_KERNELS = 6
"""Temperature, sort or threshold, softmax, choice, penalties, copy to the host (vLLM v1/sample, SGLang layers/sampler.py)."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step in microseconds. `parts`: device time by name; `kernels`: launches; `gaps`: device time between dependent kernels."""

    parts: dict[str, float]
    kernels: int
    gaps: float

    @property
    def device(self) -> float:
        """Time of the GPU."""
        return sum(self.parts.values()) + self.gaps


def layer_ops(replica: Replica, batch: Batch, number: int) -> list[Op]:
    """The kernels of layer number `number`."""
    model = replica.model
    ffn = moe_ops if model.is_moe(number) else dense_ops
    return [*attention_ops(replica, batch, number), *ffn(replica, batch)]


def head_ops(replica: Replica, rows: float) -> Iterator[Op]:
    """Last norm, head, and the choice of a token for each of `rows` rows. The GPUs of an attention group share the head."""
    model, tp = replica.model, replica.layout.tp
    yield replica.small("norms", rows, model.hidden)
    yield replica.linear("head", "head", rows, model.vocab / tp, model.hidden)
    if tp > 1:
        yield Op("sampling", replica.rates.collective("all_gather", tp, ELEMENT * rows * model.vocab))
    yield replica.small("sampling", rows, model.vocab, SAMPLING_KERNELS)


def step_time(replica: Replica, batch: Batch, prompts_ended: float = 0.0) -> StepTime:
    """The time of one step on the GPUs of every attention group, which have equal batches. `prompts_ended`: prompts whose first token is chosen."""
    model = replica.model
    parts: dict[str, float] = {}
    kernels = 0
    for layer, times in _kinds(replica):
        for op in layer_ops(replica, batch, layer):
            parts[op.name] = parts.get(op.name, 0.0) + times * op.us
            kernels += times * op.kernels
    ends = [replica.small("embedding", batch.tokens, model.hidden), replica.all_reduce("embedding", batch.tokens)]
    for op in (*ends, *hops(replica, batch.tokens), *head_ops(replica, batch.decodes * batch.queries + prompts_ended)):
        parts[op.name] = parts.get(op.name, 0.0) + op.us
        kernels += op.kernels
    return StepTime(parts, kernels, kernels * replica.rates.constants["serving.gap_us"])


def hops(replica: Replica, tokens: float) -> Iterator[Op]:
    """Rows from stage to stage: each GPU sends its part to its neighbour, over NVLink or by its NIC, and the group gathers them."""
    layout, rates, out = replica.layout, replica.rates, replica.rates.cluster.scale_out
    if layout.pp == 1:
        return
    moved = ELEMENT * tokens * replica.model.hidden / layout.tp
    between = 0 if out is None else min(layout.pp, -(-layout.gpus // out.domain_gpus)) - 1
    inside = flight_us(rates.gpu) + float(link_us(rates.gpu, rates.constants, moved))
    sent = (layout.pp - 1 - between) * inside
    if out is not None:
        sent += between * (out.latency_us + moved / (out.nic_GBps * out.nics_per_gpu * 1e3))
    gathered = (layout.pp - 1) * rates.collective("all_gather", layout.tp, moved * layout.tp)
    yield Op("stage to stage", sent + gathered, (layout.pp - 1) * (2 + (layout.tp > 1)))


def draft_us(replica: Replica, batch: Batch) -> float:
    """One draft of every decoding request by an MTP layer: the joining matrix, a layer like the last, and the head."""
    one = replace(batch, queries=1, prompts=0.0)
    hidden = replica.model.hidden
    joining = replica.linear("MTP", "dense FFN", one.decodes, hidden, 2 * hidden)
    ops = [joining, *layer_ops(replica, one, replica.model.n_layers - 1), *head_ops(replica, one.decodes)]
    return sum(op.us + op.kernels * replica.rates.constants["serving.gap_us"] for op in ops)


def _kinds(replica: Replica) -> list[tuple[int, int]]:
    """(number of a layer, layers like it): dense or with experts, with a window or without, with linear attention or without."""
    model = replica.model
    found: dict[tuple[bool, ...], list[int]] = {}
    for layer in range(model.n_layers):
        found.setdefault((model.is_moe(layer), model.windowed(layer), model.is_linear(layer)), []).append(layer)
    return [(layers[0], len(layers)) for layers in found.values()]
