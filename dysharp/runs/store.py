"""Stored Rows: one file per Row, with its key and a checksum. A run that is killed loses only what is not finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dysharp.errors import ConfigError
from dysharp.files import cache_folder, make_folder, write_text
from dysharp.runs.key import Key, key_of
from dysharp.runs.point import Point
from dysharp.specs.reading import open_regular


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of files `<digest of the key>.json` with {point, code, files, check, row}: the parts of the `Key`, a checksum of the Row, the Row."""

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """`dysharp/store` in the user's cache folder (XDG)."""
        return cls(cache_folder("store"))

    def open(self) -> None:
        """Make the folder before the first point runs. Raises ConfigError if the folder cannot be written to."""
        make_folder(self.folder, "store")

    def path(self, asked: Point | Key) -> Path:
        """The file of a Row, which may not exist."""
        return self.folder / f"{_key(asked).digest}.json"

    def get(self, asked: Point | Key) -> dict[str, Any] | None:
        """A finished Row.

        None: no file, a file that cannot be read or is damaged, or the record of another key.
        """
        key = _key(asked)
        record = _record(self.path(key))
        if record is None or any(record.get(name) != value for name, value in key.record().items()):
            return None
        row: dict[str, Any] = record["row"]
        return row

    def put(self, asked: Point | Key, row: Mapping[str, Any]) -> None:
        """Write a Row, so that a reader never sees half a file. Raises ConfigError for a folder that cannot be written to."""
        self.open()
        key, plain = _key(asked), json.loads(json.dumps(row))  # as it is read back
        write_text(self.path(key), json.dumps(key.record() | {"check": check_of(plain), "row": plain}), in_place_of_links=True)

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


def check_of(values: Mapping[str, Any]) -> str:
    """Checksum of plain values, by which a damaged record is noticed."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()


def _key(asked: Point | Key) -> Key:
    return asked if isinstance(asked, Key) else key_of(asked)


def _record(path: Path) -> dict[str, Any] | None:
    """The record of a file; None: not readable, or damaged."""
    try:
        with open_regular(path) as file:
            record = json.loads(file.read())
        undamaged = isinstance(record, dict) and isinstance(record.get("row"), dict) and record.get("check") == check_of(record["row"])
    except (OSError, ValueError, RecursionError, ConfigError):
        return None
    return record if undamaged else None
