"""A progress bar on stderr, when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dysharp.api import Progress, Step


@contextmanager
def progress_bar(unit: str = "ops") -> Iterator[Progress | None]:
    """A callback for the API that draws a bar, counting `unit`; None where stderr is no terminal. The bar is gone afterwards."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(step: Step) -> None:
            text = f"{step.system} ({step.index} of {step.count}) {step.stage}"
            bar.update(task, description=text, completed=step.done, total=step.total or None)

        yield show
