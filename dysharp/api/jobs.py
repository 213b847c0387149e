"""Several simulations of one call, in processes where the work is worth them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from dysharp.analysis import Row
from dysharp.api.memory import check_memory, estimate_bytes, most_bytes, usable_bytes
from dysharp.api.options import Value, options_of
from dysharp.api.point import run_point
from dysharp.api.window import leading_workload
from dysharp.api.workload import Workload
from dysharp.errors import ConfigError
from dysharp.measured.program_times import end_with_parent
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


def run_jobs(jobs: Sequence[Job], on_done: OnDone) -> list[tuple[Row, ...] | ConfigError]:
    """The Rows of each job, one for each size, or the error with which it is refused. Processes do not change a Row."""
    done: list[tuple[Row, ...] | ConfigError] = []
    for job, result in zip(jobs, _results(jobs), strict=True):
        done.append(result)
        on_done(job.system, len(done), len(jobs))
    return done


def _results(jobs: Sequence[Job]) -> Iterator[tuple[Row, ...] | ConfigError]:
    silent = [_without_progress(job) for job in jobs]
    processes = _processes(jobs)
    if processes == 1:
        yield from map(_rows_of, silent)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent) as pool:
        yield from pool.map(_rows_of, silent)


def _processes(jobs: Sequence[Job]) -> int:
    """Processes that pay, that the computer has cores for, and whose memory fits."""
    if sum(job.n_rows for job in jobs) < POOL_ROWS:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most, usable = min(cores, len(jobs), MOST_PROCESSES), usable_bytes()
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


def _without_progress(job: Job) -> Job:
    """A job that can be sent to a process."""
    request = dataclasses.replace(job.workload.request, progress=None)
    return dataclasses.replace(job, workload=dataclasses.replace(job.workload, request=request))


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
