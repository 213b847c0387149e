"""Vectorised draws of k distinct experts per token.

Every sampler works on blocks of tokens that fit in cache, with the smallest integer type that holds an id.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dysharp.base import F64, I32

_BLOCK = 1 << 15
_DENSE_BLOCK = 1 << 12

Draw = Callable[[int], NDArray[np.uint16]]


def draw_uniform(rng: np.random.Generator, n_tokens: int, n_experts: int, topk: int) -> I32:
    """k distinct experts per token, all choices equally likely: [n_tokens, topk] int32."""
    equal = np.ones(n_experts)
    if _redraws_much(equal, topk):
        return _race(rng, n_tokens, equal, topk)

    def draw(count: int) -> NDArray[np.uint16]:
        return rng.integers(0, n_experts, size=count, dtype=np.uint16)

    return _draw_columns(n_tokens, topk, draw)


def draw_weighted(rng: np.random.Generator, n_tokens: int, weight: F64, topk: int) -> I32:
    """k distinct experts per token, drawn one after the other with chance proportional to `weight`.

    `weight`: [n_experts] float64 in any unit. At least `topk` weights are above zero, and the largest is at most 1e30
    times the smallest weight above zero. Result: [n_tokens, topk] int32.

    The law is named after Plackett and Luce: the k largest of `ln weight + Gumbel noise` follow the same law. This function
    mostly needs k random numbers per token instead of one per expert.
    """
    if _redraws_much(weight, topk):
        return _race(rng, n_tokens, weight, topk)
    keep, other = _alias_table(weight)

    def draw(count: int) -> NDArray[np.uint16]:
        column = rng.integers(0, weight.size, size=count, dtype=np.uint16)
        stay = rng.random(count, dtype=np.float32) < keep[column]
        return np.where(stay, column, other[column])

    return _draw_columns(n_tokens, topk, draw)


def draw_group_limited(rng: np.random.Generator, n_tokens: int, weight: F64, topk: int, n_group: int, topk_group: int) -> I32:
    """DeepSeek's group-limited top-k on scores `ln weight + Gumbel noise`: [n_tokens, topk] int32.

    Experts form `n_group` equal groups of neighbours. The score of a group is the sum of its two best experts. A token
    takes the `topk` best experts of the `topk_group` best groups (DeepSeek-V3, arXiv 2412.19437 section 2.1.2). The
    score of weight 0 is minus infinity, so any `topk_group` groups must hold at least `topk` weights above 0.
    """
    size = weight.size // n_group
    chosen = np.empty((n_tokens, topk), dtype=np.int32)
    for start, arrival in _arrivals(rng, n_tokens, weight):
        by_group = arrival.reshape(-1, n_group, size)
        # [tokens, topk_group] groups with the best sum of two scores. A score is minus ln(arrival).
        n_best = min(2, by_group.shape[2])
        first_two = np.partition(by_group, n_best - 1, axis=2)[:, :, :n_best]
        group = np.argpartition(np.log(first_two).sum(axis=2), topk_group - 1, axis=1)[:, :topk_group]
        pool = np.take_along_axis(by_group, group[:, :, None], axis=1).reshape(group.shape[0], -1)
        best = _first_arrivals(pool, topk)
        expert = np.take_along_axis(group, best // size, axis=1) * size + best % size
        chosen[start : start + len(expert)] = expert
    return chosen


def _redraws_much(weight: F64, topk: int) -> bool:
    """Whether drawing again after a repeated expert needs more numbers than one for each expert; worst case: the heaviest experts come first."""
    heaviest = np.sort(weight)[::-1]
    left = np.cumsum(heaviest[::-1])[::-1][:topk] / weight.sum()
    return bool((1.0 / left).sum() > weight.size / 4)


def _race(rng: np.random.Generator, n_tokens: int, weight: F64, topk: int) -> I32:
    """The first k arrivals of an exponential race among all experts: [n_tokens, topk] int32."""
    chosen = np.empty((n_tokens, topk), dtype=np.int32)
    for start, arrival in _arrivals(rng, n_tokens, weight):
        chosen[start : start + len(arrival)] = _first_arrivals(arrival, topk)
    return chosen


def _arrivals(rng: np.random.Generator, n_tokens: int, weight: F64) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Blocks (first token, arrival times [block, n_experts]). Expert e arrives after Exp(1) / weight[e].

    Minus the logarithm of an arrival time is `ln weight + Gumbel noise`.
    """
    with np.errstate(divide="ignore"):
        slowness = (weight.max() / weight).astype(np.float32)
    for start in range(0, n_tokens, _DENSE_BLOCK):
        count = min(_DENSE_BLOCK, n_tokens - start)
        arrival = rng.standard_exponential((count, weight.size), dtype=np.float32)
        np.maximum(arrival, np.finfo(np.float32).tiny, out=arrival)  # 0 * inf would be NaN
        arrival *= slowness
        yield start, arrival


def _first_arrivals(arrival: NDArray[np.float32], topk: int) -> NDArray[np.intp]:
    """[tokens, topk] columns of the k smallest times of every row."""
    if topk < arrival.shape[1]:
        # A partition of values and a comparison with the k-th value take half the time of a partition of indices.
        last = np.partition(arrival, topk - 1, axis=1)[:, topk - 1 : topk]
        column = np.nonzero(arrival <= last)[1]
        if column.size == arrival.shape[0] * topk:
            return column.reshape(-1, topk)
    # Here two times are equal at the k-th place, or every column is taken.
    return np.argpartition(arrival, topk - 1, axis=1)[:, :topk]


def _draw_columns(n_tokens: int, topk: int, draw: Draw) -> I32:
    """Draws column after column. If a token has the drawn expert already, it draws again.

    The repeated draw has exactly the law of a draw among the experts that the token does not have.
    """
    chosen = np.empty((n_tokens, topk), dtype=np.int32)
    for start in range(0, n_tokens, _BLOCK):
        count = min(_BLOCK, n_tokens - start)
        block = np.empty((topk, count), dtype=np.uint16)
        for column in range(topk):
            block[column] = draw(count)
            _redraw_taken(block, column, draw)
        chosen[start : start + count] = block.T
    return chosen


def _redraw_taken(block: NDArray[np.uint16], column: int, draw: Draw) -> None:
    taken = np.zeros(block.shape[1], dtype=np.bool_)
    for earlier in range(column):
        taken |= block[earlier] == block[column]
    again = np.flatnonzero(taken)
    while again.size:
        fresh = draw(again.size)
        block[column, again] = fresh
        again = again[(block[:column, again] == fresh).any(axis=0)]


def _alias_table(weight: F64) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """Walker's alias table (keep, other). Column i is expert i with chance `keep[i]`, else expert `other[i]`."""
    scaled = (weight * (weight.size / weight.sum())).tolist()
    keep = np.ones(weight.size, dtype=np.float32)
    other = np.arange(weight.size, dtype=np.uint16)
    small = [i for i, value in enumerate(scaled) if value < 1.0]
    large = [i for i, value in enumerate(scaled) if value >= 1.0]
    while small and large:
        low, high = small.pop(), large[-1]
        keep[low], other[low] = scaled[low], high
        scaled[high] -= 1.0 - scaled[low]
        if scaled[high] < 1.0:
            small.append(large.pop())
    for left in small:  # rounding may leave a column here; a column of weight 0 must still never be drawn
        if weight[left] == 0.0:
            keep[left], other[left] = 0.0, weight.argmax()
    return keep, other
