"""The folder of a study: finished points as Parquet parts, and a journal of those that are not in a part yet.

A point is finished when its line is in the journal. The line is written at once, so a driver that is killed loses only the points that
run. When the journal is long enough, and when a study begins or ends, its lines become a part: written under another name and renamed.
The name of a part is the digest of its keys, so a part that was written before the driver was killed is written again as the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dysharp.errors import ConfigError, MissingExtra
from dysharp.files import make_folder
from dysharp.runs.point import Point
from dysharp.runs.store import Store, point_dict, point_from, point_key
from dysharp.sources import code_digest

LINES_PER_PART = 2000
JOURNAL = "journal.jsonl"
PARTS = "part-*.parquet"
_TEXT = ("key", "point", "code", "system", "form", "model", "cluster", "routing", "direction", "fidelity", "bound_resource", "digest", "row")


def duckdb_module() -> Any:
    """The module duckdb. Raises MissingExtra where it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtra.needs("a study", "studies") from None
    return duckdb


@dataclass(slots=True)
class StudyFolder:
    """A folder with `part-*.parquet` and `journal.jsonl`. One process writes, any number read."""

    folder: Path
    _journal: IO[str] | None = None
    _lines: int = 0
    _keys: set[str] = field(default_factory=set)

    @contextmanager
    def writing(self) -> Iterator[StudyFolder]:
        """Open for writing. Raises ConfigError where another process writes, or the folder cannot be made."""
        duckdb_module()
        try:
            make_folder(self.folder, "study")
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise ConfigError(f"study {self.folder}: {error.strerror}, expected a folder to write to") from None
        with lock:
            _hold(lock, self.folder)
            self.close_part()
            self._keys = self._known()
            self._journal = (self.folder / JOURNAL).open("a", encoding="utf-8")
            try:
                yield self
            finally:
                self._journal.close()
                self._journal = None
                self.close_part()

    def has(self, key: str) -> bool:
        """Whether the point with this key is finished."""
        return key in self._keys

    def put(self, key: str, point: Point, row: Mapping[str, Any]) -> None:
        """Keep a finished point."""
        assert self._journal is not None, "opened by writing()"
        self._journal.write(json.dumps(record_of(key, point, row)) + "\n")
        self._journal.flush()
        self._keys.add(key)
        self._lines += 1
        if self._lines >= LINES_PER_PART:
            self._journal.close()
            self.close_part()
            self._journal = (self.folder / JOURNAL).open("a", encoding="utf-8")

    def close_part(self) -> None:
        """Make a part of the journal."""
        journal, self._lines = self.folder / JOURNAL, 0
        records = list(_records(journal))
        if records:
            name = hashlib.blake2b("".join(sorted(r["key"] for r in records)).encode(), digest_size=8).hexdigest()
            whole, part = self.folder / "journal.part.jsonl", self.folder / f"part-{name}.parquet"
            _write_lines(whole, records)
            temporary = self.folder / f"unfinished-{name}"
            duckdb_module().sql(f"copy (select * from {_json_source(whole, records)}) to '{_quoted(temporary)}' (format parquet, compression zstd)")
            os.replace(temporary, part)
            whole.unlink()
        journal.unlink(missing_ok=True)

    def _known(self) -> set[str]:
        if not any(self.folder.glob(PARTS)):
            return set()
        found = duckdb_module().sql(f"select key from read_parquet('{_quoted(self.folder / PARTS)}', union_by_name=true)").fetchall()
        return {key for (key,) in found}

    def connect(self) -> Any:
        """A connection of duckdb with the view `points`: for each point the row that was finished last. Another process may write meanwhile.

        The folder may be that of a study, or the `Store` of `reproduce` and `sweep`.
        """
        connection, sources = duckdb_module().connect(), []
        records = [*_records(self.folder / JOURNAL), *_stored(self.folder)]  # before the parts: a writer may make a part of them at any time
        if records:
            with tempfile.TemporaryDirectory() as folder:
                _write_lines(Path(folder) / JOURNAL, records)
                connection.execute(f"create temp table journal as select * from {_json_source(Path(folder) / JOURNAL, records)}")
            sources.append("select * from journal")
        if any(self.folder.glob(PARTS)):
            sources.append(f"select * from read_parquet('{_quoted(self.folder / PARTS)}', union_by_name=true)")
        if not sources:
            raise ConfigError(f"{self.folder}: found no finished points, expected the folder of a study, or the store of reproduce or sweep")
        newest = "qualify row_number() over (partition by point order by finished desc) = 1"
        connection.execute(f"create view points as select * from ({' union all by name '.join(sources)}) {newest}")
        return connection


