"""`Dump`: a dump file as plain values. Its first bytes give its kind. Checks come before reading. No code is run."""

import base64
import binascii
import io
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import Array, ByName, ConfigError, Numbers, decode_utf8, frozen, json_of, open_regular, read_bytes
from dysharp.workload.importers.torch_file import read_torch
from dysharp.workload.npz import DAMAGE, read_npy, read_npz, reason_of

_ARRAYS = frozenset(
    ("routed_experts", "prompt_routed_experts", "topk_idx", "topk_weights", "weight", "logical_count", "expert_load", "expert_load_window",
     "expert_load_pass", "physical_to_logical_map", "last_physical_to_logical_map", "phy2log")
)  # fmt: skip
_JSON_SHARE = 8  # parsed JSON takes several times the memory of its text


@frozen
class Dump:
    """A dump file.

    | `kind` | `content` |
    |---|---|
    | npy | the array |
    | npz | a dict of arrays |
    | torch | the tree of the file |
    | json | a list of JSON documents, one per line of a .jsonl file |
    | csv | None |
    """

    path: Path
    kind: str
    content: Any

    def mapping(self) -> ByName:
        """The names at the top of an `.npz` or torch file. Empty for other kinds."""
        return self.content if isinstance(self.content, dict) else {}


def read_dump(path: Path, max_bytes: int) -> Dump:
    """The file as a `Dump`.

    Raises ConfigError for a file that is none of the five kinds, is damaged, is larger than `max_bytes`, or is a pickle.
    """
    try:
        with open_regular(path) as stream:
            n_bytes = os.fstat(stream.fileno()).st_size
            kind = _kind_of(path, stream.read(64) or b"")
            stream.seek(0)
            if kind == "npy":
                return Dump(path, kind, read_npy(stream, n_bytes, str(path), max_bytes))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    if kind == "npz":
        return Dump(path, kind, read_npz(path, _ARRAYS, max_bytes))
    if kind == "torch":
        return Dump(path, kind, read_torch(path, max_bytes))
    if kind == "json":
        if n_bytes > max_bytes // _JSON_SHARE:
            raise ConfigError(f"{path}: {n_bytes} bytes, expected at most {max_bytes // _JSON_SHARE}; --limit raises it")
        return Dump(path, kind, _read_json(path, n_bytes))
    return Dump(path, kind, None)


def _kind_of(path: Path, head: bytes) -> str:
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "torch" if _is_torch(path) else "npz"
    if head.startswith(b"\x80"):
        raise ConfigError(f"{path}: found a pickle, which can run code, expected .npy, .npz, JSON, CSV or a file of torch.save")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return "json"
    if path.suffix == ".csv":
        return "csv"
    raise ConfigError(f"{path}: found none of .npy, .npz, torch, JSON and .csv; expected one of them")


def _is_torch(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name == "data.pkl" or name.endswith("/data.pkl") for name in archive.namelist())
    except DAMAGE as error:
        raise ConfigError(f"{path}: damaged: {reason_of(error)}") from None


def _read_json(path: Path, n_bytes: int) -> list[Any]:
    text = decode_utf8(read_bytes(path, n_bytes), str(path))
    lines = text.split("\n") if path.suffix == ".jsonl" else [text]
    where = f"{path}: line {{}}" if len(lines) > 1 else str(path)
    return [json_of(line, where.format(number)) for number, line in enumerate(lines, 1) if line.strip()]


def integer_array(value: Any, where: str, n_axes: Numbers, axes: str) -> Array:
    """`value`, checked. Raises ConfigError unless it is an array of integers with a number of axes in `n_axes`.

    No axis may have length 0. `axes` names the expected axes in the message.
    """
    if not isinstance(value, np.ndarray):
        raise ConfigError(f"{where}: found {type(value).__name__}, expected integers {axes}")
    if value.dtype.kind not in "iu" or value.ndim not in n_axes or 0 in value.shape:
        raise ConfigError(f"{where}: found {value.dtype} of shape {value.shape}, expected integers {axes}")
    return value


_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "int16", "int32", "int64")}


def answers(dump: Dump) -> Iterator[tuple[str, ByName]]:
    """(where, object) of every JSON object of the file, and of every object in a list at the top of the file."""
    for index, document in enumerate(dump.content if dump.kind == "json" else ()):
        listed = document if isinstance(document, list) else [document]
        for row, item in enumerate(listed):
            if isinstance(item, dict):
                many = len(listed) > 1 or len(dump.content) > 1
                yield f"{dump.path}: answer {index + row}" if many else str(dump.path), item


def child(value: Any, key: str) -> Any:
    """`value[key]`, or None if `value` is no dict or has no such key."""
    return value.get(key) if isinstance(value, dict) else None


def choices(answer: ByName) -> list[Any]:
    """The list `choices` of an answer. Empty if the answer has none."""
    listed = child(answer, "choices")
    return listed if isinstance(listed, list) else []


def npy_of(text: str, where: str, max_bytes: int) -> Array:
    """The array of a base64 text that holds an `.npy` file."""
    data = base64_bytes(text, where)
    return read_npy(io.BytesIO(data), len(data), where, max_bytes)


def base64_bytes(text: str, where: str) -> bytes:
    """The bytes of a base64 text. Raises ConfigError for malformed text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{where}: malformed base64: {error}") from None


def checked_array(data: bytes, where: str, dtype: Any, shape: Numbers) -> Array:
    """`data` in C order as an array. Raises ConfigError unless it has exactly the bytes of `shape` in `dtype`."""
    kind = _kind(dtype, where)
    wanted = math.prod(shape) * kind.itemsize
    if len(data) != wanted or not wanted:
        raise ConfigError(f"{where}: found {len(data)} bytes, expected {wanted} for {dtype} of shape {shape}")
    return np.frombuffer(data, dtype=kind).reshape(shape)


def item_bytes(dtype: Any, where: str) -> int:
    """Bytes of one number of a dtype. Raises ConfigError for an unknown name."""
    return _kind(dtype, where).itemsize


def _kind(dtype: Any, where: str) -> np.dtype[Any]:
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ConfigError(f"{where}: found dtype {str(dtype)[:40]!r}, expected one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]
