"""Stacks of several kinds of layers: words of letters, what folds over them, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.costs.attention import pairs
from dysharp.costs.layer import _chosen
from dysharp.costs.machine import machine_of
from dysharp.model import layout_of, prompt_batch
from dysharp.model.cache import cache_bytes, index_bytes
from dysharp.model.flops import _core_flops, flops_of
from dysharp.model.operators import WHOLE, Core, DeltaNetState, RowExchange, Sum, operators
from dysharp.model.weights import counted_weights, parameters_of
from dysharp.specs import load_cluster, load_model, load_whole
from dysharp.specs.hf import FAMILIES, model_from_config
from dysharp.specs.hf_whole import whole_from_config
from dysharp.specs.whole import Attention
from dysharp.training import step_costs
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
    assert {*FAMILIES} - elsewhere == {*TABLE["cases"]}


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


CSA = "deepseek-v4-flash", "deepseek-v4-pro"
CONTEXT = 1 << 20


def test_deepseek_v4_is_the_model_that_its_card_names() -> None:
    """Model cards: 284 B parameters and 13 B of a token; 1.6 T and 49 B."""
    flash, pro = (parameters_of(load_whole(name)) for name in CSA)
    assert (flash.total / 1e9, flash.active_inner / 1e9) == (pytest.approx(284, rel=0.01), pytest.approx(13, rel=0.05))
    assert (pro.total / 1e12, pro.active / 1e9) == (pytest.approx(1.6, rel=0.03), pytest.approx(49, rel=0.03))


def test_compressed_entries_take_what_others_count() -> None:
    """vLLM's blog: 9.62 GiB of 2^20 tokens of Pro in BF16, with keys of the indexer in BF16; the report: 10 and 7 % of DeepSeek-V3.2's."""
    models = [load_whole(name) for name in CSA]
    _, pro = models
    chosen = [op for n in range(pro.n_layers) for op in operators(pro, n) if isinstance(op, Core) and op.index_heads]
    wider = sum(2 * op.index_dim - index_bytes(op) for op in chosen) * CONTEXT / 4
    assert (cache_bytes(pro, CONTEXT, 2.0, WHOLE) + wider) / 2**30 == pytest.approx(9.62, rel=0.005)
    before = cache_bytes(load_whole("deepseek-v3.2"), CONTEXT, 1.0, WHOLE)
    assert before == 61 * CONTEXT * (656 + 132)  # FlashMLA's README: bytes of a token; the indexer's key and its scale
    assert [100 * cache_bytes(model, CONTEXT, 1.0, WHOLE) / before for model in models] == [pytest.approx(7, abs=2), pytest.approx(10, abs=2)]


def test_a_token_behind_a_million_others_multiplies_a_quarter_of_what_it_did() -> None:
    """The report: 10 and 27 % of DeepSeek-V3.2's FLOPs. A sequence of twice the tokens has that context on average."""
    before = flops_of(load_whole("deepseek-v3.2"), 2 * CONTEXT, mtp=False).forward_total
    shares = [100 * flops_of(load_whole(name), 2 * CONTEXT, mtp=False).forward_total / before for name in CSA]
    assert shares == [pytest.approx(10, abs=3), pytest.approx(27, abs=3)]


def test_keys_that_a_query_sees() -> None:
    sparse, heavy, near = (next(op for op in operators(load_whole(CSA[0]), n) if isinstance(op, Core)) for n in (2, 3, 0))
    for context in (64, 1024, 4096, 65536):
        assert near.seen(context) == min(context, 128)
        assert sparse.seen(context) == min(context, 128) + min(context / 4, 512)
        assert heavy.seen(context) == min(context, 128) + context / 128
    exact = [sum(min(i, 128) + min(i / 4, 512) for i in range(1, 4097)) / 4096, sum(min(i, 128) + i / 128 for i in range(1, 4097)) / 4096]
    for op, mean in zip((sparse, heavy), exact, strict=True):
        call = _chosen(op, prompt_batch(4096, 4096))
        assert (call.window, float(pairs(call)) / 4096) == (pytest.approx(mean, rel=0.01), pytest.approx(mean, rel=0.01))
        assert _core_flops(op, 4096) == pytest.approx(2 * 64 * 1024 * mean + 2 * 64 * 128 * 2048 / 4 * (op is sparse), rel=0.01)


def test_deepseek_v4s_own_config_is_the_packaged_model() -> None:
    """It names a number of tokens per layer and entry, one more for the layer of MTP."""
    packaged = load_whole(CSA[0])
    config = {
        "model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "o_lora_rank": 1024,
        "o_groups": 8, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "max_position_embeddings": CONTEXT,
        "compress_ratios": [0, 0, *(4, 128) * 20, 4, 0], "sliding_window": 128, "hc_mult": 4, "index_head_dim": 128, "index_n_heads": 64,
        "index_topk": 512, "num_nextn_predict_layers": 1, "expert_dtype": "fp4",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    found = whole_from_config(config, packaged.name, "f")
    assert found.layer is not None
    assert found.layer.checkpoint == "mxfp4-fp8"
    assert replace(found, source=packaged.source, repository=packaged.repository, layer=packaged.layer) == packaged
    for key in ("hc_mult", "o_groups", "index_topk", "sliding_window", "head_dim"):
        with pytest.raises(ConfigError, match=f"{key}: missing"):
            whole_from_config({name: value for name, value in config.items() if name != key}, "m", "f")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"stack": ""}, "stack: missing"), ({"stack": "*E " * 42 + "*E"}, "expected * not in it"),
        ({"attention": {"kind": "csa", "heads": 64}}, "head_dim: missing, expected it for kind 'csa'"),
        ({"attention": {"out_groups": 7}}, "out_groups: found 7, expected a divisor of heads = 64"),
        ({"attention": {"kv_rank": 512}}, "kv_rank: found 512, expected no such key for kind 'csa'"),
    ],
)  # fmt: skip
def test_compressed_attention_that_contradicts_itself_is_refused(changed: dict[str, Any], text: str) -> None:
    model = load_whole(CSA[0])

    def change() -> None:
        own = changed.get("attention", {})
        attention = Attention(**own) if "kind" in own else replace(model.attention, **own)
        replace(model, **(changed | {"attention": attention}))

    with pytest.raises(ConfigError) as error:
        change()
    assert text in str(error.value)


def test_stages_send_all_streams() -> None:
    """A pipeline's rows are four times as wide as those of the same model with one stream."""
    machine, layout = machine_of(load_cluster("hw-dgx-b200-x8"), "training"), layout_of("pp=4,dp=8,ep=8,m=8")
    busy = [step_costs(replace(load_whole(CSA[0]), streams=n), machine, layout, 4096, None).times.send for n in (4, 1)]
    assert busy[0] == pytest.approx(4 * busy[1], rel=1e-6)
    assert busy[1] > 0
