"""Recorded loads on models of any number of experts (`loads:NAME`)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import Model
from dysharp.workload import make_routing
from dysharp.workload.popularity import spread_counts
from dysharp.workload.routing import count_ids
from dysharp.workload.traces import Recording, layer_counts, load_trace, save_trace


def test_recorded_loads_keep_their_spread_for_any_number_of_experts() -> None:
    """64 recorded experts on 64, 128 and 32: the sorted loads are those at the same places of the recorded order."""
    rng, count = np.random.default_rng(0), np.arange(64, dtype=np.int64) ** 2
    same, twice, half = (spread_counts(rng, count, n) for n in (64, 128, 32))
    assert sorted(same) == sorted(count)
    assert same.tolist() != count.tolist(), "the seed deals them"
    assert sorted(twice) == sorted([*count, *count])
    assert sorted(half) == count[1::2].tolist()


@pytest.mark.parametrize(("n_experts", "topk"), [(64, 6), (64, 8), (128, 8)])
def test_drawn_tokens_have_the_recorded_loads(make_model: Callable[..., Model], n_experts: int, topk: int) -> None:
    """The second way: count the drawn tokens, and compare with the counts of the recording."""
    trace = load_trace("deepseek-v2-lite")
    recorded = layer_counts(trace, trace.row_of(20))
    routing = make_routing("loads:deepseek-v2-lite:layer=20", make_model(n_experts, topk), 32, 1024)
    drawn = count_ids(routing.expert, n_experts)
    wanted = np.repeat(np.sort(recorded), n_experts // 64)
    np.testing.assert_allclose(np.sort(drawn) / drawn.mean(), wanted / wanted.mean(), rtol=0.08, atol=0.02)
    assert routing.synthetic
    assert routing.description == "loads of deepseek-v2-lite layer 20 (synthetic)"
    assert routing.layer == 20
    assert routing.notes == (f"loads of 64 experts at top-6, dealt to {n_experts} experts; tokens are drawn",)


def test_recorded_loads_without_a_layer_are_those_of_the_median_one(make_model: Callable[..., Model]) -> None:
    model = make_model(64, 8)
    named, median = (make_routing(f"loads:deepseek-v2-lite{layer}", model, 32, 16) for layer in (":layer=24", ""))
    np.testing.assert_array_equal(named.expert, median.expert)
    other = make_routing("loads:deepseek-v2-lite", model, 32, 16, seed=1)
    assert (named.expert != other.expert).any()


def test_loads_that_no_token_can_have_are_cut_and_said(make_model: Callable[..., Model]) -> None:
    routing = make_routing("loads:gpt-oss-20b:layer=23", make_model(64, 32), 32, 16)
    assert routing.notes[1:] == ("counts above one choice per token at top-32 were cut",)


def test_loads_of_too_few_experts_are_refused(make_model: Callable[..., Model], tmp_path: Path) -> None:
    few = Recording("few", np.zeros((1, 8, 1), np.int16), (0,), None, 4)
    path = tmp_path / "few.npz"
    save_trace(few, path)
    with pytest.raises(ConfigError, match=r"routing loads:few layer 0: 1 experts have a load, expected at least 2"):
        make_routing(f"loads:{path}", make_model(4, 2), 2, 8)
    with pytest.raises(ConfigError, match=r"trace gpt-oss-20b: no layer 99, expected one of 0 to 23"):
        make_routing("loads:gpt-oss-20b:layer=99", make_model(64, 8), 2, 8)
    with pytest.raises(ConfigError, match="found nothing behind the name, expected loads:NAME or FILE"):
        make_routing("loads:", make_model(64, 8), 2, 8)
