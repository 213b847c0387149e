"""Parameters and FLOPs of packaged models against the numbers that cards, reports and public configurations give."""

import pytest

from dysharp.model.flops import CONVENTIONS, flops_of, mean_context, model_flops
from dysharp.model.weights import embedding_weights, layer_weights, parameters_of
from dysharp.specs import list_whole_models, load_whole

# name: all parameters, and in billions: total, active between embedding and head, with head, with both; GFLOP per token at 4096, without MTP
GOLDEN = {
    "deepseek-v3": (671_026_404_352, 671.026, 35.70, 36.63, 37.55, 249.81),
    "deepseek-v2": (235_741_434_880, 235.741, 20.33, 20.85, 21.38, 155.01),
    "deepseek-v2-lite": (15_706_484_224, 15.706, 2.24, 2.45, 2.66, 16.39),
    "moonlight-16b": (15_960_108_544, 15.960, 2.24, 2.58, 2.915, 17.15),
    "qwen3-235b": (235_093_634_560, 235.094, 20.95, 21.57, 22.19, 148.03),
    "qwen3-30b": (30_532_122_624, 30.532, 2.73, 3.04, 3.35, 23.01),
    "gpt-oss-120b": (116_829_156_672, 116.829, 4.55, 5.13, 5.71, 32.63),
    "kimi-k2": (1_026_408_209_408, 1026.41, 30.51, 31.69, 32.86, 204.48),
    "mixtral-8x7b": (46_702_792_704, 46.703, 12.62, 12.75, 12.88, 79.71),
    "mixtral-8x22b": (140_630_071_296, 140.630, 38.76, 38.96, 39.16, 242.20),
    "pangu-ultra-moe": (719_093_767_680, 719.09, 38.01, 39.19, 40.37, 265.16),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_numbers(name: str) -> None:
    model = load_whole(name)
    exact, total, inner, active, both, gflops = GOLDEN[name]
    p = parameters_of(model)
    assert p.total == exact
    assert p.total / 1e9 == pytest.approx(total, abs=0.0051 if total > 700 else 0.00051)
    assert [p.active_inner / 1e9, p.active / 1e9, p.active_both / 1e9] == pytest.approx([inner, active, both], abs=0.0051)
    assert model_flops(model, 4096, CONVENTIONS["megatron-no-mtp"]) / 1e9 == pytest.approx(gflops, abs=0.0051)


def test_numbers_beside_the_golden_table() -> None:
    v3, ultra, pro = (parameters_of(load_whole(name)) for name in ("deepseek-v3", "pangu-ultra-moe", "pangu-pro-moe"))
    assert v3.parts["MTP"] / 1e9 == pytest.approx(11.61, abs=0.005)
    assert (ultra.total - ultra.parts["embedding"]) / 1e9 == pytest.approx(717.91, abs=0.005)
    assert ultra.active_parts["MTP"] / 1e9 == pytest.approx(1.92, abs=0.005)
    assert (pro.total / 1e9, pro.active_both / 1e9) == pytest.approx((71.99, 16.50), abs=0.005)
    glm, minimax = (parameters_of(load_whole(name)) for name in ("glm-5", "minimax-m2.5"))  # cards: 744 and 40 (40.83 with indexers), 229 and 10
    assert (glm.total / 1e9, glm.active / 1e9, minimax.total / 1e9, minimax.active / 1e9) == pytest.approx((744, 40.83, 229, 10.4), rel=0.005)
    assert [parameters_of(load_whole(f"llama3-{size}")).total for size in ("8b", "70b", "405b")] == [8030261248, 70553706496, 405853388800]
    assert v3.parts["attention"] / 61 / 1e6 == pytest.approx(187.11, abs=0.005)
    assert v3.parts["routed experts"] / 58 / 256 / 1e6 == pytest.approx(44.04, abs=0.005)


# convention, model, tokens of a sequence, GFLOP per token; the frameworks' own counts
PRINTED = [
    ("megatron", "deepseek-v3", 4096, 259.99),
    ("maxtext", "deepseek-v3", 4096, 250.45),
    ("maxtext", "deepseek-v3", 8192, 281.15),
    ("maxtext", "qwen3-235b", 4096, 148.33),
    ("maxtext", "mixtral-8x7b", 8192, 82.93),
    ("maxtext", "mixtral-8x22b", 8192, 250.67),
    ("maxtext", "gpt-oss-120b", 8192, 34.47),
    ("bridge-26.04", "gpt-oss-120b", 4096, 27.16),
    ("bridge-26.04", "gpt-oss-120b", 8192, 30.79),
    ("megatron", "gpt-oss-120b", 4096, 32.63),
    ("nemo-24.07", "llama3-8b", 8192, 57.91),
    ("nemo-24.07", "llama3-70b", 8192, 481.435),
    ("megatron", "llama3-8b", 8192, 51.47),
    ("megatron", "llama3-70b", 8192, 449.22),
    ("megatron", "llama3-405b", 8192, 2523.96),
    ("bridge-lora", "llama3-70b", 4096, 278.01),
]


@pytest.mark.parametrize(("convention", "name", "sequence", "gflops"), PRINTED)
def test_model_flops_of_frameworks(convention: str, name: str, sequence: int, gflops: float) -> None:
    assert model_flops(load_whole(name), sequence, CONVENTIONS[convention]) / 1e9 == pytest.approx(gflops, abs=0.0051)


def test_learned_positions_and_sinks_are_weights() -> None:
    table, positions = embedding_weights(load_whole("gpt3-175b"))
    assert (positions.name, positions.parameters) == ("positions", 2048 * 12288)
    assert [w.name for w in embedding_weights(load_whole("mixtral-8x7b"))] == [table.name]
    (sinks,) = [w for w in layer_weights(load_whole("gpt-oss-120b"), "*E") if w.name == "sinks"]
    assert (sinks.part, sinks.parameters) == ("attention", 64)


def test_core_attention_of_deepseek_v3() -> None:
    model = load_whole("deepseek-v3")
    at = {s: flops_of(model, s, mtp=False) for s in (4096, 65536)}
    assert at[4096].forward["core attention"] / 61 / 1e6 == pytest.approx(167.8, abs=0.05)
    share = {s: 3 * at[s].forward["core attention"] / model_flops(model, s, CONVENTIONS["megatron-no-mtp"]) for s in at}
    assert share[4096] == pytest.approx(0.123, abs=0.0005)
    assert share[65536] == pytest.approx(0.692, abs=0.001)


def test_sparse_attention_counts_what_each_token_may_choose() -> None:
    """Tokens before the 2048th choose among fewer: on 4096 tokens the indexer saves a quarter of core attention, of its own scores all are made."""
    dense, sparse = (flops_of(load_whole(name), 4096, mtp=False).forward["core attention"] for name in ("deepseek-v3", "deepseek-v3.2"))
    chosen = sum(min(i, 2048) for i in range(1, 4097)) / 4096
    assert sparse == pytest.approx(61 * 2 * (128 * 320 * chosen + 64 * 128 * 2048), rel=0.001)
    assert sparse < dense


@pytest.mark.parametrize("name", list_whole_models())
def test_gradients_of_data_and_weights_add_up(name: str) -> None:
    flops = flops_of(load_whole(name), 4096)
    core = flops.forward["core attention"]
    assert flops.total == pytest.approx(3 * flops.forward_total)
    assert flops.weight_gradients == pytest.approx(flops.forward_total - core)
    assert flops.executed == pytest.approx(flops.total + core / 2)


def test_a_window_sees_no_more_than_its_tokens() -> None:
    assert mean_context(4096, 128) == pytest.approx(sum(min(i + 1, 128) for i in range(4096)) / 4096, rel=0.005)
    assert mean_context(64, 128) == mean_context(64) == 32
