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
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from dysharp.analysis import Row
from dysharp.errors import ConfigError, DysharpError, SimulationError
from dysharp.parent import end_pool, end_with, without_main
from dysharp.program.builder import ProgramBuilder
from dysharp.program.constants import hardware_of
from dysharp.runs.kept import OnResult, kept_or_run
from dysharp.runs.memory import check_memory, estimate_bytes, most_bytes, usable_bytes
from dysharp.runs.options import Value, options_by_system, options_of
from dysharp.runs.progress import Step
from dysharp.runs.request import Request
from dysharp.runs.run import prepare, run_point
from dysharp.runs.window import NoEstimate, leading_workload
from dysharp.runs.workload import Workload
from dysharp.specs.choices import Scalar, choices_overridden, overridden
from dysharp.systems import System, all_systems, get_system

POOL_ROWS = 300_000
"""Useful rows of all jobs together from which processes pay."""
MOST_PROCESSES = 4
EVERY_S = 1.0
"""Between two calls of OnWait while no job ends."""
Result = tuple[Row, ...] | DysharpError
"""The Rows of a job, or the error with which it is refused: `ConfigError`, or `NoEstimate` of leading tokens."""
OnDone = Callable[[str, int, int], None]
"""Called with (system, finished jobs, jobs)."""
OnWait = Callable[[int, int], None]
"""Called with (finished jobs, jobs)."""


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


def simulate_together(systems: Mapping[str, System], request: Request) -> tuple[Row | NoEstimate, ...]:
    """As `simulate`, in processes where they pay. Raises what `simulate` raises, but for systems whose leading tokens give no estimate.

    Kernels are loaded before the processes begin as copies of this one, so they are compiled once. Packet level stays in this
    process, which tells how far it is.
    """
    given = options_by_system(request.options, systems, request.model, request.cluster)
    options, workload = prepare(systems, request)
    jobs = [Job(name, given[name], workload) for name in systems]

    def here(todo: Sequence[Job], on_result: OnResult) -> list[Result]:
        found: list[Result] = []
        for i, job in enumerate(todo):
            found.append(_here(systems[job.system], options[job.system], workload, i + 1, len(todo)))
            on_result(i, found[-1])
        return found

    def side_by_side(todo: Sequence[Job], on_result: OnResult) -> list[Result]:
        if request.fidelity != "burst" or len(todo) <= 1 or _processes(todo, running=False) == 1:
            return here(todo, on_result)
        _load_kernels(request)
        with Workers() as workers:
            return workers.run(todo, told, waits(request), on_result)

    def told(system: str, done: int, count: int) -> None:
        if request.progress:
            request.progress(Step(system, done, count, "analysis"))

    return tuple(_row(rows) for rows in kept_or_run(jobs, side_by_side))


def waits(request: Request) -> OnWait:
    """Tells the progress of a request that systems run."""

    def told(done: int, count: int) -> None:
        if request.progress:
            request.progress(Step("systems side by side", done + 1, count, "engine"))

    return told


def _load_kernels(request: Request) -> None:
    from dysharp.engine.burst.run import run_burst
    from dysharp.uarch.compiling import on_compile

    def compiling(compiled: int) -> None:
        if request.progress:
            request.progress(Step("", 1, 1, "compiling", compiled))

    with on_compile(compiling):
        run_burst(ProgramBuilder(hardware_of(request.cluster), 1).build())


def _row(rows: Result) -> Row | NoEstimate:
    if isinstance(rows, DysharpError) and not isinstance(rows, NoEstimate):
        raise rows
    return rows if isinstance(rows, NoEstimate) else rows[0]


def _here(system: System, options: Any, workload: Workload, index: int, count: int) -> Result:
    try:
        return (run_point(system, options, workload, index, count),)
    except NoEstimate as error:
        return error


