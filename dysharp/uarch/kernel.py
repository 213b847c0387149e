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


def kernel_files() -> list[Path]:
    """Every file whose text enters a compiled kernel: all of `uarch`, and each module of the package that imports this one."""
    importers = (p for p in _PACKAGE.rglob("*.py") if b"dysharp.uarch.kernel" in p.read_bytes())
    return sorted({*(_PACKAGE / "uarch").rglob("*.py"), *importers})


def source_digest() -> str:
    """Digest of the kernel files and the numba version."""
    h = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in kernel_files():
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
# LLVM inlines blocks, not numba: numba compiles a block once per signature, where its own inlining takes time quadratic in the size of
# the caller. Nothing calls a block from Python, so it gets no wrapper.
_BLOCK: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
kernel: Any = njit(cache=True, **_FLAGS)  # an entry point, or a block too large to inline
block: Any = njit(**_BLOCK, **_FLAGS)  # a part of whichever kernel calls it
