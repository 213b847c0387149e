"""`dysharp report`, and the flag `--report` of other commands: one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.base import AnyMapping, ConfigError, Rows, Texts, write_text
from dysharp.cli.flags import Out, Words, complete_files, options
from dysharp.runs.arguments import Argument, RequestArgs

if TYPE_CHECKING:
    from dysharp.show.html_report import LeftOut, Report

REPORT = Argument(None, "also write a report that opens in any browser and loads nothing.", "FILE.html")
ReportFile = Annotated[str | None, REPORT, {"type": Out(".html")}]


def command_line(ctx: click.Context, begins: str = "", only: Collection[str] | None = None) -> str:
    """The command with the arguments that were given, to type it again. `begins`, `only`: words of another command that takes these parameters."""
    words: list[str] = []
    for parameter in ctx.command.params:
        if only is not None and parameter.name not in only:
            continue
        value = ctx.params.get(parameter.name or "")
        if ctx.get_parameter_source(parameter.name or "") != click.core.ParameterSource.COMMANDLINE or value is None:
            continue
        value = parameter.type.separator.join(value) if isinstance(parameter.type, Words) else value
        values = list(value) if isinstance(value, list | tuple) else [value]
        if begins and parameter.name == "settings":  # `run` refuses options of other systems
            values = [each for each in values if each.partition(".")[0] in (*begins.split(), "fabric")]
        if isinstance(parameter, click.Argument):
            words = [*map(str, values), *words]
        elif isinstance(value, bool):
            words += [(parameter.opts if value else parameter.secondary_opts)[-1]]
        else:
            words += [word for each in values for word in (parameter.opts[-1], str(each))]
    return shlex.join(["dysharp", *(begins.split() or ctx.command_path.split()[1:]), *words])


def write_report(report: Report, path: str, load: AnyMapping | None = None) -> None:
    """Write a report. `load`: arguments of `compare` whose workload is drawn again for the load; None: as the rows tell."""
    from dysharp.show.html_report import render, with_load

    if load is not None and load.get("workload") is None:
        from dysharp.runs.request import make_request, make_workload
        from dysharp.show.html_report import load_view_of

        request = make_request(RequestArgs(**load, progress=None))  # type: ignore[typeddict-item]
        report = with_load(report, load_view_of(make_workload(request).routing, request.cluster.domain_gpus))
    write_page(render(report), path)


def write_page(page: str, path: str) -> None:
    """Write a page, and say so on stderr."""
    write_text(path, page)
    click.echo(f"report: {path}", err=True)


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=complete_files)
@options()
@click.pass_context
def report(
    ctx: click.Context, /, files: Texts, out: Annotated[str, Argument(..., "file to write.", "FILE.html", None, "-o --out"), {"type": Out(".html")}],
    title: str | None,
) -> None:  # fmt: skip
    """Show stored runs as one HTML file: times, bounds, where the time goes, load.

    FILE is what `dysharp run --json`, `dysharp compare --json` or `dysharp sweep --out` wrote. Runs on one workload stand in one table.
    The page runs no script and loads nothing. `dysharp compare`, `advise` and `sweep` write one directly with --report.
    """
    from dysharp.show.html_report import report_of_rows

    if not files:
        raise click.UsageError("Missing argument 'FILE...'; `dysharp run SYSTEM --json > FILE` writes one")
    stored = [_read_rows(file) for file in files]
    rows, left_out = ([entry for each in part for entry in each] for part in zip(*stored, strict=True))
    write_report(report_of_rows(rows, command_line(ctx), title or "", left_out), out)


def _read_rows(path: str) -> tuple[Rows, list[LeftOut]]:
    """The Rows of a file of JSON or of JSON lines, and the systems that comparisons in the file left out. Raises ConfigError for anything else."""
    from dysharp.base.reading import json_of, read_text
    from dysharp.show.html_report import check_row

    text = read_text(Path(path))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if all(line[0] == "{" and line.rstrip()[-1] == "}" for _, line in lines):  # one document in each line
        found = [json_of(line, f"{path}: line {number}") for number, line in lines]
    else:
        found = [json_of(text, path)]
    rows = [row for value in found for row in _rows_in(value)]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: found no rows, expected the output of dysharp run --json, compare --json or sweep --out")
    for number, row in enumerate(rows, start=1):
        check_row(row, f"{path}: row {number}")
    return rows, [(value["rows"][0], value["left_out"]) for value in found if _leaves_out(value)]


def _leaves_out(value: Any) -> bool:
    """Whether one JSON document is a comparison that left systems out."""
    return isinstance(value, dict) and isinstance(value.get("rows"), list) and bool(value["rows"]) and isinstance(value.get("left_out"), dict)


def _rows_in(value: Any) -> list[Any]:
    """Rows of one JSON document: a Row, a list of them, {"rows": [...]} or {"row": ...}."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return list(value["rows"]) if isinstance(value.get("rows"), list) else [value.get("row", value)]
    return [value]
