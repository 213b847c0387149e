"""How a vector was added up, as an expression, and its evaluation on independently computed rows.

An expression is a nested tuple whose head says where the sum was made, and so how it was rounded (docs/design/0004, Numbers):
`("hub", gpu, (slot, ...))` adds local experts' rows, `("switch", parts)` the hubs' sums, both rounded; `("partial", parts)` is a switch's
sum sent on before it was complete, not rounded; `("source", parts)` is the final value, rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.functional.numbers import Number

Array = NDArray[Any]
Expression = tuple[Any, ...]


def slots_of(expression: Expression) -> Iterator[int]:
    """The expert slots an expression adds, in order, repeats included."""
    if expression[0] == "hub":
        yield from expression[2]
    else:
        for part in expression[1]:
            yield from slots_of(part)


def add_in_order(parts: list[Array], width: int, number: Number) -> Array:
    """Sum from left to right in the work dtype; zeros for nothing."""
    if not parts:
        return np.zeros(width, number.work)
    total = number.load(parts[0])
    for part in parts[1:]:
        total = total + number.load(part)
    return total


def evaluate(expression: Expression, row: Callable[[int], Array], width: int, number: Number) -> Array:
    """`[width]` value of an expression; `row(slot)` is the stored row of an expert slot. Partial sums stay in the work dtype."""
    if expression[0] == "hub":
        return number.store(add_in_order([row(slot) for slot in expression[2]], width, number))
    total = add_in_order([evaluate(part, row, width, number) for part in expression[1]], width, number)
    return total if expression[0] == "partial" else number.store(total)
