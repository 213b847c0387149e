"""Several simulations of one call, in processes where the work is worth them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from dysharp.analysis import Row
from dysharp.analysis.waiting import waiting_us
from dysharp.base import ConfigError, DysharpError, SimulationError, processes
from dysharp.base.processes import Ended, ProcessEnded, Processes, Task, beside, here
from dysharp.program import Program, ProgramBuilder, hardware_of
from dysharp.runs.job import Job, Result, row_here, rows_of
from dysharp.runs.kept import OnResult, kept_or_run
from dysharp.runs.known import NoEstimate
from dysharp.runs.options import options_by_system
from dysharp.runs.progress import Progress, Step, telling
from dysharp.runs.request import Request
from dysharp.runs.run import prepare
from dysharp.specs.choices import overridden
from dysharp.systems import System

POOL_ROWS = 300_000
"""Useful rows of all jobs together from which processes pay."""
MOST_PROCESSES = 4
EVERY_S = 1.0
"""Between two calls of the progress while no job ends."""


def simulate_together(systems: Mapping[str, System], request: Request) -> tuple[Row | NoEstimate, ...]:
    """As `simulate`, in processes where they pay. Raises what `simulate` raises, but for systems whose leading tokens give no estimate.

    The processes begin as copies of this process after it has loaded the kernels, so kernels are compiled once. Packet level stays in this process,
    which reports progress.
    """
    return simulate_each(systems, [request])[0]


def simulate_each(systems: Mapping[str, System], requests: Sequence[Request]) -> list[tuple[Row | NoEstimate, ...]]:
    """As `simulate_together` for each request, all in one pool of processes. Requests have one model, cluster, fidelity and set of options."""
    asked = requests[0]
    given = options_by_system(asked.options, systems, asked.model, asked.cluster)
    prepared = [prepare(systems, request) for request in requests]
    options = prepared[0][0]
    jobs = [Job(name, given[name], workload) for name in systems for _, workload in prepared]  # a system's passes take alike: no core idles last

    def run(todo: Sequence[Job], on_result: OnResult) -> list[Result]:
        if asked.fidelity == "burst" and len(todo) > 1 and _processes(todo, running=False) > 1:
            _load_kernels(asked)
            with Workers() as workers:
                return workers.run(todo, asked.progress, "analysis", on_result)
        found: list[Result] = []
        for i, job in enumerate(todo):
            found.append(row_here(systems[job.system], options[job.system], job.workload, i + 1, len(todo)))
            on_result(i, found[-1])
        return found

    rows = [_row(one) for one in kept_or_run(jobs, run)]
    return [tuple(rows[i :: len(requests)]) for i in range(len(requests))]


def _load_kernels(request: Request) -> None:
    from dysharp.engine.burst.run import run_burst
    from dysharp.engine.compiling import on_compile

    program = ProgramBuilder(hardware_of(request.cluster), 1).build()
    with beside(partial(_load_others, program)), on_compile(partial(telling(request.progress, ""), "compiling")):
        run_burst(program)


def _load_others(program: Program) -> None:
    """What compiles in a tenth of the time of the loop: the start of a run, and what reads its Trace."""
    from dysharp.engine.burst.loop import run_start
    from dysharp.engine.burst.lower import lower
    from dysharp.engine.burst.run import trace_of

    state = lower(program)
    waiting_us(program, trace_of(program, state))
    run_start(state)


def _row(rows: Result) -> Row | NoEstimate:
    if isinstance(rows, DysharpError) and not isinstance(rows, NoEstimate):
        raise rows
    return rows if isinstance(rows, NoEstimate) else rows[0]


class Workers:
    """Runs Jobs. Processes begin with the first Jobs that are worth them, and end with the `with` block."""

    def __init__(self) -> None:
        self._processes = Processes(_cores(), copies=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self._processes.__exit__(error, *rest)

    def rows(self, jobs: Sequence[Job], progress: Progress | None = None, stage: str = "engine") -> list[Result]:
        """The Rows of each job, one for each size, or the error with which the job is refused. Processes do not change a Row.

        Rows that the caller keeps are read (`kept.rows_kept_in`). `stage`: of the Steps that tell how many jobs have ended.
        Raises SimulationError for a deadlock, and for a job that ends its process each time.
        """
        return kept_or_run(jobs, lambda todo, on_result: self.run(todo, progress, stage, on_result))

    def run(self, jobs: Sequence[Job], progress: Progress | None, stage: str, on_result: OnResult) -> list[Result]:
        """As `rows`, and no Row is read."""
        done: dict[int, Result] = {}

        def waiting() -> None:
            if progress:
                progress(Step("systems side by side", len(done) + 1, len(jobs), "engine"))

        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].n_rows)  # the largest begin first
        tasks = [Task(jobs[i].system, partial(rows_of, jobs[i].to_send(), overridden())) for i in order]
        with closing(self._ended(tasks, jobs, waiting)) as ended:
            for n, result in ended:
                i = order[n]
                done[i] = _result(jobs[i], result)
                on_result(i, done[i])
                if progress:
                    progress(Step(jobs[i].system, len(done), len(jobs), stage))
        return [done[i] for i in range(len(jobs))]

    def _ended(self, tasks: Sequence[Task[tuple[Row, ...]]], jobs: Sequence[Job], waiting: processes.Waiting) -> Ended[tuple[Row, ...]]:
        at_once = _processes(jobs, self._processes.begun)
        if at_once == 1 and not self._processes.begun:
            return here(tasks)
        return self._processes.run(tasks, at_once, waiting, EVERY_S)


def _result(job: Job, result: tuple[Row, ...] | Exception) -> Result:
    """The Rows, or the error with which the job is refused. Raises any other error."""
    if isinstance(result, ProcessEnded):
        raise SimulationError(f"a process was ended each time it ran {job.system}; if memory ran out, take fewer tokens, bytes or GPUs") from result
    if isinstance(result, Exception) and not isinstance(result, ConfigError | NoEstimate):
        raise result
    return result


def _cores() -> int:
    """Processes that the computer has cores for."""
    return min(processes.cores(), MOST_PROCESSES)


def _processes(jobs: Sequence[Job], running: bool) -> int:
    """Processes that pay and that the computer has cores for. `running`: they have begun, so they cost nothing."""
    if not running and (sum(job.n_rows for job in jobs) < POOL_ROWS or not (processes.may_copy() or all(job.is_of_package for job in jobs))):
        return 1
    return max(1, min(_cores(), len(jobs)))
