"""Every packaged model that transformers has: parameters agree to the last one, and its config is read as the packaged model."""

from typing import Any

import pytest

from dysharp.model.weights import parameters_of
from dysharp.specs import list_whole_models, load_whole
from dysharp.specs.hf_whole import whole_from_config
from dysharp.specs.whole import WholeModel

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")


def _common(m: WholeModel) -> dict[str, Any]:
    a = m.attention
    return {"hidden_size": m.hidden, "num_hidden_layers": m.n_layers, "vocab_size": m.vocab, "num_attention_heads": a.heads,
            "tie_word_embeddings": m.tied}  # fmt: skip


def _grouped(m: WholeModel) -> dict[str, Any]:
    return {**_common(m), "num_key_value_heads": m.attention.kv_heads, "head_dim": m.attention.head_dim}


def _deepseek(m: WholeModel) -> dict[str, Any]:
    a, layer = m.attention, m.layer
    assert layer is not None
    return {
        **_common(m), "num_key_value_heads": a.heads, "q_lora_rank": a.q_rank or None, "kv_lora_rank": a.kv_rank, "qk_nope_head_dim": a.nope_dim,
        "qk_rope_head_dim": a.rope_dim, "v_head_dim": a.v_dim, "intermediate_size": m.dense_hidden, "first_k_dense_replace": m.dense_layers,
        "moe_intermediate_size": layer.expert_hidden, "n_routed_experts": layer.n_experts, "num_experts_per_tok": layer.topk,
        "n_shared_experts": m.shared_hidden // layer.expert_hidden, "n_group": 1, "topk_group": 1,
    }  # fmt: skip


