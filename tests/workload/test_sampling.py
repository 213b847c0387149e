"""The samplers draw distinct experts with the right chances."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.workload.popularity import _inclusion, fit_weights
from dysharp.workload.sampling import draw_group_limited, draw_uniform, draw_weighted


def _all_distinct(expert: np.ndarray) -> bool:
    ordered = np.sort(expert, axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all())


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(1, 70), st.integers(0, 2**32), st.data())
@settings(max_examples=60, deadline=None)
def test_experts_of_a_token_are_distinct_and_in_range(n_experts: int, seed: int, data: st.DataObject) -> None:
    topk = data.draw(st.integers(1, n_experts))
    weight = _rng(seed).random(n_experts) ** 8 + 1e-12
    for expert in (
        draw_uniform(_rng(seed), 50, n_experts, topk),
        draw_weighted(_rng(seed), 50, weight, topk),
    ):
        assert expert.shape == (50, topk)
        assert expert.dtype == np.int32
        assert expert.min() >= 0
        assert expert.max() < n_experts
        assert _all_distinct(expert)


@pytest.mark.parametrize(("n_experts", "topk"), [(6, 3), (20, 2)])
def test_every_set_is_equally_likely(n_experts: int, topk: int) -> None:
    """Both roads: 6 choose 3 races all experts, 20 choose 2 draws again."""
    n_tokens = 200_000
    expert = np.sort(draw_uniform(_rng(1), n_tokens, n_experts, topk), axis=1)
    key = (expert * n_experts ** np.arange(topk)).sum(axis=1)
    found = np.unique(key, return_counts=True)[1]
    n_sets = len(list(itertools.combinations(range(n_experts), topk)))
    assert found.size == n_sets
    chi2 = ((found - n_tokens / n_sets) ** 2 / (n_tokens / n_sets)).sum()
    assert abs(chi2 - (n_sets - 1)) < 4.5 * np.sqrt(2 * (n_sets - 1))


def test_redrawn_experts_keep_the_order_uniform() -> None:
    expert = draw_uniform(_rng(2), 100_000, 64, 8)
    for column in expert.T:
        load = np.bincount(column, minlength=64)
        chi2 = ((load - 100_000 / 64) ** 2 / (100_000 / 64)).sum()
        assert abs(chi2 - 63) < 4.5 * np.sqrt(2 * 63)


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.15, 0.05], [1.0] * 12 + [4.0, 8.0]])
def test_weighted_pairs_follow_successive_draws(weights: list[float]) -> None:
    weight = np.array(weights)
    n_tokens = 200_000
    expert = draw_weighted(_rng(3), n_tokens, weight, 2)
    seen = np.zeros((weight.size, weight.size))
    np.add.at(seen, (expert.min(axis=1), expert.max(axis=1)), 1 / n_tokens)
    share = weight / weight.sum()
    for a, b in itertools.combinations(range(weight.size), 2):
        chance = share[a] * share[b] * (1 / (1 - share[a]) + 1 / (1 - share[b]))
        assert seen[a, b] == pytest.approx(chance, abs=4.5 * np.sqrt(chance / n_tokens))


@pytest.mark.parametrize(
    ("n_experts", "topk", "sigma"), [(256, 8, 0.65), (64, 6, 1.2), (8, 2, 0.3), (40, 4, 3.0)]
)
def test_inclusion_is_what_the_draws_show(n_experts: int, topk: int, sigma: float) -> None:
    weight = np.exp(sigma * _rng(4).standard_normal(n_experts))
    n_tokens = 100_000
    chance = _inclusion(weight, topk)
    assert chance.sum() == pytest.approx(topk, abs=1e-4)
    load = np.bincount(draw_weighted(_rng(5), n_tokens, weight, topk).ravel(), minlength=n_experts)
    deviation = (load / n_tokens - chance) / np.sqrt(np.maximum(chance * (1 - chance), 1e-9) / n_tokens)
    assert np.abs(deviation).max() < 4.5


def test_fitted_weights_reproduce_loads() -> None:
    count = np.array([900, 500, 300, 150, 100, 50, 0, 0], dtype=np.int64)
    weight, capped = fit_weights(count, 2)
    assert not capped
    np.testing.assert_allclose(_inclusion(weight[:6], 2), count[:6] / 1000, atol=2e-4)
    assert (weight[6:] == 0).all()


def test_loads_no_token_can_have_are_cut() -> None:
    weight, capped = fit_weights(np.array([1000, 10, 10, 10], dtype=np.int64), 2)
    assert capped
    assert _inclusion(weight, 2)[0] > 0.99


def test_group_limited_stays_in_few_groups() -> None:
    expert = draw_group_limited(_rng(6), 2000, np.ones(256), 8, 8, 4)
    assert _all_distinct(expert)
    groups = expert // 32
    assert max(len(set(row)) for row in groups.tolist()) <= 4


def test_group_limited_equals_a_plain_top_k_of_the_same_scores() -> None:
    """The same random numbers, scored the slow way."""
    weight = np.exp(0.7 * _rng(7).standard_normal(24))
    fast = draw_group_limited(_rng(8), 300, weight, 4, 6, 3)
    arrival = _rng(8).standard_exponential((300, 24), dtype=np.float32) * (weight.max() / weight).astype(
        np.float32
    )
    for token in range(300):
        score = -np.log(arrival[token].astype(np.float64))
        group_score = np.sort(score.reshape(6, 4), axis=1)[:, -2:].sum(axis=1)
        allowed = np.isin(np.arange(24) // 4, np.argsort(group_score)[-3:])
        best = np.argsort(np.where(allowed, score, -np.inf))[-4:]
        assert set(fast[token].tolist()) == set(best.tolist())


@pytest.mark.parametrize(("gpus", "distinct"), [(8, 3.97), (16, 5.72), (32, 6.85), (64, 7.49)])
def test_group_limited_distinct_gpus(gpus: int, distinct: float) -> None:
    """Independent Monte Carlo of the same rule: 4 of 8 groups, top 8 of 256."""
    expert = draw_group_limited(_rng(9), 30_000, np.ones(256), 8, 8, 4)
    needs = np.zeros((30_000, gpus), dtype=bool)
    for column in expert.T:
        needs[np.arange(30_000), column // (256 // gpus)] = True
    assert needs.sum() / 30_000 == pytest.approx(distinct, abs=0.02)
