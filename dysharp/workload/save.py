"""Writes a `Recording` in the `.npz` format of this package."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.files import check_destination, write_file, write_text
from dysharp.workload.traces import Recording


def check_writable(path: str | os.PathLike[str], ending: str = ".npz") -> Path:
    """`path` as a `Path` to which `save_trace` or `save_text` can write. Raises ConfigError as `files.check_destination`."""
    return check_destination(path, ending)


def save_trace(trace: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `trace` as `.npz` and return the path. `load_trace` reads the file. Equal recordings give equal bytes.

    The file appears complete. Raises ConfigError for another ending than `.npz` and where `files.write_file` does.
    """
    check_writable(path)
    return write_file(path, lambda stream: np.savez_compressed(stream, **_arrays(trace)))


def save_text(text: str, path: str | os.PathLike[str], ending: str) -> Path:
    """Write a text as UTF-8, complete or not at all, and return the path. Raises ConfigError as `check_writable`."""
    check_writable(path, ending)
    return write_text(path, text)


def _arrays(trace: Recording) -> dict[str, Any]:
    meta = {"model": trace.name, "k": trace.topk, "E": trace.n_experts, "origin": trace.origin, "synthetic": trace.synthetic}
    arrays: dict[str, Any] = {"expert": trace.expert, "layer_id": np.array(trace.layers, dtype=np.int32)}
    if trace.weight is not None:
        arrays["weight"] = trace.weight
    if trace.seq_len is not None:
        arrays["seq_len"] = trace.seq_len.astype(np.int64)
    return arrays | {"meta": np.array(json.dumps(meta))}
