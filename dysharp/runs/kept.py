"""Rows that were simulated before, so that `compare` and `advise` read an equal point in place of running it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dysharp.analysis import Row
from dysharp.errors import ConfigError, DysharpError
from dysharp.files import make_folder, write_text
from dysharp.runs.options import options_of
from dysharp.sources import code_digest, sources_changed
from dysharp.specs.choices import overridden
from dysharp.systems import get_system

if TYPE_CHECKING:
    from dysharp.runs.jobs import Job, Result

OnResult = Callable[[int, "Result"], None]
"""Called with the number of a job and its Rows when it has ended."""
Run = Callable[[Sequence["Job"], OnResult], Sequence["Result"]]
MOST_FILES = 2000
"""Results that a folder keeps; the oldest go first."""
_NOT_IN_A_ROW = {"progress", "options", "routing"}
"""Fields of a Request that change no Row, or stand in the key in their resolved form."""


@dataclass(slots=True)
class Kept:
    """A folder of results. `read`: jobs whose Rows came from it. `ran`: jobs that were simulated. `problem`: why results are no longer kept."""

    folder: Path
    read: int = 0
    ran: int = 0
    problem: str = ""

    def rows(self, jobs: Sequence[Job], run: Run) -> list[Result]:
        """The Rows of each job: read where they are kept, else of `run`, and kept as each of them ends. Errors are not kept."""
        routings = {id(job.workload.routing): job.workload.routing for job in jobs}  # most jobs share one
        digests = {key: _digest_of(routing) for key, routing in routings.items()}
        paths = [self._path(job, digests[id(job.workload.routing)]) for job in jobs]
        found = [_rows_in(path) for path in paths]
        todo = [i for i, rows in enumerate(found) if rows is None]
        ended = run([jobs[i] for i in todo], lambda n, result: self._keep(paths[todo[n]], result))
        new = dict(zip(todo, ended, strict=True))
        self.read, self.ran = self.read + len(jobs) - len(todo), self.ran + len(todo)
        return [new[i] if rows is None else rows for i, rows in enumerate(found)]

    def _keep(self, path: Path | None, result: Result) -> None:
        if path is None or isinstance(result, DysharpError) or self.problem:
            return
        if sources_changed():
            self.problem = "the sources of dysharp changed during the run"
            return
        try:
            write_text(path, json.dumps([{f.name: getattr(row, f.name) for f in dataclasses.fields(row)} for row in result]))
        except ConfigError as error:
            self.problem = str(error)

    def forget_the_oldest(self) -> None:
        """Delete what is above `MOST_FILES`, the files that were written first."""
        with suppress(OSError):  # another process deletes, too
            files = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[: max(0, len(files) - MOST_FILES)]:
                path.unlink(missing_ok=True)

    def _path(self, job: Job, routing: str) -> Path | None:
        """The file of a job; None for a system of the user, whose code has no digest, and for options that are refused."""
        system = get_system(job.system)
        if not all(plan.__module__.startswith("dysharp.systems.") for plan in (system.paper, system.real) if plan):
            return None
        try:
            options = dataclasses.asdict(options_of(system, job.given))
        except ConfigError:
            return None
        asked = job.workload.request
        request = [(f.name, getattr(asked, f.name)) for f in dataclasses.fields(asked) if f.name not in _NOT_IN_A_ROW]
        key = (code_digest(), job.system, sorted(options.items()), job.sizes, routing, sorted(overridden().items()), request)
        return self.folder / f"{_digest_of(key)}.json"


_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextmanager
def rows_kept_in(folder: str | os.PathLike[str]) -> Iterator[Kept]:
    """Calls of `compare` and `advise` inside this context read and keep Rows in `folder`. A result of other code or inputs is never read.

    Wall times and memory in a kept Row are those of the run that made it. Raises ConfigError for a folder that cannot be written to.
    """
    code_digest()  # of the code that runs now, before anything is read or edited
    kept = Kept(Path(folder))
    make_folder(kept.folder, "kept results")
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)
        kept.forget_the_oldest()


def kept_or_run(jobs: Sequence[Job], run: Run) -> list[Result]:
    """The Rows of each job: of `run`, or kept ones where the caller keeps Rows."""
    kept = _kept.get()
    return list(run(jobs, lambda number, result: None)) if kept is None else kept.rows(jobs, run)


def _digest_of(value: Any) -> str:
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


def _rows_in(path: Path | None) -> tuple[Row, ...] | None:
    """The Rows in a file; None: no file, or one that cannot be read."""
    if path is None:
        return None
    try:
        return tuple(_row(record) for record in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _row(record: dict[str, Any]) -> Row:
    return Row(**record | {name: tuple(record[name]) for name in ("warnings", "header")})
