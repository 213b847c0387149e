"""The shared case of families of whole layers; rows per expert under their routings, and the share of the busiest rank.

A rank is one GPU with consecutive experts. Power laws are the draw that the benchmark of Mega MoE made: PyTorch's generator with seed 0
(ai-dynamo/aiconfigurator collector/sglang/dsv4_megamoe: build_routing_plan, routing_seed). Equal arguments give equal loads.
"""

import functools
import re

import numpy as np

from dysharp.base import F64, ByName, frozen_keywords
from dysharp.measured.family import Case
from dysharp.measured.measurements import Measurement, Unsupported, number, whole
from dysharp.specs import Model

DRAWS = 24
"""Uniform draws, of which the median one is used."""
BATCH = 8192
"""Tokens that the benchmark draws at a time from a sampled power law; more tokens have the same shares."""
SAMPLED_TO = 1024.0
"""Largest weight of a sampled power law (SAMPLED_POWER_LAW_XMAX)."""


@frozen_keywords
class LayerCase(Case):
    """A layer of `experts` of all GPUs with `inter` columns, `tokens` per GPU.

    `rows`, `touched`: rows of the busiest rank, number of its experts with rows.
    """

    gpus: int
    hidden: int
    inter: int
    experts: int
    topk: int
    tokens: int
    rows: float = 0.0
    touched: float = 0.0

    def model(self, tokens: int, n_matrices: int, dtype: str) -> Model:
        """The layer with `tokens` per GPU as a model with 16-bit rows."""
        return Model("measured", self.hidden, self.inter, self.experts, self.topk, tokens, n_matrices, 2, dtype)


def layer_fields(m: Measurement, distribution: str, inter: str = "inter") -> ByName:
    """The fields of `LayerCase` but those of `Case`, under a `distribution` of `busiest_rank`. `inter`: the key of the columns."""
    keys = {"gpus": "ep", "experts": "experts", "topk": "topk", "tokens": "tokens_per_rank", "hidden": "hidden", "inter": inter}
    numbers = {name: number(m, key) for name, key in keys.items()}
    counts = {name: whole(value, "GPUs" if name == "gpus" else name) for name, value in numbers.items()}
    rows, touched = busiest_rank(*(counts[name] for name in ("gpus", "experts", "topk", "tokens")), distribution)
    return {**counts, "rows": rows, "touched": touched}


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
    draws = (np.rint(loads).reshape(gpus, -1) for loads in _draws(gpus, experts, topk, tokens, distribution))
    busiest = [max(ranks, key=lambda rank: float(rank.sum())) for ranks in draws]
    return sorted(float(rank.sum()) for rank in busiest)[len(busiest) // 2], float(np.median([float((rank > 0).sum()) for rank in busiest]))


def expert_loads(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> F64:
    """`[experts]` float rows of the draw."""
    return _draws(gpus, experts, topk, tokens, distribution)[0]


def _draws(gpus: int, experts: int, topk: int, tokens: int, distribution: str) -> list[F64]:
    """One draw of a power law, `DRAWS` of uniform routing."""
    if distribution != "random":
        return [_loads(experts, gpus * tokens, topk, distribution)]
    rng = np.random.default_rng(0)
    return [rng.multinomial(gpus * tokens * topk, np.full(experts, 1 / experts)).astype(np.float64) for _ in range(DRAWS)]


def _loads(experts: int, tokens: int, topk: int, distribution: str) -> F64:
    """`[experts]` rows of the draw; the sum is `tokens * topk`.

    | `distribution` | rows |
    |---|---|
    | "power_law_A" | in proportion to a power law with exponent A, bounded by 1 and 0.8 times all tokens |
    | "power_law_sampled_A" | top-k of each token, drawn without replacement with such weights, bounded by 1 and `SAMPLED_TO` |

    With fewer rows than experts the first is bounded by 0.01 and 2.
    """
    a, sampled, rows = _exponent(distribution), "sampled" in distribution, tokens * topk
    low, high = (1.0, SAMPLED_TO) if sampled else (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    weights = ((high ** (1 - a) - low ** (1 - a)) * _uniform(experts) + low ** (1 - a)) ** (1 / (1 - a))
    if not sampled:
        return _capped(weights / weights.sum() * rows, float(tokens))
    drawn = min(tokens, BATCH)
    race = np.random.default_rng(0).exponential(size=(drawn, experts)) / weights
    chosen = np.argpartition(race, topk - 1, axis=1)[:, :topk]
    return np.bincount(chosen.ravel(), minlength=experts).astype(np.float64) * (tokens / drawn)


def _uniform(n: int) -> F64:
    """`torch.rand(n)` behind `torch.manual_seed(0)`: the low 24 bits of a Mersenne twister's words."""
    words = np.random.RandomState(0).randint(0, 1 << 32, size=n, dtype=np.uint32)
    return (words & 0xFFFFFF) / float(1 << 24)


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
