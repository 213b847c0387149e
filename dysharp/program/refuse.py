"""Refusals of the verifier: one line about the first bad row of a column."""

from collections.abc import Callable

from dysharp.arrays import Array
from dysharp.errors import ProgramError


def fail_where(bad: Array, message: Callable[[int], str]) -> None:
    """Raise ProgramError with the message of the first True in `bad`."""
    if bad.any():
        raise ProgramError(message(int(bad.argmax())))


def check_range(column: Array, low: int, high: int, what: str) -> None:
    """Raise ProgramError unless `low <= column < high` for every entry. "{i}" in `what` stands for the row."""
    if len(column) and (column.min() < low or column.max() >= high):
        i = int(((column < low) | (column >= high)).argmax())
        expected = f"{low} .. {high - 1}" if high > low else "no entries at all"
        raise ProgramError(f"{what.format(i=i)}: found {column[i]}, expected {expected}")
