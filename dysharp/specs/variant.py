"""A packaged cluster with other values of some keys, written in one text: `paper-nvl72,link_GBps=900,al_tlb_entries=4096`."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from dysharp.errors import ConfigError
from dysharp.specs.fields import show

FIXED = ("base", "name", "source", "constants")
"""Keys that a text cannot give."""


NESTED = "scale_out."
"""Start of keys of the table [scale_out]."""


def split_variant(text: str) -> tuple[str, list[str]]:
    """(base, `key=value` texts) of a text; a text without a comma has no keys."""
    base, *fields = text.split(",")
    return base, fields


def variant_table(base: str, fields: list[str], where: str) -> dict[str, Any]:
    """The keys of a cluster file for a variant of `base`. Raises `ConfigError` for a text that is no `key=value`."""
    table: dict[str, Any] = {}
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
