"""`Fitted`: one constant that is fitted to measurements, with its unit, its meaning and the measurements behind it (`data/fitted.toml`)."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dysharp.base import Amounts, ByName, ConfigError, check_word, frozen_keywords, nearest, read_text, show
from dysharp.specs.constants import Constant, Words, constants_of, flat
from dysharp.specs.reading import DATA

FILE = DATA / "fitted.toml"
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


@frozen_keywords
class Fitted(Constant):
    """One fitted constant."""

    value: Positive
    low: Positive
    high: Positive
    unit: Words
    stage: Words
    """Families of measurements on which the constant is fitted, or "given"."""
    fitted_on: Words
    """The measurements in words."""

    @classmethod
    def row(cls, entry: ByName) -> ByName:
        return {key: float(value) if type(value) is int else value for key, value in entry.items()}


def constants_from_file(path: Path) -> dict[str, Fitted]:
    """Constants by name from a file in the form of `data/fitted.toml`.

    Raises `ConfigError` unless the file has every packaged constant and no other constant.
    """
    constants = constants_of(Fitted, read_text(path), str(path))
    for name in constants:
        check_word(name, fitted(), f"{path}: {show(name)}: unknown constant")
    missing = [name for name in fitted() if name not in constants]
    if missing:
        raise ConfigError(f"{path}: found {len(constants)} constants, expected also {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}")
    return constants


@functools.cache
def fitted() -> Mapping[str, Fitted]:
    """The packaged constants by name."""
    return constants_of(Fitted, read_text(FILE), FILE.name)


KERNELS = "serving.kernels "
"""Begins the name of a constant that machines alone have, for one model in one format: "serving.kernels qwen3-30b fp8"."""
_OF_MODEL = Fitted(name=KERNELS, value=1.0, low=0.2, high=5.0, unit="part", meaning="time over that of forms", stage="given", fitted_on="own rows")


def constant_of(name: str) -> Fitted | None:
    """A packaged constant, or one of a served model."""
    return _OF_MODEL if name.startswith(KERNELS) else fitted().get(name)


Overrides = tuple[tuple[str, float], ...]
"""Constants of one machine that replace packaged constants: (name, value), sorted by name."""


def fitted_values(overrides: Overrides = ()) -> Amounts:
    """Value by name, as the formulas of `costs` take it. `overrides` replace packaged values."""
    return _packaged() | dict(overrides)


@functools.cache
def _packaged() -> Amounts:
    return values_of(fitted())


def values_of(constants: Mapping[str, Fitted]) -> Amounts:
    """Value by name."""
    return {name: constant.value for name, constant in constants.items()}


def overrides_of(table: Any, where: str) -> Overrides:
    """The `[constants]` table of a cluster file, nested or with dotted keys.

    Raises `ConfigError` for a value that is no number and for a name that occurs twice.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: constants: found {show(table)}, expected a table of name = value")
    values: Amounts = {}
    for name, value in flat(table):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{where}: constants: {show(name)}: found {show(value)}, expected a number")
        if name in values:
            raise ConfigError(f"{where}: constants: {show(name)}: found twice, expected once")
        values[name] = float(value)
    return tuple(sorted(values.items()))


def conflicts_of(overrides: Overrides) -> list[str]:
    """Faults in the constants of a machine: unknown names, repeated names, values outside [`low`, `high`]."""
    faults = []
    for name, value in overrides:
        if (c := constant_of(name)) is None:
            faults.append(f"constants: {show(name)}: unknown{nearest(name, fitted())}")
        elif not c.low <= value <= c.high:
            faults.append(f"constants: {name}: found {value:g}, expected {c.low:g} to {c.high:g} {c.unit}")
    if len({name for name, _ in overrides}) < len(overrides):
        faults.append("constants: found a name twice, expected each once")
    return faults
