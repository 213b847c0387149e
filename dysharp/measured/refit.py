"""The fit of the packaged constants, stage by stage.

A stage is a set of families and the constants that their measurements fix; `fitted.toml` names it with each constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dysharp.measured.classify import Classified, Parsed
from dysharp.measured.closed_forms import ClosedForms
from dysharp.measured.family import Level, get_family
from dysharp.measured.fitting import Free, fit
from dysharp.measured.predictions import measured_values, predict
from dysharp.measured.program_times import OnProgress
from dysharp.specs.fitted import Fitted
from dysharp.specs.gpu import load_gpu

F64 = NDArray[np.float64]
GIVEN = "given"
"""Stage of the host's launch time, which is an input that describes a machine.

Its value is read off measurements, and it stays when the GPU is held out.
"""
SIBLING = {"hopper.": "blackwell.", "blackwell.": "hopper."}
ROUNDS = 3


def stages(constants: Mapping[str, Fitted]) -> list[tuple[tuple[str, ...], list[str]]]:
    """(families, constants) in the order of fitting, by `Family.level`. A stage uses the constants of earlier stages.

    Raises `ConfigError` for a stage that names an unknown family.
    """
    by_stage: dict[str, list[str]] = {}
    for name, constant in constants.items():
        if constant.stage != GIVEN:
            by_stage.setdefault(constant.stage, []).append(name)
    named = [(tuple(stage.split("+")), names) for stage, names in by_stage.items()]
    return sorted(named, key=lambda entry: level_of(entry[0]))


def level_of(families: Sequence[str]) -> Level:
    """The highest level of a stage's families."""
    return max(get_family(name).level for name in families)


def ratios(parsed: Sequence[Parsed], constants: Mapping[str, Fitted], predicted: F64) -> F64:
    """`[parsed]` predictions divided by the closed forms' predictions with equal constants."""
    return predicted / ClosedForms(parsed).values({name: c.value for name, c in constants.items()})


def refit_programs(
    classified: Classified, constants: Mapping[str, Fitted], jobs: int = 1, on_progress: OnProgress | None = None
) -> dict[str, Fitted]:
    """Constants that bring the Programs nearest to the measurements of families in the bars.

    A least-squares fit needs thousands of predictions, so it uses closed forms. Each closed form is multiplied by the
    ratio of Program to closed form. Then the Programs run again with the new constants, `ROUNDS` times.
    """
    current, classified = dict(constants), classified.in_bars()
    for _ in range(ROUNDS if any(entry.family.program_us for entry in classified.parsed) else 1):
        classified, predicted = predict(classified, {n: c.value for n, c in current.items()}, jobs, on_progress)
        current = refit(classified.parsed, current, ratio=ratios(classified.parsed, current, predicted))
    return current


def refit(
    parsed: Sequence[Parsed],
    constants: Mapping[str, Fitted],
    keep: NDArray[np.bool_] | None = None,
    ratio: F64 | None = None,
) -> dict[str, Fitted]:
    """Constants fitted on `parsed` (where `[parsed]` mask `keep` holds); every family of a stage weighs the same.

    `ratio`: `[parsed]`, by which each closed form is multiplied (`ratios`). A constant of one architecture without
    measurements takes the other architecture's value: otherwise held-out measurements would leak into the fit.
    Constants of the stage `GIVEN` stay.
    """
    scale = np.ones(len(parsed)) if ratio is None else ratio
    used = np.ones(len(parsed), bool) if keep is None else keep
    values = {name: constant.value for name, constant in constants.items()}
    for families, names in stages(constants):
        members = [i for i, entry in enumerate(parsed) if used[i] and entry.family.name in families]
        if not members:
            continue
        entries = [parsed[i] for i in members]
        archs = {load_gpu(entry.case.gpu).arch for entry in entries}
        free = [name for name in names if not _is_of_other(name, archs)]
        values |= _fit_stage(entries, free, constants, values, scale[members])
        for name in set(names) - set(free):
            values[name] = _borrowed(name, values)
    bounded = {name: float(np.clip(values[name], c.low, c.high)) for name, c in constants.items()}
    return {name: replace(constant, value=bounded[name]) for name, constant in constants.items()}


def _is_of_other(name: str, archs: set[str]) -> bool:
    """Whether a constant belongs to an architecture without measurements."""
    return name.split(".", maxsplit=1)[0] in {"hopper", "blackwell"} - archs


def _borrowed(name: str, values: Mapping[str, float]) -> float:
    for prefix, other in SIBLING.items():
        if name.startswith(prefix):
            return values.get(other + name.removeprefix(prefix), 1.0)
    return values[name]


def family_shares(parsed: Sequence[Parsed]) -> F64:
    """`[parsed]` weights with which every family counts 100, however many measurements it has."""
    names = [entry.family.name for entry in parsed]
    return np.array([1 / names.count(name) for name in names]) * 100


def _fit_stage(
    parsed: Sequence[Parsed],
    names: Sequence[str],
    constants: Mapping[str, Fitted],
    values: Mapping[str, float],
    ratio: F64,
) -> dict[str, float]:
    # The values that the closed forms must predict.
    forms, measured = ClosedForms(parsed), measured_values(parsed) / ratio
    free = [Free(name, constants[name].value, constants[name].low, constants[name].high) for name in names]
    return fit(free, values, forms.values, measured, weights=family_shares(parsed))


def to_toml(constants: Mapping[str, Fitted], head: str) -> str:
    """The constants as the text of `fitted.toml`, `head` as its comment."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for c in constants.values():
        lines += ["", f"[{c.name}]", f"value = {c.value:.4g}", f"low = {c.low:g}", f"high = {c.high:g}"]
        texts = {"unit": c.unit, "meaning": c.meaning, "stage": c.stage, "fitted_on": c.fitted_on}
        lines += [f"{key} = {_quoted(text)}" for key, text in texts.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
