"""`frozen`, `frozen_keywords`: the decorators of values, so that flags exist once; `plain`, `named`: for JSON; `by_key`: groups; `older_name`."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
Key = TypeVar("Key")
AnyPath = str | os.PathLike[str]
"""A path as a caller names it."""
Texts = tuple[str, ...]
Numbers = tuple[int, ...]
ByName = dict[str, Any]
"""Values by their names: an object of JSON, a row of a table, arguments."""
AnyMapping = Mapping[str, Any]
"""The same for readers, who change nothing."""
Cells = dict[str, str]
"""Texts by their names: a row of a CSV file."""
Amounts = dict[str, float]
Tally = dict[str, int]
"""Numbers by their names."""
OnProgress = Callable[[int, int], None]
"""Called with what is done, and of how much."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """`cls` as a dataclass that nobody changes, with slots."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_keywords(cls: type[T]) -> type[T]:
    """As `frozen`, with fields that are given by name alone."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def named(value: Any, *names: str) -> dict[str, Any]:
    """Fields, properties and methods without arguments of a value, for JSON."""
    found = {name: getattr(value, name) for name in names}
    return {name: plain(one() if callable(one) else one) for name, one in found.items()}


def plain(value: Any) -> Any:
    """A value for JSON: tuples as lists, a dataclass by its own `to_dict`, else by its fields."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if not is_dataclass(value):
        return value
    return value.to_dict() if hasattr(value, "to_dict") else named(value, *(one.name for one in fields(value)))


def by_key(pairs: Iterable[tuple[Key, T]]) -> dict[Key, list[T]]:
    """The values of each key, in their order; keys in the order of their first values."""
    found: dict[Key, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def older_name(name: str) -> property:
    """The attribute `name` under an older name, which users' scripts have."""
    return property(attrgetter(name), doc=f"Older name of `{name}`.")
