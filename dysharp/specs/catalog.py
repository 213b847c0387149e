"""From a name or a path to a `Model` or a `Cluster`."""

import functools
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dysharp.base import Amounts, AnyMapping, AnyPath, ByName, ConfigError, nearest, parse_json, parse_toml, read_text, read_toml, show
from dysharp.specs.choices import choice_value
from dysharp.specs.cluster import Cluster, ClusterFile, ScaleOut, cluster_of
from dysharp.specs.fields import problems, raise_if
from dysharp.specs.fitted import overrides_of
from dysharp.specs.gpu import list_gpus, load_gpu
from dysharp.specs.hf import DENSE, model_from_config
from dysharp.specs.hf_whole import whole_from_config
from dysharp.specs.model import Model
from dysharp.specs.reading import DATA
from dysharp.specs.whole import Attention, LinearAttention, WholeModel

NameOrPath = AnyPath
Spec = TypeVar("Spec")
FIXED = ("base", "name", "source", "constants")
"""Keys that the text of a variant cannot give."""


INNER = ("scale_out", "whole", "attention")
"""Tables of a file whose keys replace those of its base one by one."""
OF_GPU = ("n_sms", "fp8_TFLOPS", "bf16_TFLOPS", "hbm_GBps", "hbm_GB", "link_GBps")
"""Keys that a file with another GPU than its base takes from the GPU."""
NESTED = "scale_out."
"""Start of keys of the table [scale_out]."""


def list_models() -> list[str]:
    """Names of the models that ship with the package, sorted."""
    return _names_of("models")


def list_clusters() -> list[str]:
    """Names of the clusters that ship with the package, sorted."""
    return _names_of("clusters")


def load_model(name_or_path: NameOrPath | Model) -> Model:
    """A packaged model by name, or from a TOML file, a Hugging Face `config.json` or its folder.

    A `Model` stays as it is. Raises `ConfigError`. Its one line names the file, the key, the value found and the nearest valid key.
    """
    if isinstance(name_or_path, Model):
        return name_or_path
    if _is_name(name_or_path, "models"):
        return _layer_of(_packaged_table(str(name_or_path)), f"{name_or_path}.toml")
    if _is_name(name_or_path, "dense"):
        raise ConfigError(f"model {show(str(name_or_path))}: {DENSE}")
    path = _user_path(name_or_path, "model", list_models(), ", a .toml file or a Hugging Face config.json")
    return _read_model(path, model_from_config, model_from_toml)


def _read_model(path: Path, from_config: Callable[[Any, str, str], Spec], from_toml: Callable[[str, str], Spec]) -> Spec:
    """A model from a file of the user: JSON of Hugging Face, or TOML."""
    path = path / "config.json" if path.is_dir() else path
    text = read_text(path)
    return from_config(parse_json(text, str(path)), _config_name(path), str(path)) if path.suffix == ".json" else from_toml(text, str(path))


def load_cluster(name_or_path: NameOrPath | Cluster) -> Cluster:
    """A packaged cluster by name, a variant such as `paper-nvl72,link_GBps=900`, or a cluster from a TOML file.

    A `Cluster` stays as it is. Raises `ConfigError`.
    """
    if isinstance(name_or_path, Cluster):
        return name_or_path
    if _is_name(name_or_path, "clusters"):
        return _packaged_cluster(str(name_or_path))
    base, *fields = name_or_path.split(",") if isinstance(name_or_path, str) else [""]
    if fields and base in list_clusters():
        where = f"cluster {show(name_or_path)}"
        return _cluster(_variant_table(base, fields, where), where)
    if fields and "=" in fields[0] and not os.path.exists(Path(str(name_or_path))):
        hint = "; write the keys into the file" if os.path.exists(Path(base)) else nearest(base, list_clusters())
        raise ConfigError(f"cluster {show(name_or_path)}: found {show(base)} before the keys, expected a packaged cluster{hint}")
    path = _user_path(name_or_path, "cluster", list_clusters(), " or a .toml file")
    return cluster_from_toml(read_text(path), str(path))


def model_from_toml(text: str, where: str) -> Model:
    """A `Model` from TOML text; `where` names the file in errors (`ConfigError`).

    A value `{ choice = "name" }` is the value of that choice (`data/choices.toml`).
    """
    own = parse_toml(text, where)
    table = _with_base(own, "models", where)
    if "whole" in own and "n_experts" in table:  # checked, although a layer does not use it
        _whole_from_table(table, where)
    return _layer_of(table, where)


def _layer_of(table: ByName, where: str) -> Model:
    """The `Model` of the top-level keys of a file; the table `[whole]` says nothing about the layer. Raises `ConfigError`."""
    whole = table.get("whole")
    own = {key: whole[key] for key in ("checkpoint",) if isinstance(whole, dict) and key in whole}
    table = {key: value for key, value in table.items() if key != "whole"} | own
    values = _in_file(lambda: {key: _chosen(value) for key, value in table.items()}, where)
    raise_if(problems(Model, values), where)
    return _in_file(lambda: Model(**values), where)


