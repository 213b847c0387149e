"""Progress on stderr: a bar on a terminal, elsewhere a line per ten seconds. The time left, where it is known.

On a terminal a first answer may stand above the bar (`first`): lines from closed forms, or the best so far. It goes with the bar, when the last
answer comes.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import click

from dysharp.api import Progress
from dysharp.base import DysharpError, Texts, one_line
from dysharp.runs import Step
from dysharp.show.output import print_header

EVERY_S = 10.0
"""Between two lines without a terminal."""
COMPILING = "compiling kernels (once; 20 to 40 s where no other work runs)"
_KNOWN_AFTER = 0.02  # share of the work after which the time left is told
_KNOWN_AFTER_S = 2.0


First = Callable[[], Sequence[str]]
"""Makes the lines of a first answer, in less than a second. What it refuses is left out: the command says why."""
Show = Callable[[Sequence[str]], None]
"""Puts lines above the bar, in place of those that stand there; nothing happens without a terminal."""


class _Update(Protocol):
    """`update(done, total, text)`: `done` of `total` units, 0 = unknown. `share`: part of the work that is done, where units differ in size."""

    def __call__(self, done: int, total: int, text: str, share: float | None = None) -> None: ...


def _seconds_left(share: float, seconds: float) -> float | None:
    """Seconds until all is done, if `share` of the work took `seconds`. None: too early to tell, or all is done."""
    return seconds * (1 / share - 1) if _KNOWN_AFTER <= share < 1 and seconds >= _KNOWN_AFTER_S else None


def _in_words(seconds: float) -> str:
    """`5 s`, `3 min`, `2.5 h`: a duration in one unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class _Reports:
    """What has been printed, and when."""

    def __init__(self, unit: str, draw: Callable[[int, int, str], None] | None, show: Show = lambda lines: None) -> None:
        self.unit, self.draw, self.show = unit, draw, show
        self.begun = self.printed = time.monotonic()
        self.first_share: float | None = None
        self.warm = False  # the first unit took its time: it may have compiled kernels
        self.stage, self.total = self.begun, 0
        self.header: Texts = ()  # printed when the work turns out to be long

    def compiling(self, done: int) -> None:
        """Print a line at the beginning of a compilation and whenever more kernels are ready. The time left does not count it."""
        self.first_share = None
        click.echo(f"{_in_words(time.monotonic() - self.begun)}: {done} kernels are ready" if done else COMPILING, err=True)

    def update(self, done: int, total: int, text: str, share: float | None = None) -> None:
        """Draw the bar, or print a line when the last one is `EVERY_S` old."""
        now = time.monotonic()
        if share is None and 0 < self.total != total > 0:  # other work: its time left follows from its own beginning
            self.first_share = None
        self.total = total or self.total
        share = (done / total if total else 0.0) if share is None else share
        if self.first_share is None or (not self.warm and share > self.first_share):
            self.warm |= self.first_share is not None
            self.first_share, self.stage = share, now  # points that the store had took no time
        if self.header and now - self.begun >= EVERY_S:
            print_header(self.header, version=False)
            self.header = ()
        of_rest = (share - self.first_share) / (1 - self.first_share) if self.first_share < 1 else 0.0
        left = _seconds_left(of_rest, now - self.stage)
        words = one_line(text) + (f", about {_in_words(left)} left" if left is not None else "")
        if self.draw is not None:
            self.draw(done, total, words)
        elif now - self.printed >= EVERY_S:
            self.printed = now
            count = f" {done} of {total} {self.unit}," if total else ""
            click.echo(f"{_in_words(now - self.begun)}:{count} {words}", err=True)


@contextmanager
def _reports(unit: str, first: First | None = None) -> Iterator[_Reports]:
    if not sys.stderr.isatty():
        yield _Reports(unit, None)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    console, drawn = Console(stderr=True), Bar(*columns)
    task = drawn.add_task("starting", total=None)
    with Live(drawn, console=console, transient=True, redirect_stdout=False) as live:  # stdout is data

        def show(lines: Sequence[str]) -> None:
            kept = [one_line(line) for line in lines][: max(1, console.height - 3)]
            live.update(Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in kept), drawn), refresh=True)

        if first is not None and (lines := _made(first)):
            show(lines)
        yield _Reports(unit, lambda done, total, text: drawn.update(task, description=text, completed=done, total=total or None), show)


def _made(first: First) -> Sequence[str]:
    """The lines of a first answer, none where it is refused."""
    try:
        return first()
    except DysharpError:
        return ()


@contextmanager
def bar(unit: str, first: First | None = None) -> Iterator[_Update]:
    """`update(done, total, text)` that draws a bar or prints lines, and counts `unit`. The bar is gone afterwards."""
    with _reports(unit, first) as reports:
        yield reports.update


@contextmanager
def bar_below(unit: str) -> Iterator[tuple[_Update, Show]]:
    """As `bar`, and what shows the best so far above it."""
    with _reports(unit) as reports:
        yield reports.update, reports.show


@contextmanager
def progress_bar(unit: str = "ops", *, header: bool = True, first: First | None = None) -> Iterator[Progress]:
    """A callback for the API that reports as `bar`. The bar prints the header of a Step beside long work; `header` = False: never."""
    with _reports(unit, first) as reports:

        def report(step: Step) -> None:
            if step.stage == "header":
                reports.header = step.header if header else ()
            elif step.stage == "compiling":
                reports.compiling(step.done)
            else:
                text = f"{step.system} ({step.index} of {step.count}) {step.stage}" if step.count > 1 else f"{step.system} {step.stage}"
                reports.update(step.done, step.total, text, step.share)

        yield report
