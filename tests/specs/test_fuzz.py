"""Whatever bytes a file holds, a loader returns a spec or raises one readable line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.base.reading import parse_json
from dysharp.specs import Choice, Cluster, Model, WholeModel, load_cluster, load_model
from dysharp.specs.catalog import cluster_from_toml, model_from_toml
from dysharp.specs.cluster import ClusterFile
from dysharp.specs.constants import Constant, constants_of
from dysharp.specs.fitted import Fitted
from dysharp.specs.hf import ALIASES, LAYERS, model_from_config
from dysharp.specs.hf_whole import whole_from_config
from dysharp.specs.numbers import KINDS, _ListedNumber

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = (
    st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats() | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4),
    max_leaves=12,
)
hf_keys = [
    *sorted({n for a in [*ALIASES.values(), *LAYERS.values()] for n in a.names}),
    "dtype",
    "torch_dtype",
    "quantization_config",
    "mlp_only_layers",
    "topk_method",
    "hidden_act",
    "is_gated_act",
    "text_config",
]
GOOD_CONFIG = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
}
ATTENTION = {
    "vocab_size": 100, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "shared_expert_intermediate_size": 16, "num_hidden_layers": 4, "kv_lora_rank": 0,
    "linear_num_value_heads": 4, "full_attention_interval": 2, "n_shared_experts": 1, "num_nextn_predict_layers": 1, "index_n_heads": 0,
}  # fmt: skip
configs = st.dictionaries(st.sampled_from(hf_keys), values, max_size=6).map(lambda d: {**GOOD_CONFIG, **d})


def toml_value(value: Any) -> str:
    """TOML for a JSON-like scalar; containers and null become what TOML has no word for, on purpose."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def settles(load: Any, *kinds: type) -> None:
    try:
        got = load()
    except ConfigError as error:
        assert str(error).isprintable()
        assert 0 < len(str(error)) < 20_000
    else:
        assert isinstance(got, kinds)


def toml_of(cls: type) -> st.SearchStrategy[str]:
    keys = st.sampled_from(sorted(cls.__dataclass_fields__)) | st.sampled_from(["base", "a.b", '"x y"'])  # type: ignore[attr-defined]
    return st.dictionaries(keys, scalars, max_size=6).map(
        lambda d: "\n".join(f"{k} = {toml_value(v)}" for k, v in d.items())
    )


@QUICK
@given(st.binary(max_size=200), st.sampled_from(["x.toml", "config.json"]))
def test_any_bytes(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    settles(lambda: load_model(path), Model)
    settles(lambda: load_cluster(path), Cluster)


@QUICK
@given(st.text(max_size=60))
def test_any_name(name: str) -> None:
    settles(lambda: load_model(name), Model)
    settles(lambda: load_cluster(name), Cluster)


@QUICK
@given(toml_of(Model), st.sampled_from(["", 'base = "L-8"\nname = "x"\n']))
def test_any_model_toml(text: str, head: str) -> None:
    settles(lambda: model_from_toml(head + text, "x.toml"), Model)


@QUICK
@given(toml_of(ClusterFile), st.sampled_from(["", 'base = "paper-nvl72"\nname = "x"\n']))
def test_any_cluster_toml(text: str, head: str) -> None:
    settles(lambda: cluster_from_toml(head + text, "x.toml"), Cluster)


@QUICK
@given(configs)
def test_any_config(config: dict[str, Any]) -> None:
    settles(lambda: model_from_config(config, "x", "config.json"), Model)


@QUICK
@given(configs, st.dictionaries(st.sampled_from([*ATTENTION]), scalars))
def test_any_whole_config(config: dict[str, Any], around: dict[str, Any]) -> None:
    settles(lambda: whole_from_config({**ATTENTION, **config, **around}, "x", "config.json"), WholeModel)


@QUICK
@given(values)
def test_any_json(value: Any) -> None:
    text = json.dumps(value)
    settles(lambda: model_from_config(parse_json(text, "j"), "x", "j"), Model)


@QUICK
@given(st.sampled_from([Choice, Fitted, _ListedNumber]), st.data())
def test_any_constant(kind: type[Constant], data: st.DataObject) -> None:
    keys = st.sampled_from([*sorted(kind.__dataclass_fields__), *KINDS])
    fields = data.draw(st.dictionaries(keys, scalars))
    text = "[a.b]\n" + "\n".join(f"{k} = {toml_value(v)}" for k, v in fields.items())
    settles(lambda: constants_of(kind, text, "c.toml"), dict)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.99])
def test_truncated_files(tmp_path: Path, keep: float) -> None:
    text = json.dumps(GOOD_CONFIG)
    path = tmp_path / "config.json"
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(ConfigError, match=r"malformed JSON: .* \(at line 1, column \d+\)"):
        load_model(path)
