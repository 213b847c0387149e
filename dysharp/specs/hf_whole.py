"""Hugging Face `config.json` to `WholeModel`: a model of experts or a dense one, from its embedding to its head.

A config names widths and counts. What its modelling code adds without a field (norms of queries, biases, gates) follows the family, `model_type`
(`data/families.toml`). A family that is not listed is refused by name; a config without `model_type` is taken as Llama is, and `source` says so. An
encoder of images or sound beside the language model is left out.
"""

from dataclasses import replace
from typing import Any

from dysharp.base import AnyMapping, ByName, ConfigError, Texts, nearest, show
from dysharp.specs import hf
from dysharp.specs.hf import CSA, LATENT, NAMES, WHOLE, Alias, integer, model_from_config, n_matrices, raise_faults, speaks_of_experts, text_part
from dysharp.specs.whole import Attention, LinearAttention, WholeModel

INTERVAL = 4  # layers from one with full attention to the next, where a family with linear attention does not say (transformers)
COUNT = 1 << 12
MIXERS = NAMES["mixers"]


def whole_from_config(config: AnyMapping, name: str, where: str) -> WholeModel:
    """The model that a parsed `config.json` describes. `where` names the file in errors.

    Raises `ConfigError` that lists every field that is missing, of the wrong type, out of range, or beyond what `WholeModel` describes.
    """
    config = text_part(config)
    _check_family(config, where)
    faults: list[str] = []
    family, experts = hf.family_of(config), speaks_of_experts(config)
    words = _words(config, experts, faults)
    layer = model_from_config(config, name, where) if experts and "E" in "".join(words) else None
    dense = sum("-" in word for word in words)
    hidden = integer(config, hf.ALIASES["hidden"], faults)
    latent = bool(layer and layer.hidden != hidden)
    attention = _attention(config, family, hidden, faults) | ({} if {*"wch"} & {*"".join(words)} else {"window": 0})
    values: ByName = {
        "vocab": integer(config, WHOLE["vocab"], faults),
        "dense_hidden": integer(config, WHOLE["dense_width"], faults) if dense else 0,
        "dense_matrices": family.get("dense_matrices", n_matrices(config)),
        "shared_hidden": _shared_hidden(config, family, layer.expert_hidden, faults) if layer else 0,
        "shared_gate": bool(layer and config.get(WHOLE["shared_width"].names[0])),
        "mtp": integer(config, WHOLE["mtp"], faults),
        "streams": integer(config, WHOLE["streams"], faults),
        "context": integer(config, WHOLE["context"], faults),
        "linear": _linear(config, family, faults) if any("M" in word for word in words) else None,
        "norms_per_layer": 4 if config.get("sandwich_norm") is True else family.get("norms_per_layer", 2),
        "norm_vectors": family.get("norm_vectors", 1),
        "latent_experts": latent,
        "checkpoint": _checkpoint_of(config, layer is not None, _is_latent(config)),
        **{key: _flag(config, family.get(key)) for key in ("tied", "router_bias", "router_fp32", "expert_bias", "head_bias")},
        "dense_bias": bool(dense) and _flag(config, family["dense_bias"]),
    }
    faults += [f"{key}: found {show(config[key])}, expected none: no operator of it" for key in family.get("without", ()) if config.get(key)]
    faults += [f"{key}: missing" for key in family.get("needs", ()) if config.get(key) is None]
    raise_faults(faults, where)
    known = "" if config.get("model_type") else "; a config without model_type is taken as Llama is"
    if attention.get("window") and config.get("attention_chunk_size"):
        known += "; its chunks of attention count as windows, which see up to twice as many keys"
    if isinstance(quant := config.get("quantization_config"), dict) and not values["checkpoint"]:
        known += f"; weights count as BF16: its quantization {show(quant.get('quant_method'))} is not known, and --precision names another"
    try:
        model = WholeModel(
            name=name, source=f"{hf.SOURCE}{known}", hidden=hidden, layer=layer, attention=Attention(**attention), stack=" ".join(words), **values,
            repository=folder if (folder := where.removesuffix("/config.json")) != where else "",
        )
        return _plain(model, words)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_family(config: AnyMapping, where: str) -> None:
    """Refuse a config by its `model_type`: a family whose layers are other operators, or one that the table does not have."""
    family = config.get("model_type")
    known = [one for one in hf.FAMILIES if one not in ("common", "refused")]
    if family is None or family in known:
        return
    why = hf.FAMILIES["refused"].get(str(family))
    found = f"model_type: found {show(family)}{f' ({why})' if why else ''}"
    hint = "" if why else nearest(str(family), known)
    raise ConfigError(f"{where}: {found}, expected a family of dysharp/specs/data/families.toml{hint} | {hf.TOML}")


