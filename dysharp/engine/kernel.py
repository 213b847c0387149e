"""The one decorator of all kernels, and the cache that belongs to exactly these sources.

Numba does not notice an edited callee or constant in another file and would serve a stale binary, so the cache folder is keyed by a
digest of every kernel source. The cache saves time and nothing else: a file in it that is damaged, or that cannot be written, costs a
compilation and never a run.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba import njit, typeof
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from dysharp.base.errors import ConfigError
from dysharp.base.files import cache_folder
from dysharp.engine.address import by_address, lowest, prefetch

__all__ = ["block", "by_address", "kernel", "kernel_files", "lowest", "prefetch", "routine", "source_digest"]

_PACKAGE = Path(__file__).resolve().parents[1]
_DIGEST_BYTES = 16


def _is_compiled(kernel: Any, *args: Any) -> bool:
    """Whether a kernel is compiled, or loaded from the cache, for arguments of these types."""
    return tuple(map(typeof, args)) in kernel.signatures


def kernel_files() -> list[Path]:
    """Every file whose text enters a compiled kernel: each module of the package that imports this one, all blocks, and the files of arrays."""
    engine = _PACKAGE / "engine"
    arrays = (p for p in engine.rglob("*.py") if p.stem in ("columns", "records", "state"))
    importers = (p for p in _PACKAGE.rglob("*.py") if b"dysharp.engine.kernel" in p.read_bytes())
    return sorted({*engine.glob("*.py"), *(engine / "blocks").glob("*.py"), *arrays, *importers})


def source_digest() -> str:
    """Digest of the kernel files and the numba version."""
    h = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in kernel_files():
        h.update(path.read_bytes())
    return h.hexdigest()


def _use_keyed_cache() -> None:
    key, asked = source_digest(), os.environ.get("NUMBA_CACHE_DIR")
    numba.config.CACHE_DIR = os.path.join(asked, key) if asked else str(cache_folder(key))  # type: ignore[attr-defined]


_use_keyed_cache()


class _File(IndexDataCacheFile):
    """The files of one kernel in Numba's cache, with a digest at the end of each: damaged machine code must not run."""

    def _dump(self, obj: Any) -> bytes:
        data: bytes = super()._dump(obj)
        return data + _digest(data)

    def _load_index(self) -> Any:
        with suppress(FileNotFoundError), open(self._index_path, "rb") as file:
            pickle.load(file)  # the version, which the digest does not cover
            _check(file.read())
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        _check(Path(self._data_path(name)).read_bytes())
        return super()._load_data(name)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _check(data: bytes) -> None:
    if _digest(data[:-_DIGEST_BYTES]) != data[-_DIGEST_BYTES:]:
        raise ValueError("damaged")


class _Cache(FunctionCache):
    """Numba's cache of one kernel, without its errors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _File(self.cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel; None where it has to be compiled. Damaged files are removed."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle may raise anything
            self._remove()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled kernel if possible: a full disk must not end the run."""
        for _ in range(2):  # again when what was in the way is removed
            try:
                super().save_overload(sig, data)
                return
            except Exception:  # reads the index, which may be damaged, before it writes
                self._remove()

    def _remove(self) -> None:
        """Remove the files of this kernel."""
        name = self._impl.filename_base
        for path in (*Path(self.cache_path).glob(f"{name}.nbi"), *Path(self.cache_path).glob(f"{name}.*.nbc")):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class _NoMachineCode:
    """Takes the place of what numba tells to the machine code of a function."""

    def set_env(self, *_: Any) -> None:
        """A function that is not in memory has no environment."""


class _PartLibrary(JITCodeLibrary):
    """The code of a block or routine, for the kernels that it becomes a part of: they optimise it and make machine code of it."""

    codegen = property(lambda self: _NoMachineCode())

    def _optimize_final_module(self) -> None:
        """A quarter of all compilation would be to optimise parts that their kernel optimises again."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0


class _PartCompiler(Compiler):
    """Compiles a part as far as a kernel needs it."""

    def define_pipelines(self) -> Any:
        state: Any = self.state
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


def kernel(function: Callable[..., Any]) -> Any:
    """An entry point as a compiled function with a cache on disk."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise ConfigError("NUMBA_DISABLE_JIT: found 1, expected it unset: kernels run compiled only")
    dispatcher: Any = njit(**_KERNEL)(function)
    with suppress(RuntimeError):  # no folder can be written to
        dispatcher._cache = _Cache(function)
    return dispatcher


# Kernels own no memory: without `_nrt` numba would count references of every array at every call, a quarter of the run time.
# No division in them can be by zero, so `error_model` drops the checks.
_KERNEL: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}
# LLVM inlines blocks, not numba: numba compiles a block once per signature, where its own inlining takes time quadratic in the size of
# the caller. Nothing calls a part from Python, so it gets no wrapper.
_PART: dict[str, Any] = _KERNEL | {"no_cpython_wrapper": True, "pipeline_class": _PartCompiler}
block: Any = njit(**_PART, forceinline=True)  # a part of whichever kernel or routine calls it
# A function of its own in the kernel that calls it: rare and large, or called from many places. Without the option it would be inlined
# where a block calls it first (docs/notebook/2026-11-29-compile-found.md).
routine: Any = njit(**_PART, forceinline=False)
