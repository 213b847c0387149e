"""Whole models from `config.json`: the parameters that transformers 5.23 builds from the same fields, and one line for every bad field.

`tests/training/test_transformers.py` reads the configs of the packaged models and compares all fields.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.model.weights import parameters_of
from dysharp.specs import WholeModel, load_whole
from dysharp.specs.hf_whole import lines_on, whole_from_config

TABLE = json.loads(Path(__file__).with_name("architectures.json").read_text())
SMALL = TABLE["common"]
BUILT: dict[str, tuple[dict[str, Any], int]] = {family: (fields, n) for family, (fields, n) in TABLE["cases"].items()}
"""family: (its fields beside SMALL, parameters of the model that transformers builds); `bench/architectures.py --build` makes the file."""
WIDE, MLA, QWEN, NEXT = {"head_dim": 48}, BUILT["youtu"][0], BUILT["qwen3_moe"][0], BUILT["qwen3_next"][0]


def read(**fields: Any) -> WholeModel:
    return whole_from_config({**SMALL, **fields}, "m", "f")


@pytest.mark.parametrize("family", BUILT)
def test_parameters_are_those_that_transformers_builds(family: str) -> None:
    fields, parameters = BUILT[family]
    assert parameters_of(read(model_type=family, **fields)).total == parameters


@pytest.mark.parametrize("family", [name for name, (fields, _) in BUILT.items() if "moe_intermediate_size" in fields])
def test_the_dense_width_is_no_width_of_experts(family: str) -> None:
    for width in (None, 0):
        with pytest.raises(ConfigError, match=r"moe_intermediate_size: (missing|found 0)"):
            read(model_type=family, **(BUILT[family][0] | {"moe_intermediate_size": width}))


COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


@pytest.mark.parametrize("family", [name for name, (fields, _) in BUILT.items() if {*COUNTS} & {*fields}])
def test_a_model_of_experts_without_their_number_is_no_dense_model(family: str) -> None:
    fields = BUILT[family][0]
    (name,) = {*COUNTS} & {*fields}
    others = {key: value for key, value in fields.items() if key != name}
    for wrong in ({}, {f"{name[:-1]}z": 8}, {name: ""}):
        with pytest.raises(ConfigError, match=rf"n_routed_experts: missing|{name}: found ''"):
            read(model_type=family, **others, **wrong)


@pytest.mark.parametrize("family", [name for name, (fields, _) in BUILT.items() if "kv_lora_rank" in fields])
def test_latent_attention_without_its_rank_is_no_plain_attention(family: str) -> None:
    for rank in ("", None):
        with pytest.raises(ConfigError, match=r"kv_lora_rank: (found ''|missing)"):
            read(model_type=family, **(BUILT[family][0] | {"kv_lora_rank": rank}))


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILT)
def test_the_counts_are_those_of_transformers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fields, parameters = BUILT[family]
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **fields})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for n, p in model.named_parameters() if "e_score_correction_bias" not in n) == parameters
    assert parameters_of(whole_from_config(config.to_dict(), "m", "f")).total == parameters


LIKE = {"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "qwen2_5_vl_text": "qwen2", "glm4v_moe_text": "glm4_moe"}


@pytest.mark.parametrize(("family", "like"), LIKE.items())
def test_beside_an_encoder_of_images_a_family_counts_as_without(family: str, like: str) -> None:
    """As transformers 5.23 builds them. What the whole config says of weights and of embedding and head holds for the language model."""
    fields = {**BUILT[like][0], "use_qk_norm": False}
    text = {**SMALL, **fields, "model_type": family, "tie_word_embeddings": True}
    whole = {"vision_config": {}, "text_config": text, "tie_word_embeddings": False, "quantization_config": {"quant_method": "awq", "bits": 4}}
    found = whole_from_config(whole, "m", "f")
    assert (parameters_of(found).total, found.checkpoint) == (parameters_of(read(model_type=like, **fields)).total, "int4-all,weights=int4-128-zeros")


def test_a_list_of_equal_counts_is_one_count() -> None:
    """Hunyuan-A13B's config has one for each layer."""
    fields, parameters = BUILT["hunyuan_v1_moe"]
    listed = {**fields, "moe_topk": [2] * 4, "moe_intermediate_size": [320] * 4, "num_shared_expert": [1] * 4}
    assert parameters_of(read(model_type="hunyuan_v1_moe", **listed)).total == parameters
    with pytest.raises(ConfigError, match=r"moe_topk: found \[1, 2\], expected an integer"):
        read(model_type="hunyuan_v1_moe", **{**fields, "moe_topk": [1, 2]})
    for name, few in (("moe_layer_freq", [0, 1]), ("mlp_layer_types", ["dense", "sparse"])):
        with pytest.raises(ConfigError, match=f"{name}: found 2 layers, expected 4"):
            read(model_type="deepseek_v3", **{**BUILT["deepseek_v3"][0], name: few})


