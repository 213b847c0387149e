"""What each option means, which values an option takes, and where it has an effect; a warning for an option without effect."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dysharp.runs.options import STEPS, option_choices
from dysharp.specs import Choice, Cluster
from dysharp.specs.reading import parse_toml, read_text
from dysharp.systems import System, is_real
from dysharp.systems.building.formats import SIDES, WEIGHT_FORMATS
from dysharp.systems.registry import FORMS

EVERYWHERE, REAL_FORM, PAPER_FORM = "everywhere", "real form", "paper form"
"""Where an option has an effect. Real form: on hw-* clusters, unless `form=paper`."""
TRUTH = "true, false"
_FILE = Path(__file__).with_suffix(".toml")
_TEXTS = parse_toml(read_text(_FILE), _FILE.name)
FIELDS: dict[str, tuple[str, str]] = {name: (words, effect) for effect, some in _TEXTS["fields"].items() for name, words in some.items()}
"""option -> (meaning, where it has an effect)."""
VALUES: dict[str, str] = {"form": ", ".join(FORMS), "sides": ", ".join(SIDES), "weights": ", ".join(WEIGHT_FORMATS)} | _TEXTS["values"]
OF_SYSTEM: dict[str, str] = _TEXTS["of_system"]
FABRIC: dict[str, str] = _TEXTS["fabric"]


@dataclass(frozen=True, slots=True)
class OptionHelp:
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


def options_help(system: System) -> list[OptionHelp]:
    """The options of a system, in the order of its declaration."""
    defaults = {f.name: f.default for f in dataclasses.fields(system.options)}
    choices = option_choices(system)
    done = []
    for field, default in defaults.items():
        meaning, effect = FIELDS.get(field, ("see the documentation of the system", EVERYWHERE))
        rule = choices[field]
        done.append(OptionHelp(f"{system.name}.{field}", default, _values(system, field, default, rule), meaning, effect, rule))
    return done


def _values(system: System, field: str, default: Any, rule: Choice | None) -> str:
    name = f"{system.name}.{field}"
    if rule is not None:
        return range_text(rule, STEPS.get(name, 1))
    if isinstance(default, bool):
        return TRUTH
    if field == "gemms":
        return ", ".join(("auto", *system.costs.gemms))
    if field in ("dispatch", "combine"):
        return OF_SYSTEM.get(name, ", ".join(system.moves.formats))
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
    defaults = {f.name: f.default for f in dataclasses.fields(options)}
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
