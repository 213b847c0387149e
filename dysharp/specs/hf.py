"""Hugging Face `config.json` to `Model`, by a table of the field names that model families use.

The library `transformers` is not needed. The table covers DeepSeek-V2/V3, Qwen2-MoE, Qwen3-MoE, Mixtral, gpt-oss,
Phi-3.5-MoE, OLMoE and every family with the same field names. A config gives neither the number of tokens nor their
routing: `tokens_per_gpu` is 1024, and `routing` is a synthetic distribution with the skew of large models.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dysharp.base import AnyMapping, ByName, ConfigError, frozen, read_toml, show
from dysharp.specs.fields import raise_if
from dysharp.specs.model import Model
from dysharp.specs.reading import DATA

TOKENS_PER_GPU = 1024  # assumed: a training micro-batch slice, the same default as the packaged real models
ROUTING = "lognormal:0.65"  # assumed: the spread that matches DeepSeek-V3's published expert loads

SOURCE = "Hugging Face config.json"  # the first words of a model's source

PARTS = ("ffn_config", "attn_config")
PREFIXED = ("linear_attn_config", "compress_rates")
"""Parts whose keys mean something else outside: linear attention has a head_dim of its own."""
OF_ALL = ("quantization_config", "tie_word_embeddings")
"""What a multi-modal config says beside `text_config` of the language model, too."""
LAYER_NAMES = ("hybrid_override_pattern", "layers_block_type", "layer_types", "attn_type_list")
TOML = "a model whose config has other names fits into a TOML file (docs/models.md)"

DENSE = "no field speaks of experts: of a dense model there is no MoE layer; `dysharp step`, `plan` and `serve` take it whole"

MAX_LAYERS = 1 << 12  # bounds the loops over layers: the number of layers comes from the file


@frozen
class Alias:
    """One fact of a config: its names (the first one present counts) and its range. `default` None: required."""

    names: Sequence[str]
    low: int = 1
    high: int = 1 << 20
    default: int | None = None


_FILE = DATA / "config_names.toml"
NAMES: dict[str, ByName] = read_toml(_FILE)
"""Names of facts in configs, by table."""
ALIASES, LAYERS, WHOLE, LATENT, CSA = (
    {fact: Alias(**one) for fact, one in NAMES[table].items()} for table in ("layer", "layers", "whole", "latent", "csa")
)
EXPERT = replace(ALIASES["expert_hidden"], names=ALIASES["expert_hidden"].names[:-1])  # without the dense width
FILE = DATA / "families.toml"
FAMILIES: dict[str, ByName] = read_toml(FILE)
"""model_type -> what its family adds to a config; beside them `common` and `refused`."""
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "auto": 2}
GROUPS = {name: f"int4-{name}" for name in ("64", "128", "column", "32-zeros", "64-zeros", "128-zeros")}
"""Values that share a scale, and a zero point -> one of `model.formats.FORMATS`."""
UNGATED = ("relu", "relu2", "squared_relu")  # activations whose experts have two matrices


def model_from_config(config: AnyMapping, name: str, where: str) -> Model:
    """The MoE layer that a parsed `config.json` describes. `where` names the file in errors.

    Raises `ConfigError` that lists every field that is missing, of the wrong type or out of range.
    """
    config = text_part(config)
    faults: list[str] = []
    aliases = ALIASES | ({"expert_hidden": EXPERT} if family_of(config).get("expert_width") else {})
    values = {fact: integer(config, alias, faults) for fact, alias in aliases.items()}
    has_experts = layers_with_experts(config, faults)
    element_bytes = _element_bytes(config, faults)
    weights, group = quantised(config)
    weights = GROUPS.get(group, weights) if weights == "int4" else weights
    if not isinstance(quant := config.get("quantization_config"), dict | None):
        faults.append(f"quantization_config: found {show(quant)}, expected an object")
    if faults and not speaks_of_experts(config):
        faults.append(DENSE)
    elif not any(has_experts):
        faults.append(f"n_layers: found 0 with experts: {DENSE.partition(': ')[2]}")
    if config.get("zero_expert_num"):
        faults.append(f"zero_expert_num: found {show(config['zero_expert_num'])}, experts that do nothing, expected none")
    raise_faults(faults, where)
    if config.get("topk_method") == "greedy":  # DeepSeek-V2 lists groups and does not use them
        values["n_group"] = values["topk_group"] = 1
    try:
        return Model(
            name=name, hidden=values["row"] or values["hidden"], expert_hidden=values["expert_hidden"], n_experts=values["n_experts"],
            topk=values["topk"], tokens_per_gpu=TOKENS_PER_GPU, n_matrices=n_matrices(config), element_bytes=element_bytes,
            gemm_dtype="fp8" if weights == "fp8" else "bf16",  # other formats are multiplied in BF16
            checkpoint="mxfp4-fp8" if weights == "fp8" and config.get("expert_dtype") == "fp4" else weights,
            n_group=values["n_group"], topk_group=values["topk_group"], n_layers=sum(has_experts), routing=ROUTING,
            source=f"{SOURCE}; tokens and routing are assumed (routing is synthetic)",
        )  # fmt: skip
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def family_of(config: AnyMapping) -> ByName:
    """What the config's family adds to it; of a family that is not known, what all have."""
    return FAMILIES["common"] | FAMILIES.get(str(config.get("model_type")), {})


