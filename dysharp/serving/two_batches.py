"""Two-batch overlap: two halves of a batch alternate stage by stage, so that one computes while messages of the other are under way.

Stages and their order are those of SGLang (batch_overlap/operations_strategy.py). One stream computes both halves, stage after stage, and waits
where a stage needs messages of all GPUs. Decoding: the second half runs two stages behind the first, and low-latency kernels take SMs only to send
and to unpack. Prompts: the halves alternate, and EP kernels keep `NORMAL_SMS` SMs. Weights are read twice and every kernel starts twice. Every GPU
has rows by chance, anew in each layer and half, and a cache of its own: while it waits for messages anyway, it catches up.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from dysharp.base import F64, Amounts
from dysharp.costs import NORMAL_SMS, OpTime
from dysharp.model import StepBatch
from dysharp.serving.balance import largest_of
from dysharp.serving.exchange import row_bytes
from dysharp.serving.layer import layer_ops
from dysharp.serving.step import step_time
from dysharp.serving.work import ELEMENT, Replica

BEHIND = 2
"""Stages between the halves of decoding requests (tbo_delta_stages)."""
ATTENTION_INPUTS = ("q and kv down", "latent norms", "q up", "rope and cache", "qkv")
AFTER = ("dispatch", "shared experts", "experts", "combine")
COMPUTE, SEND, RETURN, WAIT = "compute", "send", "return", "wait"


class _Action(NamedTuple):
    """COMPUTE for microseconds; SEND messages that take microseconds, longest to the GPU with most rows; RETURN them, and all wait for that GPU; WAIT
    for the half's last messages. `rows`, `cache`: extra time of a GPU whose rows or cache are one standard deviation above the mean."""

    kind: str
    us: float = 0.0
    rows: float = 0.0
    cache: float = 0.0


Stage = tuple[_Action, ...]
SEED = 0


def _stages_of(ops: Sequence[OpTime], gap: float, *, prompts: bool, hot: Sequence[OpTime] = (), kernels: Sequence[float] = (0.0,) * 4) -> list[Stage]:
    """The stages of a layer with dispatch; `gap`: microseconds between two kernels. `hot`: the same ops where rows and cache are one standard
    deviation above the mean. `kernels`: SM time of dispatch and combine, to send and to unpack each; it is part of their time."""
    own, more = _sums(ops, gap), _sums(hot or ops, gap)
    parts = dict.fromkeys((*ATTENTION_INPUTS, *AFTER), 0.0) | own

    def compute(names: Sequence[str]) -> _Action:
        rows, cache = (sum(more.get(name, 0.0) - own.get(name, 0.0) for name in names if (name == "experts") == rows) for rows in (True, False))
        return _Action(COMPUTE, sum(parts[name] for name in names), rows, cache)

    def send(name: str, at: int) -> tuple[_Action, _Action]:
        left = max(0.0, own[name] - kernels[at] - kernels[at + 1])
        return _Action(COMPUTE, kernels[at]), _Action(RETURN if at else SEND, left, more[name] - own[name])

    dispatched, combined = ((_Action(WAIT), _Action(COMPUTE, kernels[at])) for at in (1, 3))
    core = [name for name in own if name not in (*ATTENTION_INPUTS, *AFTER)]
    route: Stage = (*dispatched, compute(["experts"]), *send("combine", 2))
    shared = compute(["shared experts"])
    if prompts:
        return [(compute([*ATTENTION_INPUTS, *core]), *send("dispatch", 0)), route, (shared, *combined)]
    return [(compute(ATTENTION_INPUTS),), (compute(core),), (*send("dispatch", 0), shared), route, combined, ()]


def _sums(ops: Sequence[OpTime], gap: float) -> Amounts:
    own: Amounts = {}
    for op in ops:
        own[op.name] = own.get(op.name, 0.0) + op.us + (0.0 if op.name in ("dispatch", "combine") else gap * op.kernels)
    return own


