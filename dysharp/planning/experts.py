"""EP systems of a plan (`costs.exchange`) and their busiest rank: experts differ in popularity, and a rank averages over few of them."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from dysharp.costs.exchange import BOUNDS, Peers, Rows, exchange, least_us
from dysharp.training import ELEMENT, Basis, PassCost
from dysharp.workload.popularity import normal_weights, published_spread

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


def moved(block: Basis, system: str, imbalance: float, experts: PassCost) -> PassCost:
    """Dispatch and combine of a micro-batch, forward and backward, beside `experts` on the busiest rank.

    Bounds of hardware move rows while experts compute, and only what is left is exposed. Ranks that share an expert are reached together.
    """
    layer, layout = block.model.layer, block.layout
    assert layer is not None
    row, peers = float(ELEMENT * layer.hidden), Peers(layout.ep, layout.etp, tp=layout.tp)
    rows = Rows(block.tokens / layout.tp, row, row)
    if system not in BOUNDS:
        one = exchange(block.machine, layer, peers, rows, system)
        both = imbalance * (one.dispatch + one.combine)
        return PassCost(both, both, 0.0, both, both, both, both, parts={"dispatch and combine": 2 * both})
    beside = experts.forward, experts.backward + experts.weights
    hot = replace(rows, busiest=imbalance)
    alone, forward, backward = (least_us(block.machine, layer, peers, hot, system, us) for us in (0.0, *beside))
    return PassCost(forward, backward, 0.0, forward, backward, alone, alone, parts={"dispatch and combine": forward + backward})
