"""Return types of building blocks: the ops that one call added, with the GPUs and rows that the ops stand for.

Each class adds one thing to the class before: `Batch` (ops and their GPUs), `Sends` (receivers),
`Transfers` (rows), `Returns` (when the rows have come back).
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dysharp.base import I32, I64, Ints, frozen, frozen_keywords

Number = TypeVar("Number", bound=np.integer)


@frozen_keywords
class Batch:
    """Ops that one call added. `op`: `[n]` int32, ids. `node`: `[n]` int32, the GPU that issues each op."""

    op: I32
    node: I32


@frozen_keywords
class Sends(Batch):
    """Ops that move bytes. `to`: `[n]` int32, the GPU that receives from each op, -1 = several GPUs."""

    to: I32


@frozen_keywords
class Transfers(Sends):
    """Ops that move rows. An op carries one unit: a (token, GPU) pair, a useful row, or a token.

    `unit`: `[n]` int64, the unit of each op. `unit_rows`: `[units]` int, the useful rows of each unit; units are in
    token order.
    """

    unit: I64
    unit_rows: Ints

    @property
    def of_useful_row(self) -> I32:
        """`[useful rows]` int32, in token order: the op that carries each useful row."""
        return np.repeat(placed(len(self.unit_rows), self.unit, self.op), self.unit_rows)


@frozen_keywords
class Returns(Transfers):
    """Ops that push results back to the sources of the tokens.

    `tile`: `[gpus]` int32, the region tile that is ready when all results of a GPU's tokens have arrived, -1 = the GPU
    receives no result.
    """

    tile: I32


@frozen
class Landing:
    """Rows that land at a GPU in tiles. `row`: `[entries]` row of each entry. `tile`: `[groups]` tile of each group."""

    row: I32
    tile: I32


def placed(n: int, at: Ints, values: NDArray[Number]) -> NDArray[Number]:
    """`[n]` the `values` at their places `at`, -1 elsewhere; the last one where several have one place."""
    out = np.full(n, -1, values.dtype)
    out[at] = values
    return out


def ids(first: int, n: int) -> I32:
    """`[n]` consecutive ids from `first` on."""
    return np.arange(first, first + n, dtype=np.int32)
