"""Stacks of several kinds of layers: words of letters, what folds over them, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.model.cache import cache_bytes
from dysharp.model.flops import _core_flops
from dysharp.model.operators import WHOLE, Core, DeltaNetState, RowExchange, Sum, operators
from dysharp.model.weights import counted_weights, parameters_of
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.specs.hf import FAMILIES, model_from_config
from dysharp.specs.hf_whole import whole_from_config
from tests.specs.test_huggingface_whole import LIKE

NANO, SUPER, KIMI = "nemotron-3-nano", "nemotron-3-super", "kimi-linear-48b"
BUILT = {NANO: 31_577_937_344, SUPER: 120_668_687_360, KIMI: 49_122_675_072}
"""Parameters that transformers 5.23 builds from the published sizes."""
TABLE = json.loads(Path(__file__).with_name("architectures.json").read_text())


def read(family: str, **fields: Any) -> dysharp.specs.WholeModel:
    return whole_from_config({**TABLE["common"], **TABLE["cases"][family][0], "model_type": family, **fields}, "m", "f")


@pytest.mark.parametrize("name", BUILT)
def test_published_stacks_have_the_parameters_that_transformers_builds(name: str) -> None:
    assert parameters_of(load_whole(name)).total == BUILT[name]


def test_a_layer_has_the_operators_of_its_letters() -> None:
    model = load_whole(NANO)
    assert (model.n_layers, model.moe_layers, model.kinds) == (52, 23, {"M": 23, "E": 23, "*": 6})
    state, core = operators(model, 0), operators(model, 5)
    assert [type(op) for op in state if isinstance(op, (Core, DeltaNetState, RowExchange))] == [DeltaNetState]
    assert [type(op) for op in core if isinstance(op, (Core, DeltaNetState, RowExchange))] == [Core]
    assert sum(isinstance(op, RowExchange) for op in operators(model, 1)) == 2
    assert [model.kind(n) for n in (52, 53)] == ["*E", "*E"]  # layers of MTP
    seen = [sum(_core_flops(op, 4096) for op in operators(model, n) if isinstance(op, Core)) for n in range(7)]
    assert seen == [0, 0, 0, 0, 0, 2 * 2048 * 32 * (128 + 128), 0]


def test_two_mixers_stand_behind_one_norm() -> None:
    model = read("falcon_h1")
    assert set(model.stack.split()) == {"M*-"}
    names = [op.name for op in operators(model, 0)]
    assert (names.count("norms"), names.count("linear attention"), names.count("attention")) == (2, 1, 1)
    assert sum(isinstance(op, Sum) for op in operators(model, 0)) == 3
    assert [op.name for op in operators(read("cohere"), 0)].count("norms") == 1


def test_a_request_keeps_states_and_the_caches_of_attention_alone() -> None:
    model = load_whole(NANO)
    state = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    for tokens in (0, 1000):
        assert cache_bytes(model, tokens, 2, WHOLE) == 23 * state + 6 * tokens * 2 * 2 * 128 * 2


def test_experts_of_latent_rows() -> None:
    """Rows of 1024 elements go to experts, and two matrices make them of 4096."""
    model = load_whole(SUPER)
    assert load_model(SUPER).hidden == 1024
    assert {op.width for op in operators(model, 1) if isinstance(op, RowExchange)} == {1024}
    assert [w.parameters for w, _ in counted_weights(model) if w.weight.startswith("latent")] == [4096 * 1024] * 2
    with pytest.raises(ConfigError, match=r"hidden: found 4096, expected 1024 as in the MoE layer"):
        replace(model, latent_experts=False)


@pytest.mark.parametrize(
    ("family", "fields", "kinds"),
    [
        ("qwen3_next", {}, ["ME", "ME", "ME", "*E"]),
        ("qwen3_5_text", {}, ["M-", "M-", "M-", "*-"]),
        ("qwen3_moe", {"decoder_sparse_step": 2}, ["*-", "*E", "*-", "*E"]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, ["*-", "*-", "*-", "w-"]),
        ("gemma2", {"sliding_window": 8}, ["w-", "*-", "w-", "*-"]),
        ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 3}, ["w-", "w-", "*-", "w-"]),
        ("bamba", {}, ["M-", "M-", "*-", "M-"]),
        ("minimax", {"layer_types": None, "attn_type_list": [0, 1, 1, 0]}, ["ME", "*E", "*E", "ME"]),
        ("kimi_linear", {}, ["M-", "ME", "*E", "ME"]),
        ("nemotron_h", {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "moe", "attention", "mlp"]}, ["M", "E", "*", "-"]),
    ],
)
def test_configs_name_their_layers_in_many_ways(family: str, fields: dict[str, Any], kinds: list[str]) -> None:
    model = read(family, **fields)
    assert [model.kind(n) for n in range(model.n_layers)] == kinds


def test_a_dense_stack_of_blocks_has_no_experts() -> None:
    model = read("nemotron_h", hybrid_override_pattern="M-*-")
    assert (model.layer, model.kinds) == (None, {"M": 1, "-": 2, "*": 1})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"stack": "M E x"}, "stack"),
        ({"stack": "E M"}, "stack: found 1 layers with experts, expected n_layers = 23"),
        ({"dense_layers": 2, "dense_hidden": 8}, "dense_layers: found 2, expected 0 as in stack, or none"),
        ({"linear": None}, "expected M not in it"),
    ],
)
def test_a_stack_that_is_none_is_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(load_whole(NANO), **changed)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES["refused"])
def test_families_whose_layers_are_other_operators_are_refused_by_name(family: str) -> None:
    with pytest.raises(ConfigError, match=rf"model_type: found '{family}' \({FAMILIES['refused'][family]}\)"):
        whole_from_config({**TABLE["common"], "model_type": family}, "m", "f")


def test_every_family_of_the_table_is_counted_somewhere() -> None:
    elsewhere = {"common", "refused", "kimi_k2", "dbrx", *LIKE}  # as DeepSeek-V3; `test_fields_of_dbrx`; beside an encoder of images
    assert {*FAMILIES} - elsewhere == {*TABLE["cases"]} - {"deepseek_v4"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", BUILT)
def test_verbs_answer_for_hybrid_models(name: str) -> None:
    served = dysharp.serve(name, "hw-dgx-h200", gpus=8)
    assert served.best is not None
    with pytest.raises(ConfigError, match="found linear attention, or dense layers behind experts"):
        dysharp.plan(name, 8)


def test_a_config_of_dense_layers_with_keys_of_experts_is_a_dense_model() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "mlp_only_layers": [0, 1, 2, 3]}
    model = read("qwen3_moe", head_dim=48, **experts)
    assert (model.layer, model.dense_layers) == (None, 4)
    with pytest.raises(ConfigError, match="found 0 with experts: of a dense model there is no MoE layer"):
        model_from_config({**TABLE["common"], "model_type": "qwen3_moe", **experts}, "m", "f")


@pytest.mark.parametrize("load", [load_model, load_whole, load_cluster])
def test_no_name_is_no_folder(load: Any) -> None:
    """As in `plan "a,"`."""
    with pytest.raises(ConfigError, match=r"unknown (model|cluster) ''"):
        load("")


@pytest.mark.parametrize("named", [{}, {"layer_types": ["chunked_attention"] * 3 + ["full_attention"]}])
def test_chunks_count_as_windows_and_a_line_says_so(named: dict[str, Any]) -> None:
    """Of Llama 4: a query of three layers of four sees half a chunk in the mean; as whole layers they had 16 times as many keys."""
    model, sequence, chunk = read("llama4_text", attention_chunk_size=8192, **named), 131072, 8192
    keys = [_core_flops(op, sequence) / (2 * 6 * 2 * 48) for n in range(4) for op in operators(model, n) if isinstance(op, Core)]
    assert (keys[3], keys[0]) == (sequence / 2, pytest.approx(chunk, rel=0.04))
    assert sum(keys) < 1.15 * (sequence / 2 + 3 * chunk / 2)
    assert "chunks of attention count as windows" in model.source
    assert "chunks" not in read("llama4_text", **named).source


def test_a_plan_takes_windows_in_any_order(tmp_path: Path) -> None:
    """It counts layers of a kind, whichever comes first."""
    sizes = {"num_hidden_layers": 4, "sliding_window": 512, "use_sliding_window": True}
    ways = [["full_attention", "sliding_attention"] * 2, ["sliding_attention", "full_attention"] * 2]
    first, second = (tmp_path / f"{way[0]}.json" for way in ways)
    for file, way in zip((first, second), ways, strict=True):
        file.write_text(json.dumps({**TABLE["common"], "head_dim": 48, "model_type": "qwen3", "layer_types": way, **sizes}))
    assert (load_whole(first).stack, load_whole(first).dense_layers, load_whole(second).stack) == ("*- w- *- w-", 4, "")
    one, other = (dysharp.plan(str(file), 8, "hw-dgx-h100", quick=True, sequence=2048).plan.first.found.best[0] for file in (first, second))
    assert one.parts == other.parts


def test_a_step_of_a_hybrid_model() -> None:
    done = dysharp.step(NANO, "hw-hgx-b300", "ep=8,mbs=1,m=2", systems=["deepep"], sequence=1024)
    assert done.best is not None
    layers = sum("E" in word for word in load_whole(NANO).stack.split())
    assert done.best.step_us > 2 * layers * done.best.ep.forward > 0  # two micro-batches
