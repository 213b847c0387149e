"""Two-batch overlap: two halves of a batch alternate stage by stage, so that one computes while messages of the other are under way.

Stages and their order are those of SGLang (batch_overlap/operations_strategy.py). One stream computes both halves, stage after stage, and waits
where a stage needs messages. Decoding: the second half runs two stages behind the first, and low-latency kernels leave all SMs to the GEMMs.
Prompts: the halves take turns, and EP kernels keep `NORMAL_SMS` SMs. Weights are read twice and every kernel starts twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from dysharp.serving.exchange import NORMAL_SMS
from dysharp.serving.step import layer_ops, step_time
from dysharp.serving.work import Batch, Op, Replica

BEHIND = 2
"""Stages between the halves of decoding requests (tbo_delta_stages)."""
PREPARED = ("q and kv down", "latent norms", "q up", "rope and cache", "qkv")
AFTER = ("dispatch", "shared experts", "experts", "combine")
COMPUTE, SEND, WAIT = "compute", "send", "wait"
Action = tuple[str, float]
"""COMPUTE for microseconds, SEND messages that take microseconds, WAIT for the half's last messages."""
Stage = tuple[Action, ...]


def stages_of(ops: Sequence[Op], gap: float, *, prompts: bool) -> list[Stage]:
    """The stages of a layer with dispatch; `gap`: microseconds between two kernels."""
    own: dict[str, float] = {}
    for op in ops:
        moves = op.name in ("dispatch", "combine")
        own[op.name] = own.get(op.name, 0.0) + op.us + (0.0 if moves else gap * op.kernels)
    prepared = sum(own.get(name, 0.0) for name in PREPARED)
    core = sum(us for name, us in own.items() if name not in (*PREPARED, *AFTER))
    shared = own.get("shared experts", 0.0)
    route: Stage = ((WAIT, 0.0), (COMPUTE, own["experts"]), (SEND, own["combine"]))
    if prompts:
        return [((COMPUTE, prepared + core), (SEND, own["dispatch"])), route, ((COMPUTE, shared), (WAIT, 0.0))]
    return [((COMPUTE, prepared),), ((COMPUTE, core),), ((SEND, own["dispatch"]), (COMPUTE, shared)), route, ((WAIT, 0.0),), ()]


def alternated_us(stages: Sequence[Stage], layers: int, behind: int) -> float:
    """Time of `layers` equal layers of two halves on one stream. Messages of both halves share the links, first come first served."""
    line = list(chain.from_iterable([stages] * layers))
    clock = links = 0.0
    arrived = [0.0, 0.0]
    for turn in range(len(line) + behind):
        for half, at in enumerate((turn, turn - behind)):
            for action, us in line[at] if 0 <= at < len(line) else ():
                if action == COMPUTE:
                    clock += us
                elif action == SEND:
                    links = arrived[half] = max(clock, links) + us
                else:
                    clock = max(clock, arrived[half])
    return max(clock, *arrived)


def overlapped_us(replica: Replica, batch: Batch) -> float:
    """The step with the layers of experts in two halves. The other layers and the head compute the whole batch."""
    model, gap = replica.model, replica.rates.constants["serving.gap_us"]
    numbers = [layer for layer in range(model.n_layers) if model.is_moe(layer)]
    half = replace(batch, decodes=batch.decodes / 2, prompts=batch.prompts / 2, mean=None if batch.mean is None else batch.mean / 2)
    together = sum(op.us + gap * op.kernels for op in layer_ops(replica, batch, numbers[-1]))
    prompts = batch.prompts > batch.decodes
    stages = stages_of(layer_ops(replica, half, numbers[-1]), gap, prompts=prompts)
    if prompts:
        kept = replica.rates.gpu.n_sms / (replica.rates.gpu.n_sms - NORMAL_SMS)
        stages = [tuple((action, us * kept if action == COMPUTE else us) for action, us in stage) for stage in stages]
    alternated = alternated_us(stages, len(numbers), 0 if prompts else BEHIND)
    return step_time(replica, batch).device - len(numbers) * together + alternated
