"""Tells when and for what kernels are compiled. Apart from `kernel.py`: who listens does not become a source of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba import typeof
from numba.core import event


def is_compiled(kernel: Any, *args: Any) -> bool:
    """Whether a kernel is compiled, or loaded from the cache, for arguments of these types."""
    return tuple(map(typeof, args)) in kernel.signatures


@contextmanager
def on_compile(begun: Callable[[], None]) -> Iterator[None]:
    """Call `begun` once if a kernel is compiled inside this context, when the compilation begins."""
    listener = _Begun(begun)
    with event.install_listener("numba:compile", listener):
        yield


class _Begun(event.Listener):
    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun, self._called = begun, False

    def on_start(self, event: Any) -> None:
        if not self._called:
            self._called = True
            self._begun()

    def on_end(self, event: Any) -> None:
        """Nothing: only the begin counts."""