def _glm(m: WholeModel) -> dict[str, Any]:
    """With the scales by channel of the FP8 checkpoint."""
    a, weights = m.attention, {"num_bits": 8, "type": "float", "strategy": "channel"}
    quant = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    own = {"num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "attention_bias": a.qkv_bias, "use_qk_norm": a.qk_norm}
    return {**_deepseek(m), **own, "quantization_config": quant}


def _qwen_moe(m: WholeModel) -> dict[str, Any]:
    layer = m.layer
    assert layer is not None
    return {**_grouped(m), "moe_intermediate_size": layer.expert_hidden, "num_experts": layer.n_experts, "num_experts_per_tok": layer.topk,
            "shared_expert_intermediate_size": m.shared_hidden, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip


def _qwen_next(m: WholeModel) -> dict[str, Any]:
    a = m.linear
    assert a is not None
    heads = {"linear_num_key_heads": a.key_heads, "linear_num_value_heads": a.value_heads, "linear_conv_kernel_dim": a.convolution}
    kinds = ["linear_attention" if m.is_linear(n) else "full_attention" for n in range(m.n_layers)]
    return {**_qwen_moe(m), **heads, "linear_key_head_dim": a.key_dim, "linear_value_head_dim": a.value_dim, "layer_types": kinds}


def _mixtral(m: WholeModel) -> dict[str, Any]:
    layer = m.layer
    assert layer is not None
    return {**_grouped(m), "intermediate_size": layer.expert_hidden, "num_local_experts": layer.n_experts, "num_experts_per_tok": layer.topk}


def _phi(m: WholeModel) -> dict[str, Any]:
    return {**_mixtral(m), "attention_bias": m.attention.qkv_bias, "lm_head_bias": m.head_bias}


def _gpt_oss(m: WholeModel) -> dict[str, Any]:
    """With the format of the weights, which the checkpoint's config.json names and transformers' class does not."""
    return {**_mixtral(m), "quantization_config": {"quant_method": m.checkpoint}}


def _dense(m: WholeModel) -> dict[str, Any]:
    return {**_grouped(m), "intermediate_size": m.dense_hidden}


def _nemotron(m: WholeModel) -> dict[str, Any]:
    layer, a = m.layer, m.linear
    assert layer is not None
    assert a is not None
    fields = {**_grouped(m), "hybrid_override_pattern": m.stack.replace(" ", ""), "mamba_num_heads": a.value_heads, "mamba_head_dim": a.value_dim}
    fields |= {"ssm_state_size": a.key_dim, "n_groups": a.key_heads, "conv_kernel": a.convolution, "moe_intermediate_size": layer.expert_hidden}
    fields |= {"n_routed_experts": layer.n_experts, "num_experts_per_tok": layer.topk, "moe_shared_expert_intermediate_size": m.shared_hidden}
    return {**fields, "moe_latent_size": layer.hidden if m.latent_experts else None}


def _kimi(m: WholeModel) -> dict[str, Any]:
    a = m.linear
    assert a is not None
    kinds = ["linear_attention" if m.is_linear(n) else "full_attention" for n in range(m.n_layers)]
    heads = {"linear_num_heads": a.value_heads, "linear_head_dim": a.value_dim, "linear_conv_kernel_dim": a.convolution}
    return {**_deepseek(m), **heads, "first_k_dense_replace": 1, "layer_types": kinds}


def _gpt2(m: WholeModel) -> dict[str, Any]:
    return {"n_embd": m.hidden, "n_layer": m.n_layers, "n_head": m.attention.heads, "vocab_size": m.vocab, "n_positions": m.positions}


def _csa(m: WholeModel) -> dict[str, Any]:
    a, layer = m.attention, m.layer
    assert layer is not None
    kinds = {"w": "sliding_attention", "c": "compressed_sparse_attention", "h": "heavily_compressed_attention"}
    return {
        **_common(m), "head_dim": a.head_dim, "num_key_value_heads": 1, "q_lora_rank": a.q_rank, "qk_rope_head_dim": a.rope_dim,
        "o_groups": a.out_groups, "o_lora_rank": a.out_rank, "sliding_window": a.window, "index_n_heads": a.index_heads,
        "index_head_dim": a.index_dim, "index_topk": a.index_top, "hc_mult": m.streams, "moe_intermediate_size": layer.expert_hidden,
        "n_routed_experts": layer.n_experts, "n_shared_experts": 1, "num_experts_per_tok": layer.topk,
        "max_position_embeddings": m.context, "layer_types": [kinds[word[0]] for word in m.stack.split()], "num_nextn_predict_layers": m.mtp,
        "expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip


FAMILIES = {
    "deepseek-v3": ("deepseek_v3", _deepseek), "kimi-k2": ("deepseek_v3", _deepseek), "moonlight-16b": ("deepseek_v3", _deepseek),
    "deepseek-v2": ("deepseek_v2", _deepseek), "deepseek-v2-lite": ("deepseek_v2", _deepseek),
    "qwen3-30b": ("qwen3_moe", _qwen_moe), "qwen3-235b": ("qwen3_moe", _qwen_moe), "qwen2-moe": ("qwen2_moe", _qwen_moe),
    "qwen3-next-80b": ("qwen3_next", _qwen_next), "qwen3.5-397b": ("qwen3_5_moe_text", _qwen_next),
    "glm-5": ("glm_moe_dsa", _deepseek), "deepseek-v3.2": ("deepseek_v32", _deepseek), "minimax-m2.5": ("minimax_m2", _mixtral),
    "deepseek-v4-flash": ("deepseek_v4", _csa), "deepseek-v4-pro": ("deepseek_v4", _csa),
    "glm-4.5": ("glm4_moe", _glm), "glm-4.5-air": ("glm4_moe", _glm), "qwen3-coder-480b": ("qwen3_moe", _qwen_moe),
    "qwen3-8b": ("qwen3", _dense), "qwen3-14b": ("qwen3", _dense), "qwen3-32b": ("qwen3", _dense),
    "gpt-oss-20b": ("gpt_oss", _gpt_oss), "gpt-oss-120b": ("gpt_oss", _gpt_oss), "mixtral-8x7b": ("mixtral", _mixtral),
    "mixtral-8x22b": ("mixtral", _mixtral), "phi-3.5-moe": ("phimoe", _phi),
    **{name: ("llama", _dense) for name in list_whole_models() if name.startswith("llama")},
    "qwen2.5-7b": ("qwen2", _dense), "qwen2.5-32b": ("qwen2", _dense), "qwen2.5-72b": ("qwen2", _dense),
    **{f"nemotron-3-{size}": ("nemotron_h", _nemotron) for size in ("nano", "super", "ultra")}, "kimi-linear-48b": ("kimi_linear", _kimi),
    **{f"nemotron-{size}": ("nemotron", _dense) for size in ("8b", "22b", "340b")},
    **{name: ("gpt2", _gpt2) for name in list_whole_models() if name.startswith("gpt3")},
}  # fmt: skip
WITHOUT = {"pangu-ultra-moe", "pangu-pro-moe"}
"""Models of which transformers has no code."""


def test_every_packaged_model_is_checked_or_named() -> None:
    assert set(FAMILIES) | WITHOUT == set(list_whole_models())


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_agree_to_the_last_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kind, arguments = FAMILIES[name]
    model = load_whole(name)
    config = transformers.AutoConfig.for_model(kind, **arguments(model))
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    found = sum(p.numel() for key, p in built.named_parameters() if "e_score_correction_bias" not in key)
    assert found == parameters_of(model).total
    experts = sum(p.numel() for key, p in built.named_parameters() if ".experts." in key)
    assert experts == parameters_of(model).parts["routed experts"]


NOT_IN_CONFIGS = ("name", "source", "layer", "mtp", "context", "repository")
"""transformers builds no layers of MTP, has a default context and knows no name on the hub; routing and tokens of a layer are assumed."""


@pytest.mark.parametrize("name", [name for name, (kind, _) in FAMILIES.items() if kind != "gpt2"])
def test_a_config_is_read_as_the_packaged_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kind, arguments = FAMILIES[name]
    model = load_whole(name)
    found = whole_from_config(transformers.AutoConfig.for_model(kind, **arguments(model)).to_dict(), name, "f")
    for field in (f for f in WholeModel.__dataclass_fields__ if f not in NOT_IN_CONFIGS):
        assert getattr(found, field) == getattr(model, field), field
    assert (found.layer is None) == (model.layer is None)
    if found.layer and model.layer:
        for key in ("hidden", "expert_hidden", "n_experts", "topk", "n_layers", "n_matrices"):
            assert getattr(found.layer, key) == getattr(model.layer, key), key