def _alternated_us(stages: Sequence[Stage], layers: int, behind: int, gpus: int = 1) -> float:
    """Time of `layers` equal layers of two halves on one stream of each of `gpus` GPUs. Messages of both halves share the links, first come first
    served. Rows over the mean, in standard deviations, are drawn for every layer, half and GPU; rows of the cache once for a GPU."""
    draw = np.random.default_rng(SEED)
    rows, cache = draw.normal(size=(layers, 2, gpus)) * (gpus > 1), draw.normal(size=gpus) * (gpus > 1)
    line = list(chain.from_iterable([stages] * layers))
    clock, links, arrived = (np.zeros(gpus) for _ in range(3))
    halves = [arrived, arrived]
    for slot in range(len(line) + behind):
        for half, at in enumerate((slot, slot - behind)):
            for kind, us, by_rows, by_cache in line[at] if 0 <= at < len(line) else ():
                took: F64 = np.maximum(0.0, us + by_rows * rows[at // len(stages), half] + by_cache * cache)
                if kind == COMPUTE:
                    clock = clock + took
                elif kind == WAIT:
                    clock = np.maximum(clock, halves[half])
                else:
                    begin = np.maximum(clock, links)
                    links = begin + took
                    halves[half] = np.maximum(links, begin.max() + us) if kind == SEND else np.full(gpus, links.max())
    return float(max(clock.max(), *(one.max() for one in halves)))


def overlapped_us(replica: Replica, batch: StepBatch) -> float:
    """The step with the layers of experts in two halves. The other layers and the head compute the whole batch."""
    model, gap = replica.model, replica.machine.constants["serving.gap_us"]
    numbers = [layer for layer in range(model.n_layers) if model.is_moe(layer)]
    half = replace(batch, decodes=batch.decodes / 2, prompts=batch.prompts / 2, mean=None if batch.mean is None else batch.mean / 2)
    together = sum(op.us + gap * op.kernels for op in layer_ops(replica, batch, numbers[-1]))
    prompts = batch.prompts > batch.decodes
    stages = _uneven_stages(replica, half, numbers[-1], gap, prompts=prompts)
    if prompts:
        kept = replica.machine.gpu.n_sms / (replica.machine.gpu.n_sms - NORMAL_SMS)
        stages = [tuple(one._replace(us=one.us * kept) if one.kind == COMPUTE else one for one in stage) for stage in stages]
    alternated = _alternated_us(stages, len(numbers), 0 if prompts else BEHIND, replica.layout.ep)
    return step_time(replica, batch).device - len(numbers) * together + alternated


def _uneven_stages(replica: Replica, half: StepBatch, number: int, gap: float, *, prompts: bool) -> list[Stage]:
    """Stages of a GPU with mean rows and a mean cache. Standard deviations by which the busiest GPU of `layer_ops` is above the mean."""
    usual = replace(half, context=half.context if half.usual is None else half.usual)
    even = layer_ops(replace(replica, even=True), usual, number)
    high = largest_of(replica.layout.ep)
    hot = [op._replace(us=op.us + (top.us - op.us) / high) for op, top in zip(even, layer_ops(replica, half, number), strict=True)]
    return _stages_of(even, gap, prompts=prompts, hot=hot, kernels=(0.0,) * 4 if prompts else _message_kernels(replica, half.tokens))


def _message_kernels(replica: Replica, tokens: float) -> tuple[float, ...]:
    """SM time of low-latency kernels of `tokens` tokens: dispatch casts and sends a row for each expert, then packs rows by expert; combine sends
    them back, then sums them."""
    assert replica.model.layer is not None
    (sent, back), rows, own = row_bytes(replica), tokens * replica.model.layer.topk, tokens * replica.model.layer.hidden * ELEMENT
    return tuple(replica.machine.memory(moved) for moved in (own + rows * sent, 2 * rows * sent, rows * back, rows * back + own))
