"""The dataclasses of this package are values: frozen, with slots."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A dataclass whose instances do not change."""
    return dataclass(frozen=True, slots=True)(cls)
