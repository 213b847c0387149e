"""Rows that were simulated before, so that `compare` and `advise` read an equal run in place of running it."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from dysharp.analysis import Row
from dysharp.base import AnyPath, ConfigError, DysharpError, code_digest, make_folder, sources_changed
from dysharp.runs.job import Job, Result
from dysharp.runs.options import options_of
from dysharp.runs.store import RowKey, Store, digest_of, key_of_run
from dysharp.systems import get_system
from dysharp.workload import Routing

OnResult = Callable[[int, Result], None]
"""Called with the number of a job and its Rows when it has ended."""
Run = Callable[[Sequence[Job], OnResult], Sequence[Result]]
MOST_FILES = 2000
"""Results that a folder keeps; the oldest go first."""


@dataclass(slots=True)
class _KeptRows:
    """A store of results. `read`: jobs whose Rows came from the store. `ran`: jobs that were simulated. `problem`: why results are no longer kept."""

    store: Store
    read: int = 0
    ran: int = 0
    problem: str = ""

    def rows(self, jobs: Sequence[Job], run: Run) -> list[Result]:
        """The Rows of each job: kept Rows, else new ones from `run`, which are kept as each job ends. Errors are not kept."""
        digests: dict[int, tuple[Routing, str]] = {}  # most jobs share a routing; a routing that is held keeps its id
        keys = [_keys(job, digests) for job in jobs]
        found = [self._rows(each) for each in keys]
        todo = [i for i, rows in enumerate(found) if rows is None]
        ended = run([jobs[i] for i in todo], lambda n, result: self._keep(keys[todo[n]], result))
        new = dict(zip(todo, ended, strict=True))
        self.read, self.ran = self.read + len(jobs) - len(todo), self.ran + len(todo)
        return [new[i] if rows is None else rows for i, rows in enumerate(found)]

    def _rows(self, keys: Sequence[RowKey]) -> tuple[Row, ...] | None:
        """The Rows with these keys; None where one is not kept."""
        records = [self.store.get(key) for key in keys]
        try:
            return tuple(Row.from_dict(record) for record in records if record is not None) if records and None not in records else None
        except TypeError:  # a Row of other fields
            return None

    def _keep(self, keys: Sequence[RowKey], result: Result) -> None:
        if not keys or isinstance(result, DysharpError) or self.problem:
            return
        if sources_changed():
            self.problem = "the sources of dysharp changed during the run"
            return
        try:
            for key, row in zip(keys, result, strict=True):
                self.store.put(key, row.to_dict() | {"header": row.header})
        except ConfigError as error:
            self.problem = str(error)

    def forget_the_oldest(self) -> None:
        """Delete the oldest files beyond `MOST_FILES`."""
        with suppress(OSError):  # another process deletes, too
            files = sorted(self.store.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[: max(0, len(files) - MOST_FILES)]:
                path.unlink(missing_ok=True)


def _keys(job: Job, digests: dict[int, tuple[Routing, str]]) -> list[RowKey]:
    """The key of each Row of a job; [] for a system of the user, whose code has no digest, and for options that are refused.

    The function adds to `digests`, {id of a routing: the routing and its digest}.
    """
    if not job.is_of_package:
        return []
    try:
        options = dataclasses.asdict(options_of(get_system(job.system), job.given))
    except ConfigError:
        return []
    routing = job.workload.routing
    if id(routing) not in digests:
        digests[id(routing)] = routing, digest_of(routing)
    whole = digests[id(routing)][1]
    return [key_of_run(job.system, options, part, f"{whole} {part.routing.tokens_per_gpu}") for part in job.parts()]


_kept: ContextVar[_KeptRows | None] = ContextVar("kept", default=None)


@contextmanager
def rows_kept_in(folder: AnyPath) -> Iterator[_KeptRows]:
    """Calls of `compare` and `advise` inside this context read and keep Rows in `folder`. A result of other code or inputs is never read.

    Wall times and memory in a kept Row are those of the run that made it. Raises ConfigError for a folder that cannot be written to.
    """
    code_digest()  # of the code that runs now, before anything is read or edited
    kept = _KeptRows(Store(Path(folder)))
    make_folder(kept.store.folder, "kept results")
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)
        kept.forget_the_oldest()


def kept_or_run(jobs: Sequence[Job], run: Run) -> list[Result]:
    """The Rows of each job, from `run` or, where the caller keeps Rows, from the store."""
    kept = _kept.get()
    return list(run(jobs, lambda number, result: None)) if kept is None else kept.rows(jobs, run)