class Workers:
    """Runs Jobs. Processes begin with the first Jobs that are worth them, and end with the `with` block."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._copies = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if error is not None:
            end_pool(self._pool)
        self._pool.shutdown(cancel_futures=True)

    def rows(self, jobs: Sequence[Job], on_done: OnDone, on_wait: OnWait) -> list[Result]:
        """The Rows of each job, one for each size, or the error with which it is refused. Processes do not change a Row.

        Rows that the caller keeps are read (`kept.rows_kept_in`). Raises SimulationError for a deadlock, and when the system ends a process.
        """
        return kept_or_run(jobs, lambda todo, on_result: self.run(todo, on_done, on_wait, on_result))

    def run(self, jobs: Sequence[Job], on_done: OnDone, on_wait: OnWait, on_result: OnResult) -> list[Result]:
        """As `rows`, and no Row is read."""
        if not jobs:
            return []
        done: dict[int, Result] = {}
        try:
            for i, result in self._finished([_to_send(job) for job in jobs], _processes(jobs, self._pool is not None)):
                if i < 0:
                    on_wait(len(done), len(jobs))
                    continue
                done[i] = result
                on_result(i, result)
                on_done(jobs[i].system, len(done), len(jobs))
        except BrokenProcessPool as error:
            left = ", ".join(dict.fromkeys(job.system for i, job in enumerate(jobs) if i not in done))
            raise SimulationError(f"a process was ended while it ran one of {left}; if memory ran out, take fewer tokens or GPUs") from error
        return [done[i] for i in range(len(jobs))]

    def _finished(self, jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Result]]:
        """(index, result) of each job when it is done; index -1 while none is. The largest begin first, at most `processes` at a time."""
        if processes == 1 and self._pool is None:
            yield from ((i, _rows_of(job)) for i, job in enumerate(jobs))
            return
        if self._pool is None:
            self._copies = _copies()
            context = multiprocessing.get_context("fork" if self._copies else "spawn")
            self._pool = ProcessPoolExecutor(_cores(), mp_context=context, initializer=end_with, initargs=(os.getpid(),))
        waiting = deque(sorted(range(len(jobs)), key=lambda i: -jobs[i].n_rows))
        running: dict[Future[Result], int] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                i = waiting.popleft()
                running[self._submitted(self._pool, jobs[i])] = i
            ended = wait(running, timeout=EVERY_S, return_when=FIRST_COMPLETED).done
            if not ended:
                yield -1, ()
            for future in ended:
                yield running.pop(future), future.result()

    def _submitted(self, pool: ProcessPoolExecutor, job: Job) -> Future[Result]:
        """The future of a job. A process may begin here."""
        with nullcontext() if self._copies else without_main():
            return pool.submit(_rows_with, job, overridden())


def _copies() -> bool:
    """Whether processes begin as copies of this one: where that is safe (Linux, one thread), because imports take 2 s. Else anew."""
    return sys.platform == "linux" and threading.active_count() == 1


def _may_begin_anew(jobs: Sequence[Job]) -> bool:
    """Whether a process that begins anew works: it knows no systems that a user's script has registered."""
    return all(get_system(job.system).paper.__module__.startswith("dysharp.systems.") for job in jobs)


def _cores() -> int:
    """Processes that the computer has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def _processes(jobs: Sequence[Job], running: bool) -> int:
    """Processes that pay, that the computer has cores for, and whose memory fits. `running`: they have begun, so they cost nothing."""
    if not running and (sum(job.n_rows for job in jobs) < POOL_ROWS or not (_copies() or _may_begin_anew(jobs))):
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


def _rows_with(job: Job, choices: Mapping[str, Scalar]) -> Result:
    """As `_rows_of` in another process, with the choices that are overridden in this one."""
    all_systems()  # reads the defaults of options before choices are overridden
    with choices_overridden(choices):
        return _rows_of(job)


def _rows_of(job: Job) -> Result:
    try:
        system = get_system(job.system)
        options = options_of(system, job.given)
        check_memory(system, _largest(job).request, options)
        parts = [leading_workload(job.workload, n) for n in job.sizes] or [job.workload]
        return tuple(run_point(system, options, part) for part in parts)
    except (ConfigError, NoEstimate) as error:
        return error
