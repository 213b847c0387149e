"""Two threads for passes over large arrays: NumPy gives up the interpreter's lock, and the first touch of fresh memory takes longest."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

THREADS = 2
PART = 1 << 15  # rows; with fewer the threads wait for the interpreter, with more the rows leave the cache


def at_once(rows: int, *calls: Callable[[], Any]) -> list[Any]:
    """The results of `calls` in their order. They run side by side where their tables have more than PART `rows`.

    Raises what the first of them that fails raises.
    """
    if rows <= PART:
        return [call() for call in calls]
    with ThreadPoolExecutor(THREADS) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def in_parts(rows: int, fill: Callable[[slice], None]) -> None:
    """Call `fill` with slices of at most PART that cover `rows` rows, side by side."""
    at_once(rows, *(partial(fill, slice(first, min(first + PART, rows))) for first in range(0, rows, PART)))
