"""Groups rows of a table by their owner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


def group(owner: I32, n: int) -> tuple[I32, NDArray[np.int64]]:
    """Rows of a table by owner: (`ptr` `[n + 1]` int32, `order` `[rows]`). Rows of one owner stay in table order.

    Owner i has the rows `order[ptr[i]:ptr[i + 1]]`.
    """
    ptr = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=n), out=ptr[1:])
    if len(owner) == 0 or (owner[1:] >= owner[:-1]).all():
        return ptr, np.arange(len(owner))
    return ptr, np.argsort(owner, kind="stable")
