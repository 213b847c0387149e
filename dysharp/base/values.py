"""`frozen`: the one decorator of values, so that their flags exist once."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """`cls` as a dataclass that nobody changes, with slots."""
    return dataclass(frozen=True, slots=True)(cls)
