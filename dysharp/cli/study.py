"""`dysharp study` and `dysharp query`: many points, and questions about them."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from decimal import Decimal
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import click

from dysharp.base import ConfigError
from dysharp.cli.flags import Json, Plot, complete_files, draw, options
from dysharp.show.output import print_json, print_lines, print_table, printable, warn


@click.command()
@click.argument("file", metavar="FILE.toml", shell_complete=complete_files)
@options()
@click.pass_context
def study(ctx: click.Context, /, file: str, folder: str, jobs: int, scheduler: str, plot: Plot, as_json: Json) -> None:
    """Run the points of FILE.toml, and keep them in a folder for `dysharp query`.

    The folder holds Parquet files. FILE.toml is a sweep file, as for `dysharp sweep`. A table [draw] draws values in place of the grid: method =
    "latin-hypercube", "tpe" or "nsga2". With "nsga2", --plot draws the points and the Pareto front. Finished points are kept: the same command
    continues a study that was killed. Exit code 1 when a point failed.
    """
    from dysharp.cli.progress_bar import bar
    from dysharp.figures.studies.study import load_study, run_study
    from dysharp.figures.studies.study_folder import StudyFolder

    asked = load_study(file)
    objectives = () if asked.draw is None else asked.draw.minimize
    if plot is not None and len(objectives) != 2:
        raise ConfigError(f'--plot: found {len(objectives)} objectives in {file}, expected two: [draw] with method = "nsga2"')
    into = StudyFolder(Path(folder))
    with bar("points") as progress:
        outcome = run_study(asked, into, jobs, progress, scheduler)
    for line in into.left_out:
        warn(line)
    signs = [-1.0 if name.startswith("-") else 1.0 for name in objectives]
    draw(plot, "plots.plot_pareto", [[v * s for v, s in zip(each, signs, strict=True)] for each in outcome.values], objectives, asked.name)
    for label, why in outcome.failed.items():
        warn(f"{label}: {why}")
    done, kept, failed = outcome.done, outcome.kept, len(outcome.failed)
    said = f"{asked.name}: {done} points done, {kept} read, {failed} failed; folder {folder}"
    print_json({"n_done": done, "n_kept": kept, "n_failed": failed, "folder": folder}) if as_json else print_lines([said])
    ctx.exit(1 if outcome.failed else 0)


@click.command()
@click.argument("sql", metavar="SQL")
@options()
def query(
    sql: str, folder: str | None, reproduced: bool, as_csv: bool, rows: int, seconds: Annotated[float, {"type": click.FloatRange(0, min_open=True)}],
    as_json: Json,
) -> None:  # fmt: skip
    """Answer a question in SQL about the finished points of a study.

    The points are the table `points`. `dysharp query "describe points"` lists the columns: the option `dysharp.n_sm` of a study file is the
    column n_sm, its `cluster.link_GBps` is cluster_link_GBps. SQL is in the dialect of DuckDB, reaches no file, and takes half of the memory at
    most. DIR may also be the --store of `reproduce` or `sweep`.
    """
    from dysharp.base.text import csv_text
    from dysharp.figures import Store

    if reproduced and folder:
        raise ConfigError("query: found --folder and --reproduced, expected only one of the two")
    folder = folder or "study"
    if not reproduced and not os.path.exists(folder):
        wanted = "one of a study (--folder DIR), or --reproduced for points of reproduce and sweep"
        raise ConfigError(f"query: found no folder {folder[:60]!r}, expected {wanted}")
    left_out, answer = _answer_within(seconds, partial(_answer, Store.default().folder if reproduced else Path(folder), sql, rows))
    for line in left_out:
        warn(line)
    if isinstance(answer, ConfigError):
        raise answer
    columns, lines = answer
    if as_json and (twice := [name for name in columns if columns.count(name) > 1]):
        raise ConfigError(f"query: found {len(twice)} columns {twice[0]!r}, expected one of each name in JSON (select ... as NAME)")
    if as_json:
        print_json([dict(zip(columns, map(_plain, line), strict=True)) for line in lines])
    elif as_csv:
        click.echo(printable(csv_text(columns, lines)), nl=False)
    else:
        described = sql.split(maxsplit=1)[0].lower() in ("describe", "show") if sql.split() else False
        shown = [at for at in range(len(columns)) if not described or any(line[at] is not None for line in lines)]
        print_table([columns[at] for at in shown], [[_text(line[at]) for at in shown] for line in lines])


def _answer_within(seconds: float, work: Callable[[float], Any]) -> Any:
    """What `work` returns, from a process of its own: DuckDB looks at no signal and at no clock while it works."""
    from dysharp.base.processes import Processes, Task

    until = time.monotonic() + seconds

    def waiting() -> None:
        if time.monotonic() > until:
            raise ConfigError(f"query: found no answer after {seconds:g} s; ask for less, or take more --seconds")

    with Processes(1, copies=True) as processes, closing(processes.run([Task("query", work)], waiting=waiting, every_s=0.1)) as ended:
        ((_, result),) = ended
    if isinstance(result, MemoryError):  # Python's own, where the limit is reached outside DuckDB, maybe before it
        raise ConfigError("query: Out of Memory Error: the answer needs more than half of the memory that this process may use")
    if isinstance(result, Exception):
        raise result
    return result


def _answer(folder: Path, sql: str, rows: int, part: float) -> tuple[list[str], Any]:
    """What was left out of a folder, and the answer of the rest or its ConfigError. Half of the memory of this computer stays free."""
    from dysharp.figures.studies.study_folder import StudyFolder
    from dysharp.runs.memory import usable_bytes

    with suppress(ImportError):  # not on Windows
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        half = usable_bytes() // 2
        resource.setrlimit(resource.RLIMIT_DATA, (half if hard == resource.RLIM_INFINITY else min(half, hard), hard))
    asked = StudyFolder(folder)
    try:
        answer: Any = asked.answer(sql, rows)
    except ConfigError as error:
        answer = error
    return list(asked.left_out), answer


def _plain(value: Any) -> Any:
    """A value of DuckDB for JSON. What JSON has no number for (nan, inf) is null; other types than numbers and texts are texts."""
    if isinstance(value, Decimal | float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
