"""Names of array types, and what makes one of them of anything."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]
Floats = NDArray[np.floating]
Reals = Ints | Floats


def f64(values: ArrayLike) -> F64:
    """Numbers as an array of floats."""
    return np.asarray(values, np.float64)
