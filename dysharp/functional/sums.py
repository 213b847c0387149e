"""Expressions that record the order of a sum, and their evaluation on independently computed rows.

An expression is a nested tuple. Its head names the place of the sum, which decides the rounding (docs/design/0004,
Numbers):

| expression | sum | rounded |
|---|---|---|
| `("hub", gpu, (slot, ...))` | rows of local experts | yes |
| `("switch", parts)` | sums of hubs | yes |
| `("partial", parts)` | sum of a switch, sent before it was complete | no |
| `("relay", parts)` | sum of a domain's GPUs at the GPU that forwards it | yes |
| `("source", parts)` | final value | yes |
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
    """The expert slots in an expression, in order, repeats included."""
    if expression[0] == "hub":
        yield from expression[2]
    else:
        for part in expression[1]:
            yield from slots_of(part)


def add_in_order(parts: list[Array], width: int, number: Number) -> Array:
    """`[width]` sum from left to right in the work dtype; zeros if there are no parts."""
    if not parts:
        return np.zeros(width, number.work)
    total = number.load(parts[0])
    for part in parts[1:]:
        total = total + number.load(part)
    return total


def evaluate(expression: Expression, row: Callable[[int], Array], width: int, number: Number) -> Array:
    """`[width]` value of an expression. `row(slot)`: stored row of an expert slot.

    Partial sums stay in the work dtype.
    """
    if expression[0] == "hub":
        return number.store(add_in_order([row(slot) for slot in expression[2]], width, number))
    total = add_in_order([evaluate(part, row, width, number) for part in expression[1]], width, number)
    return total if expression[0] == "partial" else number.store(total)
