"""The fit of the packaged constants, stage by stage.

A stage is a set of families and the constants that their measurements fix; `fitted.toml` names it with each constant.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dysharp.base import F64, Amounts, Bools, Cells, OnProgress, Texts, by_key, named
from dysharp.measured import left_out
from dysharp.measured.family import Classified, Level, Parsed, get_family
from dysharp.measured.fitting import LEAST_ROWS, Free, fit, seen_by
from dysharp.measured.predictions import ClosedForms, measured_values, predict
from dysharp.specs.fitted import Fitted, values_of

GIVEN = "given"
"""Stage of the host's launch time, which is an input that describes a machine.

Its value is read from measurements that are left out of the bars (`left_out.read_hosts`), and it stays when the GPU is held out.
"""
SIBLING = {"hopper.": "blackwell.", "blackwell.": "hopper."}
NEUTRAL = "neutral"
"""A constant that no measurement sees: its neutral value, or the value that the caller of `refit` gives."""
ROUNDS = 3  # Numerics: Program runs of a fit
MOST_PASSES = 8
"""Numerics: passes over the stages."""
SETTLED = 1e-3
"""Numerics: the fit ends when no constant moves by more than this part."""


def stages(constants: Mapping[str, Fitted]) -> list[tuple[Texts, list[str]]]:
    """(families, constants) in the order of fitting, by `Family.level`. A stage uses the constants of earlier stages.

    Raises `ConfigError` for a stage that names an unknown family.
    """
    by_stage = by_key((constant.stage, name) for name, constant in constants.items() if constant.stage != GIVEN)
    named = [(tuple(stage.split("+")), names) for stage, names in by_stage.items()]
    return sorted(named, key=lambda entry: level_of(entry[0]))


def level_of(families: Sequence[str]) -> Level:
    """The highest level of a stage's families."""
    return max(get_family(name).level for name in families)


def ratios(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], predicted: F64) -> F64:
    """`[parsed]` predictions divided by the closed forms' predictions with equal constants."""
    return predicted / ClosedForms(parsed).values(values_of(constants))


def neutral(constants: Mapping[str, Fitted]) -> Amounts:
    """Values that no measurement moved: the geometric mean of the limits of each constant; given constants as they are."""
    return {name: c.value if c.stage == GIVEN else math.sqrt(c.low * c.high) for name, c in constants.items()}


class _Refit(NamedTuple):
    """Constants after a fit, and where the values come from that the measurements cannot fix."""

    constants: dict[str, Fitted]
    borrowed: Cells
    """Constant -> the constant of the other architecture whose value it takes, or `NEUTRAL`."""

    @property
    def values(self) -> Amounts:
        """Value by name."""
        return values_of(self.constants)


def refit_programs(classified: Classified, constants: Mapping[str, Fitted], jobs: int, on_progress: OnProgress | None) -> _Refit:
    """Constants that bring the Programs nearest to the measurements that are judged, fitted from neutral values.

    A least-squares fit needs thousands of predictions, so it uses closed forms. Each closed form is multiplied by the
    ratio of Program to closed form at the last constants. Then the Programs run with the new constants, `ROUNDS` times.
    Launch times of hosts are read from launch-bound measurements first (`left_out.read_hosts`). Constants that the
    measurements do not see keep their values.
    """
    classified = classified.in_bars()
    hosts = left_out.read_hosts(classified.parsed, values_of(constants))
    given = {name: replace(c, value=hosts.get(name, c.value)) for name, c in constants.items()}
    rest = values_of(given)
    judged, _ = left_out.split(classified, rest)
    found = refit(judged.parsed, given, rest=rest)
    for _ in range(ROUNDS if any(entry.family.program_us for entry in judged.parsed) else 0):
        judged, predicted = predict(judged, found.values, jobs, on_progress)
        found = refit(judged.parsed, given, ratio=ratios(judged.parsed, found.constants, predicted), rest=rest)
    return found


