"""Uneven GPUs: the busiest expert GPU of a step, loads from recorded or drawn routing, EPLB and what rearranging costs."""

from dataclasses import replace
from functools import lru_cache
from math import exp, hypot, sqrt
from statistics import NormalDist

import numpy as np

from dysharp.base import frozen
from dysharp.costs import link_us
from dysharp.serving.work import Loads, Replica
from dysharp.specs import WholeModel, choice_int
from dysharp.workload import auto, eplb, make_routing, replica_loads
from dysharp.workload.routing import max_over_mean, rows_per_expert

DRAWN_GPUS, DRAWN_TOKENS = 8, 4096
"""Tokens from which loads are counted: so many GPUs with so many tokens."""
EXTRA_SLOTS = (1, 2, 4)
"""Spare slots of a GPU with which EPLB is tried."""
BALANCED_FROM = 8


def busiest(r: Replica, tokens: float) -> float:
    """Rows of the busiest expert GPU over the mean when `tokens` tokens of all GPUs choose experts.

    Two causes, about normal and independent: popularity of its experts, and chance in one step (a GPU with n rows on average has n +- sqrt(n)).
    Layouts with a spare slot on every GPU, or beyond `BALANCED_FROM` GPUs, have even popularity (EPLB), as in all public recipes of wide EP; slots
    that only even out the numbers of experts balance nothing.
    """
    layer, layout = r.model.layer, r.layout
    if layer is None or layout.ep == 1 or r.even:
        return 1.0
    chance = largest_of(layout.ep) / sqrt(max(1.0, tokens * layer.topk / layout.ep))
    if r.loads:
        popular = hottest(r.loads, layout.ep, layout.slots) - 1
    elif layout.slots >= layout.ep or layout.ep > BALANCED_FROM:
        popular = 0.0
    else:
        popular = largest_of(layout.ep) * sqrt((exp(SPREAD**2) - 1) / (layer.n_experts / layout.ep))
    return 1 + hypot(chance, popular)


def loads_of(model: WholeModel, routing: str, seed: int = 0) -> Loads:
    """Part of the rows that each expert gets under a routing string or file. Raises `ConfigError`."""
    if model.layer is None:
        return ()
    rows = rows_per_expert(make_routing(routing, model.layer, DRAWN_GPUS, DRAWN_TOKENS, seed=seed)).astype(np.float64)
    return tuple((rows / rows.sum()).tolist())


@lru_cache(maxsize=1 << 8)
def hottest(loads: Loads, gpus: int, slots: int) -> float:
    """Rows of the busiest of `gpus` GPUs over the mean. With spare `slots` EPLB places experts, else their numbers do."""
    load = np.asarray(loads)
    placed = eplb(load, gpus, len(loads) + slots) if slots else auto(len(loads), gpus)
    return max_over_mean(replica_loads(load, placed).reshape(gpus, -1).sum(axis=1))


@frozen
class Rearranging:
    """EPLB with `slots` spare slots of a GPU. Bytes of one GPU; `seconds`: all its slots anew, over NVLink or the NICs."""

    slots: int
    busiest: float
    held: float
    moved: float
    seconds: float


def rearranging(replica: Replica, slots: int) -> Rearranging:
    """What EPLB with so many spare slots of a GPU brings and costs: memory for the copies, and at worst every slot of every layer moves."""
    layer, layout, rates = replica.model.layer, replica.layout, replica.machine
    assert layer is not None
    expert = layer.expert_weights * replica.formats.of("routed experts").weight_bytes / layout.moe_tp
    layers = sum(replica.model.is_moe(number) for number in range(replica.model.n_layers))
    own = layer.n_experts // layout.ep + slots
    moved = own * layers * expert
    out, inside = rates.cluster.scale_out, layout.ep <= rates.domain
    us = float(link_us(rates.gpu, rates.constants, moved)) if inside or out is None else moved / (out.nic_GBps * out.nics_per_gpu * 1e3)
    return Rearranging(slots, hottest(replica.loads, layout.ep, layout.ep * own - layer.n_experts), slots * layers * expert, moved, us / 1e6)


def stalled(step_us: float) -> float:
    """Part of the time that EPLB's stalls take beside decode steps of `step_us` (choices `eplb.*`)."""
    stall_us = choice_int("eplb.stall_ms") * 1e3
    return stall_us / (stall_us + choice_int("eplb.interval_steps") * step_us)


def with_slots(replica: Replica, slots: int) -> Replica:
    """The replica with `slots` spare slots of every GPU, beyond those that even out its experts."""
    layer, layout = replica.model.layer, replica.layout
    assert layer is not None
    own = layer.n_experts // layout.ep + slots
    return replace(replica, layout=replace(layout, slots=layout.ep * own - layer.n_experts))


SPREAD = 0.65
"""Standard deviation of the logarithm of an expert's popularity."""
_DRAWN = [exp(NormalDist(0.0, SPREAD).inv_cdf((i + 0.5) / 16)) for i in range(16)]
LEVELS = tuple(16 * one / sum(_DRAWN) for one in _DRAWN)
"""Popularity of sixteen equal groups of experts over the mean."""


@lru_cache(maxsize=1 << 10)
def largest_of(n: float) -> float:
    """Mean of the largest of `n` standard normal values (Blom's form)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


@lru_cache(maxsize=1 << 8)
def levels_of(loads: tuple[float, ...]) -> tuple[float, ...]:
    """As `LEVELS`, of experts with these loads; (): `LEVELS`."""
    if not loads:
        return LEVELS
    parts = np.array_split(np.sort(loads), min(len(loads), len(LEVELS)))
    return tuple(float(part.mean()) / float(np.mean(loads)) for part in parts)
