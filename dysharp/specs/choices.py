"""Free modelling choices where a paper is silent (`data/choices.toml`); option defaults are read by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from dysharp.errors import ConfigError, nearest
from dysharp.specs.catalog import DATA
from dysharp.specs.fields import Text, check_fields, problems, raise_if, show
from dysharp.specs.reading import parse_toml, read_text

Scalar = int | float | str
_Value = (
    Annotated[int, Field(strict=True)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(strict=True, min_length=1)]
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice. A number has a plausible range [`low`, `high`]; a word has `alternatives`.

    `automatic`, if set, is a value outside the range that means "computed from machine and model".
    """

    name: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    value: _Value
    unit: Text
    reason: Annotated[str, Field(strict=True, min_length=1)]
    source: Literal["paper", "derived", "assumed"]
    low: _Value | None = None
    high: _Value | None = None
    alternatives: tuple[str, ...] = ()
    automatic: _Value | None = None

    def __post_init__(self) -> None:
        where = f"choice {show(self.name)}"
        check_fields(self, where)
        raise_if(_conflicts(self), where)


def _conflicts(c: Choice) -> list[str]:
    if isinstance(c.value, str):
        if c.value not in c.alternatives:
            return [f"value: found {show(c.value)}, expected one of {', '.join(c.alternatives)}"]
        return []
    if not isinstance(c.low, (int, float)) or not isinstance(c.high, (int, float)):
        return ["low, high: missing, expected the plausible range of a number"]
    if c.value != c.automatic and not c.low <= c.value <= c.high:
        return [f"value: found {show(c.value)}, expected {show(c.low)} to {show(c.high)}"]
    return []


def choice(name: str) -> Choice:
    """The choice called `name`, such as "machine.train_bytes"; raises `ConfigError` with the nearest name."""
    changed = _overridden.get()
    return changed[name] if name in changed else _packaged(name)


def _packaged(name: str) -> Choice:
    table = _table()
    if name not in table:
        raise ConfigError(f"unknown choice {show(name)}{nearest(str(name), table)}")
    return table[name]


@contextmanager
def choices_overridden(values: Mapping[str, Scalar]) -> Iterator[None]:
    """Inside the block `choice(name)` has `values[name]`, in this thread or task only. Blocks nest.

    What was read before stays as it is: Option defaults of systems are read when `systems` is imported, so set those as options.
    Raises ConfigError for an unknown name, another type than the choice has, or a value outside its range.
    """
    changed = {name: _with_value(_packaged(name), value) for name, value in values.items()}
    token = _overridden.set(MappingProxyType({**_overridden.get(), **changed}))
    try:
        yield
    finally:
        _overridden.reset(token)


def _with_value(c: Choice, value: Scalar) -> Choice:
    if type(value) is not type(c.value):
        raise ConfigError(f"choice {show(c.name)}: found {show(value)}, expected {type(c.value).__name__}")
    return replace(c, value=value)


def choice_value(name: str) -> Scalar:
    """The value of `choice(name)`."""
    return choice(name).value


def choice_int(name: str) -> int:
    """The value of a choice that is an integer; raises `ConfigError` otherwise."""
    value = choice_value(name)
    if not isinstance(value, int):
        raise ConfigError(f"choice {show(name)}: found {show(value)}, expected an integer")
    return value


def choice_str(name: str) -> str:
    """The value of a choice that is a word; raises `ConfigError` otherwise."""
    value = choice_value(name)
    if not isinstance(value, str):
        raise ConfigError(f"choice {show(name)}: found {show(value)}, expected a word")
    return value


def list_choices() -> list[Choice]:
    """All choices as packaged, sorted by name."""
    return [c for _, c in sorted(_table().items())]


def choices_from_toml(text: str, where: str) -> dict[str, Choice]:
    """Choices from TOML text: tables `[section.name]` with the fields of `Choice` except `name`."""
    found: list[str] = []
    rows: dict[str, dict[str, Any]] = {}
    for section, entries in parse_toml(text, where).items():
        if not isinstance(entries, dict):
            found.append(f"{section}: found {show(entries)}, expected a table")
            continue
        for key, fields in entries.items():
            rows[f"{section}.{key}"] = _row(f"{section}.{key}", fields, found)
    raise_if(found, where)
    try:
        return {name: Choice(**row) for name, row in rows.items()}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _row(name: str, fields: Any, found: list[str]) -> dict[str, Any]:
    """The constructor arguments of one choice; problems are appended to `found`."""
    if not isinstance(fields, dict):
        found.append(f"{name}: found {show(fields)}, expected a table")
        return {}
    row = {**fields, "name": name}
    found.extend(f"{name}.{problem}" for problem in problems(Choice, row))
    row["alternatives"] = tuple(row["alternatives"]) if isinstance(row.get("alternatives"), list) else ()
    return row


# Not a global in disguise: a ContextVar is seen by the block that set it and by nobody else.
_overridden: ContextVar[Mapping[str, Choice]] = ContextVar("choices_overridden", default=MappingProxyType({}))


@functools.cache
def _table() -> dict[str, Choice]:
    path = DATA / "choices.toml"
    return choices_from_toml(read_text(path), path.name)
