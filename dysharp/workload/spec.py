"""`RoutingSpec`: the routing string of the command line, `NAME[:VALUE][:option...]`, as a value."""

import math

from dysharp.base import ConfigError, Texts, check_word, frozen
from dysharp.workload.patterns import PATTERNS, Setting
from dysharp.workload.traces import packaged_traces

_TAKES_NUMBER = {"normal": "STD", "normal-literal": "STD", "normal-cv": "CV", "powerlaw": "ALPHA", "lognormal": "SIGMA"}
_TAKES_SOURCE = {"counts": "FILE", "loads": "NAME or FILE", "trace": "NAME or FILE"}
DISTRIBUTIONS = ("uniform", *_TAKES_NUMBER, *PATTERNS, "loads")
"""Names that need a model for experts and top-k."""
_NAMES = tuple(dict.fromkeys((*DISTRIBUTIONS, *_TAKES_SOURCE)))
_OPTIONS: dict[str, Texts] = {
    **dict.fromkeys(("uniform", *_TAKES_NUMBER), ("group-limited",)),
    **{name: tuple(s.name for s in pattern.settings if s.name) for name, pattern in PATTERNS.items()},
    "counts": ("layer", "model", "group-limited"),
    "loads": ("layer", "group-limited"),
    "trace": ("layer", "window"),
}
_FLAGS = ("group-limited",)
DUMPS = (".npy", ".json", ".jsonl", ".pt")
"""Endings of files that engines write; `dysharp routing import` reads them."""
_WINDOWS = ("in-order", "decode", "mixed")
_MAX_NUMBER = 1e3


@frozen
class RoutingSpec:
    """A parsed routing string."""

    name: str
    value: float = 0.0
    """The number of a distribution."""
    source: str = ""
    """Name or path of a recording, or path of a CSV of counts."""
    layer: int | None = None
    model: str = ""
    """The model to take from a CSV of counts of several models."""
    window: str = "in-order"
    """How a recording is dealt to GPUs (`deal`)."""
    group_limited: bool = False
    settings: tuple[tuple[str, float], ...] = ()
    """Names and numbers of a pattern (`patterns.PATTERNS`), defaults included."""


@frozen
class RoutingForm:
    """One kind of routing string for a list: how to write it, what it means, where it comes from."""

    form: str
    summary: str
    source: str


def routing_forms() -> tuple[RoutingForm, ...]:
    """Every kind of routing string."""
    named = [RoutingForm(pattern.form(name), pattern.summary, pattern.source) for name, pattern in PATTERNS.items()]
    return (*_FORMS, *named)


_RECORDINGS = f"your file, or a packaged trace: {', '.join(packaged_traces())}"
_FORMS = (
    RoutingForm("uniform", "any k experts, equally likely", "the usual assumption"),
    RoutingForm("normal:STD", "popularity N(1, 8 STD): the published spread as a share of 8 experts", "COMET, arXiv 2502.19811"),
    RoutingForm("normal-literal:STD", "shares N(1/E, STD): the published spread taken literally", "COMET, arXiv 2502.19811"),
    RoutingForm("normal-cv:CV", "popularity N(1, CV)", "ours"),
    RoutingForm("powerlaw:ALPHA", "popularity rank ** -ALPHA", "NVIDIA aiconfigurator, collect_moe.py draws loads by a power law"),
    RoutingForm("lognormal:SIGMA", "popularity exp(SIGMA * normal); 0.65 is close to DeepSeek-V3", "fit of recorded loads"),
    RoutingForm("counts:FILE.csv[:layer=L][:model=NAME]", "drawn so that the loads are those of the file", "your file"),
    RoutingForm("loads:NAME_OR_FILE[:layer=L]", "popularity with the spread of a recording's loads; any number of experts", _RECORDINGS),
    RoutingForm("trace:NAME_OR_FILE[:layer=L][:window=W]", "expert choices of a recording, replayed", _RECORDINGS),
)


