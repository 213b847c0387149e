"""A process that works for another one ends with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_SIGNAL_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with(parent: int) -> None:
    """End this process when the process with the id `parent`, which started it, has ended, also when that one was killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SIGNAL_WITH_PARENT, signal.SIGTERM)  # also while a kernel runs, when no thread of Python does
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