def _chosen(value: Any) -> Any:
    """The value of the choice that `value` names, else `value`."""
    names_choice = isinstance(value, dict) and list(value) == ["choice"] and isinstance(value["choice"], str)
    return choice_value(value["choice"]) if names_choice else value


def cluster_from_toml(text: str, where: str) -> Cluster:
    """A `Cluster` from TOML text; `where` names the file in errors (`ConfigError`)."""
    return _cluster(parse_toml(text, where), where)


def learned_table(path: NameOrPath | Cluster) -> ByName:
    """The table `[learned]` of a cluster file, as `calibrate` writes it; {} for other clusters."""
    if isinstance(path, Cluster) or str(path).partition(",")[0] in list_clusters():
        return {}
    table = parse_toml(read_text(Path(path)), str(path)).get("learned", {})
    return table if isinstance(table, dict) else {}


def learned_spreads(table: AnyMapping) -> Amounts:
    """How far each learned cost may be off, in percent, by the table `[learned]`."""
    return {name: float(value) for name, value in table.items() if isinstance(value, int | float)}


def _cluster(table: ByName, where: str) -> Cluster:
    table = _with_base(table, "clusters", where)
    table.pop("learned", None)  # what `calibrate` knows of its own costs
    if "constants" in table:
        table["constants"] = overrides_of(table["constants"], where)
    if isinstance(table.get("scale_out"), dict):
        table["scale_out"] = _scale_out_of(table["scale_out"], where)
    raise_if(problems(ClusterFile, table), where)
    return _in_file(lambda: cluster_of(table), where)


def _tuples(value: Any) -> Any:
    """Lists of a file as tuples; other values as they are, for the check of the fields."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _scale_out_of(table: ByName, where: str) -> ScaleOut:
    """The table `[scale_out]` of the file `where`. Raises `ConfigError`."""
    values: ByName = {**table, **{name: _tuples(table[name]) for name in ("slow_nics", "lost_nics") if name in table}}
    raise_if(problems(ScaleOut, values), f"{where}: scale_out")
    return ScaleOut(**values)


@functools.cache
def _packaged_table(name: str) -> ByName:
    """The table of a packaged model. The Model itself is not cached, because choices may be overridden."""
    return _with_base(_packaged("models", name), "models", f"{name}.toml")


@functools.cache
def _packaged_cluster(name: str) -> Cluster:
    return _cluster(_packaged("clusters", name), f"{name}.toml")


def _packaged(kind: str, name: str) -> ByName:
    return read_toml(DATA / kind / f"{name}.toml")


def _in_file(build: Callable[[], Spec], where: str) -> Spec:
    """The result of `build()`. A `ConfigError` gets the name of the file in front."""
    try:
        return build()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _with_base(table: ByName, kind: str, where: str) -> ByName:
    """`table` completed by the packaged spec that `base = "name"` names. Keys of the file replace those of the base, in tables of `INNER` one by one;
    another GPU brings its own (`OF_GPU`).

    A variant needs its own name: no printed table may show changed numbers under a packaged name.
    """
    base = table.pop("base", None)
    if base is None:
        return table
    if not isinstance(base, str) or base not in _names_of(kind):
        tail = nearest(str(base) if isinstance(base, str) else "", _names_of(kind))
        raise ConfigError(f"{where}: base: found {show(base)}, expected a packaged name{tail}")
    inherited = _with_base(_packaged(kind, base), kind, f"{base}.toml")
    del inherited["name"]
    inherited["source"] = f"variant of {base} ({inherited['source']})"
    if kind == "clusters" and (gpu := table.get("gpu")) not in (None, inherited.get("gpu")) and gpu in list_gpus():
        inherited |= {key: getattr(load_gpu(gpu), key) for key in OF_GPU}
    sms, now = inherited.get("n_sms"), table.get("n_sms")
    peaks = ("fp8_TFLOPS", "bf16_TFLOPS")
    if kind == "clusters" and isinstance(now, int) and now > 0 and table.keys().isdisjoint(peaks):
        inherited |= {key: inherited[key] * now / sms for key in peaks}
    return _merged(inherited, table)


def _merged(under: ByName, over: ByName) -> ByName:
    """`under` with the keys of `over` in place of its own; tables that both have are merged key by key."""
    both = {key for key in over if isinstance(over[key], dict) and isinstance(under.get(key), dict) and key in INNER}
    return {**under, **over, **{key: _merged(under[key], over[key]) for key in both}}


@functools.cache
def _names_of(kind: str) -> list[str]:
    return sorted(p.stem for p in (DATA / kind).glob("*.toml"))


def _is_name(name_or_path: NameOrPath, kind: str) -> bool:
    return isinstance(name_or_path, str) and name_or_path in _names_of(kind)


def _user_path(name_or_path: NameOrPath, what: str, names: list[str], files: str) -> Path:
    """The path that `name_or_path` means. Raises `ConfigError` for a name that is neither packaged nor a path."""
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ConfigError(f"{what}: found {show(name_or_path)}, expected a name or a path")
    path = Path(name_or_path)
    text = str(path)
    is_path = isinstance(name_or_path, os.PathLike) or os.sep in text or path.suffix in (".toml", ".json")
    if is_path or (name_or_path and os.path.exists(path)):  # the path of "" is this folder
        return path
    hint = nearest(text, names)
    raise ConfigError(f"unknown {what} {show(str(name_or_path))}, expected a packaged name{files}{hint}")


def _config_name(path: Path) -> str:
    """The model name of a config file: the name of its folder for `config.json`, otherwise the file's stem."""
    raw = path.resolve().parent.name if path.name == "config.json" else path.stem
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._+-") else "-" for c in raw).lstrip("._+-")
    return kept[:128] or "model"


