"""`Request`: what a user sends, and the fields of files that say so."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from dysharp.base.errors import ConfigError, show

MOST = 1e18
"""Of a time or a number of a file."""


class Request(NamedTuple):
    """One request. It comes at `arrive` seconds, or `pause` seconds behind the last token of request number `after` (-1: none)."""

    arrive: float
    prompt: int
    """Tokens in; with turns the whole history."""
    output: int
    hashes: tuple[Hashable, ...] = ()
    """A name for each block of the prompt, from its head; behind them, blocks that its output completes."""
    after: int = -1
    pause: float = 0.0
    priority: int = 0
    """A smaller number goes first where the engine has priorities."""


def number(row: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """A number from 0 on of a file. Raises `ConfigError`."""
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
        raise ConfigError(f"{where}: {key}: found {show(value)}, expected a number from 0 on")
    return float(value)


def whole(row: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
    """A whole number of a file. Raises `ConfigError`."""
    value = row.get(key)
    if type(value) is not int or not least <= value < 1 << 31:
        raise ConfigError(f"{where}: {key}: found {show(value)}, expected a whole number from {least} on")
    return value


def names(row: Mapping[str, Any], where: str) -> list[int]:
    """The hashes of a row: whole numbers. Raises `ConfigError`."""
    found = row.get("hash_ids", [])
    if not isinstance(found, list) or any(type(one) is not int for one in found):
        raise ConfigError(f"{where}: hash_ids: found {show(found)}, expected a list of whole numbers")
    return found
