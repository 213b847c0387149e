"""`--set system.option=value`: from text to the Options of a system, checked against choices.toml; what each option means, which values it takes, and
where it has an effect; a warning for an option without effect."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dysharp.base import AnyMapping, ByName, Cells, ConfigError, Texts, check_word, frozen, nearest, read_toml
from dysharp.specs import Choice, Cluster, Model, choice, list_choices
from dysharp.systems import System, is_real
from dysharp.systems.building.formats import SIDES, WEIGHT_FORMATS
from dysharp.systems.collective_system import CollectiveSystem
from dysharp.systems.registry import FORMS

Value = bool | int | float | str
STEPS = {"deepep.n_sm": 2}
"""Option -> step of its values: a DeepEP channel takes two SMs."""
SHARED = {"al_misses": "hub.al_misses"}
"""Option -> the choice of all systems that have it. Any other option has a choice of its system's module."""


def option_choices(system: System | CollectiveSystem) -> dict[str, Choice | None]:
    """The options of a system and the choice that gives each option its default and range (None = no choice)."""
    stem = system.options.__module__.rpartition(".")[2]
    known = {c.name for c in list_choices()}
    names = {f.name: SHARED.get(f.name, f"{stem}.{f.name}") for f in dataclasses.fields(system.options)
             if f.name not in getattr(system, "inert", ())}  # fmt: skip
    return {field: choice(name) if name in known else None for field, name in names.items()}


def _defaults(options: Any) -> ByName:
    """{field: its default} of a dataclass."""
    return {f.name: f.default for f in dataclasses.fields(options)}


def options_of(system: System | CollectiveSystem, given: Mapping[str, Value]) -> Any:
    """The Options of `system`: `given` {option: value or text}, else defaults.

    Raises ConfigError for an unknown option (with the nearest one), a value of the wrong type, or a value outside the range of its choice.
    """
    fields = option_choices(system)
    defaults = _defaults(system.options)
    values: dict[str, Value] = {}
    for name, value in given.items():
        check_word(name, fields, f"option {system.name}.{name}: unknown")
        where, rule = f"option {system.name}.{name}", fields[name]
        step = STEPS.get(f"{system.name}.{name}", 1)
        values[name] = _of_type(where, value, defaults[name]) if rule is None else _in_range(where, value, rule, step)
    return system.options(**values)


def _of_type(where: str, value: Value, default: object) -> Value:
    """A value without a choice in choices.toml: only its type can be checked."""
    if isinstance(default, bool):
        text = str(value).lower()
        if text not in ("true", "false"):
            raise ConfigError(f"{where}: found {str(value)[:60]!r}, expected true or false")
        return text == "true"
    return _number(where, value, type(default)) if isinstance(default, (int, float)) else str(value)


def _in_range(where: str, value: Value, rule: Choice, step: int) -> Value:
    if isinstance(rule.value, str):
        if value not in rule.alternatives:
            raise ConfigError(f"{where}: found {value!r}, expected one of {', '.join(rule.alternatives)}")
        return value
    number = _number(where, value, type(rule.value))
    low, high = rule.low, rule.high
    assert isinstance(low, (int, float))  # `Choice` holds this for numbers
    assert isinstance(high, (int, float))
    if number != rule.automatic and (not low <= number <= high or number % step):
        automatic = "" if rule.automatic is None else f", or {rule.automatic} for automatic"
        span = f"{low} to {high} {rule.unit}" if step == 1 else f"an even number of {rule.unit} from {low} to {high}"
        raise ConfigError(f"{where}: found {number}, expected {span}{automatic}")
    return number


def _number(where: str, value: Value, kind: type) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (kind is int and isinstance(value, float)):
        raise ConfigError(f"{where}: found {value!r}, expected a {'whole ' if kind is int else ''}number")
    try:
        return int(str(value)) if kind is int else float(value)
    except ValueError:
        raise ConfigError(f"{where}: found {str(value)[:60]!r}, expected a {'whole ' if kind is int else ''}number") from None


def _shipped(system: System, model: Model, cluster: Cluster) -> dict[str, Value]:
    """The usual options of a system for this model on an hw cluster; {} where no released kernel runs the model."""
    if system.ships is None or cluster.family != "hw" or system.ships.why_not(model, cluster):
        return {}
    return dict(system.ships.formats.get(model.gemm_dtype, {}))


def options_by_system(
    given: Mapping[str, Value] | None, systems: Mapping[str, System], model: Model, cluster: Cluster
) -> dict[str, dict[str, Value]]:
    """Options of each system: the options that it ships with, replaced by the given options. Raises ConfigError as `split_options`."""
    asked = split_options(given, systems)
    return {name: _shipped(system, model, cluster) | asked[name] for name, system in systems.items()}


def split_options(given: Mapping[str, Value] | None, systems: AnyMapping) -> dict[str, dict[str, Value]]:
    """Options by system. Keys are `system.option`, or `option` alone when there is one system.

    Raises ConfigError for a system that does not run and for a key without a system among several.
    """
    out: dict[str, dict[str, Value]] = {name: {} for name in systems}
    for key, value in (given or {}).items():
        name, dot, option = key.rpartition(".")
        if not dot and len(systems) == 1:
            name = next(iter(systems))
        if name not in out:
            if not dot:
                raise ConfigError(f'option {key[:80]!r}: found no system, expected "SYSTEM.{key[:60]}" with one of {", ".join(systems)}')
            expected = nearest(name, systems)
            raise ConfigError(f"option {key[:80]!r}: no system {name[:60]!r} in this run{expected}")
        if option in out[name]:
            raise ConfigError(f"option {name}.{option}: found it twice, with and without its system, expected it once")
        out[name][option] = value
    return out