def parse_routing(text: str) -> RoutingSpec:
    """The parsed form of a routing string such as `uniform`, `lognormal:0.65:group-limited` or `trace:NAME:layer=13`.

    A path may contain colons: parts at the end are options as long as they look like options. Raises ConfigError for
    an unknown name or option (with the nearest valid one) and for a bad number.
    """
    name, *parts = text.split(":")
    if text.endswith(DUMPS) and name not in _NAMES:
        raise ConfigError(f"routing: found {text[:60]!r}, expected a trace (.npz); `dysharp routing import` makes one of a dump")
    check_word(name, _NAMES, f"routing: unknown distribution {name[:60]!r}")
    options: dict[str, str] = {}
    first = int(name in _TAKES_NUMBER)  # the part behind the name is the number, whatever it looks like
    while (len(parts) > first and _looks_like_option(parts[-1], name)) or (parts and parts[-1] in _FLAGS):
        key, _, value = parts.pop().partition("=")
        check_word(key, _OPTIONS[name], f"routing {name}: unknown option {key[:60]!r}")
        if key in options:
            raise ConfigError(f"routing {name}: option {key!r} given twice")
        options[key] = value
    if name in PATTERNS:
        return RoutingSpec(name, settings=_settings(name, ":".join(parts), options))
    window = options.get("window", "in-order")
    check_word(window, _WINDOWS, f"routing trace: unknown window {window[:60]!r}")
    return RoutingSpec(
        name, value=_number(name, ":".join(parts)), source=_source(name, ":".join(parts)), layer=_layer(options.get("layer")),
        model=options.get("model", ""), window=window, group_limited="group-limited" in options,
    )  # fmt: skip


def _looks_like_option(part: str, name: str) -> bool:
    """Whether `part` is a flag or KEY=VALUE. A part with a slash before "=" belongs to a path."""
    key, equals, _ = part.partition("=")
    if not equals:
        return part in _FLAGS or (name not in _TAKES_SOURCE and not _is_number(part) and part != "")
    return "/" not in key and "\\" not in key


def _settings(name: str, value: str, options: dict[str, str]) -> tuple[tuple[str, float], ...]:
    """The settings of a pattern, in the order of their declaration."""
    given = dict(options)
    if value or any(s.name == "" and s.default is None for s in PATTERNS[name].settings):
        given[""] = value
    known = {s.name for s in PATTERNS[name].settings}
    if "" in given and "" not in known:
        raise ConfigError(f"routing {name}: found {value[:60]!r}, expected {PATTERNS[name].form(name)}")
    return tuple((s.name, _setting(name, s, given.get(s.name))) for s in PATTERNS[name].settings)


def _setting(name: str, setting: Setting, text: str | None) -> float:
    shown = f"{setting.name}={text}" if setting.name else repr(text)
    if text is None:
        if setting.default is None:
            raise ConfigError(f"routing {name}: found no {setting.name}=, expected {PATTERNS[name].form(name)}")
        return setting.default
    value = float(text) if _is_number(text) else math.nan
    if not setting.low <= value <= setting.high or (setting.whole and not value.is_integer()):
        kind = "a whole number" if setting.whole else "a number"
        raise ConfigError(f"routing {name}: found {shown[:60]}, expected {kind} from {setting.low:g} to {setting.high:g}")
    return value


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
        raise ConfigError(f"routing {name}: found {text[:60]!r}, expected a number, as in {name}:0.5 ({_TAKES_NUMBER[name]})")
    value = float(text)
    if not (math.isfinite(value) and 0.0 <= value <= _MAX_NUMBER):
        raise ConfigError(f"routing {name}: found {text[:60]}, expected a number from 0 to {_MAX_NUMBER:g}")
    return value


def _source(name: str, text: str) -> str:
    if name not in _TAKES_SOURCE:
        return ""
    if not text:
        raise ConfigError(f"routing {name}: found nothing behind the name, expected {name}:{_TAKES_SOURCE[name]}")
    return text


def _layer(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(f"routing: found layer={text[:60]!r}, expected a layer number")
    return int(text)
