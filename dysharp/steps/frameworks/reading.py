"""Arguments and recipe files as {name: value}. Text is data: nothing is imported, run or expanded.

A value is a text, a truth value, or a tuple of texts. Names have underscores. In a file with sections (`model:`, `[train]`) the name of a leaf
counts, and values that are empty or null do not.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError
from dysharp.specs.fields import show
from dysharp.specs.reading import read_text

Value = str | bool | tuple[str, ...]
Values = dict[str, Value]
WORDS = {"true": True, "false": False}
EMPTY = ("", "null", "none", "~", "None")


def read_settings(text: str) -> Values:
    """`text`: words with --arguments among them, or a file: TOML, YAML, JSON, a Python recipe as FILE.py:NAME, anything else as arguments."""
    if re.search(r"(^|\s)--\w", text):
        return arguments_of(text)
    name, _, function = text.partition(".py:")
    path = Path(f"{name}.py" if function else text)
    content = read_text(path)
    if path.suffix == ".py":
        return _python(content, function, str(path))
    if path.suffix in (".toml", ".json"):
        try:
            return dict(_leaves(tomllib.loads(content) if path.suffix == ".toml" else json.loads(content)))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: found {error}, expected {path.suffix[1:].upper()}") from None
    return _yaml(content, str(path)) if path.suffix in (".yaml", ".yml") else arguments_of(content)


def arguments_of(text: str) -> Values:
    """Arguments of a command line: `--name value ...`, `--name=value`, `--flag`. Words before the first argument are left out."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"arguments: found {error}, expected closed quotes") from None
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            key, equals, value = word.lstrip("-").partition("=")
            found[_name(key)] = [value] if equals else []
            name = "" if equals else _name(key)
        elif name:
            found[name].append(word)
    return {name: _plain(values) for name, values in found.items()}


def _plain(values: list[str]) -> Value:
    if not values:
        return True
    return WORDS.get(values[0].lower(), values[0]) if len(values) == 1 else tuple(values)


def _name(text: str) -> str:
    return text.strip().lstrip("-").replace("-", "_")


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif value is not None:
            words = [str(one) for one in value] if isinstance(value, list) else [str(value)]
            if not all(word in EMPTY for word in words):
                yield _name(key), _plain(words) if len(words) == 1 else tuple(words)


LINE = re.compile(r"(\s*)(?:(- )\s*)?(?:([\w.\-]+):(?:\s+|$))?(.*)")


def _yaml(content: str, where: str) -> Values:
    """Leaves of nested mappings, and lists of scalars; the part of YAML that recipes use. Quotes are taken off, comments left out."""
    found: Values = {}
    above = ""
    for number, raw in enumerate(content.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        match = LINE.fullmatch(line)
        key, text = (match[3] or "", match[4].strip()) if match else ("", "")
        if match and match[2] and not key:
            before = found.get(above, ())
            found[above] = (*(before if isinstance(before, tuple) else (str(before),)), text.strip("'\""))
        elif not key:
            raise ConfigError(f"{where}, line {number}: found {show(line.strip())}, expected a key and a value")
        else:
            above = _name(key)
            found.pop(above, None) if text else None
            if text.startswith("[") and text.endswith("]"):
                found[above] = tuple(word.strip().strip("'\"") for word in text[1:-1].split(",") if word.strip())
            elif text not in EMPTY:
                found[above] = _plain([text.strip("'\"")])
    return found


def _python(content: str, name: str, where: str) -> Values:
    """Constants that the function `name` of a recipe assigns to attributes or passes by name, or those of a preset: `name = replace(base, ...)`
    with the presets of the same file that it starts from. Nothing of what it calls.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: found {error}, expected Python") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    presets = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    if name in presets:
        return dict(_leaves(_preset(name, presets)))
    if name not in functions:
        raise ConfigError(f"{where}: found {show(name)}, expected FILE.py:NAME with one of {', '.join([*functions, *presets]) or 'none'}")
    found: dict[str, Any] = {}
    for node in ast.walk(functions[name]):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found[node.targets[0].attr] = _constant(node.value)
        elif isinstance(node, ast.keyword) and node.arg:
            found.setdefault(node.arg, _constant(node.value))
    return dict(_leaves(found))


def _preset(name: str, presets: Mapping[str, ast.expr]) -> dict[str, Any]:
    """Keywords of a preset over those of the presets that it names."""
    chain: list[ast.Call] = []
    while name in presets and len(chain) < len(presets):
        value = presets[name]
        if isinstance(value, ast.Call):
            chain.append(value)
            value = value.args[0] if value.args else value
        name = value.id if isinstance(value, ast.Name) and value.id != name else ""
    return {word.arg: _constant(word.value) for call in reversed(chain) for word in call.keywords if word.arg}


def _constant(node: ast.expr) -> Any:
    """The value of a constant; None for all else."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return list(value) if isinstance(value, tuple | set) else value
