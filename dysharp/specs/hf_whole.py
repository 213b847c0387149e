"""Hugging Face `config.json` to `WholeModel`: a model of experts or a dense one, from its embedding to its head.

A config names widths and counts. What its modelling code adds without a field (norms of queries, biases, gates) follows the family,
`model_type`, as in transformers 5.23. A family that is not listed is taken as Llama is: RMSNorm, no biases; `source` says so.
An encoder of images or sound beside the language model is left out.
"""

from collections.abc import Mapping
from typing import Any

from dysharp.base.errors import ConfigError, show
from dysharp.specs import hf
from dysharp.specs.hf import Alias, integer, model_from_config, n_matrices, raise_faults, speaks_of_experts, text_part
from dysharp.specs.whole import Attention, LinearAttention, WholeModel

WIDTH, COUNT = 1 << 20, 1 << 12
INTERVAL = 4  # layers from one with full attention to the next, where a family with linear attention does not say (transformers)


def _wide(*names: str, default: int | None = None) -> Alias:
    return Alias(names, 0 if default == 0 else 1, WIDTH, default)


HEADS = Alias(("num_attention_heads", "n_head", "n_heads"), 1, COUNT)
KV_HEADS = Alias(("num_key_value_heads", "kv_n_heads"), 1, COUNT, default=0)
SHARED_EXPERTS = Alias(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 0, COUNT, default=0)
CONTEXT = Alias(("max_position_embeddings",), 0, 1 << 24, default=0)
MTP = Alias(("num_nextn_predict_layers", "mtp_num_hidden_layers"), 0, COUNT, default=0)
MLA = {
    "q_rank": _wide("q_lora_rank", default=0), "kv_rank": _wide("kv_lora_rank"), "nope_dim": _wide("qk_nope_head_dim"),
    "rope_dim": _wide("qk_rope_head_dim"), "v_dim": _wide("v_head_dim"), "index_heads": Alias(("index_n_heads",), 0, COUNT, default=0),
    "index_dim": _wide("index_head_dim", default=0), "index_top": _wide("index_topk", default=0),
}  # fmt: skip
LINEAR = {
    "key_heads": Alias(("linear_num_key_heads",), 1, COUNT), "value_heads": Alias(("linear_num_value_heads",), 1, COUNT),
    "key_dim": _wide("linear_key_head_dim"), "value_dim": _wide("linear_value_head_dim"), "convolution": _wide("linear_conv_kernel_dim", default=4),
}  # fmt: skip

PLAIN = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5_moe", "glm_moe_dsa", "kimi_k2", "llama", "mistral", "mixtral")
HEAD_NORMS = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_text")
JOINT_NORMS = ("olmoe", "minimax_m2")
QKV_BIAS = ("qwen2", "qwen2_moe")
ONLY_QKV = ("glm4_moe",)  # `attention_bias` leaves the output's matrix without
LAYER_NORM = ("phimoe", "nemotron")
BIASED_EXPERTS = ("gpt_oss",)  # with a biased router and a sink of every head
LLAMA4 = "llama4_text"  # one shared expert of the routed experts' width, without a field; its norms of queries have no vectors
FAMILIES = {*PLAIN, LLAMA4, *HEAD_NORMS, *JOINT_NORMS, *QKV_BIAS, *ONLY_QKV, *LAYER_NORM, *BIASED_EXPERTS}


