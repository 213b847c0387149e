"""`frozen`: the one decorator of values, so that their flags exist once; `plain`: a value for JSON; `older_name`: a field under an older name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """`cls` as a dataclass that nobody changes, with slots."""
    return dataclass(frozen=True, slots=True)(cls)


@overload
def plain(value: Any) -> Any: ...
@overload
def plain(value: Any, name: str, /, *names: str) -> dict[str, Any]: ...
def plain(value: Any, *names: str) -> Any:
    """A value for JSON: tuples as lists, a dataclass by its own `to_dict`, else by its fields.

    `names`: only these fields, properties and methods without arguments, in this order.
    """
    if names:
        found = {name: getattr(value, name) for name in names}
        return {name: plain(one() if callable(one) else one) for name, one in found.items()}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if not is_dataclass(value):
        return value
    return value.to_dict() if hasattr(value, "to_dict") else plain(value, *(one.name for one in fields(value)))


def older_name(name: str) -> property:
    """The attribute `name` under an older name, which users' scripts have."""
    return property(attrgetter(name), doc=f"Older name of `{name}`.")
