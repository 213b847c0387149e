"""From a name or a path to a `WholeModel`."""

import functools
from typing import Any

from dysharp.errors import ConfigError, nearest
from dysharp.specs.catalog import NameOrPath, in_file, is_name, layer_of, merged, names_of, packaged_table, user_path, with_base
from dysharp.specs.fields import show
from dysharp.specs.reading import DATA, parse_toml, read_text
from dysharp.specs.whole import WholeModel, whole_of

FILES = ", a .toml file with the table [whole]"


@functools.cache
def list_whole_models() -> list[str]:
    """Names of the packaged models that are described from embedding to head, sorted: with and without experts."""
    return sorted([name for name in names_of("models") if "whole" in packaged_table(name)] + names_of("dense"))


def load_whole(name_or_path: NameOrPath) -> WholeModel:
    """A packaged model by name, or one from a TOML file with the table `[whole]`. Raises `ConfigError` in one line."""
    if is_name(name_or_path, "dense"):
        path = DATA / "dense" / f"{name_or_path}.toml"
        return whole_from_table(parse_toml(read_text(path), path.name), path.name)
    if is_name(name_or_path, "models"):
        table = packaged_table(str(name_or_path))
        if "whole" not in table:
            hint = nearest(str(name_or_path), list_whole_models())
            raise ConfigError(f"model {show(str(name_or_path))}: found a layer without the table [whole], expected a whole model{hint}")
        return whole_from_table(table, f"{name_or_path}.toml")
    path = user_path(name_or_path, "model", list_whole_models(), FILES)
    return whole_from_toml(read_text(path), str(path))


def whole_from_toml(text: str, where: str) -> WholeModel:
    """A `WholeModel` from TOML text; `where` names the file in errors (`ConfigError`)."""
    table = parse_toml(text, where)
    if isinstance(table.get("base"), str) and table["base"] in names_of("dense"):
        path = DATA / "dense" / f"{table.pop('base')}.toml"
        return whole_from_table(merged(parse_toml(read_text(path), path.name), table), where)
    return whole_from_table(with_base(table, "models", where), where)


def whole_from_table(table: dict[str, Any], where: str) -> WholeModel:
    """The model of a parsed file. A file without `n_experts` describes a dense model. Raises `ConfigError`."""
    whole = table.get("whole")
    if not isinstance(whole, dict):
        raise ConfigError(f"{where}: whole: found {show(whole)}, expected a table [whole] with vocab and [whole.attention]")
    head: dict[str, Any] = {key: table[key] for key in ("name", "source", "hidden") if key in table}
    layer = layer_of(table, where) if "n_experts" in table else None
    unknown = [key for key in table if layer is None and key not in (*head, "whole")]
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]}: found it in a file without n_experts, expected only name, source, hidden and [whole]")
    return in_file(lambda: whole_of(whole, head, layer, where), where)