def whole_from_config(config: Mapping[str, Any], name: str, where: str) -> WholeModel:
    """The model that a parsed `config.json` describes. `where` names the file in errors.

    Raises `ConfigError` that lists every field that is missing, of the wrong type, out of range, or beyond what `WholeModel` describes.
    """
    config = text_part(config)
    layer = model_from_config(config, name, where) if speaks_of_experts(config) else None
    faults: list[str] = []
    with_experts = hf.layers_with_experts(config, faults) if layer else [False] * integer(config, hf.LAYERS["layers"], faults)
    dense, family = with_experts.count(False), str(config.get("model_type"))
    if with_experts != sorted(with_experts):
        found = f"found a dense layer behind layer {with_experts.index(True)}, which has experts; expected the dense layers first"
        faults.append(f"layers: {found} (only `run`, `compare` and `advise`, which simulate one MoE layer, take interleaved layers)")
    hidden = integer(config, hf.ALIASES["hidden"], faults)
    linear = _linear(config, faults)
    values: dict[str, Any] = {
        "vocab": integer(config, Alias(("vocab_size",), 1, 1 << 24), faults),
        "dense_layers": dense,
        "dense_hidden": integer(config, _wide("intermediate_size_mlp", "intermediate_size"), faults) if dense else 0,
        "dense_matrices": n_matrices(config),
        "shared_hidden": (layer.expert_hidden if family == LLAMA4 else _shared_hidden(config, faults)) if layer else 0,
        "shared_gate": bool(layer and config.get("shared_expert_intermediate_size")),
        "mtp": integer(config, MTP, faults),
        "context": integer(config, CONTEXT, faults),
        "linear": linear,
        "full_every": _full_every(config, len(with_experts), faults) if linear else 1,
        "tied": config.get("tie_word_embeddings") is True,
        "norm_vectors": 2 if family in LAYER_NORM else 1,
        "norms_per_layer": 4 if config.get("sandwich_norm") is True else 2,
        "router_bias": family in BIASED_EXPERTS,
        "expert_bias": family in BIASED_EXPERTS,
        "head_bias": config.get("lm_head_bias") is True,
        "dense_bias": bool(dense) and config.get("mlp_bias") is True,
        "checkpoint": checkpoint_of(config, layer is not None, _is_latent(config)),
    }
    attention = _attention(config, family, hidden, len(with_experts), faults)
    raise_faults(faults, where)
    known = "" if family in FAMILIES else f"; family {show(family)} is not known and taken as Llama is"
    try:
        return WholeModel(name=name, source=f"{hf.SOURCE}{known}", hidden=hidden, layer=layer, attention=Attention(**attention), **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def lines_on(model: WholeModel) -> tuple[str, ...]:
    """A line on a model that was read from a config: its source, with what the reader assumed. () for other models."""
    return (f"{model.name}: {model.source}.",) if model.source.startswith(hf.SOURCE) else ()


def _shared_hidden(config: Mapping[str, Any], faults: list[str]) -> int:
    """Inner width of all shared experts together: a field of its own, or as many experts as the config says."""
    own = integer(config, _wide("shared_expert_intermediate_size", default=0), faults)
    n = integer(config, SHARED_EXPERTS, faults)
    return own or n * (integer(config, hf.EXPERT, faults) if n else 0)


def _linear(config: Mapping[str, Any], faults: list[str]) -> LinearAttention | None:
    if config.get("linear_num_value_heads") is None:
        return None
    return LinearAttention(**{key: integer(config, alias, faults) for key, alias in LINEAR.items()})


def _full_every(config: Mapping[str, Any], layers: int, faults: list[str]) -> int:
    """One layer of so many has full attention, the last of its group; the others have linear attention."""
    kinds = _kinds(config, layers, faults)
    own = integer(config, Alias(("full_attention_interval",), 1, COUNT, default=0), faults)
    every = own or (kinds.index("full_attention") + 1 if "full_attention" in kinds else INTERVAL)
    if kinds and kinds != ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]:
        faults.append(f"layer_types: found {show(kinds)}, expected full attention in the last layer of every {every}")
    return every


def _kinds(config: Mapping[str, Any], layers: int, faults: list[str]) -> list[Any]:
    """`layer_types`, the kind of attention of each layer; empty without the field."""
    kinds = config.get("layer_types")
    if kinds is None:
        return []
    if not isinstance(kinds, list) or len(kinds) < layers:
        faults.append(f"layer_types: found {show(kinds)}, expected a list of {layers} kinds of attention")
        return []
    return kinds[:layers]


