"""`dysharp plan`."""

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any

import click

from dysharp.api.arguments import PlanArgs
from dysharp.cli.flags import json_flag, options, plot_flag
from dysharp.cli.kept import fresh_flag, kept_rows
from dysharp.cli.quick import quick_flag
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_answer, print_header


@click.command()
@click.argument("models", metavar="MODEL|FILE,...")
@click.option("--gpus", type=click.IntRange(1, 1 << 20), required=True, metavar="N", help="GPUs of the whole step.")
@options(RequestArgs, "cluster", cluster={"default": "hw-dgx-h100-x8"})
@options(PlanArgs, quick=None)
@click.option(
    "--arguments", metavar="FRAMEWORK", type=click.Choice(["megatron-lm", "megatron-bridge", "mindspeed"]),
    help="Print the best layout, or that of --check, for megatron-lm, megatron-bridge or mindspeed, to paste; the answer goes to stderr.",
)  # fmt: skip
@plot_flag
@fresh_flag
@quick_flag
@json_flag
def plan(models: str, arguments: str | None, plot: str | None, fresh: bool, as_json: bool, **asked: Any) -> None:
    """Find the layouts that train fastest on N GPUs, and the fastest of several MODELs: tokens/s per GPU, MFU, memory, what limits each.

    Domains beyond those of the machine are more of the same.
    All candidates are counted: kept, pruned by a bound, or rejected by a constraint. The answer says what its times stand on.
    A terminal shows the best layout so far, from a first look on; --quick stops after that look.
    """
    from dysharp.api.planning import plan as make
    from dysharp.cli.progress_bar import bar_below
    from dysharp.cli.texts.plan_text import draw_plan, print_arguments, print_check, print_plan
    from dysharp.planning.arguments import environment_of

    with kept_rows(fresh), bar_below("searched") as (tick, show):
        done = make(models, tick=tick, show=show if sys.stderr.isatty() else None, **asked)
    if plot is not None:
        draw_plan(done, plot)
    if as_json:
        said = {"arguments": done.arguments(arguments), "environment": [*environment_of(arguments, done.pasted)]} if arguments else {}
        print_answer(done.to_dict() | said)
    else:
        with redirect_stdout(sys.stderr) if arguments else nullcontext():  # stdout is text to paste
            (print_plan if asked["check"] is None else print_check)(done)
        if arguments:
            print_arguments(done, arguments)
    print_header(done.header)
