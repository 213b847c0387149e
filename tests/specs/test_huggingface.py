"""`config.json` of real families, with the field values their authors publish."""

import json
from pathlib import Path
from typing import Any

import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs import narrow_bytes
from dysharp.specs import Model, load_model
from dysharp.specs.hf_whole import _checkpoint_of, lines_on, whole_from_config

QWEN2_MOE = {  # Qwen1.5-MoE-A2.7B
    "model_type": "qwen2_moe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "torch_dtype": "bfloat16",
}
QWEN3_MOE = {  # Qwen3-235B-A22B
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "torch_dtype": "bfloat16",
}
PHI_35_MOE = {
    "model_type": "phimoe",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}
OLMOE = {
    "model_type": "olmoe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_hidden_layers": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "torch_dtype": "bfloat16",
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "quantization_config": {"quant_method": "mxfp4"},
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}


def load(tmp_path: Path, config: dict[str, Any]) -> Model:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return load_model(path)


def error(tmp_path: Path, config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, config)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "config.json"))
    return text


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (QWEN2_MOE, (2048, 1408, 60, 4, 24, "bf16")),
        (QWEN3_MOE, (4096, 1536, 128, 8, 94, "bf16")),
        (PHI_35_MOE, (4096, 6400, 16, 2, 32, "bf16")),
        (OLMOE, (2048, 1024, 64, 8, 16, "bf16")),
        (DEEPSEEK_V3, (7168, 2048, 256, 8, 58, "fp8")),
        (DEEPSEEK_V2_LITE, (2048, 1408, 64, 6, 26, "bf16")),
        (GPT_OSS_20B, (2880, 2880, 32, 4, 24, "bf16")),
        (MIXTRAL, (4096, 14336, 8, 2, 32, "bf16")),
    ],
    ids=lambda c: c["model_type"] if isinstance(c, dict) else "",
)
def test_families(tmp_path: Path, config: dict[str, Any], shape: tuple[Any, ...]) -> None:
    m = load(tmp_path, config)
    assert (m.hidden, m.expert_hidden, m.n_experts, m.topk, m.n_layers, m.gemm_dtype) == shape
    assert (m.n_matrices, m.element_bytes, m.tokens_per_gpu, m.routing) == (3, 2, 1024, "lognormal:0.65")
    assert (m.n_group, m.topk_group) == ((8, 4) if config is DEEPSEEK_V3 else (1, 1))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DEEPSEEK_V3, "deepseek-v3"),
        (DEEPSEEK_V2_LITE, "deepseek-v2-lite"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (QWEN3_MOE, "qwen3-235b"),
        (MIXTRAL, "mixtral-8x7b"),
    ],
    ids=lambda c: "" if isinstance(c, dict) else c,
)
def test_packaged_models_agree_with_their_configs(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    ours, theirs = load_model(name), load(tmp_path, config)
    skip = ("name", "routing", "source", "checkpoint")
    for field in (f for f in Model.__dataclass_fields__ if f not in skip):
        assert getattr(ours, field) == getattr(theirs, field), field


def test_a_folder_and_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "My Model (v2)"
    folder.mkdir()
    load(folder, MIXTRAL)
    assert load_model(str(folder)).name == "My-Model--v2-"


@pytest.mark.parametrize(
    ("change", "n_layers"),
    [
        ({"decoder_sparse_step": 2}, 12),
        ({"mlp_only_layers": [0, 1, 99]}, 22),
        ({"moe_layer_freq": [0] + [1] * 23}, 23),
        ({"first_k_dense_replace": 2, "moe_layer_freq": 2}, 11),
    ],
)
def test_layers_that_are_not_moe(tmp_path: Path, change: dict[str, Any], n_layers: int) -> None:
    assert load(tmp_path, {**QWEN2_MOE, **change}).n_layers == n_layers


def test_details(tmp_path: Path) -> None:
    assert load(tmp_path, {"vision_config": {}, "text_config": QWEN3_MOE}).n_experts == 128
    assert load(tmp_path, {**MIXTRAL, "n_group": None}).n_group == 1
    assert load(tmp_path, {**MIXTRAL, "torch_dtype": "torch.float32"}).element_bytes == 4
    assert load(tmp_path, {**MIXTRAL, "hidden_act": "relu2"}).n_matrices == 2
    greedy = {**DEEPSEEK_V3, "topk_method": "greedy"}
    assert load(tmp_path, greedy).n_group == 1
    for group, held in ((32, 0.5 + 2 / 32), (64, 0.5 + 2 / 64), (128, 0.5 + 2 / 128), (-1, 0.5)):  # a scale of two bytes per group
        gptq = {"quant_method": "gptq", "bits": 4, "group_size": group}
        for sym, more in ((True, 0), (False, 0.5 / max(group, 4096) if group < 0 else 0.5 / group)):  # and a zero point of four bits
            found = narrow_bytes(load(tmp_path, {**QWEN3_MOE, "quantization_config": {**gptq, "sym": sym}}))
            assert found == pytest.approx(held + more, abs=2e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": "4096"}, "hidden_size: found '4096', expected an integer from 1 to 1048576"),
        ({"hidden_size": 2**20 + 1}, "hidden_size: found 1048577, expected an integer from 1"),
        ({"hidden_size": 4096.0}, "hidden_size: found 4096.0"),
        ({"num_experts_per_tok": 9}, "topk: found 9, expected at most n_experts = 8"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok: found True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: found 1000000000"),
        ({"first_k_dense_replace": 32}, "n_layers: found 0"),
        ({"moe_layer_freq": ["x"]}, "moe_layer_freq: found ['x'], expected an integer or a list of 0 and 1"),
        ({"mlp_only_layers": 3}, "mlp_only_layers: found 3, expected a list of layer numbers"),
        ({"torch_dtype": "int3"}, "torch_dtype: found 'int3', expected one of bfloat16"),
        ({"quantization_config": "fp8"}, "quantization_config: found 'fp8', expected an object"),
        ({"n_group": 3, "topk_group": 1}, "n_group: found 3, expected a divisor of n_experts = 8"),
    ],
)
def test_bad_fields(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in error(tmp_path, {**MIXTRAL, **change})


def test_a_bad_field_of_a_model_with_experts_does_not_make_it_dense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {**QWEN3_MOE, "num_experts_per_tok": "x"})
    assert "num_experts_per_tok" in str(caught.value)
    assert "no field speaks of experts" not in str(caught.value)


def test_a_dense_model_says_what_is_missing(tmp_path: Path) -> None:
    text = error(tmp_path, {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32})
    assert "n_routed_experts: missing (also looked for num_experts, num_local_experts" in text
    assert "num_experts_per_tok: missing" in text


GROUPS = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}}
OF_COLUMNS = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel", "group_size": None}}}
GROUPS_OF_128 = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}
UNEVEN = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}}}


