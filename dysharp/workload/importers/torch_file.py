"""Reads files of `torch.save`. Their pickle is scanned before torch opens them, and torch reads weights only.

A torch file is a zip. Its one pickle, `data.pkl`, names tensors, and each tensor has a member with its numbers. `scan` walks the opcodes of the
pickle and executes none. It accepts only opcodes for containers, numbers, text and plain tensors.
"""

import importlib
import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import Array, ConfigError, MiB, MissingExtra
from dysharp.workload.npz import DAMAGE, reason_of

_MAX_PICKLE_BYTES = 64 * MiB
_MAX_DEPTH = 8
_MAX_VALUES = 1 << 24

_OPCODES = frozenset(
    ("PROTO", "STOP", "MARK", "POP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE",
     "SHORT_BINSTRING", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_SET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM",
     "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "BINPERSID", "REDUCE")
)  # fmt: skip
_STORAGES = ("Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double", "Bool")
_GLOBALS = frozenset(("torch._utils _rebuild_tensor_v2", "collections OrderedDict", "torch Size", *(f"torch {name}Storage" for name in _STORAGES)))
# torch writes unsigned types wider than a byte as untyped storages with a dtype.
_GLOBALS_V3 = frozenset(
    ("torch._utils _rebuild_tensor_v3", "torch.storage UntypedStorage", *(f"torch {name}" for name in ("uint16", "uint32", "uint64")))
)


def read_torch(path: Path, max_bytes: int) -> Any:
    """The tree of a torch file with NumPy arrays for tensors (bfloat16 and float16 as float32).

    Before it reads a tensor, it raises ConfigError for a pickle that needs more than plain tensors, for compressed
    members and for more than `max_bytes`. Raises MissingExtra if torch is not installed.
    """
    _check_archive(path, max_bytes)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise MissingExtra.needs(f"{path}: reading a file of torch.save", "torch") from None
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # any error of torch becomes one line for the user
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{path}: torch cannot read it: {reason[0][:160]}") from None
    return _Plain(path, max_bytes, torch).of(tree, "", 0)


def _check_archive(path: Path, max_bytes: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            packed = next((info for info in infos if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size), None)
            if packed is not None:
                raise ConfigError(f"{path}: member {packed.filename[:60]!r} is compressed, expected it stored as torch.save does")
            total = sum(info.file_size for info in infos)
            if total > max_bytes:
                raise ConfigError(f"{path}: members of {total} bytes, expected at most {max_bytes}; --limit raises it")
            pickles = [info for info in infos if info.filename.endswith(".pkl")]
            if len(pickles) != 1:
                raise ConfigError(f"{path}: found {len(pickles)} pickles, expected one data.pkl")
            if pickles[0].file_size > _MAX_PICKLE_BYTES:
                raise ConfigError(f"{path}: data.pkl of {pickles[0].file_size} bytes, expected at most {_MAX_PICKLE_BYTES}")
            _scan(archive.read(pickles[0]), f"{path}: data.pkl")
    except DAMAGE as error:
        raise ConfigError(f"{path}: damaged: {reason_of(error)}") from None


def _scan(pickled: bytes, where: str) -> None:
    """Raises ConfigError if the pickle does more than name plain tensors. The scan executes no opcode."""
    for opcode, argument, position in pickletools.genops(io.BytesIO(pickled)):
        if opcode.name not in _OPCODES:
            raise ConfigError(f"{where}: byte {position}: found {opcode.name}, expected only plain tensors, numbers and text")
        if opcode.name == "GLOBAL" and argument not in _GLOBALS | _GLOBALS_V3:
            raise ConfigError(f"{where}: byte {position}: found {str(argument)[:80].replace(' ', '.')}, which is code, expected only plain tensors")


class _Plain:
    """Tensors to arrays, within the limits on bytes, depth and number of values."""

    def __init__(self, path: Path, max_bytes: int, torch: Any) -> None:
        self.path, self.max_bytes, self.torch = path, max_bytes, torch
        self.n_bytes = self.n_values = 0

    def of(self, value: Any, name: str, depth: int) -> Any:
        self.n_values += 1
        # A pickle may name one list many times. Such a file is small on disk and endless to walk.
        if depth > _MAX_DEPTH or self.n_values > _MAX_VALUES:
            raise ConfigError(f"{self.path}: {name[:60]}: more than {_MAX_DEPTH} levels or {_MAX_VALUES} values, expected a flat dump")
        if isinstance(value, self.torch.Tensor):
            return self.array(value, name)
        if isinstance(value, dict):
            return {str(key)[:200]: self.of(item, f"{name}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            if value and all(type(item) is int for item in value):
                self.n_values += len(value)
                return list(value)
            return [self.of(item, f"{name}[{i}]", depth + 1) for i, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ConfigError(f"{self.path}: {name[:60]}: found {type(value).__name__}, expected tensors, numbers and text")

    def array(self, tensor: Any, name: str) -> Array:
        # With a stride of 0, four bytes can claim any shape.
        self.n_bytes += tensor.numel() * tensor.element_size()
        if self.n_bytes > self.max_bytes:
            raise ConfigError(f"{self.path}: {name[:60]}: tensors of {self.n_bytes} bytes, expected at most {self.max_bytes}; --limit raises it")
        if tensor.layout != self.torch.strided or tensor.is_quantized or tensor.is_complex():
            raise ConfigError(f"{self.path}: {name[:60]}: found {tensor.dtype} in layout {tensor.layout}, expected a plain tensor")
        tensor = tensor.detach()
        return np.asarray((tensor.float() if tensor.dtype in (self.torch.float16, self.torch.bfloat16) else tensor).numpy())
