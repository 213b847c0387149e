"""EP systems as closed forms: rows on the wire and their time.

`domain` GPUs share fast links; e domains hold an EP group. Rows per token between domains are those of the Pangu Ultra digest: flat k(e-1)/e,
hierarchical e-1 (an all-gather, where tensor ranks fill a domain), dedup e(1-(1-1/e)^k)(e-1)/e. Experts differ in popularity, and a rank
averages over few of them: `hottest`.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dysharp.model.layout import Layout
from dysharp.specs.whole import WholeModel
from dysharp.training.cost import Cost
from dysharp.training.machine import Machine
from dysharp.workload.popularity import normal_weights, published_spread

ELEMENT = 2
SPREAD = published_spread(0.032)
"""Standard deviation of experts' loads over their mean where none is given."""
DRAWS, SEED = 256, 0


@lru_cache(maxsize=1 << 10)
def hottest(n_experts: int, ranks: int, spread: float) -> float:
    """Mean over drawn popularities of (most rows of a rank) / (mean rows), for `ranks` ranks with equal numbers of experts."""
    if ranks <= 1 or not spread:
        return 1.0
    rng = np.random.default_rng(SEED)
    loads = np.stack([normal_weights(rng, n_experts, spread) for _ in range(DRAWS)]).reshape(DRAWS, ranks, -1).mean(axis=2)
    return float((loads.max(axis=1) / loads.mean(axis=1)).mean())


def copies(system: str, groups: int, topk: int) -> float:
    """Rows per token that leave for other groups (domains, or GPUs), with experts drawn evenly."""
    if groups <= 1:
        return 0.0
    apart = (groups - 1) / groups
    if system == "flat":
        return topk * apart
    if system == "hierarchical":
        return float(groups - 1)
    return groups * (1 - (1 - 1 / groups) ** topk) * apart


def wire_us(machine: Machine, layout: Layout, model: WholeModel, tokens: float, system: str) -> float:
    """One dispatch or combine of `tokens` tokens of a rank. Ranks that share an expert are reached together."""
    layer, size = model.layer, layout.ep * layout.etp
    assert layer is not None
    if size <= 1:
        return 0.0
    row, k = ELEMENT * layer.hidden * tokens, layer.topk * layout.etp
    inside = min(size, machine.domain)
    domains = math.ceil(size / machine.domain)
    start = 2e-6 * machine.cluster.link_latency_ps + (machine.hop if domains > 1 else 0.0)
    if system == "hierarchical":  # ranks with one tensor index gather their tokens, then rows change places among tensor ranks (MindSpeed)
        inner = min(layout.tp, inside)
        near = inside // inner
        return start + row * (size // inner - near) / machine.nic + row * (near - 1 + k * (inner - 1) / inner) / machine.link
    if system == "flat":
        straight = machine.cluster.scale_out.straight_rate if machine.cluster.scale_out else machine.nic
        return start + row * k * max((domains - 1) / domains / straight, (inside - 1) / size / machine.link)
    far = copies("dedup", domains, layer.topk) / machine.nic
    if system == "moe-hub":  # a switch sums, a hub places every row
        return start + row * max(far, k * (inside - 1) / inside / machine.link)
    reached = 1 - (1 - 1 / layout.ep) ** layer.topk  # a switch that copies spares the links up, not those down
    return start + row * max(far, domains * (inside - 1) * reached / machine.link)


def hidden_by(exchange: Cost, experts: Cost) -> Cost:
    """An exchange whose rows are computed as they arrive: only its time beyond the experts' is exposed."""
    ahead = max(0.0, exchange.forward - experts.forward)
    behind = max(0.0, exchange.backward - experts.backward - experts.weights)
    return replace(exchange, forward=ahead, backward=behind, forward_exposed=ahead, backward_exposed=behind)
