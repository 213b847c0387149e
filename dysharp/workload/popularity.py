"""Popularity of experts: weights of the synthetic distributions, and weights that fit recorded counts."""

import numpy as np

from dysharp.base import F64, I64

_COMET_EXPERTS = 8  # experts of the set-up for which a spread of 0.032 was published; see published_spread
_NODES = 96


def normal_weights(rng: np.random.Generator, n_experts: int, cv: float) -> F64:
    """Normal popularity of mean 1 and spread `cv`: [n_experts] float64. A value that is not above 0 is drawn again."""
    weight = 1.0 + cv * rng.standard_normal(n_experts)
    while (bad := weight <= 0.0).any():
        weight[bad] = 1.0 + cv * rng.standard_normal(int(bad.sum()))
    return weight


def published_spread(std: float) -> float:
    """The relative spread that belongs to `std`, a published standard deviation of token shares over 8 experts.

    0.032 with a mean share of 1/8 is 0.256 of the mean. With 256 experts the mean share is 1/256, and 0.032 would be
    eight times the mean. No distribution of positive shares spreads so far.
    """
    return std * _COMET_EXPERTS


def power_law_weights(rng: np.random.Generator, n_experts: int, alpha: float) -> F64:
    """`rank ** -alpha`: [n_experts] float64. `rng` deals the ranks to the experts."""
    weight: F64 = np.arange(1.0, n_experts + 1.0) ** -alpha
    rng.shuffle(weight)
    return weight


def log_normal_weights(rng: np.random.Generator, n_experts: int, sigma: float) -> F64:
    """`exp(sigma * normal)`: [n_experts] float64. This distribution is the best simple fit of recorded expert loads."""
    exponent = sigma * rng.standard_normal(n_experts)
    return np.asarray(np.exp(exponent - exponent.max()))


def _inclusion(weight: F64, topk: int) -> F64:
    """Chance of every expert to be among the k experts of a token, drawn one by one by `weight`: [n_experts] float64.

    The draw is an exponential race: expert e gets a place if fewer than k experts arrive before e. Gauss-Legendre
    quadrature integrates the chance of that event over the arrival time of e.
    """
    node, mass = np.polynomial.legendre.leggauss(_NODES)
    quantile, mass = (node + 1.0) / 2.0, mass / 2.0
    # On this time scale about k arrivals spread over the unit interval.
    scale = topk / weight.sum()
    time = scale * quantile / (1.0 - quantile)
    measure = mass * scale / (1.0 - quantile) ** 2
    late = np.exp(-np.outer(weight, time))  # [experts, nodes]: chance that the expert has not arrived
    fewer = _fewer_than(late, topk)
    return np.asarray((weight[:, None] * late * fewer * measure).sum(axis=1))


def _fewer_than(late: F64, topk: int) -> F64:
    """[experts, nodes]: for every expert e, the chance that fewer than k experts except e have arrived.

    The distribution of their number is the convolution of two running products: over the experts before e and over
    the experts after e. Both products are kept up to k - 1 arrivals.
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


def _add_one(count: F64, late: F64, out: F64) -> None:
    np.multiply(count, late, out=out)
    out[1:] += count[:-1] * (1.0 - late)


def fit_weights(count: I64, topk: int) -> tuple[F64, bool]:
    """Weights whose draws of k distinct experts reproduce recorded loads: ([n_experts] float64, capped).

    A token chooses an expert at most once, so no draw can reach a count above `sum / k`. Such counts are cut and the
    remaining counts raised; `capped` is then True. At least `topk` counts must be above zero.
    """
    target, capped = _chances(count.astype(np.float64), topk)
    used = count > 0
    weight = np.zeros(count.size)
    wanted = np.minimum(target[used], 1.0 - 1e-4)
    fitted = -np.log1p(-wanted)
    for _ in range(30):
        reached = np.minimum(_inclusion(fitted, topk), 1.0 - 1e-9)
        fitted *= np.log1p(-wanted) / np.log1p(-reached)
        if np.abs(reached - wanted).max() < 1e-4:
            break
    weight[used] = fitted
    return weight, capped


def spread_counts(rng: np.random.Generator, count: I64, n_experts: int) -> I64:
    """Loads for `n_experts` experts with the spread of recorded loads `count`: [n_experts] int64. `rng` deals them.

    Expert i of n in the order of loads gets the recorded load at the same place of that order, (i + 1/2) / n. With as
    many experts the loads are the recorded ones, with twice as many each occurs twice.
    """
    place = (2 * np.arange(n_experts) + 1) * count.size // (2 * n_experts)
    spread: I64 = np.sort(count)[place]
    rng.shuffle(spread)
    return spread


def _chances(load: F64, topk: int) -> tuple[F64, bool]:
    """Chance of each expert to be among a token's k: proportional to `load`, at most 1. True: a chance was cut."""
    full = np.zeros(load.size, dtype=np.bool_)
    while True:
        chance = np.where(full, 1.0, 0.0)
        chance[~full] = load[~full] * (topk - full.sum()) / max(load[~full].sum(), 1.0)
        over = chance > 1.0
        if not over.any():
            return chance, bool(full.any())
        full |= over
