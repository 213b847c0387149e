"""A process that works for another one: it ends with it, and does not run its script."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

_SIGNAL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with(parent: int) -> None:
    """End this process when the process with the id `parent`, which started it, has ended, also when that one was killed.

    It ends at once when it is told to, whatever its parent does on signals: a copy of the parent has the parent's handlers.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SIGNAL_WITH_PARENT, signal.SIGTERM)  # also while a kernel runs, when no thread of Python does
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool without waiting for what they run, which `shutdown` would do."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(cancel_futures=True)


@contextmanager
def without_main() -> Iterator[None]:
    """A process that begins anew here (method "spawn") does not run the caller's script again, which may have no `__main__` guard."""
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
