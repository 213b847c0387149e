"""EP systems of a plan (`costs.exchange`) and their busiest rank: experts differ in popularity, and a rank averages over few of them."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from dysharp.costs.exchange import Peers, Rows, exchange
from dysharp.costs.machine import Machine
from dysharp.model.layout import Layout
from dysharp.specs.whole import WholeModel
from dysharp.training.cost import Cost
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


def wire_us(machine: Machine, layout: Layout, model: WholeModel, tokens: float, system: str) -> float:
    """One dispatch or combine of `tokens` tokens of a rank. Ranks that share an expert are reached together."""
    assert model.layer is not None
    row = float(ELEMENT * model.layer.hidden)
    return exchange(machine, model.layer, Peers(layout.ep, layout.etp, tp=layout.tp), Rows(tokens, row, row), system).dispatch


def hidden_by(exchange: Cost, experts: Cost) -> Cost:
    """An exchange whose rows are computed as they arrive: only its time beyond the experts' is exposed."""
    ahead = max(0.0, exchange.forward - experts.forward)
    behind = max(0.0, exchange.backward - experts.backward - experts.weights)
    return replace(exchange, forward=ahead, backward=behind, forward_exposed=ahead, backward_exposed=behind)
