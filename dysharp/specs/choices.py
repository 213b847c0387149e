"""Modelling choices where a paper is silent (`data/choices.toml`). Options of systems take their defaults from here."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from dysharp.base import ConfigError, Texts, entry_of, frozen_keywords, read_text, show
from dysharp.specs.constants import Constant, Value, constants_of
from dysharp.specs.fields import raise_if
from dysharp.specs.reading import DATA

Scalar = int | float | str
Typed = TypeVar("Typed", int, str)
FILE = DATA / "choices.toml"


@frozen_keywords
class Choice(Constant):
    """One choice. A word has `alternatives`.

    `source`: "paper" = a paper states the value. "derived" = it follows from stated values. "inferred" = a published
    *result* needs it, so the value must not be counted as support of that result. "assumed" = a judgement.
    The value `automatic` means "computed from cluster and model". It may lie outside the range. None: no such value.
    """

    name: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    value: Value
    source: Literal["paper", "derived", "inferred", "assumed"]
    alternatives: Texts = ()
    automatic: Value | None = None

    @property
    def reason(self) -> str:
        """Why this value."""
        return self.meaning

    def conflicts(self) -> list[str]:
        if isinstance(self.value, str) and self.value not in self.alternatives:
            return [f"value: found {show(self.value)}, expected one of {', '.join(self.alternatives)}"]
        return [] if self.low is not None and self.value == self.automatic else Constant.conflicts(self)


def choice(name: str) -> Choice:
    """The choice called `name`, such as "machine.train_bytes". Raises `ConfigError` with the nearest name."""
    known = entry_of(name, _table(), f"unknown choice {show(name)}")
    return _overridden.get().get(name, known)


@contextmanager
def choices_overridden(values: Mapping[str, Scalar]) -> Iterator[None]:
    """Inside the block `choice(name)` has the value `values[name]`, in this thread or task only. Blocks nest.

    Values that were read before the block do not change. The import of `systems` reads the defaults of options, so this block does not change an
    option: pass the option itself. Raises ConfigError for an unknown name, a value of another type, and a value outside its range.
    """
    changed = {name: _with_value(choice(name), value) for name, value in values.items()}
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
    changed = replace(c, value=value)
    raise_if(changed.conflicts(), f"choice {show(c.name)}")
    return changed


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


# Only the thread or task that sets a ContextVar sees its value, so this is no global state.
_overridden: ContextVar[Mapping[str, Choice]] = ContextVar("choices_overridden", default=MappingProxyType({}))


@functools.cache
def _table() -> dict[str, Choice]:
    return constants_of(Choice, read_text(FILE), FILE.name)
