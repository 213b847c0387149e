"""Named patterns of imbalance: loads as declared, distinct experts, empty places, refusals."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.specs import Model, load_model
from dysharp.workload import Routing, describe, distinct_gpus, make_routing, rows_per_expert, rows_per_slot
from dysharp.workload.patterns import PATTERNS
from dysharp.workload.spec import parse_routing, routing_forms

V3 = load_model("deepseek-v3")
STRINGS = (
    "spread",
    "hot-experts:K=4:share=0.3",
    "hot-rank:share=0.25",
    "rotating:K=4:share=0.3:block=8",
    "burst:0.25",
    "ragged:0.25",
    "zero-tokens:2",
)


def hottest_share(routing: Routing, n_hot: int) -> float:
    load = np.sort(rows_per_expert(routing))[::-1]
    return float(load[:n_hot].sum() / load.sum())


def held(routing: Routing) -> list[int]:
    """Tokens of every source."""
    return (routing.expert[:, 0] >= 0).reshape(routing.n_gpus, -1).sum(axis=1).tolist()


def test_every_pattern_has_a_test_string() -> None:
    assert {text.partition(":")[0] for text in STRINGS} == set(PATTERNS)


@pytest.mark.parametrize("text", STRINGS)
def test_choices_are_distinct_and_follow_the_seed(text: str) -> None:
    one, two, other = (make_routing(text, V3, 8, 64, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.expert, two.expert)
    assert (one.expert != other.expert).any()
    assert one.expert.dtype == np.int32
    assert one.synthetic
    present = np.sort(one.expert[one.expert[:, 0] >= 0], axis=1)
    assert (present[:, 1:] > present[:, :-1]).all()
    assert present.min() >= 0
    assert present.max() < 256
    assert ((one.expert >= 0).all(axis=1) | (one.expert < 0).all(axis=1)).all()  # a token is whole or absent


@given(n_hot=st.integers(1, 40), share=st.floats(0.0, 1.0), topk=st.integers(1, 8), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_hot_experts_take_the_declared_share(n_hot: int, share: float, topk: int, seed: int, make_model: Callable[..., Model]) -> None:
    model = make_model(64, topk)
    low, high = max(0.0, 1.0 - (64 - n_hot) / topk), min(1.0, n_hot / topk)
    share = low + share * (high - low)
    routing = make_routing(f"hot-experts:K={n_hot}:share={share!r}", model, 4, 60, seed=seed)
    load = np.sort(rows_per_expert(routing))[::-1]
    assert load.sum() == 240 * topk
    declared = 4 * np.floor(60 * share * topk + 1e-9)  # each source rounds its choices down once
    if share * topk > 2 * n_hot * topk / 64 and declared >= 40 * n_hot:  # so hot that the hottest experts are the declared ones
        assert load[:n_hot].sum() == declared
    assert load[:n_hot].sum() >= declared


def test_hot_experts_share_evenly() -> None:
    load = np.sort(rows_per_expert(make_routing("hot-experts:K=4:share=0.4", V3, 8, 500)))[::-1]
    assert load[:4].sum() == 0.4 * 8 * 500 * 8
    assert load[:4].max() / load[:4].min() < 1.05  # each of the four takes a quarter
    assert load[4:].max() / load[4:].mean() < 1.5


@pytest.mark.parametrize("rank", [0, 5])
def test_hot_rank_takes_the_declared_share(rank: int) -> None:
    routing = make_routing(f"hot-rank:share=0.375:rank={rank}", V3, 8, 100)
    rows = rows_per_slot(routing).reshape(8, -1).sum(axis=1)
    assert rows[rank] == 0.375 * 8 * 100 * 8
    others = np.delete(rows, rank)
    assert others.max() / others.mean() < 1.1


@pytest.mark.parametrize(("model", "gpus"), [(V3, 8), (V3, 32), (V3, 4), (load_model("deepseek-v2-lite"), 8)])
def test_spread_is_perfectly_balanced(model: Model, gpus: int) -> None:
    routing = make_routing("spread", model, gpus, 96)
    load = rows_per_expert(routing)
    assert load.max() - load.min() <= 1
    assert distinct_gpus(routing).with_source == min(model.topk, gpus)


def test_rotating_is_hot_in_a_block_and_even_over_all_blocks() -> None:
    routing = make_routing("rotating:K=8:share=0.5:block=4", V3, 8, 128)  # 32 blocks of 8 experts: all 256 once
    place = np.tile(np.arange(128), 8)
    seen = []
    for block in range(32):
        load = np.bincount(routing.expert[place // 4 == block].ravel(), minlength=256)
        hot = np.argsort(load)[::-1][:8]
        assert load[hot].sum() >= 0.5 * load.sum()
        seen.append(load[hot].sum() / load.sum())
    assert np.mean(seen) == pytest.approx(0.5, abs=0.05)
    assert hottest_share(routing, 8) < 0.1


def test_a_burst_is_one_token_repeated_at_one_time_on_every_source() -> None:
    routing = make_routing("burst:0.25", V3, 4, 200, seed=3)
    by_source = routing.expert.reshape(4, 200, 8)
    alike = [np.flatnonzero(row) for row in _most_frequent(by_source)]
    assert all(row.tolist() == alike[0].tolist() for row in alike)
    assert len(alike[0]) == 50
    assert alike[0][-1] - alike[0][0] == 49


def _most_frequent(by_source: np.ndarray) -> np.ndarray:
    tokens, count = np.unique(np.sort(by_source, axis=2).reshape(-1, 8), axis=0, return_counts=True)
    return (np.sort(by_source, axis=2) == tokens[count.argmax()]).all(axis=2)


def test_ragged_sources_hold_declared_numbers_of_tokens() -> None:
    routing = make_routing("ragged:0.25", V3, 4, 100)
    assert sorted(held(routing)) == [25, 50, 75, 100]
    first = (routing.expert[:, 0] >= 0).reshape(4, 100)
    assert (np.sort(first, axis=1)[:, ::-1] == first).all()  # the tokens come first, the empty places last
    assert routing.notes == ("150 of 400 token places are empty: sources hold different numbers of tokens",)


def test_empty_sources() -> None:
    assert sorted(held(make_routing("zero-tokens:3", V3, 8, 20))) == [0, 0, 0, 20, 20, 20, 20, 20]
    assert sorted(held(make_routing("zero-tokens", V3, 4, 20))) == [0, 20, 20, 20]
    assert [one.n_tokens for one in describe("zero-tokens:3", (8,), model=V3, tokens_per_gpu=20)] == [100]  # it said 160, and had their noise


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hot-experts:K=4", "routing hot-experts: found no share=, expected hot-experts:K=N:share=F"),
        ("hot-experts:K=1:share=0.5", r"found share=0.5, expected 0 to 0.125 at top-8 \(a token chooses an expert once, and 1 of 256"),
        ("hot-experts:K=1.5:share=0.1", "found K=1.5, expected a whole number from 1 to 65536"),
        ("hot-experts:K=256:share=0.1", "found 256 hot experts, expected fewer than the 256 experts"),
        ("hot-experts:K=4:shar=0.1", "unknown option 'shar'; did you mean \"share\""),
        ("hot-rank:share=nan", "found share=nan, expected a number from 0 to 1"),
        ("hot-rank:share=0.1:rank=8", "found rank=8, expected 0 to 7"),
        ("rotating:K=4:share=0.1:block=0", "found block=0, expected a whole number from 1"),
        ("spread:2", "routing spread: found '2', expected spread"),
        ("ragged", "routing ragged: found '', expected a number from 0 to 1"),
        ("burst:1.5", "routing burst: found '1.5', expected a number from 0 to 1"),
        ("zero-tokens:8", "found 8 empty sources, expected fewer than the 8 GPUs"),
    ],
)
def test_impossible_patterns_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_routing(text, V3, 8, 16)
    assert "\n" not in str(caught.value)


def test_the_list_names_every_pattern_as_it_is_written() -> None:
    forms = {row.form for row in routing_forms()}
    assert {"hot-experts:K=N:share=F", "rotating:K=N:share=F[:block=N]", "zero-tokens[:N]", "uniform"} <= forms
    assert all(row.summary and row.source for row in routing_forms())
    assert parse_routing("rotating:K=2:share=0.1").settings == (("K", 2.0), ("share", 0.1), ("block", 64))
