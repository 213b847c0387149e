"""Closed forms for uniform routing: traffic per token in units of one token row on one link direction.

E experts, G GPUs, E/G experts per GPU, k distinct experts per token. Each traffic is the sum over Dispatch and
Combine and over both directions. Derived from the systems of DySHARP (arXiv 2605.05607).
"""

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from math import comb

import numpy as np

from dysharp.base import I32, ConfigError, frozen
from dysharp.workload.sampling import draw_group_limited

DRAWN = 1 << 13
"""Tokens on which copies under groups of experts are counted; the mean of 4 is within 0.01."""


@frozen
class UniformTraffic:
    """Expected token rows per token under uniform routing, and ratios of such numbers (dimensionless)."""

    p: float
    """Chance that a token needs a given GPU."""
    remote_gpus: float
    """R: distinct remote GPUs per token."""
    remote_rows: float
    """K: remote (token, expert) pairs per token."""
    one_copy_per_gpu: float
    one_copy_per_expert: float
    multicast: float
    allgather: float
    redundant_share: float
    """Share of the one-copy-per-GPU traffic that multicast and reduction save."""
    useless_over_useful: float
    """Useless rows divided by useful rows, on the heavy direction of an all-gather."""
    ideal_speedup: float
    """Time with one copy per GPU divided by time with multicast, when Dispatch and Combine run at the same time."""


@lru_cache(maxsize=1 << 12)
def expected_copies(parts: int, n_experts: int, topk: int, n_group: int = 1, topk_group: int = 1) -> float:
    """Mean distinct parts (GPUs, domains) of a token under uniform routing, its own one included. Parts hold neighbouring experts, equally many +- 1.

    A part without a chosen expert is missed with chance C(E - E/G, k) / C(E, k). Where a token chooses `topk_group` of `n_group` groups by their two
    best experts, the mean is counted on `DRAWN` tokens: chosen groups have one of the best experts each, so that their experts are no even choice.
    """
    ends = [part * n_experts // parts for part in range(parts + 1)]
    if topk_group < n_group:
        part = np.searchsorted(ends[1:], _chosen(n_experts, topk, n_group, topk_group), side="right")
        return float((np.diff(np.sort(part, axis=1), axis=1) > 0).sum(axis=1).mean() + 1)
    sizes = Counter(end - first for first, end in pairwise(ends))
    return sum(n * (1 - comb(n_experts - size, topk) / comb(n_experts, topk)) for size, n in sizes.items())


@lru_cache(maxsize=16)
def _chosen(n_experts: int, topk: int, n_group: int, topk_group: int) -> I32:
    """[DRAWN, topk] experts of tokens, group by group."""
    return draw_group_limited(np.random.default_rng(0), DRAWN, np.ones(n_experts), topk, n_group, topk_group)


def uniform_p(n_experts: int, n_gpus: int, topk: int) -> float:
    """Chance that a token needs a given GPU: 1 - C(E - E/G, k) / C(E, k).

    Raises ConfigError unless E is a multiple of G and k is 1 to E.
    """
    if n_gpus < 1 or n_experts % n_gpus or not 1 <= topk <= n_experts:
        raise ConfigError(
            f"closed form: found {n_experts} experts, {n_gpus} GPUs, top-{topk}; "
            "expected a multiple of the GPUs as experts, and a top-k from 1 to the number of experts"
        )
    return expected_copies(n_gpus, n_experts, topk) / n_gpus


def uniform_traffic(n_experts: int, n_gpus: int, topk: int) -> UniformTraffic:
    """All closed forms of one configuration. Raises ConfigError for fewer than two GPUs, and as `uniform_p`."""
    if n_gpus < 2:
        raise ConfigError(f"closed form: found {n_gpus} GPUs, expected at least 2")
    p = uniform_p(n_experts, n_gpus, topk)
    r = (n_gpus - 1) * p
    k = topk * (n_gpus - 1) / n_gpus
    return UniformTraffic(
        p=p, remote_gpus=r, remote_rows=k, one_copy_per_gpu=4 * r, one_copy_per_expert=4 * k, multicast=2 * (r + 1), allgather=2.0 * n_gpus,
        redundant_share=(r - 1) / (2 * r), useless_over_useful=(1 - p) / p, ideal_speedup=2 * r / (r + 1),
    )  # fmt: skip