@pytest.mark.parametrize(
    ("quant", "latent", "precision"),
    [
        (None, True, ""),
        ({"quant_method": "mxfp4"}, False, "mxfp4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True, "fp8"),
        ({"quant_method": "fp8"}, False, "fp8-tensor"),
        ({"quant_method": "awq", "bits": 4}, False, "int4-all,weights=int4-128-zeros"),  # 128, and zero_point, by default in Transformers
        ({"quant_method": "auto-round", "bits": 4}, False, "int4-all,weights=int4-128"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, False, "int4-all,weights=int4-128"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, False, "int4-all,weights=int4-32-zeros"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, False, "int4-all,weights=int4-column"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False}, False, "int4-all,weights=int4-64-zeros"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, False, "int4-all,weights=int4-64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, False, "int4-all"),
        ({"quant_method": "gptq", "bits": 4, "group_size": []}, False, "int4-all"),
        ({"quant_method": "gptq", "bits": 8}, False, ""),
        ({"quant_method": "fbgemm_fp8"}, False, "fp8-tensor"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, True, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, False, "fp4-all"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, False, "fp8-tensor"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, False, "fp8-tensor,kv=fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, True, "fp4,kv=fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 4}}, True, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, True, "bf16,kv=fp8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "kv_cache_quant_algo": "FP8"}, True, ""),
        ({"quant_method": "bitsandbytes", "kv_cache_quant_algo": "FP8"}, True, ""),
        ({"quant_method": "compressed-tensors", "config_groups": GROUPS_OF_128, "ignore": ["self_attn"]}, True, "int4-experts,experts=int4-128"),
        ({"quant_method": "compressed-tensors", "config_groups": OF_COLUMNS}, False, "int4-all,weights=int4-column"),
        ({"quant_method": "compressed-tensors", "config_groups": UNEVEN, "ignore": ["lm_head"]}, True, "int4-all,weights=int4-128-zeros"),
        ({"quant_method": "compressed-tensors", "config_groups": GROUPS, "ignore": ["re:.*self_attn.*", "lm_head"]}, True, "int4-experts"),
        ({"quant_method": "compressed-tensors", "config_groups": GROUPS, "ignore": ["lm_head"]}, True, "int4-all"),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, True, "bf16,kv=fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}}, True, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, True, "bf16"),
        ("awq", True, ""),
    ],
)
def test_a_config_says_in_which_precision_it_is_published(quant: Any, latent: bool, precision: str) -> None:
    assert _checkpoint_of({"quantization_config": quant}, moe=True, latent=latent) == precision


def test_experts_that_do_nothing_are_refused(tmp_path: Path) -> None:
    """LongCat: a third of a token's choices may go to them, so that top-12 over 512 experts is too many rows."""
    assert "zero_expert_num: found 256, experts that do nothing, expected none" in error(tmp_path, {**MIXTRAL, "zero_expert_num": 256})


def test_a_dense_model_has_no_layer(tmp_path: Path) -> None:
    said = "of a dense model there is no MoE layer; `dysharp step`, `plan` and `serve` take it whole"
    assert said in error(tmp_path, {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32})
    with pytest.raises(ConfigError, match=r"llama3-8b.*of a dense model there is no MoE layer"):
        load_model("llama3-8b")


FP8_GROUPS = {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}}


def test_a_quantization_that_is_not_known_is_said() -> None:
    """Its weights count as BF16, four times their size."""
    base = {**MIXTRAL, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    whole, known, none = ({**base, "quantization_config": quant} for quant in ({"quant_method": "bitsandbytes"}, {"quant_method": "fp8"}, None))
    said = "m: Hugging Face config.json; weights count as BF16: its quantization 'bitsandbytes' is not known, and --precision names another."
    assert lines_on(whole_from_config(whole, "m", "x")) == (said,)
    assert all(lines_on(whole_from_config(one, "m", "x")) == ("m: Hugging Face config.json.",) for one in (known, none))


@pytest.mark.parametrize(
    ("quant", "products"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": FP8_GROUPS}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "bf16"),
        ({"quant_method": "awq", "bits": 4}, "bf16"),
    ],
)
def test_a_layer_multiplies_as_the_checkpoint_of_any_tool_says(tmp_path: Path, quant: dict[str, Any], products: str) -> None:
    layer = load(tmp_path, {**MIXTRAL, "quantization_config": quant})
    assert layer.gemm_dtype == products
    assert (layer.checkpoint == layer.gemm_dtype) == (products == "fp8")
