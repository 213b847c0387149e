"""`dysharp step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.api.arguments import StepArgs
from dysharp.base.errors import ConfigError
from dysharp.cli.flags import ENDINGS, Out, complete_words, json_flag, options, plot_flag, systems_flag
from dysharp.cli.kept import fresh_flag, kept_rows
from dysharp.cli.quick import lines_of_steps, quick_flag
from dysharp.cli.report import command_line, report_flag
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.training import Steps

LAYOUT_HELP = (
    "tp=, pp=, vpp=, ep=, dp= or gpus=, mbs= (sequences of a micro-batch), gbs= or m= (micro-batches), "
    "stages= (Megatron's layout string, such as Et|(tt|)*30mL)."
)


@click.command()
@click.argument("model", metavar="MODEL|FILE")
@click.option("--layout", default="", metavar="KEY=N,...", help=LAYOUT_HELP)
@options(RequestArgs, "cluster")
@click.option(
    "--schedule", metavar="NAME", shell_complete=complete_words("1f1b", "dualpipe", "dualpipev", "interleaved", "zb-h1", "zbv"),
    help="Pipeline schedule.  [default: 1f1b; interleaved with vpp above 1]",
)  # fmt: skip
@systems_flag("the systems of `dysharp compare`")
@options(StepArgs, quick=None)
@click.option(
    "--timeline", metavar="FILE", type=Out(*ENDINGS),
    help="Also write the step of the fastest system for Perfetto: NAME.perfetto-trace or NAME.perfetto-trace.gz.",
)  # fmt: skip
@plot_flag
@report_flag
@fresh_flag
@quick_flag
@json_flag
@click.pass_context
def step(
    ctx: click.Context, /, model: str, layout: str, timeline: str | None, plot: str | None, report: str | None, fresh: bool, quick: bool,
    as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Simulate one training step of MODEL under each EP system: tokens/s per GPU, MFU, and where the time goes.

    The machine is that of one EP group; pipelines and replicas are more of the same. One drawn layer stands for all layers.
    MoE layers are simulated; other operators, sends, gradient traffic and the optimizer are closed forms, and a pipeline schedule orders them.
    The header says how far such closed forms miss measured steps.
    """
    from dysharp.api import step as simulate
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.model_text import shown_if_refused

    if not layout and not asked["megatron"]:
        raise ConfigError("layout: found none, expected --layout or --megatron-args")

    def first() -> list[str]:
        return lines_of_steps(simulate(model, layout=layout, quick=True, **asked))

    with shown_if_refused(), kept_rows(fresh), progress_bar(first=None if quick else first) as progress:
        done = simulate(model, layout=layout, quick=quick, progress=progress, **asked)
    if timeline is not None:
        from dysharp.analysis.timeline.perfetto import write_perfetto
        from dysharp.training.step_timeline import step_timeline

        write_perfetto(step_timeline(done.best.replayed), timeline, f"{done.model}, {done.schedule.name}, {done.best.system}")
    if plot is not None:
        from dysharp.show.plots import save_figure
        from dysharp.show.step_plot import plot_step

        save_figure(plot_step(done), plot)
    if report is not None:
        from dysharp.base.files import write_text
        from dysharp.show.step_report import render_steps

        write_text(report, render_steps(done, command_line(ctx)))
        click.echo(f"report: {report}", err=True)
    print_answer(done.to_dict()) if as_json else print_steps(done)
    print_header(done.header)


def print_steps(done: Steps) -> None:
    """The sentence, the table, the memory of the fullest rank."""

    print_lines([done.sentence()])
    click.echo()
    print_columns(done.columns, done.rows())
    click.echo()
    print_lines([done.memory_line()])
