"""A digest of the package's own sources and data, so that a kept result is never one of other code."""

import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

# Folders whose code changes no Row: their code requests, draws or checks points.
_NOT_IN_ROWS = {"cli", "figures", "show", "testing", "oracle"}


@cache
def code_digest() -> str:
    """Digest of everything besides the point that a Row depends on: all sources and all data of the package, as this process first saw them."""
    _stamps()
    return _digest()


def sources_changed() -> bool:
    """Whether the package was edited since this process took its digest. Reads no file where none was touched."""
    before = code_digest()
    return _stamps() != _stamps.__wrapped__() and _digest() != before


def _covered() -> list[Path]:
    package = Path(str(files("dysharp")))
    found: list[Path] = []
    for folder, inside, names in os.walk(package):
        inside[:] = [name for name in inside if name not in _NOT_IN_ROWS]
        found += [Path(folder, name) for name in names if name.endswith((".py", ".toml", ".npz"))]
    return sorted(found)


@cache
def _stamps() -> list[tuple[str, int, int]]:
    """Name, time and size of each file."""
    return [(str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in _covered()]


def _digest() -> str:
    h = hashlib.blake2b(digest_size=8)
    for path in _covered():
        h.update(path.read_bytes())
    return h.hexdigest()
