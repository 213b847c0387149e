"""`frozen`: the one decorator of values, so that their flags exist once; `older_name`: a field under the name that it had."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """`cls` as a dataclass that nobody changes, with slots."""
    return dataclass(frozen=True, slots=True)(cls)


def older_name(name: str) -> property:
    """The attribute `name` under an older name, which users' scripts have."""
    return property(attrgetter(name), doc=f"Older name of `{name}`.")
