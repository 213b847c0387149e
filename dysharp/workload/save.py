"""Writes a `Recording` in the `.npz` format of this package."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from dysharp.errors import ConfigError
from dysharp.workload.traces import Recording


def check_writable(path: str | os.PathLike[str], ending: str = ".npz") -> Path:
    """`path` as a `Path` to which `save_trace` or `save_text` can write.

    Raises ConfigError for another ending and for a folder without write access. Call it before long work.
    """
    file = Path(path)
    if file.suffix != ending:
        raise ConfigError(f"{file}: found the ending {file.suffix!r}, expected {ending}")
    folder = file.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{file}: cannot be written: found no writable folder {folder}")
    if file.is_dir():
        raise ConfigError(f"{file}: cannot be written: is a directory")
    return file


def save_trace(trace: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `trace` as `.npz` and return the path. `load_trace` reads the file. Equal recordings give equal bytes.

    The file appears complete: it is written under a temporary name and then renamed. Raises ConfigError for another
    ending than `.npz` and for a folder without write access.
    """
    file = check_writable(path)
    _write(file, lambda stream: np.savez_compressed(stream, **_arrays(trace)))
    return file


def save_text(text: str, path: str | os.PathLike[str], ending: str) -> Path:
    """Write a text as UTF-8, complete or not at all, and return the path. Raises ConfigError as `check_writable`."""
    file = check_writable(path, ending)
    _write(file, lambda stream: stream.write(text.encode()))
    return file


def _write(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=file.resolve().parent, prefix=f".{file.name}.")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        mode = os.umask(0)
        os.umask(mode)
        os.chmod(temporary, 0o666 & ~mode)  # mkstemp sets 0600
        os.replace(temporary, file)
    except OSError as error:
        os.unlink(temporary)
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    except BaseException:
        os.unlink(temporary)
        raise


def _arrays(trace: Recording) -> dict[str, Any]:
    meta = {"model": trace.name, "k": trace.topk, "E": trace.n_experts, "origin": trace.origin, "synthetic": trace.synthetic}
    arrays: dict[str, Any] = {"expert": trace.expert, "layer_id": np.array(trace.layers, dtype=np.int32)}
    if trace.weight is not None:
        arrays["weight"] = trace.weight
    if trace.seq_len is not None:
        arrays["seq_len"] = trace.seq_len.astype(np.int64)
    return arrays | {"meta": np.array(json.dumps(meta))}
