"""Arrays inside JSON answers: base64 of an `.npy` file, or of bare bytes."""

import base64
import binascii
import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import ConfigError
from dysharp.workload.importers.dump import Dump
from dysharp.workload.npz import read_npy

_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "int16", "int32", "int64")}


def answers(dump: Dump) -> Iterator[tuple[str, dict[str, Any]]]:
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


def choices(answer: dict[str, Any]) -> list[Any]:
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


def bare(data: bytes, where: str, dtype: Any, shape: tuple[int, ...]) -> Array:
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