def _plain(model: WholeModel, words: list[str]) -> WholeModel:
    """The model by its counts of layers where they say the same as its stack, else with its leading dense layers."""
    dense = [*("-" in word for word in words), False].index(False)
    full = next((at + 1 for at, word in enumerate(words) if "M" not in word), 1)
    slides = [at for at, word in enumerate(words) if "w" in word]
    every = slides[1] if len(slides) > 1 else max(1, len(words))
    attention = replace(model.attention, window_every=every if slides else 1)
    try:
        plain = replace(model, stack="", dense_layers=dense, full_every=full if model.linear else 1, attention=attention)
        same = [plain.kind(n) for n in range(plain.n_layers)] == words
    except ConfigError:
        same = False
    return plain if same else replace(model, dense_layers=dense)


def _words(config: AnyMapping, experts: bool, faults: list[str]) -> list[str]:
    """The word of each layer (`WholeModel.stack`)."""
    family, names = hf.family_of(config), hf.layer_names(config)
    if family.get("blocks"):
        known = {**MIXERS, "moe": "E", "mlp": "-", "E": "E", "-": "-"}
        names = names if isinstance(names, list) and names else [names or ""]
        unknown = [name for name in names if str(name) not in known]
        faults += [f"{hf.LAYER_NAMES[0]}: found {show(name)}, expected a pattern of M, E, * and -, or {hf.LAYER_NAMES[1]}" for name in unknown[:1]]
        return [known.get(str(name), "") for name in names]
    layers = integer(config, hf.LAYERS["layers"], faults)
    with_experts = hf.layers_with_experts(config, faults)[:layers] if experts else [False] * layers
    if len(with_experts) < layers:
        listed = "mlp_layer_types" if config.get("mlp_layer_types") else "moe_layer_freq"
        faults.append(f"{listed}: found {len(with_experts)} layers, expected {layers}")
    mixers = _mixers(config, family, names, layers, faults)
    window = _window(config, faults)
    return [(mixer if window else mixer.replace("w", "*")) + ("E" if moe else "-") for mixer, moe in zip(mixers, with_experts, strict=False)]


def _mixers(config: AnyMapping, family: ByName, names: list[Any] | None, layers: int, faults: list[str]) -> list[str]:
    """What stands before the FFN of each layer: as the config names it, or by its counts."""
    linear = config.get("linear_attn_config.kda_layers")
    if names is not None:
        if not isinstance(names, list) or len(names) < layers:
            faults.append(f"layer_types: found {show(names)}, expected a list of {layers} kinds of attention")
            return ["*"] * layers
        if unknown := [name for name in names if str(name) not in MIXERS]:
            faults.append(f"layer_types: found {show(unknown[0])}, expected one of {', '.join(name for name in MIXERS if len(name) > 1)}")
        return [MIXERS.get(str(name), "*") for name in names[:layers]]
    if "mixers" in family:
        return [family["mixers"]] * layers
    if isinstance(indices := config.get("attn_layer_indices"), list) or isinstance(linear, list):
        full = set(indices) if isinstance(indices, list) else set(range(layers)) - {n - 1 for n in linear or ()}
        return ["*" if n in full else "M" for n in range(layers)]
    if family.get("linear") == "gdn" or config.get("linear_num_value_heads") is not None:
        every = integer(config, Alias(("full_attention_interval",), 1, COUNT, default=INTERVAL), faults)
        return ["M" if (n + 1) % every else "*" for n in range(layers)]
    first = integer(config, WHOLE["first_window"], faults) if config.get("use_sliding_window") is True else 0
    every = integer(config, Alias(("sliding_window_pattern",), 1, COUNT, default=family.get("windows", COUNT + 1)), faults)
    return ["w" if n >= first and (n + 1) % every else "*" for n in range(layers)]


def _flag(config: AnyMapping, said: Any) -> bool:
    """A field of a family: a value, or the config's key that says it."""
    if not isinstance(said, str):
        return bool(said)
    return config.get(said[:-1]) is not False if said.endswith("!") else config.get(said) is True


def lines_on(model: WholeModel) -> Texts:
    """A line on a model that was read from a config: its source, with what the reader assumed. () for other models."""
    return (f"{model.name}: {model.source}.",) if model.source.startswith(hf.SOURCE) else ()


