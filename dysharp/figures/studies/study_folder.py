"""The folder of a study: finished points as Parquet parts, and a journal of points that are not in a part yet.

A point is finished when its line is in the journal. The line is written at once, so a driver that is killed loses only the points that
run. When the journal is long enough, and when a study begins or ends, its lines become a part: written elsewhere and moved.
The name of a part holds the digest of its keys, so a part that was written before the driver was killed is written again in its place, and
the digest of its content. A line has a checksum. What is damaged is left out, and its points run again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dysharp.base import Amounts, AnyMapping, ByName, Cells, ConfigError, MissingExtra, Rows, code_digest, make_folder, write_file
from dysharp.runs import Point, Store, check_of, key_of, point_dict, point_from
from dysharp.silicon.cluster_area import area_columns
from dysharp.specs import load_cluster, load_model

LINES_PER_PART = 2000
JOURNAL = "journal.jsonl"
PARTS = "part-*.parquet"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A folder may come from somebody else: a link in it is not written through, and a pipe is not waited for."""
_LOCKED = ("temp_directory = ''", "allow_persistent_secrets = false", "enable_external_access = false", "lock_configuration = true")
"""After the rows are read: a question reads and writes no file, loads no extension, and cannot change these settings."""
_TEXT = (
    "key", "point", "asked", "code", "system", "form", "model", "cluster", "routing", "routing_text", "direction", "fidelity", "bound_resource",
    "digest", "row",
)  # fmt: skip


