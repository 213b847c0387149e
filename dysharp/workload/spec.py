"""The routing string of the command line, `NAME[:VALUE][:option...]`, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dysharp.errors import ConfigError, nearest

_TAKES_NUMBER = {
    "normal": "STD",
    "normal-literal": "STD",
    "normal-cv": "CV",
    "powerlaw": "ALPHA",
    "lognormal": "SIGMA",
}
_TAKES_SOURCE = {"counts": "FILE", "trace": "NAME or FILE"}
DISTRIBUTIONS = ("uniform", *_TAKES_NUMBER)
_NAMES = ("uniform", *_TAKES_NUMBER, *_TAKES_SOURCE)
_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("uniform", *_TAKES_NUMBER), ("group-limited",)),
    "counts": ("layer", "model", "group-limited"),
    "trace": ("layer", "window"),
}
_FLAGS = ("group-limited",)
_WINDOWS = ("in-order", "mixed")
_MAX_NUMBER = 1e3


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """A parsed routing string. `value`: a distribution's number; `source`: a recording's name or path."""

    name: str
    value: float = 0.0
    source: str = ""
    layer: int | None = None
    model: str = ""  # counts only: which `model` of a CSV with several
    window: str = "in-order"  # trace only
    group_limited: bool = False


def parse_routing(text: str) -> RoutingSpec:
    """Read `uniform`, `lognormal:0.65:group-limited`, `trace:NAME:layer=13:window=mixed` and the like.

    Raises ConfigError on unknown names and options (with the nearest valid one) and on bad numbers. A path
    may hold colons: options are taken from the end as long as they look like options.
    """
    name, *parts = text.split(":")
    if name not in _NAMES:
        raise ConfigError(f"routing: unknown distribution {name[:60]!r}{nearest(name, _NAMES)}")
    options: dict[str, str] = {}
    while parts and _looks_like_option(parts[-1], name):
        key, _, value = parts.pop().partition("=")
        if key not in _OPTIONS[name]:
            raise ConfigError(f"routing {name}: unknown option {key[:60]!r}{nearest(key, _OPTIONS[name])}")
        if key in options:
            raise ConfigError(f"routing {name}: option {key!r} given twice")
        options[key] = value
    return RoutingSpec(
        name,
        value=_number(name, ":".join(parts)),
        source=_source(name, ":".join(parts)),
        layer=_layer(options.get("layer")),
        model=options.get("model", ""),
        window=_window(options.get("window", "in-order")),
        group_limited="group-limited" in options,
    )


def _looks_like_option(part: str, name: str) -> bool:
    """A flag or KEY=... ; a path part with "=" counts only when a slash does not come before it."""
    key, equals, _ = part.partition("=")
    if not equals:
        return part in _FLAGS or (name not in _TAKES_SOURCE and not _is_number(part) and part != "")
    return "/" not in key and "\\" not in key


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(name: str, text: str) -> float:
    if name not in _TAKES_NUMBER:
        if name == "uniform" and text:
            raise ConfigError(f"routing uniform: found {text[:60]!r}, expected no value")
        return 0.0
    if not _is_number(text):
        raise ConfigError(f"routing {name}: found {text[:60]!r}, expected {name}:{_TAKES_NUMBER[name]}")
    value = float(text)
    if not (math.isfinite(value) and 0.0 <= value <= _MAX_NUMBER):
        raise ConfigError(f"routing {name}: found {text[:60]}, expected a number from 0 to {_MAX_NUMBER:g}")
    return value


def _source(name: str, text: str) -> str:
    if name not in _TAKES_SOURCE:
        return ""
    if not text:
        raise ConfigError(f"routing {name}: nothing follows, expected {name}:{_TAKES_SOURCE[name]}")
    return text


def _layer(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(f"routing: found layer={text[:60]!r}, expected a layer number")
    return int(text)


def _window(text: str) -> str:
    if text not in _WINDOWS:
        raise ConfigError(f"routing trace: unknown window {text[:60]!r}{nearest(text, _WINDOWS)}")
    return text
