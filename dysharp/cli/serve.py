"""`dysharp serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.api.arguments import ServeArgs
from dysharp.base import ConfigError
from dysharp.cli.flags import Json, Plot, draw, options
from dysharp.cli.model import complete_whole
from dysharp.cli.quick import MARK, Quick
from dysharp.cli.report import ReportFile, command_line
from dysharp.runs import RequestArgs
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.serving_answer import Serving


@click.command()
@click.argument("model", metavar="[MODEL|FILE]", required=False, shell_complete=complete_whole)
@options((RequestArgs, "cluster"), ServeArgs, cluster={"default": "hw-dgx-h200"})
@click.pass_context
def serve(ctx: click.Context, /, model: str | None, *, plot: Plot, report: ReportFile, quick: Quick, as_json: Json, **asked: Any) -> None:
    """Say how to serve MODEL: which layout for how many users, how fast, what limits it.

    Every layout that fits is tried with several numbers of users, and with disaggregated prefill and decode. A step is a sum of kernels by closed
    forms; a formula of continuous batching gives TTFT and TPOT. The error bar comes from measured runs. Exit code 1 if no layout is within the
    limits.
    """
    from dysharp.api.serving import serve as search
    from dysharp.cli.progress_bar import bar

    if model is None and asked["launch"] is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    asked["layouts"] = asked["layouts"] or None
    simulates = asked["systems"] is not None or asked["merged"]
    closed = asked | {"merged": False, "systems": None}
    if quick and asked["tensor"]:
        raise ConfigError(f"--quick: found --tensor {asked['tensor']}, expected none (its sub-layers are simulated)")

    def first() -> list[str]:
        return [MARK, *(found := search(model, **closed)).sentences(), *found.trust()]

    with bar("layouts", first if simulates and not quick and not closed["tensor"] else None) as update:
        done = search(model, tick=update, **(closed if quick else asked))
    draw(plot, "serving.plot_replay" if done.replays else "serving.plot_serving", done)
    if report is not None:
        from dysharp.show.serving import write_page

        write_page(done, report, command_line(ctx))
        click.echo(f"report: {report}", err=True)
    print_answer(done.to_dict() | ({"quick": True} if quick else {})) if as_json else _print_serving(done)
    print_header((*done.header, *((NOT_SIMULATED,) if quick and simulates else ())))
    ctx.exit(0 if done.best else 1)


NOT_SIMULATED = "quick answer: closed forms with the error bar above; EP systems and merged layers were not simulated"
MOST_BEST, MOST_FRONT, MOST_REJECTED = 3, 12, 4


def _print_serving(done: Serving) -> None:
    """The sentences, then the tables."""
    from dysharp.api.serving_answer import POINTS, SYSTEMS, WHAT_IFS, memory_line
    from dysharp.api.serving_replay import REPLAYS

    print_lines([*done.sentences(), *done.trust()])
    if done.replays:
        click.echo()
        print_columns(REPLAYS, done.replays)
    if done.best:
        click.echo()
        print_columns(POINTS, done.points_of(done.best[:MOST_BEST]))
        print_lines(["", memory_line(done.best[0]), ""])
        click.echo("\n".join(done.starting()))  # no line ends inside a command
    if advice := done.advice():
        print_lines(["", *advice])
    if done.what_ifs:
        click.echo()
        print_columns(WHAT_IFS, done.changes())
    if done.systems:
        click.echo()
        print_columns(SYSTEMS, done.systems)
    if done.front:
        print_lines(["", "Front: no other point has more tokens per second of a GPU and of a user."])
        print_columns(POINTS, done.points_of(done.front[:MOST_FRONT]))
    if done.rejected:
        print_lines(["", *(f"{one.layout.name}: {one.reason}" for one in done.rejected[:MOST_REJECTED])])
        if len(done.rejected) > MOST_REJECTED:
            print_lines([f"{len(done.rejected) - MOST_REJECTED} more layouts do not fit; --json has all"])