OF_BOTH_LEVELS = ("acks", "stripe", "n_vcs", "vc_flits")
"""Fields of `FabricConfig` that the burst level has, too."""


def split_fabric(given: Mapping[str, Value] | None, fidelity: str) -> tuple[ByName, dict[str, Value]]:
    """({field of `FabricConfig`: value} from options named `fabric.field`, all other options).

    Raises ConfigError for an unknown field, a malformed value, and for a `fabric` option at another fidelity.
    """
    options = dict(given or {})
    named = {key: options.pop(key) for key in list(options) if key.startswith("fabric.")}
    if not named:
        return {}, options
    absent = [key for key in named if key.partition(".")[2] not in OF_BOTH_LEVELS]
    if fidelity != "packet" and absent:
        raise ConfigError(f'option {absent[0]!r}: found fidelity "{fidelity}", expected "packet" (the burst level does not have this block)')
    from dysharp.engine.packet.fabric import FabricConfig

    defaults = _defaults(FabricConfig)
    out: ByName = {}
    for key, value in named.items():
        name = key.partition(".")[2]
        check_word(name, defaults, f"option {key}: unknown")
        out[name] = _of_type(f"option {key}", value, defaults[name])
        if isinstance(out[name], int) and out[name] < (-1 if name in ("n_vcs", "vc_flits") else 0):
            raise ConfigError(f"option {key}: found {out[name]}, expected at least 0 (0 = infinite)")
    FabricConfig(**out)
    if fidelity != "packet" and out.get("stripe") == "hash":
        raise ConfigError('option fabric.stripe: found "hash" at burst level, expected one of rotating, even')
    return out, options


def parse_set(texts: Texts) -> Cells:
    """`("dysharp.combine_window=64",)` as a mapping; raises ConfigError for text without "=" and for a key given twice."""
    out: Cells = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: found {text[:80]!r}, expected system.option=value")
        if key in out:
            raise ConfigError(f"--set: found {key[:80]!r} twice, expected it once")
        out[key] = value
    return out


EVERYWHERE, REAL_FORM, PAPER_FORM = "everywhere", "real form", "paper form"
"""Where an option has an effect. Real form: on hw-* clusters, unless `form=paper`."""
TRUTH = "true, false"
_TEXTS = read_toml(Path(__file__).with_suffix(".toml"))
FIELDS: dict[str, tuple[str, str]] = {name: (words, effect) for effect, some in _TEXTS["fields"].items() for name, words in some.items()}
"""option -> (meaning, where it has an effect)."""
VALUES: Cells = {"form": ", ".join(FORMS), "sides": ", ".join(SIDES), "weights": ", ".join(WEIGHT_FORMATS)} | _TEXTS["values"]
OF_SYSTEM: Cells = _TEXTS["of_system"]
FABRIC: Cells = _TEXTS["fabric"]


@frozen
class _OptionHelp:
    """One option of one system.

    `name`: "system.option". `value`: the default. `values`: the allowed values, as text. `effect`: `EVERYWHERE` or `REAL_FORM` or `PAPER_FORM`.
    `choice`: the choice that gives default and range, or None.
    """

    name: str
    value: Any
    values: str
    meaning: str
    effect: str
    choice: Choice | None


def options_help(system: System) -> list[_OptionHelp]:
    """The options of a system, in the order of its declaration."""
    defaults = _defaults(system.options)
    done = []
    for field, rule in option_choices(system).items():
        meaning, effect = FIELDS.get(field, ("see the documentation of the system", EVERYWHERE))
        default = defaults[field]
        done.append(_OptionHelp(f"{system.name}.{field}", default, _values(system, field, default, rule), meaning, effect, rule))
    return done


def _values(system: System, field: str, default: Any, rule: Choice | None) -> str:
    name = f"{system.name}.{field}"
    if rule is not None:
        return range_text(rule, STEPS.get(name, 1))
    if isinstance(default, bool):
        return TRUTH
    if field == "gemms":
        return ", ".join(("auto", *system.costs.gemms))
    if field in ("dispatch", "combine", "sums"):
        return OF_SYSTEM.get(name, ", ".join(system.moves.formats if field == "dispatch" else system.moves.results))
    return OF_SYSTEM.get(name, VALUES.get(field, "-"))


def range_text(rule: Choice, step: int = 1) -> str:
    """The range of a number with its unit, or the words."""
    if rule.alternatives:
        return ", ".join(rule.alternatives)
    automatic = "" if rule.automatic is None else f", or {rule.automatic}"
    return f"{rule.low} to {rule.high} {rule.unit}".rstrip() + automatic + (", an even number" if step == 2 else "")


def without_effect(system: System, options: Any, cluster: Cluster) -> Sequence[str]:
    """A warning for each option that differs from its default and changes nothing in this run."""
    if not system.has_real_form:
        return ()
    real = is_real(options.form, cluster)
    defaults = _defaults(options)
    changed = {name: value for name, value in dataclasses.asdict(options).items() if value != defaults[name]}
    remedy = "form=real has them" if cluster.gpu else "hw-* clusters have them"
    form = "real form here, which has its own software costs" if real else f"paper form here, without software costs; {remedy}"
    return [
        f"{system.name}.{name}={_shown(value)} has no effect: {system.name} runs in its {form}"
        for name, value in changed.items()
        if FIELDS.get(name, ("", EVERYWHERE))[1] == (PAPER_FORM if real else REAL_FORM)
    ]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
