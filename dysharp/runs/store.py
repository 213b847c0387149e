"""The key of a Row (all that the Row depends on), and stored Rows: one file per Row, with its key and a checksum.

A run that is killed loses only what is not finished.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import AnyMapping, ByName, ConfigError, cache_folder, code_digest, frozen, make_folder, write_text
from dysharp.base.reading import open_regular, open_without_waiting
from dysharp.runs.point import Point
from dysharp.runs.request import Workload, routing_string
from dysharp.specs import load_model
from dysharp.specs.choices import overridden
from dysharp.workload.spec import parse_routing

_CHUNK_BYTES = 1 << 20
_NOT_IN_A_ROW = {"progress", "options", "routing"}
"""Fields of a Request that change no Row, or stand in the key in their resolved form."""


@frozen
class RowKey:
    """What a Row depends on.

    asked    the Point, or the Request with one system and its resolved options, as plain values
    content  digest of the files that the Point names, or of the routing that was drawn for the Request
    code     digest of the package
    """

    asked: AnyMapping
    content: str
    code: str

    def record(self) -> ByName:
        """The key as a stored record has it."""
        return {"point": self.asked, "code": self.code, "files": self.content}

    @property
    def digest(self) -> str:
        """Equal for equal keys, and a valid name of a file."""
        return hashlib.blake2b(json.dumps(self.record(), sort_keys=True).encode(), digest_size=12).hexdigest()


def point_dict(point: Point) -> ByName:
    """A point as plain values. `point_from` is the inverse function."""
    return asdict(point) | {"options": dict(point.options), "choices": dict(point.choices)}


def point_from(values: AnyMapping) -> Point:
    """A point from the plain values of `point_dict`. Raises TypeError, KeyError or AttributeError for values of another kind."""
    return Point(**{**values, **{name: tuple(sorted(values[name].items())) for name in ("options", "choices")}})


def key_of(point: Point) -> RowKey:
    """The key of a Point. Drawing its routing would cost more than a lookup may, so the key covers the files that the Point names."""
    plain = json.loads(json.dumps(point_dict(point)))  # as it is read back: lists in place of tuples
    return RowKey(plain, inputs_digest(point), code_digest())


def key_of_run(system: str, options: AnyMapping, workload: Workload, routing: str) -> RowKey:
    """The key of a system of the package on a workload. `options`: resolved. `routing`: `digest_of` the routing of the workload."""
    request = workload.request
    fields = [(f.name, getattr(request, f.name)) for f in dataclasses.fields(request) if f.name not in _NOT_IN_A_ROW]
    asked = {"system": system, "model": request.model.name, "cluster": request.cluster.name, "tokens": request.tokens}
    return RowKey(asked | {"request": digest_of([fields, options, overridden()])}, routing, code_digest())


def digest_of(value: Any) -> str:
    """Digest of plain values, arrays, and dataclasses of them."""
    h = hashlib.blake2b(digest_size=16)
    _update(h, value)
    return h.hexdigest()


def _update(h: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        h.update(repr((value.dtype, value.shape)).encode() + value.tobytes())
    elif dataclasses.is_dataclass(value):
        _update(h, [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)])
    elif isinstance(value, Mapping):
        _update(h, sorted(value.items()))
    elif isinstance(value, list | tuple):
        h.update(f"{len(value)} values".encode())
        for one in value:
            _update(h, one)
    else:
        h.update(f"{value!r};".encode())


def _input_files(point: Point) -> tuple[Path, ...]:
    """The files that may exist for `point`: of its model, of its cluster, and of the routing that the point or the model names.

    A packaged name is returned like a path: a file of that name changes the digest and nothing else.
    """
    return Path(point.model), Path(point.cluster), *_routing_files(point)


def _routing_files(point: Point) -> tuple[Path, ...]:
    try:
        text = routing_string(point.routing) if point.routing else load_model(point.model).routing
        source = parse_routing(text).source
    except ConfigError:  # the point fails when it runs, and is not stored
        return ()
    return (Path(source),) if source else ()


def inputs_digest(point: Point) -> str:
    """Digest of the content of `_input_files`: a file with other content makes another point."""
    h = hashlib.blake2b(digest_size=8)
    for path in _input_files(point):
        h.update(_content(path / "config.json" if os.path.isdir(path) else path))
    return h.hexdigest()


def _content(file: Path) -> bytes:
    """Digest of a regular file; empty for everything else."""
    try:
        info = file.stat()
    except (OSError, ValueError):
        return b""
    if not stat.S_ISREG(info.st_mode):
        return b""
    # Many points name one file. Its content is read again when the file was written again.
    return _digest_of_file(str(file), info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


@functools.lru_cache(maxsize=4096)
def _digest_of_file(file: str, *version: int) -> bytes:
    h = hashlib.blake2b(digest_size=16)
    try:
        with open(file, "rb", opener=open_without_waiting) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                h.update(chunk)
    except OSError:
        return b""
    return h.digest()


@frozen
class Store:
    """A folder of files `<digest of the key>.json` of {point, code, files, check, row}: parts of the `RowKey`, a checksum of the Row, the Row."""

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """`dysharp/store` in the user's cache folder (XDG)."""
        return cls(cache_folder("store"))

    def open(self) -> None:
        """Make the folder before the first point runs. Raises ConfigError if the folder cannot be written to."""
        make_folder(self.folder, "store")

    def path(self, asked: Point | RowKey) -> Path:
        """The file of a Row, which may not exist."""
        return self.folder / f"{_key(asked).digest}.json"

    def get(self, asked: Point | RowKey) -> ByName | None:
        """A finished Row.

        None: no file, a file that cannot be read or is damaged, or the record of another key.
        """
        key = _key(asked)
        record = _record(self.path(key))
        if record is None or any(record.get(name) != value for name, value in key.record().items()):
            return None
        row: ByName = record["row"]
        return row

    def put(self, asked: Point | RowKey, row: AnyMapping) -> None:
        """Write a Row, so that a reader never sees half a file. Raises ConfigError for a folder that cannot be written to."""
        self.open()
        key, plain = _key(asked), json.loads(json.dumps(row))  # as it is read back
        write_text(self.path(key), json.dumps(key.record() | {"check": check_of(plain), "row": plain}), in_place_of_links=True)

    def records(self) -> Iterator[tuple[Path, ByName]]:
        """(file, record) of all undamaged records of all versions of the code, in the order of file names."""
        for path in sorted(self.folder.glob("*.json")):
            record = _record(path)
            if record is not None:
                yield path, record

    def __iter__(self) -> Iterator[ByName]:
        """The undamaged records."""
        for _, record in self.records():
            yield record


def check_of(values: AnyMapping) -> str:
    """Checksum of plain values, by which a damaged record is noticed."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()


def _key(asked: Point | RowKey) -> RowKey:
    return asked if isinstance(asked, RowKey) else key_of(asked)


def _record(path: Path) -> ByName | None:
    """The record of a file; None: not readable, or damaged."""
    try:
        with open_regular(path) as file:
            record = json.loads(file.read())
        undamaged = isinstance(record, dict) and isinstance(record.get("row"), dict) and record.get("check") == check_of(record["row"])
    except (OSError, ValueError, RecursionError, ConfigError):
        return None
    return record if undamaged else None
