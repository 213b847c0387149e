"""The one decorator of all kernels, and the cache that belongs to exactly these sources.

Numba does not notice an edited callee or constant in another file and would serve a stale binary, so the cache folder is keyed by a
digest of every kernel source.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
from numba import njit

_PACKAGE = Path(__file__).resolve().parents[1]


def source_digest() -> str:
    """Digest of all kernel sources and the numba version."""
    h = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted([*(_PACKAGE / "uarch").glob("*.py"), *(_PACKAGE / "engine").rglob("loop.py")]):
        h.update(path.read_bytes())
    return h.hexdigest()


def _use_keyed_cache() -> None:
    root = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dysharp"
    )
    numba.config.CACHE_DIR = os.path.join(root, source_digest())  # type: ignore[attr-defined]


_use_keyed_cache()

# Kernels own no memory: without `_nrt` numba would count references of every array at every call, a quarter of the run time.
# No division in them can be by zero, so `error_model` drops the checks.
_FLAGS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
kernel: Any = njit(cache=True, **_FLAGS)  # an entry point, or a block too large to inline
block: Any = njit(inline="always", **_FLAGS)  # a block: part of whichever kernel uses it
