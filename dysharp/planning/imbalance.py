"""Load of the hottest rank of an expert-parallel group over the mean: experts differ in popularity, and a rank averages over few of them."""

from functools import lru_cache

import numpy as np

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