def text_part(config: AnyMapping) -> AnyMapping:
    """The config of the language model, which a multi-modal config nests in `text_config`, with the fields that DBRX (`PARTS`) and Kimi nest."""
    nested, outer = config.get("text_config"), {key: config[key] for key in OF_ALL if key in config}
    whole = nested | outer if isinstance(nested, dict) and not _names_experts(config) else config
    parts = [part for name in PARTS if isinstance(part := whole.get(name), dict)]
    parts += [{f"{name}.{key}": value for key, value in part.items()} for name in PREFIXED if isinstance(part := whole.get(name), dict)]
    return {key: value for part in (*parts, whole) for key, value in part.items()} if parts else whole


def raise_faults(faults: list[str], where: str) -> None:
    """Raise one `ConfigError` that lists all `faults`, if there are any, and says what helps where a field is missing."""
    missing = any(": missing" in fault for fault in faults)
    raise_if([*faults, *([TOML] if missing else [])], where)


def _names_experts(config: AnyMapping) -> bool:
    """Whether the config says how many experts a layer has."""
    return any(config.get(name) is not None for name in ALIASES["n_experts"].names)


def speaks_of_experts(config: AnyMapping) -> bool:
    """Whether the config is one of a model with experts, even if the field of their number is missing or misspelt."""
    of_family = family_of(config).get("expert_width") or "moe" in str(config.get("model_type"))
    given = (key for key, value in config.items() if value not in (None, 0, [], {}))
    return _names_experts(config) or of_family or any("expert" in key or "moe_" in key for key in given)


def integer(config: AnyMapping, alias: Alias, faults: list[str]) -> int:
    """The value of one fact. For a bad value: appends to `faults` and returns the lowest value."""
    # `moe_layer_freq` may be a list of flags. `_layer_list` reads such a list.
    present = [n for n in alias.names if config.get(n) is not None and not (n == "moe_layer_freq" and isinstance(config[n], list))]
    if not present:
        if alias.default is None:
            others = ", ".join(alias.names[1:])
            faults.append(f"{alias.names[0]}: missing{others and f' (also looked for {others})'}")
        return alias.low if alias.default is None else alias.default
    value = config[present[0]]
    value = value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value  # one for each layer, all equal
    if isinstance(value, bool) or not isinstance(value, int) or not alias.low <= value <= alias.high:
        limits = f"{alias.low} to {alias.high}"
        faults.append(f"{present[0]}: found {show(value)}, expected an integer from {limits}")
        return alias.low
    return value


def _layer_list(config: AnyMapping, faults: list[str]) -> list[int] | None:
    """`moe_layer_freq` as a list: one flag per layer, 1 = MoE. None: the config has no such list."""
    flags = config.get("moe_layer_freq")
    if not isinstance(flags, list):
        return None
    if len(flags) > MAX_LAYERS or any(type(f) is not int or f not in (0, 1) for f in flags):
        faults.append(f"moe_layer_freq: found {show(flags)}, expected an integer or a list of 0 and 1")
        return None
    return flags


def _dense_layers(config: AnyMapping, faults: list[str]) -> set[int]:
    """`mlp_only_layers` (Qwen): layers that are dense although the step makes them MoE layers."""
    layers = config.get("mlp_only_layers")
    if layers is None:
        return set()
    if not isinstance(layers, list) or any(type(i) is not int for i in layers):
        faults.append(f"mlp_only_layers: found {show(layers)}, expected a list of layer numbers")
        return set()
    return set(layers)


