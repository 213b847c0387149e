"""Values with their history: what blocks add up, and the bytes that carry it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.functional.numbers import Number
from dysharp.functional.sums import Expression
from dysharp.isa.commands import Dtype

Array = NDArray[Any]
DTYPES = {"int32": Dtype.INT32, "float32": Dtype.FLOAT32, "bfloat16": Dtype.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Value:
    """A sum in the work dtype and the parts it was made of, in order."""

    array: Array
    parts: tuple[Expression, ...]

    def __add__(self, other: Value) -> Value:
        return Value(self.array + other.array, self.parts + other.parts)


@dataclass(frozen=True, slots=True)
class Format:
    """How a chunk looks on the wire: its number format and, for gate weights and their gradients, their own 4-byte format."""

    number: Number

    @property
    def scalar(self) -> np.dtype[Any]:
        """dtype of a gate weight or gate gradient on the wire."""
        return np.dtype(np.int32 if self.number.is_integer else np.float32)

    def dtype(self, weights: bool) -> Dtype:
        """The packet's dtype field."""
        return (Dtype.INT32 if self.number.is_integer else Dtype.FLOAT32) if weights else DTYPES[self.number.name]

    def stored(self, weights: bool) -> np.dtype[Any]:
        """The dtype of elements in a payload."""
        return self.scalar if weights else self.number.stored

    def read(self, data: bytes, weights: bool = False) -> Array:
        """A payload in the work dtype."""
        array: Array = np.frombuffer(data, self.stored(weights)).astype(self.number.work)
        return array

    def write(self, array: Array, weights: bool = False) -> bytes:
        """Work-dtype values rounded into a payload."""
        return array.astype(self.stored(weights)).tobytes()

    def read_sum(self, data: bytes) -> Array:
        """A partial sum in the work dtype (FP32, or integers)."""
        array: Array = np.frombuffer(data, self.scalar).astype(self.number.work)
        return array

    def write_sum(self, array: Array) -> bytes:
        """An unrounded sum as it travels after an eviction."""
        return array.astype(self.scalar).tobytes()
