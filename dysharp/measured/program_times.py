"""Times from Programs for many cases: equal cases run once, cases that share runs stay in one process."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from dysharp.errors import DysharpError
from dysharp.measured.family import Case, Constants
from dysharp.processes import Task, here, in_processes

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
    apart = jobs > 1 and len(work) >= 2 * jobs
    if apart:
        _times(work[-1], 1.0)  # compiles the engine once; the processes load it from the cache
    tasks = [Task(str(i), partial(_times, group)) for i, group in enumerate(work)]
    for i, group_times in in_processes(tasks, jobs) if apart else here(tasks):
        if isinstance(group_times, Exception):
            raise group_times
        times |= zip(work[i], group_times, strict=True)
        if on_progress is not None:
            on_progress(len(times), total)
    return [times[request] for request in requests]


def _times(group: tuple[ProgramRequest, ...], part: float) -> list[float | str]:
    """Times of a group, which needs little memory; `part` is not used."""
    return [request.time() for request in group]
