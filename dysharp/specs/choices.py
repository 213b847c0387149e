"""Modelling choices where a paper is silent (`data/choices.toml`). Options of systems take their defaults from here."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from dysharp.base.errors import ConfigError, check_word, show
from dysharp.specs.fields import Text, check_fields, problems, raise_if
from dysharp.specs.reading import DATA, parse_toml, read_text

Scalar = int | float | str
Typed = TypeVar("Typed", int, str)
_Value = (
    Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)] | Annotated[str, Field(strict=True, min_length=1)]
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice. A number has a plausible range [`low`, `high`]. A word has `alternatives`.

    `source`: "paper" = a paper states the value. "derived" = it follows from stated values. "inferred" = a published
    *result* needs it, so the value must not be counted as support of that result. "assumed" = a judgement.
    The value `automatic` means "computed from cluster and model". It may lie outside the range. None: no such value.
    """

    name: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    value: _Value
    unit: Text
    reason: Annotated[str, Field(strict=True, min_length=1)]
    source: Literal["paper", "derived", "inferred", "assumed"]
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
    """The choice called `name`, such as "machine.train_bytes". Raises `ConfigError` with the nearest name."""
    changed = _overridden.get()
    return changed[name] if name in changed else _packaged(name)


def _packaged(name: str) -> Choice:
    table = _table()
    check_word(name, table, f"unknown choice {show(name)}")
    return table[name]


@contextmanager
def choices_overridden(values: Mapping[str, Scalar]) -> Iterator[None]:
    """Inside the block `choice(name)` has the value `values[name]`, in this thread or task only. Blocks nest.

    Values that were read before the block do not change. The import of `systems` reads the defaults of options, so this block does not change an
    option: pass the option itself. Raises ConfigError for an unknown name, a value of another type, and a value outside its range.
    """
    changed = {name: _with_value(_packaged(name), value) for name, value in values.items()}
    token = _overridden.set(MappingProxyType({**_overridden.get(), **changed}))
    try:
        yield
    finally:
        _overridden.reset(token)


def overridden() -> dict[str, Scalar]:
    """{name: value} of the choices that `choices_overridden` has changed here, so that another process can change them too."""
    return {name: c.value for name, c in _overridden.get().items()}


def _with_value(c: Choice, value: Scalar) -> Choice:
    if type(value) is not type(c.value):
        raise ConfigError(f"choice {show(c.name)}: found {show(value)}, expected {type(c.value).__name__}")
    return replace(c, value=value)


def choice_value(name: str) -> Scalar:
    """The value of `choice(name)`."""
    return choice(name).value


def choice_int(name: str) -> int:
    """The value of a choice that is an integer. Raises `ConfigError` for another type."""
    return _typed(name, int, "an integer")


def choice_str(name: str) -> str:
    """The value of a choice that is a word. Raises `ConfigError` for another type."""
    return _typed(name, str, "a word")


def _typed(name: str, kind: type[Typed], words: str) -> Typed:
    value = choice_value(name)
    if not isinstance(value, kind):
        raise ConfigError(f"choice {show(name)}: found {show(value)}, expected {words}")
    return value


def list_choices() -> list[Choice]:
    """All choices as packaged, sorted by name."""
    return [c for _, c in sorted(_table().items())]


def choices_from_toml(text: str, where: str) -> dict[str, Choice]:
    """Choices by name from TOML text. Each table `[section.name]` has the fields of `Choice` except `name`.

    `where` names the file in errors. Raises `ConfigError`.
    """
    faults: list[str] = []
    rows: dict[str, dict[str, Any]] = {}
    for section, entries in parse_toml(text, where).items():
        if not isinstance(entries, dict):
            faults.append(f"{section}: found {show(entries)}, expected a table")
            continue
        for key, fields in entries.items():
            rows[f"{section}.{key}"] = _row(f"{section}.{key}", fields, faults)
    raise_if(faults, where)
    try:
        return {name: Choice(**row) for name, row in rows.items()}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _row(name: str, fields: Any, faults: list[str]) -> dict[str, Any]:
    """The constructor arguments of one choice. Appends problems to `faults`."""
    if not isinstance(fields, dict):
        faults.append(f"{name}: found {show(fields)}, expected a table")
        return {}
    row = {**fields, "name": name}
    faults.extend(f"{name}.{problem}" for problem in problems(Choice, row))
    row["alternatives"] = tuple(row["alternatives"]) if isinstance(row.get("alternatives"), list) else ()
    return row


# Only the thread or task that sets a ContextVar sees its value, so this is no global state.
_overridden: ContextVar[Mapping[str, Choice]] = ContextVar("choices_overridden", default=MappingProxyType({}))


@functools.cache
def _table() -> dict[str, Choice]:
    path = DATA / "choices.toml"
    return choices_from_toml(read_text(path), path.name)
