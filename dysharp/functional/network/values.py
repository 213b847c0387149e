"""Values with the history of their sums, and their bytes on the wire."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.arrays import Array
from dysharp.functional.numbers import Number, number
from dysharp.functional.sums import Expression, add_in_order
from dysharp.isa.commands import Dtype

STORED = {dtype: number(dtype.name.lower()).stored for dtype in (Dtype.INT32, Dtype.FLOAT32, Dtype.BFLOAT16)}


@dataclass(frozen=True, slots=True)
class Value:
    """A sum in the work dtype and its parts, in order."""

    array: Array
    parts: tuple[Expression, ...]

    def __add__(self, other: Value) -> Value:
        return Value(self.array + other.array, self.parts + other.parts)


NOTHING = Value(np.zeros(0), ())  # the value of an acknowledgement


@dataclass(frozen=True, slots=True)
class Format:
    """The wire format of values in a run. Every packet names its dtype. Sums are in the work dtype of `number`."""

    number: Number

    @property
    def payload(self) -> Dtype:
        """Element type of token rows."""
        return Dtype[self.number.name.upper()]

    @property
    def weight(self) -> Dtype:
        """Element type of gate weights and gate gradients: four bytes."""
        return self.payload.sum_dtype

    def read(self, data: bytes, dtype: Dtype) -> Array:
        """A payload of `dtype` elements as a vector in the work dtype."""
        array: Array = np.frombuffer(data, STORED[dtype]).astype(self.number.work)
        return array

    def write(self, array: Array, dtype: Dtype) -> bytes:
        """Values of the work dtype rounded into a payload of `dtype` elements."""
        return array.astype(STORED[dtype]).tobytes()


def hub_sum(rows: list[Array], width: int, number: Number) -> Array:
    """`[width]` sum of stored rows from left to right, rounded once, in the work dtype; zeros for no rows."""
    return number.load(number.store(add_in_order(rows, width, number)))