def _duckdb_module() -> Any:
    """The module duckdb. Raises MissingExtra where it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtra.needs("a study", "studies") from None
    return duckdb


@dataclass(slots=True)
class StudyFolder:
    """A folder with `part-*.parquet` and `journal.jsonl`. One process writes, any number read.

    `left_out`: a line for each kind of damage that was met.
    """

    folder: Path
    left_out: dict[str, None] = field(default_factory=dict)
    _journal: IO[str] | None = None
    _lines: int = 0
    _keys: set[str] = field(default_factory=set)

    @contextmanager
    def writing(self) -> Iterator[StudyFolder]:
        """Open for writing. Raises ConfigError where another process writes, or the folder cannot be made."""
        _duckdb_module()
        try:
            make_folder(self.folder, "study")
            lock = _opened(self.folder / "lock", os.O_RDWR)
        except OSError as error:
            raise ConfigError(f"study {self.folder}: {error.strerror}, expected a folder to write to") from None
        with lock:
            _hold(lock, self.folder)
            self.close_part()
            self._keys = self._known()
            self._journal = _opened(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND)
            try:
                yield self
            finally:
                journal, self._journal = self._journal, None
                with _writes(self.folder):
                    if journal is not None:
                        journal.close()
                self.close_part()

    def has(self, key: str) -> bool:
        """Whether the point with this key is finished."""
        return key in self._keys

    def put(self, key: str, point: Point, row: AnyMapping) -> None:
        """Keep a finished point."""
        assert self._journal is not None, "opened by writing()"
        record = record_of(key, point, row)
        with _writes(self.folder):
            self._journal.write(json.dumps(record | {"check": check_of(record)}) + "\n")
            self._journal.flush()
        self._keys.add(key)
        self._lines += 1
        if self._lines >= LINES_PER_PART:
            self._journal.close()
            self.close_part()
            self._journal = _opened(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND)

    def close_part(self) -> None:
        """Make a part of the journal."""
        self._lines = 0
        records = list(self._records())
        with _writes(self.folder):
            if records:
                self._write_part(records)
            (self.folder / JOURNAL).unlink(missing_ok=True)

    def _write_part(self, records: Rows) -> None:
        name = hashlib.blake2b("".join(sorted(r["key"] for r in records)).encode(), digest_size=8).hexdigest()
        with tempfile.TemporaryDirectory() as private:  # not in the study's folder: DuckDB writes through a link there
            source, written = _json_source(Path(private) / JOURNAL, records), Path(private) / "part"
            _duckdb_module().sql(f"copy (select * from {source}) to '{_quoted(written)}' (format parquet, compression zstd)")
            part = self.folder / f"part-{name}-{_content(written)}.parquet"
            write_file(part, lambda stream: stream.write(written.read_bytes()), in_place_of_links=True)
        for other in self.folder.glob(f"part-{name}*.parquet"):
            if other != part:
                other.unlink()

    def _records(self) -> Iterator[ByName]:
        """Undamaged lines of the journal, each key once. The last line may be cut off by a kill."""
        seen: set[str] = set()
        journal, damaged = self.folder / JOURNAL, 0
        if not journal.is_file():
            return
        with journal.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = _record(line)
                damaged += record is None and line.endswith("\n")
                if record is not None and record["key"] not in seen:
                    seen.add(record["key"])
                    yield record
        if damaged:
            self.left_out[f"{self.folder}: left out {damaged} damaged lines of {JOURNAL}; their points run again"] = None

    def _parts(self) -> str:
        """The undamaged parts as a list in SQL; "" where there is none."""
        sound = []
        for part in sorted(self.folder.glob(PARTS)):
            if part.is_file() and part.stem.split("-")[2:] == [_content(part)]:
                sound.append(f"'{_quoted(Path(glob.escape(str(part))))}'")
            else:
                self.left_out[f"{part}: left out: its name does not tell its content, as of a damaged or older part; its points run again"] = None
        return f"read_parquet([{', '.join(sound)}], union_by_name=true)" if sound else ""

    def _known(self) -> set[str]:
        parts = self._parts()
        return {key for (key,) in _duckdb_module().sql(f"select key from {parts}").fetchall()} if parts else set()

    def connect(self) -> Any:
        """A connection of duckdb with the table `runs` of all finished rows, and the view `points` with one row for each point.
        `points` has `tokens`, the name of study files and CSV, beside `tokens_per_gpu`. The rows are in memory, and the connection reaches no file.

        A point that was finished with several contents of its files, or by several versions of the code, has the row of today's files and code;
        where there is none, the row that was finished last. Another process may write meanwhile. The folder belongs to a study, or is the `Store` of
        `reproduce` and `sweep`. Raises ConfigError where it has no finished points.
        """
        try:
            self.folder.is_dir()
        except OSError as error:  # such as a name that is too long
            raise ConfigError(f"{str(self.folder)[:60]!r}: found no folder ({error.strerror}), expected the folder of a study") from None
        duckdb = _duckdb_module()
        connection, sources = duckdb.connect(config={"python_enable_replacements": False}), []
        records = [*self._records(), *_stored(self.folder)]  # before the parts: a writer may make a part of them at any time
        if records:
            with tempfile.TemporaryDirectory() as folder:
                connection.execute(f"create temp table journal as select * from {_json_source(Path(folder) / JOURNAL, records)}")
            sources.append("select * from journal")
        if parts := self._parts():
            sources.append(f"select * from {parts}")
        if not sources:
            raise ConfigError(f"{self.folder}: found no finished points, expected the folder of a study, or the store of reproduce or sweep")
        try:
            connection.execute(f"create table runs as {' union all by name '.join(sources)}")
            for setting in _LOCKED:
                connection.execute(f"set {setting}")
            connection.execute("create temp table today (key varchar)")
            current = _keys_of_today(connection)
            if current:
                connection.executemany("insert into today values (?)", [[key] for key in current])
            order = "key in (from today) desc, finished desc"
            columns = connection.sql("from runs limit 0").columns
            more = ", tokens_per_gpu as tokens" if "tokens_per_gpu" in columns and "tokens" not in columns else ""
            connection.execute(f"create view points as select *{more} from runs qualify row_number() over (partition by point order by {order}) = 1")
        except (duckdb.Error, RuntimeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.folder}: its parts cannot be read together: {str(error).splitlines()[0]}") from None
        return connection

    def answer(self, sql: str, most: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and lines that answer a question about `points`. Raises ConfigError for a question that DuckDB refuses, and for more lines."""
        try:
            if (found := self.connect().sql(sql)) is None:
                raise ConfigError(f"query: found {sql[:60]!r}, expected a question with an answer, such as: select * from points")
            columns, lines = found.columns, found.limit(most + 1).fetchall()
        except (_duckdb_module().Error, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: text of a damaged part that is no UTF-8
            words = str(error).partition("\n\nLINE ")[0].split()
            raise ConfigError(f"query: {' '.join(words)}") from None
        if len(lines) > most:
            raise ConfigError(f"query: found more than {most} lines, expected at most {most}; add a limit to the question, or take more --rows")
        return columns, lines


def _keys_of_today(connection: Any) -> list[str]:
    """Keys with today's files and code, of the points that have several rows."""
    if "asked" not in connection.sql("from runs limit 0").columns:
        return []
    several = connection.sql("select any_value(asked) from runs group by point having count(distinct key) > 1 and any_value(asked) is not null")
    return [digest for (asked,) in several.fetchall() if (digest := _digest_today(asked))]


def _digest_today(asked: str) -> str:
    """The digest of the key of a point that was asked for in JSON; "" for a Point that this version does not know."""
    try:
        return key_of(point_from(json.loads(asked))).digest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError):
        return ""