def _hold(lock: IO[str], folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"study {folder}: another process writes to it; wait for it, or take another --folder") from None


def key_of(point: Point) -> str:
    """Digest of the point, the files that it reads and the code: as in `Store`."""
    return hashlib.blake2b(json.dumps(point_key(point), sort_keys=True).encode(), digest_size=12).hexdigest()


def record_of(key: str, point: Point, row: Mapping[str, Any], code: str = "", finished: float | None = None) -> dict[str, Any]:
    """One line of the journal, which becomes one line of a part: numbers of the Row, what tells the point apart, and the whole Row as JSON.

    `code`: digest of the code that made the Row, "" = this one. `finished`: when, in seconds since 1970; None = now.
    """
    base, *fields = point.cluster.split(",")
    told = {f"cluster_{name}": _number(value) for name, _, value in (f.partition("=") for f in fields)}
    told |= {name.replace(".", "_"): value for name, value in point.options + point.choices}
    plain = {
        name: row.get(name, getattr(point, name, None))  # a closed form has no Row
        for name in (
            "system", "form", "model", "gpus", "tokens_per_gpu", "topk", "routing", "direction", "fidelity", "seed", "time_us", "bound_us",
            "bound_resource", "workload_bound_us", "exposed_comm_us", "n_ops", "n_events", "digest", "model_version",
        )
    }  # fmt: skip
    plain |= {f"use_{name}": value for name, value in row.get("utilization", {}).items()}
    plain |= {f"path_{name}": value for name, value in row.get("attribution", {}).items()}
    return {
        "key": key,
        "point": hashlib.blake2b(json.dumps(point_dict(point), sort_keys=True).encode(), digest_size=12).hexdigest(),
        "code": code or code_digest(),
        "finished": time.time() if finished is None else finished,
        "cluster": base,
        "warnings": len(row.get("warnings", ())),
        "engine_s": row.get("wall_s", {}).get("engine"),
        **plain,
        **{name: value for name, value in told.items() if name not in plain},
        "row": json.dumps(row),
    }


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _records(journal: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of the journal, each key once. A line that was cut off by a kill is left out."""
    seen: set[str] = set()
    if not journal.is_file():
        return
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["key"] not in seen:
                seen.add(record["key"])
                yield record


def _stored(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a `Store` of any version. One of a Point that this version does not know is left out."""
    for path, stored in Store(folder).records():
        try:
            yield record_of(path.stem, point_from(stored["point"]), stored["row"], stored["code"], path.stat().st_mtime)
        except (TypeError, KeyError, AttributeError, OSError):
            continue


def _write_lines(file: Path, records: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def _json_source(file: Path, records: list[dict[str, Any]]) -> str:
    """How duckdb reads a file of these records, with the type of each column."""
    columns: dict[str, str] = {}
    for record in records:
        for name, value in record.items():
            kind = _kind(name, value)
            if kind and columns.get(name, kind) != kind:
                kind = "DOUBLE" if {kind, columns[name]} == {"DOUBLE", "BIGINT"} else "VARCHAR"
            columns[name] = kind or columns.get(name, "")
    # a column without a value is a number, because texts are named
    typed = ", ".join(f"'{name.replace(chr(39), '')}': '{kind or 'DOUBLE'}'" for name, kind in columns.items())
    return f"read_json('{_quoted(file)}', format='newline_delimited', ignore_errors=true, maximum_object_size=67108864, columns={{{typed}}})"


def _kind(name: str, value: Any) -> str:
    if name in _TEXT or isinstance(value, str):
        return "VARCHAR"
    if value is None:
        return ""
    return "BOOLEAN" if isinstance(value, bool) else "BIGINT" if isinstance(value, int) else "DOUBLE"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