def layer_names(config: AnyMapping) -> list[Any] | None:
    """The kind of each layer as the config names it: a list, or a pattern of letters. None: it names none."""
    names = next((config[key] for key in LAYER_NAMES if config.get(key) is not None), None)
    if names is None and isinstance(ratios := config.get("compress_ratios"), list):
        names = [NAMES["ratios"].get(str(ratio), ratio) for ratio in ratios]
    return [*names] if isinstance(names, list | str) and len(names) <= MAX_LAYERS else names


def layers_with_experts(config: AnyMapping, faults: list[str]) -> list[bool]:
    """Of each layer, whether it has experts. Bad values are appended to `faults`; `Model` refuses a model without such layers."""
    if family_of(config).get("blocks"):
        return [name in ("E", "moe") for name in names] if isinstance(names := layer_names(config), list) else []
    if isinstance(kinds := config.get("mlp_layer_types"), list):
        return [kind != "dense" for kind in kinds]
    n, prefix, from_1, from_0 = (integer(config, alias, faults) for alias in LAYERS.values())
    flags, dense = _layer_list(config, faults), _dense_layers(config, faults)
    if flags is not None:
        return [flag == 1 for flag in flags[:n]]
    return [i >= prefix and (i + 1) % from_1 == 0 and i % from_0 == 0 and i not in dense for i in range(n)]


def _element_bytes(config: AnyMapping, faults: list[str]) -> int:
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    dtype = "auto" if config.get(key) is None else config[key]  # assumed: these models run in BF16
    if not isinstance(dtype, str) or dtype.removeprefix("torch.") not in ELEMENT_BYTES:
        faults.append(f"{key}: found {show(dtype)}, expected one of {', '.join(ELEMENT_BYTES)}")
        return 2
    return ELEMENT_BYTES[dtype.removeprefix("torch.")]


def quantised(config: AnyMapping) -> tuple[str, str]:
    """(fp8, mxfp4, nvfp4, int4, or bf16 where caches alone are quantised; strategy, of INT4 values of a scale) of a checkpoint's weights, by its
    `quantization_config`; "" for none, or one that is not known.

    Methods as Transformers and vLLM name them.
    """
    quant = config.get("quantization_config")
    if not isinstance(quant, dict):
        return "", ""
    return {"modelopt": _of_modelopt, "compressed-tensors": _of_groups}.get(str(quant.get("quant_method")), _of_method)(quant)


def _of_method(quant: AnyMapping) -> tuple[str, str]:
    method = str(quant.get("quant_method"))
    if method in ("awq", "gptq", "auto-round"):
        zeros = quant.get("zero_point") is not False if method == "awq" else quant.get("sym") is False
        return ("int4", _group(quant.get("group_size", 128), zeros)) if quant.get("bits") == 4 else ("", "")
    return {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}.get(method, ""), ""


def _of_modelopt(quant: AnyMapping) -> tuple[str, str]:
    """NVIDIA ModelOpt names an algorithm, or none."""
    name = str(quant.get("quant_algo") or "NO_QUANT").upper()
    return "nvfp4" if "NVFP4" in name else "fp8" if name.startswith("FP8") else "bf16" if name == "NO_QUANT" else "", ""


def _of_groups(quant: AnyMapping) -> tuple[str, str]:
    """compressed-tensors: type, bits and strategy of the weights of its groups of layers; the first counts."""
    groups = quant.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return "bf16", ""
    kind = {"float 8": "fp8", "float 4": "nvfp4", "int 4": "int4"}.get(f"{weights.get('type')} {weights.get('num_bits')}", "")
    size = -1 if weights.get("strategy") == "channel" else weights.get("group_size")
    return kind, _group(size, weights.get("symmetric") is False) if kind == "int4" else str(weights.get("strategy"))


def _group(size: Any, zeros: bool) -> str:
    """One of `GROUPS`. A scale per column (-1), and its zero point, are next to nothing."""
    return "column" if size == -1 else f"{size}{'-zeros' * zeros}"


def n_matrices(config: AnyMapping) -> int:
    """Matrices of an FFN: 3 = gated."""
    activation = config.get("hidden_act", config.get("mlp_hidden_act"))
    return 2 if activation in UNGATED or config.get("is_gated_act") is False else 3
