"""Shadows: copies of hot experts on every GPU, each for the GPU's own tokens (FasterMoE)."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dysharp.arrays import I32
from dysharp.errors import ConfigError
from dysharp.workload.routing import Placement, Routing


def worth_shadows(rows: NDArray[np.integer], cost_rows: float) -> I32:
    """The experts that FasterMoE's policy copies to every GPU, hottest first.

    `rows`: `[n_experts]` rows of each expert. `cost_rows`: the time of one copy, in rows of the hottest expert (docs/design/0016-layer-figures.md).
    The hottest expert is copied while rows of the next one plus the cost of all copies fall. The lowest id wins a tie; one expert always stays.
    """
    order = np.argsort(-rows, kind="stable")
    best = float(rows[order[0]]) if len(order) else 0.0
    for n, after in enumerate(order[1:], start=1):
        now = float(rows[after]) + n * cost_rows
        if now >= best:
            return order[: n - 1].astype(np.int32)
        best = now
    return order[:-1].astype(np.int32)


def with_shadows(routing: Routing, experts: I32) -> Routing:
    """`routing` with a further slot for each of `experts` on every GPU, which serves the choices of the GPU's own tokens.

    Slots are in the order of `experts`. The expert's first slot stays and gets no row. Raises ConfigError for a placement with replicas, parts
    or shadows: the expert then has several places already.
    """
    p = routing.placement
    held = p.slot_expert[p.slot_expert >= 0]
    if p.parts != 1 or p.shadows or len(held) != routing.n_experts:
        raise ConfigError(f"shadows: found {len(held)} places of {routing.n_experts} experts on {p.n_gpus} GPUs, expected one place for each expert")
    if not len(experts):
        return routing
    per_gpu = p.slots_per_gpu + len(experts)
    slot_expert = np.concatenate([p.slot_expert.reshape(p.n_gpus, -1), np.tile(experts, (p.n_gpus, 1))], axis=1).ravel()
    gpu, local = np.divmod(routing.slot, p.slots_per_gpu)
    place = np.full(routing.n_experts + 1, -1, np.int32)  # -1 as expert picks the last entry
    place[experts] = np.arange(len(experts))
    source = np.arange(routing.n_tokens)[:, None] // routing.tokens_per_gpu
    shadow = place[routing.expert]
    slot = np.where(shadow >= 0, source * per_gpu + p.slots_per_gpu + shadow, gpu * per_gpu + local)
    note = f"{routing.n_experts} experts, {len(experts)} of them also on every GPU for its own tokens"
    placement = Placement(p.n_gpus, per_gpu, slot_expert.astype(np.int32), p.kind, note, shadows=len(experts))
    return replace(routing, slot=np.where(routing.slot >= 0, slot, -1).astype(np.int32), placement=placement)
