"""Rows per expert under the routings of measured layers, and the share of the busiest rank.

A rank is one GPU with consecutive experts. Draws are seeded: equal arguments give equal loads.
"""

import functools
import re

import numpy as np

from dysharp.arrays import F64
from dysharp.measured.measurements import Unsupported

DRAWS = 24  # draws of a load distribution; the median draw is used


@functools.cache
def busiest_rank(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> tuple[float, float]:
    """(rows of the busiest rank, number of its experts with rows), each the median of the draws.

    `distribution`: "balanced" (round robin) or one of `_loads`. `tokens` are per GPU.
    """
    rows = gpus * tokens * topk
    if experts % gpus:
        raise Unsupported("experts that the GPUs do not share evenly")
    if distribution == "balanced":
        touched = min(experts, rows) / gpus
        return rows / gpus, float(np.ceil(touched))
    ranks = _busiest([np.rint(loads) for loads in _draws(gpus, experts, topk, tokens, distribution)], gpus)
    median = sorted(ranks)[len(ranks) // 2]
    return median[0], float(np.median([touched for _, touched in ranks]))


def expert_loads(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> F64:
    """`[experts]` float rows of the draw whose busiest rank has the median number of rows."""
    draws = _draws(gpus, experts, topk, tokens, distribution)
    ranks = _busiest(draws, gpus)
    return draws[sorted(range(DRAWS), key=lambda i: ranks[i])[DRAWS // 2]]


def _draws(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> list[F64]:
    rng = np.random.default_rng(0)
    return [_loads(rng, experts, gpus * tokens * topk, gpus * tokens, distribution) for _ in range(DRAWS)]


def _busiest(draws: list[F64], gpus: int) -> list[tuple[float, float]]:
    """For each draw: rows of the rank with most rows, and number of its experts with rows."""
    ranks = [max(loads.reshape(gpus, -1), key=lambda rank: float(rank.sum())) for loads in draws]
    return [(float(rank.sum()), float((rank > 0).sum())) for rank in ranks]


def _loads(rng: np.random.Generator, experts: int, rows: int, tokens: int, distribution: str) -> F64:
    """`[experts]` rows of one draw; the sum is `rows`.

    | `distribution` | drawn from |
    |---|---|
    | "random" | uniform top-k |
    | "power_law_A", "power_law_sampled_A" | a power law with exponent A, bounded by 1 and 0.8 times all tokens |

    With fewer rows than experts the power law is bounded by 0.01 and 2, as in SGLang's benchmark of Mega MoE.
    """
    if distribution == "random":
        return rng.multinomial(rows, np.full(experts, 1 / experts)).astype(np.float64)
    a = _exponent(distribution)
    low, high = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    draw = ((high ** (1 - a) - low ** (1 - a)) * rng.random(experts) + low ** (1 - a)) ** (1 / (1 - a))
    return _capped(draw / draw.sum() * rows, float(tokens))


def _exponent(distribution: str) -> float:
    match = re.fullmatch(r"power_law_(?:sampled_)?([0-9]+(?:\.[0-9]+)?)", distribution)
    if match is None or not 0 < float(match[1]) < 10 or float(match[1]) == 1:
        expected = "random, balanced, power_law_A or power_law_sampled_A with A not 1"
        raise Unsupported(f"distribution {distribution[:40]!r}, expected {expected}")
    return float(match[1])


def _capped(loads: F64, most: float) -> F64:
    """Loads with the same total and none above `most`: a token chooses an expert once.

    Other loads grow in proportion.
    """
    total = loads.sum()
    for _ in range(64):
        over = loads >= most
        if not (loads > most).any() or over.all():
            break
        loads = np.where(over, most, loads * (total - most * over.sum()) / max(loads[~over].sum(), 1e-9))
    return loads
