"""Number formats of a payload: stored dtype, dtype of sums, and the rounding between both."""

from typing import Any

import ml_dtypes
import numpy as np

from dysharp.base import Array, ConfigError, Numbers, entry_of, frozen


@frozen
class Number:
    """A payload format. `stored`: dtype in memory and on the wire; `work`: dtype of products and sums."""

    name: str
    stored: np.dtype[Any]
    work: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Bytes of one element on the wire."""
        return int(self.stored.itemsize)

    @property
    def is_integer(self) -> bool:
        return self.work.kind == "i"

    def store(self, values: Array) -> Array:
        """`values` as memory holds them: floats rounded to nearest even, integers unchanged if they fit."""
        return values.astype(self.stored)

    def load(self, values: Array) -> Array:
        """Stored `values` as operands of products and sums."""
        return values.astype(self.work)

    def poison(self, shape: Numbers) -> Array:
        """Unwritten memory: NaN, or an integer that no small computation yields."""
        value = np.array(-1_234_567_891 if self.is_integer else np.nan, self.stored)
        # Filled as plain integers, because filling with a dtype that NumPy does not know is slow.
        bits = np.dtype(f"u{self.bytes}")
        return np.full(shape, value.view(bits), bits).view(self.stored)


_NUMBERS = {
    n.name: n
    for n in (
        Number("int32", np.dtype(np.int32), np.dtype(np.int64)),
        Number("float32", np.dtype(np.float32), np.dtype(np.float32)),
        Number("bfloat16", np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)),
    )
}


def number(name: str) -> Number:
    """The format called `name` (int32, float32, bfloat16). Raises ConfigError with the nearest valid name."""
    return entry_of(name, _NUMBERS, f"dtype {name!r}: unknown")


def number_of(array: Array, what: str) -> Number:
    """The format of an array. Raises ConfigError for a dtype without a payload format."""
    for n in _NUMBERS.values():
        if n.stored == array.dtype:
            return n
    raise ConfigError(f"{what}: found dtype {array.dtype}, expected one of {', '.join(_NUMBERS)}")
