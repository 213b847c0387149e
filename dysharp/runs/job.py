"""A job: one system on one workload, and how it becomes Rows in any process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dysharp.analysis import Row
from dysharp.base import DysharpError, Numbers, frozen
from dysharp.runs.known import NoEstimate, first_workload
from dysharp.runs.memory import check_memory, within
from dysharp.runs.options import Value, options_of
from dysharp.runs.request import Workload
from dysharp.runs.run import run_point
from dysharp.specs.choices import Scalar, choices_overridden
from dysharp.systems import System, all_systems, get_system

Result = tuple[Row, ...] | DysharpError
"""The Rows of a job, or the error with which it is refused: `ConfigError`, or `NoEstimate` of leading tokens."""


@frozen
class Job:
    """One system on one workload.

    `given`: options of the system. `sizes`: tokens per GPU to simulate, each alone, rising; (): all tokens.
    """

    system: str
    given: Mapping[str, Value]
    workload: Workload
    sizes: Numbers = ()

    @property
    def n_rows(self) -> int:
        """(token, expert) rows of all its runs; with a window, 1/4, 1/2 and 3/4 of it run, too."""
        r = self.workload.request
        tokens = sum(self.sizes) or (r.tokens if r.window is None else 5 * r.window // 2)
        return tokens * r.cluster.n_gpus * r.model.topk

    @property
    def is_of_package(self) -> bool:
        """Whether the package has the system: only then `code_digest` covers its code, and a process that begins anew knows the system."""
        system = get_system(self.system)
        return all(plan.__module__.startswith("dysharp.systems.") for plan in (system.paper, system.real) if plan)

    def to(self, precision: float | None, tokens: int | None = None) -> Job:
        """The job until its time is known to `precision`, from so many `tokens` if given; None: exactly."""
        request = dataclasses.replace(self.workload.request, window=tokens, precision=precision)
        return dataclasses.replace(self, workload=dataclasses.replace(self.workload, request=request))

    def parts(self) -> list[Workload]:
        """The workload of each run."""
        return [first_workload(self.workload, n) for n in self.sizes] or [self.workload]

    def to_send(self) -> Job:
        """The job as it can be sent to a process: without its progress, and without tokens that it does not simulate."""
        workload = self.parts()[-1]
        return dataclasses.replace(self, workload=dataclasses.replace(workload, request=dataclasses.replace(workload.request, progress=None)))


def rows_of(job: Job, choices: Mapping[str, Scalar], part: float) -> tuple[Row, ...]:
    """The Rows of a job, under the choices that the caller has overridden, in the job's part of the memory.

    Raises what `run` raises, NoEstimate, and OverShare where its part of the memory is too small.
    """
    all_systems()  # reads the defaults of options before choices are overridden
    with choices_overridden(choices), within(part):
        system = get_system(job.system)
        options, parts = options_of(system, job.given), job.parts()
        check_memory(system, parts[-1].request, options)
        return tuple(run_point(system, options, each) for each in parts)


def row_here(system: System, options: Any, workload: Workload, index: int, count: int) -> Result:
    """The Row of all tokens, simulated in this process, which reports progress; or why leading tokens give no estimate."""
    try:
        return (run_point(system, options, workload, index, count),)
    except NoEstimate as error:
        return error
