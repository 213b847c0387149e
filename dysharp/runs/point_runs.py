"""A point of a figure or study as a task that runs anywhere."""

from collections.abc import Callable
from functools import partial

from dysharp.base import ByName, ConfigError, DysharpError, SimulationError, Task, code_digest
from dysharp.runs.point import Point
from dysharp.runs.store import inputs_digest

Simulate = Callable[[Point, float], ByName]
"""The Row of a point, as plain values; called with the point and the part of the computer's memory that it may take."""


def point_task(key: str, point: Point, simulate: Simulate) -> Task[ByName]:
    """The task of a point. Its result is an error where the worker's code or files differ from those of this process, the driver."""
    return Task(key, partial(_row, point, simulate, _content_of(point)))


def why(error: Exception) -> str:
    """One line that says why a point has no Row."""
    text = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, DysharpError | ValueError):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text or 'no text'}"


def _content_of(point: Point) -> tuple[str, str]:
    return code_digest(), inputs_digest(point)


def _row(point: Point, simulate: Simulate, content: tuple[str, str], part: float) -> ByName:
    try:
        row = simulate(point, part)
    except MemoryError:
        raise ConfigError("out of memory; take fewer tokens, bytes or GPUs") from None
    for what, here, there in zip(("sources of dysharp", "files of the point"), _content_of(point), content, strict=True):
        if here != there:
            raise SimulationError(f"the {what} changed during the run, or the worker has others than the driver; start the run again")
    return row
