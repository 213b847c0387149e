"""Tells when and for what kernels are compiled. Apart from `kernel.py`, so that no change here compiles the kernels anew."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

EVERY_S = 4.0
"""Between two reports of a compilation."""


@contextmanager
def on_compile(told: Callable[[int], None]) -> Iterator[None]:
    """Call `told(compiled)` when the first kernel inside this context is compiled, and every few seconds from then on.

    `compiled`: kernels and blocks that are ready so far, 0 at the first call.
    """
    with event.install_listener("numba:compile", _Told(told)):
        yield


class _Told(event.Listener):
    def __init__(self, told: Callable[[int], None]) -> None:
        self._told, self._compiled, self._next = told, 0, -1.0

    def on_start(self, event: Any) -> None:
        self._tell()

    def on_end(self, event: Any) -> None:
        self._compiled += 1
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            self._told(self._compiled)
