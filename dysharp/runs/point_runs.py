"""What it takes to run a point of a figure or study anywhere, and the way to run points in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.errors import DysharpError, OverShare
from dysharp.runs.inputs import inputs_digest
from dysharp.runs.point import Point
from dysharp.sources import code_digest

Simulate = Callable[[Point, float], dict[str, Any]]
"""The Row of a point, as plain values; called with the point and the part of the computer's memory that it may take."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One point to run. `content`: digests of the code and of the user's files, as the driver sees them."""

    key: str
    point: Point
    simulate: Simulate
    content: tuple[str, str]


Ended = Generator[tuple[Asked, dict[str, Any] | str]]
"""Points as they end, each with its Row or with why it has none. Closed, it runs no further point."""
Result = dict[str, Any] | str | OverShare
"""The Row of a point, why it has none, or that it can run alone only."""
Runner = Callable[[Sequence[Asked]], Ended]


def content_of(point: Point) -> tuple[str, str]:
    """Digests of the code and of the files that a point reads."""
    return code_digest(), inputs_digest(point)


def result_of(asked: Asked, part: float = 1.0) -> Result:
    """The Row of a point, or why it has none: also where code or files are not those of the driver. `part`: see `Simulate`."""
    try:
        row = asked.simulate(asked.point, part)
        found = content_of(asked.point)
    except OverShare as error:
        return error
    except MemoryError:
        return "out of memory; take fewer tokens or GPUs"
    except (DysharpError, ValueError) as error:
        return str(error) or type(error).__name__
    for what, here, there in zip(("sources of dysharp", "files of the point"), found, asked.content, strict=True):
        if here != there:
            return f"the {what} changed during the run, or the worker has others than the driver; start the run again"
    return row


def result_or_defect(asked: Asked, part: float = 1.0) -> Result:
    """As `result_of`; any other error is why the point has no Row, so a defect of one point does not stop the others."""
    try:
        return result_of(asked, part)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def here(todo: Sequence[Asked]) -> Ended:
    """Run points in this process."""
    for asked in todo:
        result = result_or_defect(asked)
        yield asked, str(result) if isinstance(result, OverShare) else result