def _attention(config: Mapping[str, Any], family: str, hidden: int, layers: int, faults: list[str]) -> dict[str, Any]:
    """The fields of `Attention`."""
    heads = integer(config, HEADS, faults)
    if _is_latent(config):
        return {"kind": "mla", "heads": heads, **{key: integer(config, alias, faults) for key, alias in MLA.items()}}
    window, every = _window(config, layers, faults)
    biased, joint = config.get("attention_bias") is True, family in JOINT_NORMS
    return {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": integer(config, KV_HEADS, faults) or heads,
        "head_dim": integer(config, _wide("head_dim", "attention_head_dim", default=0), faults) or max(1, hidden // heads),
        "qk_norm": joint or family in HEAD_NORMS or (config.get("use_qk_norm") is True and family != LLAMA4),
        "qk_norm_joint": joint,
        "qkv_bias": biased or (family in QKV_BIAS and config.get("qkv_bias") is not False),
        "out_bias": biased and family not in ONLY_QKV,
        "sinks": family in BIASED_EXPERTS,
        "gated": config.get("attn_output_gate") is True or config.get("linear_num_value_heads") is not None,
        "window": window,
        "window_every": every,
    }


def _is_latent(config: Mapping[str, Any]) -> bool:
    """Whether the config has a value of a field that only latent attention (MLA) has, right or wrong."""
    return any(config.get(name) not in (None, 0) for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim"))


def _window(config: Mapping[str, Any], layers: int, faults: list[str]) -> tuple[int, int]:
    """(tokens of the window, one layer of so many has it); (0, 1) without one. A window of all positions is none."""
    window = integer(config, _wide("sliding_window", default=0), faults)
    if not window or config.get("use_sliding_window") is False or 0 < integer(config, CONTEXT, []) <= window:
        return 0, 1
    kinds = _kinds(config, layers, faults)
    if not kinds:
        return window, 1
    slides = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    every = slides[1] if len(slides) > 1 else max(1, layers)
    if slides and slides != [*range(0, layers, every)]:
        faults.append(f"layer_types: found windows in layers {show(slides)}, expected them in the first layer of every group of equal size")
    return (window, every) if slides else (0, 1)


def checkpoint_of(config: Mapping[str, Any], moe: bool, latent: bool) -> str:
    """The precision (`WholeModel.checkpoint`) of a checkpoint, by its `quantization_config`; "" without one, or with one that is not known.

    Methods as Transformers and vLLM name them. NVFP4 of models with latent attention leaves attention in BF16 (`model.formats.PRECISIONS`). INT4
    of compressed-tensors with experts is Kimi's, of routed experts alone, if its list of exceptions names attention.
    """
    quant = config.get("quantization_config")
    if not isinstance(quant, dict):
        return ""
    method, blocks = str(quant.get("quant_method")), quant.get("weight_block_size")
    kind, bits = {"modelopt": _of_modelopt, "compressed-tensors": _of_groups}.get(method, _of_method)(quant)
    if kind == "fp8":
        return "fp8" if blocks or bits == "block" else "fp8-tensor"
    if kind == "nvfp4":
        return "fp4" if latent else "fp4-all"
    if kind == "int4":
        kept = moe and "attn" in str(quant.get("ignore"))
        return "int4-experts" if kept else "int4-all"
    return kind


def _of_method(quant: Mapping[str, Any]) -> tuple[str, str]:
    method = str(quant.get("quant_method"))
    if method in ("awq", "gptq"):
        return ("int4", "") if quant.get("bits") == 4 else ("", "")
    return (method, "") if method in ("fp8", "mxfp4") else ("", "")


def _of_modelopt(quant: Mapping[str, Any]) -> tuple[str, str]:
    """NVIDIA ModelOpt names an algorithm."""
    name = str(quant.get("quant_algo")).upper()
    return "nvfp4" if "NVFP4" in name else "fp8" if name.startswith("FP8") else "", ""


def _of_groups(quant: Mapping[str, Any]) -> tuple[str, str]:
    """compressed-tensors: type, bits and strategy of the weights of its groups of layers; the first counts."""
    groups = quant.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return "", ""
    kinds = {"float 8": "fp8", "float 4": "nvfp4", "int 4": "int4"}
    return kinds.get(f"{weights.get('type')} {weights.get('num_bits')}", ""), str(weights.get("strategy"))
