"""The store of finished points: one file per point. A run that is killed loses only its unfinished points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dysharp.files import cache_folder, make_folder, write_text
from dysharp.runs.inputs import inputs_digest
from dysharp.runs.point import Point
from dysharp.sources import code_digest


def point_dict(point: Point) -> dict[str, Any]:
    """A point as plain values. `point_from` is the inverse function."""
    return asdict(point) | {"options": dict(point.options), "choices": dict(point.choices)}


def point_from(values: dict[str, Any]) -> Point:
    """A point from the plain values of `point_dict`."""
    return Point(**values | {name: tuple(sorted(values[name].items())) for name in ("options", "choices")})


def _check(row: dict[str, Any]) -> str:
    """Digest of a Row, by which a damaged record is noticed."""
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of files `<digest>.json` with {point, code, files, check, row}.

    The digest covers the point, the content of the user's files that the point reads (`files`), and the code.
    `check`: digest of the Row.
    """

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """`dysharp/store` in the user's cache folder (XDG)."""
        return cls(cache_folder("store"))

    def open(self) -> None:
        """Make the folder before the first point runs. Raises ConfigError if the folder cannot be written to."""
        make_folder(self.folder, "store")

    def path(self, point: Point) -> Path:
        """The path of a point's file, which may not exist."""
        text = json.dumps(point_key(point), sort_keys=True)
        return self.folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.json"

    def get(self, point: Point) -> dict[str, Any] | None:
        """The Row of a finished point.

        None: no file, a file that cannot be read or is damaged, or the record of another point.
        """
        record = _record(self.path(point))
        if record is None or any(record.get(name) != value for name, value in point_key(point).items()):
            return None
        row: dict[str, Any] = record["row"]
        return row

    def put(self, point: Point, row: dict[str, Any]) -> None:
        """Write a Row, so that a reader never sees half a file. Raises ConfigError for a folder that cannot be written to."""
        self.open()
        plain = json.loads(json.dumps(row))  # as it is read back
        write_text(self.path(point), json.dumps(point_key(point) | {"check": _check(plain), "row": plain}))

    def records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """(file, record) of all undamaged records of all versions of the code, in the order of file names."""
        for path in sorted(self.folder.glob("*.json")):
            record = _record(path)
            if record is not None:
                yield path, record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The undamaged records."""
        for _, record in self.records():
            yield record


def point_key(point: Point) -> dict[str, Any]:
    """What a Row depends on, as in a record."""
    plain = json.loads(json.dumps(point_dict(point)))  # as it is read back: lists in place of tuples
    return {"point": plain, "code": code_digest(), "files": inputs_digest(point)}


def _record(path: Path) -> dict[str, Any] | None:
    """The record of a file; None: not readable, or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        undamaged = isinstance(record, dict) and isinstance(record.get("row"), dict) and record.get("check") == _check(record["row"])
    except (OSError, ValueError, RecursionError):
        return None
    return record if undamaged else None