def test_a_file_or_its_folder_is_read(tmp_path: Path) -> None:
    fields, parameters = BUILT["deepseek_v3"]
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {}, "text_config": {**SMALL, **fields, "num_nextn_predict_layers": 3}}))
    found = load_whole(tmp_path)
    assert found == load_whole(str(tmp_path / "config.json"))
    assert (found.name, found.n_layers, found.dense_layers, found.mtp, found.shared_hidden) == (tmp_path.name, 4, 2, 3, 112)
    assert found.layer is not None
    assert (found.layer.n_layers, found.layer.n_group, found.layer.topk_group) == (2, 4, 2)
    assert parameters_of(found).total == parameters


def test_fields_that_no_parameter_shows() -> None:
    assert read(**WIDE).source.endswith("; a config without model_type is taken as Llama is")
    assert "Llama" not in read(model_type="llama").source
    assert (read().attention.head_dim, read(tie_word_embeddings=True).tied, read(tie_word_embeddings=1).tied) == (32, True, False)
    assert (read(sandwich_norm=True).norms_per_layer, read().norms_per_layer) == (4, 2)
    assert (read(mlp_bias=True).dense_bias, read(lm_head_bias=True).head_bias, read(mtp_num_hidden_layers=2).mtp) == (True, True, 2)
    fields = BUILT["gpt_oss"][0]
    oss = read(model_type="gpt_oss", sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 2, **fields)
    assert (oss.attention.window, oss.attention.window_every, oss.attention.sinks, oss.router_bias, oss.expert_bias) == (128, 2, True, True, True)
    assert (read(model_type="qwen2", qkv_bias=False).attention.qkv_bias, read(attn_output_gate=True).attention.gated) == (False, True)
    assert read(attention_bias=True).attention.out_bias


def test_answers_about_a_config_say_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, **QWEN}))
    said = f"{tmp_path.name}: {load_whole(path).source}."
    assert said.endswith("a config without model_type is taken as Llama is.")
    assert said in dysharp.step(str(path), "hw-dgx-h100", "ep=2,mbs=1,m=2", systems=["deepep"], sequence=256).header
    planned = dysharp.plan(str(path), 8, "hw-dgx-h100", sequence=256, batch=8)
    assert said in planned.header
    assert str(planned).startswith(f"{tmp_path.name}: tp=")
    assert said in dysharp.serve(str(path), "hw-dgx-h200", gpus=2).header
    assert lines_on(load_whole("mixtral-8x7b")) == ()


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"sliding_window": 64}, (64, 1)),
        ({"sliding_window": 64, "use_sliding_window": False}, (0, 1)),
        ({"sliding_window": 64, "max_position_embeddings": 64}, (0, 1)),
        ({"sliding_window": 64, "max_position_embeddings": 65}, (64, 1)),
        ({"sliding_window": 64, "layer_types": ["full_attention"] * 4}, (0, 1)),
        ({"sliding_window": 64, "layer_types": ["sliding_attention"] + ["full_attention"] * 3}, (64, 4)),
        ({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]}, (64, 3)),
        ({"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, (0, 1)),
    ],
)
def test_windows(fields: dict[str, Any], window: tuple[int, int]) -> None:
    assert (read(**fields).attention.window, read(**fields).attention.window_every) == window


