"""make_routing: determinism, distributions, pairs; the routing string."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.specs import Model, load_model
from dysharp.workload import Routing, first_tokens, imbalance, make_routing, pairs, rows_per_expert, rows_per_slot, traffic
from dysharp.workload.spec import RoutingSpec, parse_routing

SPECS = (
    "uniform",
    "normal:0.032",
    "normal-literal:0.032",
    "normal-cv:0.5",
    "powerlaw:1.5",
    "powerlaw:2.5",
    "lognormal:0.65",
    "lognormal:0.65:group-limited",
    "uniform:group-limited",
)


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_routing(spec: str, make_model: Callable[..., Model]) -> None:
    model = make_model(32, 4, 4, 2)
    one, two = (make_routing(spec, model, 4, 50, seed=7) for _ in range(2))
    other = make_routing(spec, model, 4, 50, seed=8)
    np.testing.assert_array_equal(one.expert, two.expert)
    np.testing.assert_array_equal(one.slot, two.slot)
    assert (one.expert != other.expert).any()
    assert one.synthetic


def test_first_tokens_of_every_gpu_keep_their_experts() -> None:
    whole = make_routing("uniform", load_model("deepseek-v2-lite"), 4, 6)
    part = first_tokens(whole, 2)
    kept = [0, 1, 6, 7, 12, 13, 18, 19]
    assert (part.tokens_per_gpu, part.n_tokens, part.placement) == (2, 8, whole.placement)
    assert part.expert.tolist() == whole.expert[kept].tolist()
    assert part.slot.tolist() == whole.slot[kept].tolist()
    with pytest.raises(ConfigError, match="routing: found 7 tokens per GPU to take, expected 1 to 6"):
        first_tokens(whole, 7)


def test_another_layer_is_another_draw(make_model: Callable[..., Model]) -> None:
    one, two = (make_routing("lognormal:0.65", make_model(32, 4), 4, 50, layer=layer) for layer in (1, 2))
    assert (one.expert != two.expert).any()


def test_descriptions(make_model: Callable[..., Model]) -> None:
    model = make_model(32, 4, 4, 2)
    said = [make_routing(spec, model, 4, 8).description for spec in SPECS]
    assert said[0] == "uniform"
    assert said[1] == "normal 0.032, spread 0.256 of the mean (synthetic)"
    assert said[2] == "normal literal 0.032, spread 1.024 of the mean (synthetic)"
    assert said[4] == "power law alpha 1.5 (synthetic)"
    assert said[6] == "lognormal sigma 0.65 (synthetic)"
    assert said[7] == "lognormal sigma 0.65, group-limited 2 of 4 (synthetic)"
    assert said[8] == "uniform, group-limited 2 of 4"
    free, limited = (make_routing(text, load_model("deepseek-v3"), 8, 4) for text in ("uniform", "uniform:group-limited"))
    assert free.notes == ("a gate of deepseek-v3 takes experts of 4 of 8 groups, this draw of all (not with :group-limited)",)
    assert limited.notes == ()


@pytest.mark.parametrize(
    ("sigma", "max_mean", "cv", "copies32", "tokens32"),
    [(0.5, 3.29, 0.51, 1.37, 1.33), (0.65, 4.84, 0.70, 1.62, 1.54), (1.0, 8.55, 1.12, 2.21, 2.03)],
)
def test_skewed_generator_matches_the_analysis(
    sigma: float, max_mean: float, cv: float, copies32: float, tokens32: float
) -> None:
    """Means over draws of the popularity; the reference had 12 draws, hence the width."""
    model = load_model("L-8")
    drawn = [imbalance(make_routing(f"lognormal:{sigma}", model, 32, 400, seed=seed)) for seed in range(30)]
    assert np.mean([d.expert_max_mean for d in drawn]) == pytest.approx(max_mean, rel=0.2)
    assert np.mean([d.expert_cv for d in drawn]) == pytest.approx(cv, rel=0.1)
    assert np.mean([d.copies_max_mean for d in drawn]) == pytest.approx(copies32, rel=0.1)
    assert np.mean([d.tokens_max_mean for d in drawn]) == pytest.approx(tokens32, rel=0.1)


def test_normal_spread_loads_the_hottest_gpu_moderately() -> None:
    hottest = [
        imbalance(make_routing("normal:0.032", load_model("L-8"), 32, 800, seed=seed)).copies_max_mean
        for seed in range(20)
    ]
    assert np.mean(hottest) == pytest.approx(1.18, abs=0.03)


def test_popularity_is_not_sorted_by_expert() -> None:
    load = rows_per_expert(make_routing("powerlaw:1", load_model("L-8"), 32, 200))
    assert abs(np.corrcoef(load, np.arange(256))[0, 1]) < 0.25


def _check_pairs(routing: Routing) -> None:
    found = pairs(routing)
    slots_per_gpu = routing.placement.slots_per_gpu
    expected = []
    for token, slots in enumerate(routing.slot.tolist()):
        by_gpu: dict[int, list[int]] = {}
        for slot in sorted(slot for slot in slots if slot >= 0):
            by_gpu.setdefault(slot // slots_per_gpu, []).append(slot)
        expected += [(token, gpu, held) for gpu, held in by_gpu.items()]
    got = [
        (int(token), int(gpu), found.slot[a:b].tolist())
        for token, gpu, a, b in zip(
            found.token, found.gpu, found.slot_ptr[:-1], found.slot_ptr[1:], strict=True
        )
    ]
    assert got == expected
    assert found.token_ptr.size == routing.n_tokens + 1
    assert found.token_ptr[-1] == found.gpu.size
    assert found.slot_ptr[-1] == found.slot.size
    for array in (found.token_ptr, found.gpu, found.slot_ptr, found.slot, found.token):
        assert array.dtype == np.int32


@given(
    n_experts=st.integers(1, 24),
    n_gpus=st.integers(1, 12),
    tokens=st.integers(1, 9),
    seed=st.integers(0, 99),
    n_dropped=st.integers(0, 20),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_pairs_and_slots_of_any_routing(
    make_model: Callable[..., Model],
    n_experts: int,
    n_gpus: int,
    tokens: int,
    seed: int,
    n_dropped: int,
    data: st.DataObject,
) -> None:
    topk = data.draw(st.integers(1, n_experts))
    placement = data.draw(st.sampled_from(["auto", "eplb"]))
    routing = make_routing(
        "lognormal:1", make_model(n_experts, topk), n_gpus, tokens, seed=seed, placement=placement
    )
    np.testing.assert_array_equal(routing.placement.slot_expert[routing.slot], routing.expert)
    assert rows_per_slot(routing).sum() == routing.expert.size
    flat = np.random.default_rng(seed).integers(0, routing.slot.size, n_dropped)
    routing.slot.reshape(-1)[flat] = -1
    routing.expert.reshape(-1)[flat] = -1
    _check_pairs(routing)
    _check_traffic(routing)


def _check_traffic(routing: Routing) -> None:
    """The closed form counts a boolean matrix; here the same from pairs."""
    found = pairs(routing)
    source = found.token // routing.tokens_per_gpu
    remote = found.gpu != source
    held = np.diff(found.slot_ptr)
    sent = np.bincount(source[remote], minlength=routing.n_gpus)
    received = np.bincount(found.gpu[remote], minlength=routing.n_gpus)
    any_remote = np.zeros(routing.n_tokens, dtype=bool)
    any_remote[found.token[remote]] = True
    once = any_remote.reshape(routing.n_gpus, -1).sum(axis=1)
    rows_sent = np.bincount(source[remote], weights=held[remote], minlength=routing.n_gpus)
    for scheme, up, down in (
        ("one_copy_per_gpu", sent, received),
        ("multicast", once, received),
        ("one_copy_per_expert", rows_sent, None),
    ):
        moved = traffic(routing, scheme, 10)
        np.testing.assert_array_equal(moved["dispatch"]["up_per_gpu"], 10 * up)
        np.testing.assert_array_equal(moved["combine"]["down_per_gpu"], 10 * up)
        assert moved["dispatch"]["up"] == 10 * up.sum()
        if down is not None:
            np.testing.assert_array_equal(moved["dispatch"]["down_per_gpu"], 10 * down)
            np.testing.assert_array_equal(moved["combine"]["up_per_gpu"], 10 * down)
    n, tokens = routing.n_gpus, routing.n_tokens
    gathered = traffic(routing, "allgather", 10)
    assert gathered["combine"]["up"] == gathered["dispatch"]["down"] == 10 * tokens * (n - 1)
    assert gathered["dispatch"]["up"] == 10 * tokens * (n > 1)
    assert traffic(routing, "none", 10)["dispatch"]["up"] == 0


def test_parsed_strings() -> None:
    assert parse_routing("uniform") == RoutingSpec("uniform")
    assert parse_routing("lognormal:0.65:group-limited") == RoutingSpec("lognormal", 0.65, group_limited=True)
    assert parse_routing("trace:a/b:c.npz:layer=13:window=mixed") == RoutingSpec(
        "trace", source="a/b:c.npz", layer=13, window="mixed"
    )
    assert parse_routing("counts:x.csv:model=olmoe/arxiv") == RoutingSpec(
        "counts", source="x.csv", model="olmoe/arxiv"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("unifrom", r"unknown distribution 'unifrom'; did you mean \"uniform\"\?"),
        ("uniform:3", r"routing uniform: found '3', expected no value"),
        ("lognormal", r"routing lognormal: found '', expected a number, as in lognormal:0.5"),
        ("lognormal:nan", r"routing lognormal: found nan, expected a number from 0"),
        ("lognormal:-1", r"found -1, expected a number from 0"),
        ("lognormal:abc", r"routing lognormal: found 'abc', expected a number, as in lognormal:0.5 \(SIGMA\)"),
        ("lognormal:abc:group-limited", r"routing lognormal: found 'abc', expected a number"),
        ("lognormal:0.65:group-limit", r"unknown option 'group-limit'; did you mean \"group-limited\"\?"),
        ("lognormal:0.65:group-limited", r"group-limited needs expert groups, model E32-k4 has n_group = 1"),
        ("powerlaw:500", r"too skewed, only 1 of 32 experts"),
        ("trace", r"routing trace: found nothing behind the name, expected trace:NAME or FILE"),
        ("trace:deepseek-v2-light", r"no such file or packaged trace; did you mean \"deepseek-v2-lite\"\?"),
        ("trace:gpt-oss-20b:window=mix", r"unknown window 'mix'; did you mean \"mixed\"\?"),
        ("trace:gpt-oss-20b:layer=x", r"found layer='x', expected a layer number"),
        ("trace:gpt-oss-20b:layr=1", r"unknown option 'layr'; did you mean \"layer\"\?"),
        ("trace:gpt-oss-20b:layer=99", r"trace gpt-oss-20b: no layer 99, expected one of 0 to 23"),
        ("trace:gpt-oss-20b:layer=1:layer=1", r"option 'layer' given twice"),
        ("trace:deepseek-v2-lite", r"recorded with top-6 of 64 experts, model E32-k4 has top-4 of 32; expected the model of the trace, or another"),
        ("counts:nowhere.csv", r"nowhere.csv: cannot be read"),
    ],
)
def test_bad_strings(spec: str, message: str, make_model: Callable[..., Model]) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_routing(spec, make_model(32, 4), 4, 8)
    assert "\n" not in str(caught.value)


def test_bad_sizes(make_model: Callable[..., Model]) -> None:
    model = make_model(32, 4)
    with pytest.raises(ConfigError, match=r"found 0 tokens per GPU, expected at least 1"):
        make_routing("uniform", model, 4, 0)
    with pytest.raises(ConfigError, match=r"found 0 gpus, expected at least 1"):
        make_routing("uniform", model, 0, 4)
    with pytest.raises(ConfigError, match=r"rows, expected at most 2147483647"):
        make_routing("uniform", model, 1000, 10**9)
    with pytest.raises(ConfigError, match=r"found layer=1 in the string and layer 2 as argument, expected one layer"):
        make_routing("trace:gpt-oss-20b:layer=1", model, 4, 8, layer=2)
    with pytest.raises(ConfigError, match=r"found layer -1"):
        make_routing("uniform", model, 4, 8, layer=-1)
    with pytest.raises(ConfigError, match=r"found seed -1"):
        make_routing("uniform", model, 4, 8, seed=-1)


def test_more_memory_than_there_is(make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.base.processes.physical_bytes", lambda: 10_000)
    with pytest.raises(ConfigError, match=r"need about 0 GiB, this computer has 0 GiB"):
        make_routing("uniform", make_model(32, 4), 4, 100)


@given(st.text(alphabet="uniformlgtracews:=.-0123456789/\x00\n", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_string_parses_or_is_refused(text: str) -> None:
    try:
        parse_routing(text)
    except ConfigError as error:
        assert "\n" not in str(error)
