"""How popular each expert is: weights of the synthetic generators, and weights that fit recorded counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_COMET_EXPERTS = 8  # the setup in which a spread of 0.032 was published; see normal_weights
_NODES = 96


def normal_weights(rng: np.random.Generator, n_experts: int, cv: float) -> NDArray[np.float64]:
    """Normal popularity of mean 1 and spread `cv`, values not above zero drawn again. [n_experts] float64."""
    weight = 1.0 + cv * rng.standard_normal(n_experts)
    while (bad := weight <= 0.0).any():
        weight[bad] = 1.0 + cv * rng.standard_normal(int(bad.sum()))
    return weight


def published_spread(std: float) -> float:
    """Relative spread of a published standard deviation of token shares: it was stated for 8 experts.

    0.032 of a mean share of 1/8 is 0.256 of the mean; taken literally it exceeds the mean share of 1/256
    eight times over, which no distribution of positive shares has.
    """
    return std * _COMET_EXPERTS


def power_law_weights(rng: np.random.Generator, n_experts: int, alpha: float) -> NDArray[np.float64]:
    """`rank ** -alpha`, ranks dealt to the experts by `rng`. [n_experts] float64."""
    weight: NDArray[np.float64] = np.arange(1.0, n_experts + 1.0) ** -alpha
    rng.shuffle(weight)
    return weight


def log_normal_weights(rng: np.random.Generator, n_experts: int, sigma: float) -> NDArray[np.float64]:
    """`exp(sigma * normal)`, the best simple fit of recorded expert loads. [n_experts] float64."""
    exponent = sigma * rng.standard_normal(n_experts)
    return np.asarray(np.exp(exponent - exponent.max()))


def inclusion(weight: NDArray[np.float64], topk: int) -> NDArray[np.float64]:
    """Chance that each expert is among the k of a token, drawn one by one by `weight`. [n_experts] float64.

    Expert e wins a place when fewer than k others arrive before it in an exponential race: the integral over
    its arrival time of the chance that fewer than k of the others have arrived, by Gauss-Legendre quadrature.
    """
    node, mass = np.polynomial.legendre.leggauss(_NODES)
    quantile, mass = (node + 1.0) / 2.0, mass / 2.0
    # Substitute a time scale on which about k arrivals spread over the unit interval.
    scale = topk / weight.sum()
    time = scale * quantile / (1.0 - quantile)
    measure = mass * scale / (1.0 - quantile) ** 2
    late = np.exp(-np.outer(weight, time))  # [experts, nodes]: has not arrived yet
    fewer = _fewer_than(late, topk)
    return np.asarray((weight[:, None] * late * fewer * measure).sum(axis=1))


def _fewer_than(late: NDArray[np.float64], topk: int) -> NDArray[np.float64]:
    """[experts, nodes]: chance that fewer than k of all *other* experts have arrived.

    The count of the others is the convolution of a running product over the experts before with one over the
    experts after; both are kept up to k - 1 arrivals.
    """
    n_experts, n_nodes = late.shape
    before = np.zeros((n_experts, topk, n_nodes))
    after = np.zeros((n_experts, topk, n_nodes))
    before[0, 0] = after[-1, 0] = 1.0
    for e in range(1, n_experts):
        _add_one(before[e - 1], late[e - 1], before[e])
        _add_one(after[n_experts - e], late[n_experts - e], after[n_experts - e - 1])
    at_most = np.cumsum(after, axis=1)[:, ::-1]
    return np.asarray((before * at_most).sum(axis=1))


def _add_one(count: NDArray[np.float64], late: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    np.multiply(count, late, out=out)
    out[1:] += count[:-1] * (1.0 - late)


def fit_weights(count: NDArray[np.int64], topk: int) -> tuple[NDArray[np.float64], bool]:
    """Weights whose draws of k distinct experts reproduce recorded loads. ([n_experts] float64, capped).

    No expert can be chosen more than once a token, so a count above `sum / k` cannot be met; such loads are
    cut and the rest raised (`capped` is True). At least `topk` counts must be above zero.
    """
    target, capped = _chances(count.astype(np.float64), topk)
    used = count > 0
    weight = np.zeros(count.size)
    wanted = np.minimum(target[used], 1.0 - 1e-4)
    fitted = -np.log1p(-wanted)
    for _ in range(30):
        reached = np.minimum(inclusion(fitted, topk), 1.0 - 1e-9)
        fitted *= np.log1p(-wanted) / np.log1p(-reached)
        if np.abs(reached - wanted).max() < 1e-4:
            break
    weight[used] = fitted
    return weight, capped


def _chances(load: NDArray[np.float64], topk: int) -> tuple[NDArray[np.float64], bool]:
    """Chance of each expert to be in a token's k, proportional to `load` but never above one."""
    full = np.zeros(load.size, dtype=np.bool_)
    while True:
        chance = np.where(full, 1.0, 0.0)
        chance[~full] = load[~full] * (topk - full.sum()) / max(load[~full].sum(), 1.0)
        over = chance > 1.0
        if not over.any():
            return chance, bool(full.any())
        full |= over