def _opened(file: Path, flags: int) -> IO[str]:
    """A file to write to, which is made where there is none, and not emptied. Raises OSError for a link."""
    return open(os.open(file, flags | os.O_CREAT | _NO_LINK, 0o666), "w", encoding="utf-8")


@contextmanager
def _writes(folder: Path) -> Iterator[None]:
    """Names the folder where a file of it cannot be written, such as on a full disk."""
    try:
        yield
    except (OSError, _duckdb_module().IOException) as error:
        file = f"{Path(error.filename).name}: " if getattr(error, "filename", None) else ""
        reason = file + (getattr(error, "strerror", None) or str(error).splitlines()[0])
        raise ConfigError(f"study {folder}: cannot be written: {reason}; finished points are kept, and the same command continues") from None


def _hold(lock: IO[str], folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"study {folder}: another process writes to it; wait for it, or take another --folder") from None


def record_of(key: str, point: Point, row: AnyMapping, code: str = "", finished: float | None = None) -> ByName:
    """One line of the journal, which becomes one line of a part: numbers of the Row, what tells the point apart, and the whole Row as JSON.

    `code`: digest of the code that made the Row, "" = this one. `finished`: when, in seconds since 1970; None = now.
    """
    base, *fields = point.cluster.split(",")
    told = {f"cluster_{name}": _number(value) for name, _, value in (f.partition("=") for f in fields)}
    told |= {name.replace(".", "_"): value for name, value in point.options + point.choices}
    plain = {
        name: row.get(name, getattr(point, name, None))  # a closed form has no Row
        for name in (
            "system", "form", "model", "gpus", "tokens_per_gpu", "topk", "direction", "fidelity", "seed", "time_us", "bound_us",
            "bound_resource", "workload_bound_us", "exposed_comm_us", "n_ops", "n_events", "digest", "model_version",
        )
    }  # fmt: skip
    plain |= {f"use_{name}": value for name, value in row.get("utilization", {}).items()}
    plain |= _areas(point)
    plain |= {f"path_{name}": value for name, value in row.get("attribution", {}).items()}
    asked = json.dumps(point_dict(point), sort_keys=True)
    own = {
        "key": key,
        "point": hashlib.blake2b(asked.encode(), digest_size=12).hexdigest(),
        "asked": asked,
        "code": code or code_digest(),
        "finished": time.time() if finished is None else finished,
        "cluster": base,
        "routing": _routing_of(point),
        "routing_text": row.get("routing"),
        "warnings": len(row.get("warnings", ())),
        "engine_s": row.get("wall_s", {}).get("engine"),
        **plain,
    }
    return {**own, **{name: value for name, value in told.items() if name not in own and name != "row"}, "row": json.dumps(row)}


def _areas(point: Point) -> Amounts:
    """Area of what DySHARP adds to the point's cluster; nothing for a cluster that cannot be read."""
    try:
        return area_columns(load_cluster(point.cluster))
    except ConfigError:
        return {}


def _routing_of(point: Point) -> str:
    """The routing as it is typed: of the point, else of its model; "" for a model that cannot be read."""
    try:
        return point.routing or load_model(point.model).routing
    except ConfigError:
        return ""


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _record(line: str) -> ByName | None:
    """The record of a line of the journal; None: a damaged one."""
    try:
        record = json.loads(line)
        return record if isinstance(record, dict) and record.pop("check", None) == check_of(record) and isinstance(record.get("key"), str) else None
    except (ValueError, RecursionError):
        return None


def _content(file: Path) -> str:
    """Digest of the content of a file; "" for one that cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except OSError:
        return ""


def _stored(folder: Path) -> Iterator[ByName]:
    """The records of a `Store` of any version. The Row of a Point that this version does not know is left out."""
    for path, stored in Store(folder).records():
        try:
            yield record_of(path.stem, point_from(stored["point"]), stored["row"], stored["code"], path.stat().st_mtime)
        except (TypeError, KeyError, AttributeError, OSError):
            continue


def _json_source(file: Path, records: Rows) -> str:
    """Write the records to a file, and say how duckdb reads it, with the type of each column."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    columns: Cells = {}
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
    if isinstance(value, int) and not isinstance(value, bool):
        return "BIGINT" if abs(value) < 1 << 63 else "VARCHAR"
    return "BOOLEAN" if isinstance(value, bool) else "DOUBLE"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
