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
from multiprocessing.context import BaseContext

from dysharp.analysis import Row
from dysharp.api.memory import check_memory, estimate_bytes, most_bytes, usable_bytes
from dysharp.api.options import Value, options_of
from dysharp.api.point import run_point
from dysharp.api.window import leading_workload
from dysharp.api.workload import Workload
from dysharp.errors import ConfigError
from dysharp.parent import end_with
from dysharp.systems import get_system

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
            self._pool = ProcessPoolExecutor(_cores(), mp_context=_context(), initializer=end_with, initargs=(os.getpid(),))
        waiting = deque(sorted(range(len(jobs)), key=lambda i: -jobs[i].n_rows))
        running: dict[Future[tuple[Row, ...] | ConfigError], int] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                i = waiting.popleft()
                running[self._pool.submit(_rows_of, jobs[i])] = i
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _context() -> BaseContext:
    """How processes begin: as copies of this one where that is safe (Linux, one thread), because imports take 2 s. Else anew."""
    copies = sys.platform == "linux" and threading.active_count() == 1
    return multiprocessing.get_context("fork" if copies else "spawn")


def _cores() -> int:
    """Processes that the computer has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _processes(jobs: Sequence[Job], running: bool) -> int:
    """Processes that pay, that the computer has cores for, and whose memory fits. `running`: they have begun, so they cost nothing."""
    if not running and sum(job.n_rows for job in jobs) < POOL_ROWS:
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


def _rows_of(job: Job) -> tuple[Row, ...] | ConfigError:
    try:
        system = get_system(job.system)
        options = options_of(system, job.given)
        check_memory(system, _largest(job).request, options)
        parts = [leading_workload(job.workload, n) for n in job.sizes] or [job.workload]
        return tuple(run_point(system, options, part) for part in parts)
    except ConfigError as error:
        return error
