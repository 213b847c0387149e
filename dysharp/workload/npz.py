"""Reads `.npz` and `.npy` files of unknown origin. Headers are checked before memory is taken. Pickles are refused."""

import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from dysharp.base import Array, ConfigError, GiB, MiB, Numbers, frozen, open_regular

MAX_BYTES = 4 * GiB
_MAX_MEMBERS = 64
_MAX_NDIM = 4
_MAX_RATIO = 200  # bytes of an array per stored byte; recordings have 2 to 20
_RATIO_FROM = 64 * MiB  # a smaller array takes little memory, whatever its ratio

# Exceptions of zipfile, zlib and NumPy's header reader on damaged bytes.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, ValueError, SyntaxError, TypeError, AttributeError, LookupError,
    ArithmeticError, EOFError, OSError, NotImplementedError, RuntimeError, MemoryError, AssertionError,
)  # fmt: skip


@frozen
class _Header:
    shape: Numbers
    fortran: bool
    dtype: np.dtype[Any]
    n_bytes: int


def read_npz(path: Path, wanted: Collection[str], max_bytes: int = MAX_BYTES) -> dict[str, Array]:
    """The arrays of an `.npz` file whose names are in `wanted`. All arrays of the file are checked.

    Raises ConfigError that names file and member for: a file that is no zip file or is truncated, pickled objects,
    a shape that does not fit the stored bytes, more than `max_bytes` (4 GiB).
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, path)
            headers = {name: _check_member(archive, info, path, max_bytes) for name, info in members.items()}
            total = sum(header.n_bytes for header in headers.values())
            if total > max_bytes:
                raise ConfigError(f"{path}: arrays of {total} bytes, expected at most {max_bytes}")
            return {name: _load(archive, members[name], header) for name, header in headers.items() if name in wanted}
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except DAMAGE as error:
        raise ConfigError(f"{path}: damaged or not an .npz file: {reason_of(error)}") from None


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise ConfigError(f"{path}: {len(infos)} members, expected at most {_MAX_MEMBERS}")
    for info in infos:
        if not info.filename.endswith(".npy"):
            raise ConfigError(f"{path}: member {info.filename[:60]!r}, expected only .npy members")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ConfigError(f"{path}: member {info.filename[:60]!r}: unknown compression {info.compress_type}")
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(members) < len(infos):
        raise ConfigError(f"{path}: found {len(infos)} members of {len(members)} names, expected each name once")
    return members


def _check_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, max_bytes: int) -> _Header:
    where = f"{path}: array {info.filename.removesuffix('.npy')[:60]!r}"
    with archive.open(info) as stream:
        header = _checked_header(stream, info.file_size, where, max_bytes)
    if info.file_size > max(_RATIO_FROM, _MAX_RATIO * info.compress_size):
        found = f"{info.file_size} bytes in {info.compress_size} compressed bytes"
        raise ConfigError(f"{where}: found {found}, expected at most {_MAX_RATIO} times as many")
    return header


def read_npy(stream: IO[bytes], n_stored: int, where: str, max_bytes: int) -> Array:
    """The array of an `.npy` stream of `n_stored` bytes. Raises ConfigError as `read_npz`, beginning with `where`."""
    try:
        header = _checked_header(stream, n_stored, where, max_bytes)
        flat = np.frombuffer(stream.read(header.n_bytes), dtype=header.dtype)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")
    except DAMAGE as error:
        raise ConfigError(f"{where}: damaged or not an .npy file: {reason_of(error)}") from None


def _checked_header(stream: IO[bytes], n_stored: int, where: str, max_bytes: int) -> _Header:
    """The header of an array. Raises ConfigError unless the array fits the stored bytes and the limit."""
    shape, fortran, dtype = _read_header(stream)
    if dtype.hasobject:
        raise ConfigError(f"{where}: holds pickled objects, expected plain numbers or text")
    if len(shape) > _MAX_NDIM or any(type(length) is not int or length < 0 for length in shape):
        raise ConfigError(f"{where}: found shape {str(shape)[:60]}, expected at most {_MAX_NDIM} axes, none of negative length")
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes > max_bytes:
        raise ConfigError(f"{where}: {n_bytes} bytes, expected at most {max_bytes}")
    n_data = n_stored - stream.tell()
    if n_data != n_bytes:
        raise ConfigError(f"{where}: header says shape {shape} of {dtype} = {n_bytes} bytes, the file holds {n_data}")
    return _Header(shape, fortran, dtype, n_bytes)


def _read_header(stream: IO[bytes]) -> tuple[Numbers, bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    with warnings.catch_warnings():
        # A strange header must give our one-line error and no warning of the parser.
        warnings.simplefilter("ignore")
        if version == (1, 0):
            return npy.read_array_header_1_0(stream)
        if version == (2, 0):
            return npy.read_array_header_2_0(stream)
    raise ValueError(f"unknown .npy version {version}")


def _load(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header) -> Array:
    with archive.open(info) as stream:
        _read_header(stream)
        data = stream.read(header.n_bytes)
        stream.read(1)  # zipfile compares the checksum at the end of the member
    flat = np.frombuffer(data, dtype=header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def reason_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__)[:120]
