"""The user's files that a point reads, wherever the point names them, and a digest of their content."""

from __future__ import annotations

import functools
import hashlib
import stat
from pathlib import Path

from dysharp.errors import ConfigError
from dysharp.runs.point import Point
from dysharp.runs.request import routing_string
from dysharp.specs import load_model
from dysharp.specs.reading import open_without_waiting
from dysharp.workload.spec import parse_routing

_CHUNK_BYTES = 1 << 20


def input_files(point: Point) -> tuple[Path, ...]:
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
    """Digest of the content of `input_files`: a file with other content makes another point."""
    h = hashlib.blake2b(digest_size=8)
    for path in input_files(point):
        file = path / "config.json" if _is_folder(path) else path
        h.update(_content(file))
    return h.hexdigest()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _content(file: Path) -> bytes:
    """Digest of a regular file; empty for everything else."""
    try:
        info = file.stat()
    except (OSError, ValueError):
        return b""
    if not stat.S_ISREG(info.st_mode):
        return b""
    # Many points name one file. Its content is read again when the file was written again.
    return _digest_of(str(file), info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


@functools.lru_cache(maxsize=4096)
def _digest_of(file: str, *version: int) -> bytes:
    h = hashlib.blake2b(digest_size=16)
    try:
        with open(file, "rb", opener=open_without_waiting) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                h.update(chunk)
    except OSError:
        return b""
    return h.digest()
