"""Names of array types."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]
Floats = NDArray[np.floating]
Reals = Ints | Floats