def refit(
    parsed: Sequence[Parsed],
    constants: Mapping[str, Fitted],
    keep: Bools | None = None,
    ratio: F64 | None = None,
    rest: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
) -> _Refit:
    """Constants fitted on `parsed` (where `[parsed]` mask `keep` holds); every family of a stage weighs the same.

    The fit starts from neutral values, so it remembers nothing of `constants` but limits and stages. Stages are passed
    `MOST_PASSES` times at most, until no constant moves: a stage may use constants that a later stage fixes.

    `ratio`: `[parsed]`, by which each closed form is multiplied (`ratios`). Constants of the stage `GIVEN` stay.

    A constant that the measurements do not see (`refit.seen_by`) takes the value of the other architecture. Without
    such a value it stays neutral. With `rest` it takes the value there instead. `start`: values of an earlier fit to the
    same measurements, from which the fit starts instead.
    """
    scale = np.ones(len(parsed)) if ratio is None else ratio
    used = np.ones(len(parsed), bool) if keep is None else keep
    values, borrowed = dict(start or neutral(constants)), Cells()
    own = neutral(constants) if rest is None else rest
    work = []
    for families, names in stages(constants):
        members = [i for i, entry in enumerate(parsed) if used[i] and entry.family.name in families]
        if members:
            work.append(_Stage([parsed[i] for i in members], names, scale[members]))
        else:
            judged = any(get_family(name).in_bars for name in families)  # else no judged prediction uses the constants
            borrowed |= dict.fromkeys(names if judged else (), NEUTRAL)
            values |= {name: own[name] for name in names}
    for _ in range(MOST_PASSES):
        before = dict(values)
        for stage in work:
            unseen = stage.fit(constants, values, rest)
            borrowed = {n: why for n, why in borrowed.items() if n not in stage.names} | unseen
        if max((abs(math.log(values[name] / before[name])) for name in values), default=0.0) < SETTLED:
            break
    bounded = {name: float(np.clip(values[name], c.low, c.high)) for name, c in constants.items()}
    return _Refit({name: replace(constant, value=bounded[name]) for name, constant in constants.items()}, borrowed)


class _Stage:
    """The measurements of one stage."""

    def __init__(self, parsed: Sequence[Parsed], names: Sequence[str], ratio: F64) -> None:
        # The values that the closed forms must predict.
        self.names, self.forms, self.measured = names, ClosedForms(parsed), measured_values(parsed) / ratio
        self.shares = family_shares(parsed)

    def fit(self, constants: Mapping[str, Fitted], values: Amounts, rest: Mapping[str, float] | None) -> Cells:
        """Move `values` of the stage's constants. Returns the constants that are not seen, with their source."""
        own, unseen = neutral(constants) if rest is None else rest, Cells()
        while free := [name for name in self.names if name not in unseen]:
            limits = [Free(name, values[name], constants[name].low, constants[name].high) for name in free]
            values |= fit(limits, values, self.forms.values, self.measured, weights=self.shares)
            counts = seen_by(free, values, self.forms.values)
            hidden = [name for name, count in counts.items() if count < LEAST_ROWS]
            if not hidden:
                break
            values |= {name: own[name] for name in hidden}
            unseen |= {name: _other(name, self.names) if rest is None else NEUTRAL for name in hidden}
        for name, source in unseen.items():
            lent = source != NEUTRAL and source not in unseen
            unseen[name] = source if lent else NEUTRAL
            values[name] = values[source] if lent else own[name]
        return unseen


def _other(name: str, names: Sequence[str]) -> str:
    """The same constant of the other architecture, `NEUTRAL` where there is none."""
    for prefix, other in SIBLING.items():
        if name.startswith(prefix) and other + name.removeprefix(prefix) in names:
            return other + name.removeprefix(prefix)
    return NEUTRAL


def family_shares(parsed: Sequence[Parsed]) -> F64:
    """`[parsed]` weights with which every family counts 100, however many measurements it has."""
    names = [entry.family.name for entry in parsed]
    return np.array([1 / names.count(name) for name in names]) * 100


def to_toml(constants: Mapping[str, Fitted], head: str) -> str:
    """The constants as the text of `fitted.toml`, `head` as its comment."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for c in constants.values():
        lines += ["", f"[{c.name}]", f"value = {c.value:.4g}", f"low = {c.low:g}", f"high = {c.high:g}"]
        lines += [f"{key} = {_quoted(text)}" for key, text in named(c, "unit", "meaning", "stage", "fitted_on").items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
