"""Times from Programs for many cases: equal cases run once, cases that share runs stay in one process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from dysharp.errors import DysharpError
from dysharp.measured.family import Case, Constants
from dysharp.parent import end_with

Frozen = tuple[tuple[str, float], ...]
ProgramForm = Callable[[Case, Constants], float]
OnProgress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """One case, the function that answers it by a Program, and the constants to use."""

    program_us: ProgramForm
    case: Case
    constants: Frozen

    def time(self) -> float | str:
        """Time in us, or the reason of a refusal. A refused case does not stop the other cases."""
        try:
            return self.program_us(self.case, dict(self.constants))
        except DysharpError as error:
            return str(error)


def frozen(constants: Constants) -> Frozen:
    """Constants as a hashable value."""
    return tuple(sorted(constants.items()))


def program_times(requests: Sequence[ProgramRequest], jobs: int = 1, on_progress: OnProgress | None = None) -> list[float | str]:
    """`[requests]` times in us, or reasons of refusals. `jobs`: processes; times do not depend on `jobs`."""
    groups: dict[Hashable, dict[ProgramRequest, None]] = {}
    for request in requests:
        key = (request.program_us, request.case.run_key(), request.constants)
        groups.setdefault(key, {})[request] = None
    work = sorted((tuple(group) for group in groups.values()), key=lambda group: -max(r.case.effort() for r in group))
    times: dict[ProgramRequest, float | str] = {}
    total = sum(map(len, work))
    for group, group_times in zip(work, _mapped(work, jobs), strict=True):
        times |= zip(group, group_times, strict=True)
        if on_progress is not None:
            on_progress(len(times), total)
    return [times[request] for request in requests]


def _mapped(work: Sequence[tuple[ProgramRequest, ...]], jobs: int) -> Iterator[list[float | str]]:
    if jobs == 1 or len(work) < 2 * jobs:
        yield from map(_times, work)
        return
    _times(work[-1])  # compiles the engine once; the processes load it from the cache
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=end_with, initargs=(os.getpid(),)) as pool:
        yield from pool.map(_times, work)


def _times(group: tuple[ProgramRequest, ...]) -> list[float | str]:
    return [request.time() for request in group]
