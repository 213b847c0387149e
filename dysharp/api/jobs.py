"""Several simulations of one call, in processes where the work is worth them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from dysharp.analysis import Row
from dysharp.api.memory import check_memory, estimate_bytes, most_bytes, usable_bytes
from dysharp.api.options import Value, options_by_system, options_of
from dysharp.api.point import prepare, run_point
from dysharp.api.progress import Step
from dysharp.api.request import Request
from dysharp.api.window import leading_workload
from dysharp.api.workload import Workload
from dysharp.errors import ConfigError
from dysharp.parent import end_with
from dysharp.program.builder import ProgramBuilder
from dysharp.program.constants import hardware_of
from dysharp.specs.choices import Scalar, choices_overridden, overridden
from dysharp.systems import System, all_systems, get_system

POOL_ROWS = 300_000
"""Useful rows of all jobs together from which processes pay."""
MOST_PROCESSES = 4
OnDone = Callable[[str, int, int], None]
"""Called with (system, finished jobs, jobs)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One system on one workload.

    `given`: options of the system. `sizes`: tokens per GPU to simulate, each alone, rising; (): all tokens.
    """

    system: str
    given: Mapping[str, Value]
    workload: Workload
    sizes: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        """(token, expert) rows of all its runs."""
        r = self.workload.request
        return sum(self.sizes or (r.tokens,)) * r.cluster.n_gpus * r.model.topk


def simulate_together(systems: Mapping[str, System], request: Request) -> tuple[Row, ...]:
    """As `simulate`, in processes where they pay. Raises what `simulate` raises.

    Kernels are loaded before the processes begin as copies of this one, so they are compiled once. Packet level stays in this
    process, which tells how far it is.
    """
    given = options_by_system(request.options, systems, request.model, request.cluster)
    options, workload = prepare(systems, request)
    jobs = [Job(name, given[name], workload) for name in systems]
    if request.fidelity != "burst" or len(jobs) == 1 or _processes(jobs, running=False) == 1:
        return tuple(run_point(system, options[name], workload, i, len(systems)) for i, (name, system) in enumerate(systems.items(), 1))

    def told(system: str, done: int = 0, count: int = len(jobs), stage: str = "analysis") -> None:
        if request.progress:
            request.progress(Step(system, done + 1, count, stage))

    _load_kernels(request, lambda: told(jobs[0].system, stage="compiling"))
    told(jobs[0].system, stage="engine")
    with Workers() as workers:
        found = workers.rows(jobs, lambda system, done, count: told(system, done - 1, count))
    return tuple(_row(rows) for rows in found)


def _load_kernels(request: Request, compiling: Callable[[], None]) -> None:
    from dysharp.engine.burst.run import run_burst
    from dysharp.uarch.compiling import on_compile

    with on_compile(compiling):
        run_burst(ProgramBuilder(hardware_of(request.cluster), 1).build())


def _row(rows: tuple[Row, ...] | ConfigError) -> Row:
    if isinstance(rows, ConfigError):
        raise rows
    return rows[0]


class Workers:
    """Runs Jobs. Processes begin with the first Jobs that are worth them, and end with the `with` block."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def rows(self, jobs: Sequence[Job], on_done: OnDone) -> list[tuple[Row, ...] | ConfigError]:
        """The Rows of each job, one for each size, or the error with which it is refused. Processes do not change a Row."""
        if not jobs:
            return []
        done: dict[int, tuple[Row, ...] | ConfigError] = {}
        for i, result in self._finished([_to_send(job) for job in jobs], _processes(jobs, self._pool is not None)):
            done[i] = result
            on_done(jobs[i].system, len(done), len(jobs))
        return [done[i] for i in range(len(jobs))]

    def _finished(self, jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, tuple[Row, ...] | ConfigError]]:
        """(index, result) of each job when it is done. The largest begin first, at most `processes` at a time."""
        if processes == 1 and self._pool is None:
            yield from ((i, _rows_of(job)) for i, job in enumerate(jobs))
            return
        if self._pool is None:
            context = multiprocessing.get_context("fork" if _copies() else "spawn")
            self._pool = ProcessPoolExecutor(_cores(), mp_context=context, initializer=end_with, initargs=(os.getpid(),))
        waiting = deque(sorted(range(len(jobs)), key=lambda i: -jobs[i].n_rows))
        running: dict[Future[tuple[Row, ...] | ConfigError], int] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                i = waiting.popleft()
                running[self._pool.submit(_rows_with, jobs[i], overridden())] = i
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _copies() -> bool:
    """Whether processes begin as copies of this one: where that is safe (Linux, one thread), because imports take 2 s. Else anew."""
    return sys.platform == "linux" and threading.active_count() == 1


def _would_run_again() -> bool:
    """Whether a process that begins anew runs the script of this one again, as a user's script without a guard would."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and "dysharp" not in (Path(file).stem, Path(file).parent.name)


def _cores() -> int:
    """Processes that the computer has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _processes(jobs: Sequence[Job], running: bool) -> int:
    """Processes that pay, that the computer has cores for, and whose memory fits. `running`: they have begun, so they cost nothing."""
    if not running and (sum(job.n_rows for job in jobs) < POOL_ROWS or (not _copies() and _would_run_again())):
        return 1
    most, usable = min(_cores(), len(jobs)), usable_bytes()
    if most * max(most_bytes(_largest(job).request) for job in jobs) <= usable:
        return most
    return max(1, min(most, usable // max(1, *map(_bytes_of, jobs))))


def _bytes_of(job: Job) -> int:
    """Estimated peak memory of the largest run of a job; 0 for a job that is refused."""
    try:
        system = get_system(job.system)
        return estimate_bytes(system, _largest(job).request, options_of(system, job.given))
    except ConfigError:
        return 0


def _to_send(job: Job) -> Job:
    """A job that can be sent to a process: without its progress, and without tokens that it does not simulate."""
    workload = _largest(job)
    return dataclasses.replace(job, workload=dataclasses.replace(workload, request=dataclasses.replace(workload.request, progress=None)))


def _largest(job: Job) -> Workload:
    return leading_workload(job.workload, job.sizes[-1]) if job.sizes else job.workload


def _rows_with(job: Job, choices: Mapping[str, Scalar]) -> tuple[Row, ...] | ConfigError:
    """As `_rows_of` in another process, with the choices that are overridden in this one."""
    all_systems()  # reads the defaults of options before choices are overridden
    with choices_overridden(choices):
        return _rows_of(job)


def _rows_of(job: Job) -> tuple[Row, ...] | ConfigError:
    try:
        system = get_system(job.system)
        options = options_of(system, job.given)
        check_memory(system, _largest(job).request, options)
        parts = [leading_workload(job.workload, n) for n in job.sizes] or [job.workload]
        return tuple(run_point(system, options, part) for part in parts)
    except ConfigError as error:
        return error
