"""`dysharp plan`."""

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import click

from dysharp.api.arguments import PlanArgs
from dysharp.cli.flags import Json, Plot, options
from dysharp.cli.kept import Fresh, kept_rows
from dysharp.cli.quick import Quick
from dysharp.runs.arguments import Argument, RequestArgs
from dysharp.show.output import print_answer, print_header


@click.command()
@click.argument("models", metavar="MODEL|FILE,...")
@options((RequestArgs, "cluster"), PlanArgs, cluster={"default": "hw-dgx-h100-x8"})
def plan(
    models: str, gpus: Annotated[int, Argument(..., "GPUs of the whole step.", "N", (1, 1 << 20))], *, arguments: str | None, plot: Plot,
    fresh: Fresh, quick: Quick, as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Find the layouts that train MODEL fastest on N GPUs, and what limits each.

    Several MODELs, with commas: also the fastest of them. Domains beyond those of the machine are more of the same.
    All candidates are counted: kept, pruned by a bound, or rejected by a constraint. The answer says what its times stand on.
    A terminal shows the best layout so far, from a first look on; --quick stops after that look.
    """
    from dysharp.api.planning import plan as make
    from dysharp.cli.progress_bar import bar_below
    from dysharp.cli.texts.plan_text import draw_plan, print_arguments, print_check, print_plan
    from dysharp.planning.arguments import environment_of

    with kept_rows(fresh), bar_below("searched") as (tick, show):
        done = make(models, gpus, quick=quick, tick=tick, show=show if sys.stderr.isatty() else None, **asked)
    if plot is not None:
        draw_plan(done, plot)
    if as_json:
        said = {"arguments": done.arguments(arguments), "environment": [*environment_of(arguments, done.pasted)]} if arguments else {}
        print_answer(done.to_dict() | said)
    else:
        with redirect_stdout(sys.stderr) if arguments else nullcontext():  # stdout is text to paste
            print_check(done) if asked["check"] is not None else print_plan(done, models, asked["cluster"])
        if arguments:
            print_arguments(done, arguments)
    print_header(done.header)