def _shared_hidden(config: AnyMapping, family: ByName, expert: int, faults: list[str]) -> int:
    """Inner width of all shared experts together: a field of its own, or as many experts as the config says."""
    if n := family.get("shared_experts"):
        return int(n) * expert
    own = integer(config, WHOLE["shared_width"], faults)
    n = integer(config, WHOLE["shared_experts"], faults)
    return own or n * (integer(config, hf.EXPERT, faults) if n else 0)


def _linear(config: AnyMapping, family: ByName, faults: list[str]) -> LinearAttention:
    kind = family.get("linear", "gdn")
    *counts, convolution = NAMES["linear"][kind]
    fields = zip(("key_heads", "value_heads", "key_dim", "value_dim"), counts, strict=True)
    widths = {key: integer(config, Alias(names), faults) for key, names in fields}
    seen = integer(config, Alias(convolution, 1, COUNT, default=4), faults) if convolution else 0
    biased = kind == "mamba2" and config.get("mamba_conv_bias", config.get("use_conv_bias")) is not False
    return LinearAttention(**widths, convolution=seen, kind=kind, normed=_flag(config, family.get("normed", True)), convolution_bias=biased)


def _attention(config: AnyMapping, family: ByName, hidden: int, faults: list[str]) -> ByName:
    """The fields of `Attention`."""
    heads = integer(config, WHOLE["heads"], faults)
    if family.get("csa"):
        widths = {key: integer(config, alias, faults) for key, alias in CSA.items()}
        return {"kind": "csa", "heads": heads, "sinks": _flag(config, family["sinks"]), **widths}
    if _is_latent(config):
        faults += ["attention_bias: found True, expected none beside kv_lora_rank"] * (config.get("attention_bias") is True)
        return {"kind": "mla", "heads": heads, **{key: integer(config, alias, faults) for key, alias in LATENT.items()}}
    flags = ("qk_norm", "qk_norm_joint", "qkv_bias", "out_bias", "sinks", "gated")
    return {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": integer(config, WHOLE["kv_heads"], faults) or heads,
        "head_dim": integer(config, WHOLE["head_dim"], faults) or family.get("head_dim", max(1, hidden // heads)),
        "window": _window(config, faults),
        **{key: _flag(config, family.get(key)) for key in flags},
    }


def _is_latent(config: AnyMapping) -> bool:
    """Whether the config has a value of a field that only latent attention (MLA) has, right or wrong."""
    return any(config.get(name) not in (None, 0) for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim"))


def _window(config: AnyMapping, faults: list[str]) -> int:
    """Tokens of the window; 0 without one. A window of all positions is none, and so is one that no layer has."""
    window = integer(config, WHOLE["window"], faults)
    if config.get("use_sliding_window") is False or 0 < integer(config, WHOLE["context"], []) <= window:
        return 0
    names = hf.layer_names(config)
    return window if not isinstance(names, list) or any(MIXERS.get(str(name)) == "w" for name in names) else 0


def _checkpoint_of(config: AnyMapping, moe: bool, latent: bool) -> str:
    """The precision (`WholeModel.checkpoint`) of a checkpoint, by its `quantization_config`; "" without one, or with one that is not known.

    NVFP4 of models with latent attention leaves attention in BF16 (`model.formats.PRECISIONS`). INT4
    of compressed-tensors with experts is Kimi's, of routed experts alone, if its list of exceptions names attention. Engines take caches in FP8 where
    ModelOpt or compressed-tensors name them, beside weights in BF16, too (SGLang configure_kv_cache_dtype, vLLM Attention, TensorRT-LLM's model
    config), and where keys are values.
    """
    quant, (kind, strategy) = config.get("quantization_config"), hf.quantised(config)
    if not isinstance(quant, dict) or not kind:
        return ""
    if kind == "fp8":
        kind = "fp8" if quant.get("weight_block_size") or strategy == "block" else "fp8-tensor"
        kind += ",experts=mxfp4-fp8" if config.get("expert_dtype") == "fp4" else ""
    elif kind == "nvfp4":
        kind = "fp4" if latent else "fp4-all"
    elif kind == "int4":
        parts = "experts" if moe and "attn" in str(quant.get("ignore")) else "weights"
        kind = ("int4-experts" if parts == "experts" else "int4-all") + (f",{parts}={hf.GROUPS[strategy]}" if strategy in hf.GROUPS else "")
    scheme = quant.get("kv_cache_scheme")
    narrow = hf.family_of(config).get("csa") or (isinstance(scheme, dict) and f"{scheme.get('type')} {scheme.get('num_bits')}" == "float 8")
    return f"{kind},kv=fp8" if narrow or str(quant.get("kv_cache_quant_algo")).upper() == "FP8" else kind