def _variant_table(base: str, fields: list[str], where: str) -> ByName:
    """The keys of a cluster file for a variant `base,key=value,...`. Raises `ConfigError` for a text that is no `key=value`."""
    table: ByName = {}
    for text in fields:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value or key in FIXED:
            raise ConfigError(f"{where}: found {show(text)}, expected key=value with a key of a cluster file, such as link_GBps=900")
        if key in table:
            raise ConfigError(f"{where}: found {key} twice, expected it once")
        table[key] = _value(value)
    changed = "+".join(f"{key}-{value}" for key, value in table.items())
    nested = {key.removeprefix(NESTED): table.pop(key) for key in [*table] if key.startswith(NESTED)}
    table |= {NESTED.rstrip("."): nested} if nested else {}
    return {"base": base, "name": re.sub(r"[^A-Za-z0-9._+-]", "-", f"{base}+{changed}")[:128], **table}


def _value(text: str) -> Any:
    """A number or word as in a TOML file; a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text


FILES = ", a .toml file with the table [whole] or a Hugging Face config.json"


@functools.cache
def list_whole_models() -> list[str]:
    """Names of the packaged models that are described from embedding to head, sorted: with and without experts."""
    return sorted([name for name in _names_of("models") if "whole" in _packaged_table(name)] + _names_of("dense"))


def load_whole(name_or_path: NameOrPath | WholeModel) -> WholeModel:
    """A `WholeModel`, for verbs of whole models, from what `load_model` takes.

    A TOML file has the table `[whole]`. A `WholeModel` stays as it is. Raises `ConfigError` in one line.
    """
    if isinstance(name_or_path, WholeModel):
        return name_or_path
    if _is_name(name_or_path, "dense"):
        return _whole_from_table(_packaged("dense", str(name_or_path)), f"{name_or_path}.toml")
    if _is_name(name_or_path, "models"):
        table = _packaged_table(str(name_or_path))
        if "whole" not in table:
            hint = nearest(str(name_or_path), list_whole_models())
            raise ConfigError(f"model {show(str(name_or_path))}: found a layer without the table [whole], expected a whole model{hint}")
        return _whole_from_table(table, f"{name_or_path}.toml")
    return _read_model(_user_path(name_or_path, "model", list_whole_models(), FILES), whole_from_config, whole_from_toml)


def whole_from_toml(text: str, where: str) -> WholeModel:
    """A `WholeModel` from TOML text; `where` names the file in errors (`ConfigError`)."""
    table = parse_toml(text, where)
    if isinstance(table.get("base"), str) and table["base"] in _names_of("dense"):
        return _whole_from_table(_merged(_packaged("dense", table.pop("base")), table), where)
    return _whole_from_table(_with_base(table, "models", where), where)


def _whole_from_table(table: ByName, where: str) -> WholeModel:
    """The model of a parsed file. A file without `n_experts` describes a dense model. Raises `ConfigError`."""
    whole = table.get("whole")
    if not isinstance(whole, dict):
        raise ConfigError(f"{where}: whole: found {show(whole)}, expected a table [whole] with vocab and [whole.attention]")
    head: ByName = {key: table[key] for key in ("name", "source", "hidden") if key in table}
    layer = _layer_of(table, where) if "n_experts" in table else None
    unknown = [key for key in table if layer is None and key not in (*head, "whole")]
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]}: found it in a file without n_experts, expected only name, source, hidden and [whole]")
    return _in_file(lambda: _whole_of(whole, head, layer), where)


def _whole_of(table: ByName, head: ByName, layer: Model | None) -> WholeModel:
    """The model of a table `[whole]`; `head` gives its name, source and width, if the table has none. Raises `ConfigError` with the key."""
    values = {**table, **head, "layer": layer, **{key: table[key] for key in ("hidden",) if key in table}}
    for key, kind in (("attention", Attention), ("linear", LinearAttention)):
        if isinstance(part := values.get(key), dict):
            raise_if([f"{key}.{fault}" for fault in problems(kind, part)], "[whole]")
            values[key] = kind(**part)
    raise_if(problems(WholeModel, values), "[whole]")
    return WholeModel(**values)
