"""Kernels read and change the same arrays by address as in the NamedTuple."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
import pytest
from numba.core.errors import TypingError

from dysharp.engine.burst.lower import lower
from dysharp.engine.kernel import block, by_address, kernel, prefetch
from tests.interpreters.random_points import random_points
from tests.interpreters.random_programs import random_program


class Part(NamedTuple):
    """One array with a known number of columns, one without, and one that is not there."""

    wide: Annotated[Any, 4]
    flat: Any
    other: Any


class Whole(NamedTuple):
    part: Part
    plain: Any


@block
def change_other(other):
    if other is not None:
        other.flat[0] = 9


@block
def change(k, part, plain):
    part.wide[k, 2] += 5
    change_other(part.other)
    plain[k, 1] = len(part.flat) + 10 * part.wide.shape[0] + 100 * part.wide.shape[1] + 1000 * plain.shape[1]
    prefetch(plain, 1 << 40, 0)
    return part.wide[k, 2]


@kernel
def changed(k, state):
    part, plain = by_address(state)
    return change(k, part, plain)


def whole(other: Any = None) -> Whole:
    return Whole(Part(np.arange(12, dtype=np.int32).reshape(3, 4), np.zeros(7, np.int64), other), np.zeros((3, 2), np.int64))


def test_reads_and_writes_are_those_of_the_arrays() -> None:
    state = whole()
    assert changed(1, state) == 11
    assert state.part.wide[1].tolist() == [4, 5, 11, 7]
    assert state.plain.tolist() == [[0, 0], [0, 7 + 30 + 400 + 2000], [0, 0]]


def test_a_part_of_a_part() -> None:
    other = Part(np.zeros((0, 4), np.int32), np.zeros(1, np.int64), None)
    changed(0, whole(other))
    assert other.flat.tolist() == [9]


def test_an_array_that_is_not_in_order_is_refused() -> None:
    state = whole()
    with pytest.raises(TypingError, match="expected an array of one or two dimensions in C order"):
        changed(0, state._replace(plain=state.plain[:, ::2]))


def _columns(state: Any, where: str = "") -> list[str]:
    wrong = []
    for name, hint in get_type_hints(type(state), include_extras=True).items():
        value = getattr(state, name)
        if isinstance(value, tuple):
            wrong += _columns(value, f"{where}.{name}")
        elif hasattr(hint, "__metadata__") and value.shape[1] != hint.__metadata__[0]:
            wrong.append(f"{where}.{name}: found {value.shape[1]} columns, expected {hint.__metadata__[0]}")
    return wrong


def test_arrays_of_the_burst_state_have_the_columns_that_it_declares() -> None:
    for program in (random_program(1), random_points(1)):
        assert not _columns(lower(program))