def test_fields_of_dbrx() -> None:
    """Its config names fields in its own way and nests those of experts and heads (databricks/dbrx-base)."""
    experts = {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
    whole = whole_from_config(
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "ffn_config": experts,
         "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}}, "dbrx", "f",
    )  # fmt: skip
    attention, layer = 2 * 6144 * (6144 + 1024), 16 * (3 * 6144 * 10752 + 6144)
    assert parameters_of(whole).total == 40 * (attention + layer + 2 * 6144) + 2 * 6144 * 100352 + 6144  # 132 B, as published
    assert whole.layer is not None
    assert whole.layer.topk == 4


def test_a_missing_field_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"num_hidden_layers: missing \(also looked for n_layer, n_layers, num_layers\) \| a model whose.*TOML"):
        read(num_hidden_layers=None)


def test_full_attention_between_linear_layers() -> None:
    kinds = ["linear_attention", "full_attention"] * 2
    assert read(model_type="qwen3_next", **NEXT).full_every == 4
    assert read(model_type="qwen3_next", **NEXT, layer_types=kinds).full_every == 2
    assert read(model_type="qwen3_next", **NEXT, full_attention_interval=3).full_every == 3


BAD = {
    "vocab_size: missing": {"vocab_size": None},
    "num_attention_heads: found 0, expected an integer from 1 to 4096": {"num_attention_heads": 0},
    "num_hidden_layers: found 4097": {"num_hidden_layers": 4097},
    "f: attention: kv_heads: found 4, expected a divisor of heads = 6": {"num_key_value_heads": 4},
    "qk_rope_head_dim: missing": {**MLA, "qk_rope_head_dim": None},
    "layer_types: found 'conv', expected one of full_attention, ": {"sliding_window": 8, "layer_types": ["conv", "sliding_attention"] * 2},
    "layer_types: found ['a'], expected a list of 4 kinds": {"sliding_window": 8, "layer_types": ["a"]},
    "f: model_type: found 'jamba' (Mamba-1), expected a family of dysharp/specs/data/families.toml |": {"model_type": "jamba"},
    "f: model_type: found 'whisper' (encoder and decoder), expected a family": {"model_type": "whisper"},
    "f: model_type: found 'qwen3_moo', expected a family of dysharp/specs/data/families.toml; did you mean": {"model_type": "qwen3_moo"},
    "layer_types: missing": {"model_type": "cwm"},
    "hybrid_override_pattern: found 'X', expected a pattern of M, E, * and -": {"model_type": "nemotron_h", "hybrid_override_pattern": "MX*"},
    "hybrid_override_pattern: found 40, expected a pattern of M, E, * and -": {"model_type": "nemotron_h", "hybrid_override_pattern": 40},
    "mamba_proj_bias: found True, expected none: no operator of it": {**BUILT["bamba"][0], "model_type": "bamba", "mamba_proj_bias": True},
    "attention_bias: found True, expected none beside kv_lora_rank": {**MLA, "model_type": "youtu", "attention_bias": True},
    "moe_intermediate_size: missing": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_field_gets_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**BAD[text])
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_whose_experts_stand_outside_is_read_outside() -> None:
    """`text_config` counts where the config itself names no experts."""
    inner = {**SMALL, **BUILT["qwen3_moe"][0], "model_type": "qwen3_moe", "hidden_size": 96}
    outer = {**SMALL, **BUILT["qwen3_moe"][0], "model_type": "qwen3_moe"}
    assert whole_from_config({**outer, "text_config": inner}, "m", "f").hidden == SMALL["hidden_size"]
    assert whole_from_config({"text_config": inner}, "m", "f").hidden == 96
