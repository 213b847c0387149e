"""The store of finished points: one file per point. A run that is killed loses only its unfinished points."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError
from dysharp.experiments.figure import Point

# Folders whose code changes no Row: their code requests, draws or checks points.
_NOT_IN_ROWS = {"cli", "experiments", "reports", "testing", "oracle"}


@cache
def code_digest() -> str:
    """Digest of everything but the point that a Row depends on: all sources and all data of the package."""
    h = hashlib.blake2b(digest_size=8)
    package = Path(str(files("dysharp")))
    for path in sorted(p for ending in ("py", "toml", "npz") for p in package.rglob(f"*.{ending}")):
        if not _NOT_IN_ROWS & set(path.relative_to(package).parts):
            h.update(path.read_bytes())
    return h.hexdigest()


@cache
def _files_digest(names: tuple[str, ...]) -> str:
    """Digest of the content of the user's files among `names`: a file with new content makes a new point."""
    h = hashlib.blake2b(digest_size=8)
    for name in names:
        path = Path(name.removeprefix("trace:").removeprefix("counts:"))
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            h.update(path.read_bytes())
    return h.hexdigest()


def point_dict(point: Point) -> dict[str, Any]:
    """A point as plain values. `point_from` is the inverse function."""
    return asdict(point) | {"options": dict(point.options), "choices": dict(point.choices)}


def point_from(values: dict[str, Any]) -> Point:
    """A point from the plain values of `point_dict`."""
    return Point(**values | {name: tuple(sorted(values[name].items())) for name in ("options", "choices")})


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of files `<digest>.json` with {point, code, row}.

    The digest covers the point, the user's files that the point names, and the code.
    """

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """`dysharp/store` in the user's cache folder (XDG)."""
        cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return cls(Path(cache_home) / "dysharp" / "store")

    def open(self) -> None:
        """Make the folder before the first point runs. Raises ConfigError if the folder cannot be written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise ConfigError(f"store {self.folder}: {error.strerror}, expected a folder to write to") from None

    def path(self, point: Point) -> Path:
        """The path of a point's file, which may not exist."""
        named = _files_digest((point.model, point.cluster, point.routing))
        text = json.dumps([point_dict(point), code_digest(), named], sort_keys=True)
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.json"

    def get(self, point: Point) -> dict[str, Any] | None:
        """The Row of a finished point. None: no file, or a file that cannot be read."""
        try:
            record = json.loads(self.path(point).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        row = record.get("row") if isinstance(record, dict) else None
        return row if isinstance(row, dict) else None

    def put(self, point: Point, row: dict[str, Any]) -> None:
        """Write a Row to a temporary file and rename the file, so that a reader never sees half a file.

        Raises ConfigError for a folder that cannot be written to.
        """
        text = json.dumps({"point": point_dict(point), "code": code_digest(), "row": row})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            os.replace(temporary, self.path(point))
        except OSError as error:
            raise ConfigError(f"store {self.folder}: {error.strerror}, expected a folder to write to") from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All readable records of all versions of the code, in the order of file names."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(record, dict) and "row" in record:
                yield record
