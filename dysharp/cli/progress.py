"""A progress bar on stderr, when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dysharp.api import Progress


@contextmanager
def bar(unit: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """`update(done, total, text)` that draws a bar and counts `unit`; None where stderr is no terminal. The bar is gone afterwards."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("starting", total=None)
        yield lambda done, total, text: drawn.update(task, description=text, completed=done, total=total or None)


@contextmanager
def progress_bar(unit: str = "ops") -> Iterator[Progress | None]:
    """A callback for the API that draws a bar, counting `unit`; None where stderr is no terminal."""
    with bar(unit) as update:
        if update is None:
            yield None
        else:
            yield lambda step: update(step.done, step.total, f"{step.system} ({step.index} of {step.count}) {step.stage}")
