"""`dysharp reproduce`: the papers' figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from dysharp.cli.flags import json_flag
from dysharp.errors import ConfigError, nearest


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, description=what, completed=done, total=total)


@click.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE|FILE.toml]...")
@click.option("--all", "every", is_flag=True, help="All packaged figures.")
@click.option("--models", metavar="A,B,...", help="Only the points of these models.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Points at a time, a process each.")
@click.option("--store", metavar="DIR", help="Where finished points are kept.  [default: the user's cache]")
@click.option("--report", metavar="FILE.md", help="Also write the tables as Markdown.")
@click.option("--plot", metavar="FILE", help="Also draw the window map into FILE (.svg or .png); only with `windows`.")
@json_flag
@click.pass_context
def reproduce(
    ctx: click.Context, figures: tuple[str, ...], every: bool, models: str | None, jobs: int, store: str | None, report: str | None,
    plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """The papers' figures and tables beside ours; exit code 1 if a claim does not hold.

    A figure marked `reproduced` has to be, and a `gap` that has closed fails too. Finished points are kept: an interrupted run goes on
    where it stopped.
    """
    from pathlib import Path

    from dysharp.cli.output import print_json
    from dysharp.experiments import Store, judge, list_figures, load_figure, run_points
    from dysharp.reports.tables import figure_markdown, print_figure, write_text

    names = list_figures() if every else list(figures)
    if not names:
        raise ConfigError(f"reproduce: found no figure, expected --all or some of {', '.join(list_figures())}")
    if plot is not None and "windows" not in names:
        raise ConfigError(f"--plot: found figures {', '.join(names)}, expected windows among them")
    keep = None if models is None else {m.strip() for m in models.split(",")}
    where = Store(Path(store)) if store else Store.default()
    out: list[dict[str, Any]] = []
    pages, holds = [], True
    for name in names:
        figure = load_figure(name)
        unknown = (keep or set()) - set(figure.models)
        if unknown and not every:
            raise ConfigError(f"--models: found {sorted(unknown)[0]!r} in {name}{nearest(sorted(unknown)[0], figure.models)}")
        points = [p for p in figure.points if keep is None or p.model in keep]
        with _bar() as progress:
            rows, failed = run_points(points, where, jobs, progress)
        for why in dict.fromkeys(failed.values()):
            click.echo(f"dysharp: warning: {name}: {why}", err=True)
        results, fine = judge(figure, rows)
        holds &= fine and not failed
        if as_json:
            fields = ("point", "metric", "paper", "ours", "tolerance", "status")
            lines = [{f: getattr(r, f) for f in fields} | {"holds": r.holds, "reason": r.reason} for r in results]
            out.append({"figure": figure.name, "rows": lines, "verdict": "holds" if fine and not failed else "does not hold"})
        else:
            print_figure(figure, results, fine and not failed)
        pages.append(figure_markdown(figure, results))
        if plot is not None and name == "windows":
            from dysharp.reports.plots import save_figure
            from dysharp.reports.windows import plot_windows

            save_figure(plot_windows(rows), plot)
    if report is not None:
        write_text(report, "# Reproduction\n\nWritten by `dysharp reproduce --all --report docs/reproduction.md`.\n\n" + "\n".join(pages))
    if as_json:
        print_json(out)
    ctx.exit(0 if holds else 1)
