"""Grouping of table rows by the id they belong to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


def group(owner: I32, n: int) -> tuple[I32, NDArray[np.int64]]:
    """Rows of a table by owner: (`ptr` [n + 1] int32, `order` [rows]), stable, so table order is kept within an owner."""
    ptr = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=n), out=ptr[1:])
    if len(owner) == 0 or (owner[1:] >= owner[:-1]).all():
        return ptr, np.arange(len(owner))
    return ptr, np.argsort(owner, kind="stable")
