"""`dysharp step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import StepArgs
from dysharp.base import ConfigError
from dysharp.cli.flags import ENDINGS, Json, Out, Plot, draw, import_flag, options
from dysharp.cli.kept import Fresh, kept_rows
from dysharp.cli.model import complete_whole
from dysharp.cli.quick import Quick, lines_of_steps
from dysharp.cli.report import ReportFile, command_line, write_page
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.training import Steps


@click.command()
@click.argument("model", metavar="MODEL|FILE", shell_complete=complete_whole)
@options((RequestArgs, "cluster"), StepArgs)
@import_flag
@click.pass_context
def step(
    ctx: click.Context, /, model: str, layout: str, schedule: str | None, systems: list[str] | None, *,
    timeline: Annotated[str | None, {"type": Out(*ENDINGS)}], plot: Plot, report: ReportFile, fresh: Fresh, quick: Quick, as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Simulate one training step of MODEL: tokens/s per GPU, MFU, where the time goes.

    Under every system of expert parallelism (EP) that is asked for. The machine is that of one EP group; pipelines and replicas are more of the
    same. One drawn layer stands for all layers. MoE layers are simulated; other operators, sends, gradient traffic and the optimizer are closed
    forms, and a pipeline schedule orders them. The header says how far such closed forms miss measured steps.
    """
    from dysharp.api import step as simulate
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.model_text import shown_if_refused

    if not layout and not asked["megatron"]:
        raise ConfigError("layout: found none, expected --layout or --megatron-args")

    def first() -> list[str]:
        return lines_of_steps(simulate(model, layout=layout, schedule=schedule, systems=systems, quick=True, **asked))

    with shown_if_refused(), kept_rows(fresh), progress_bar(first=None if quick else first) as progress:
        done = simulate(model, layout=layout, schedule=schedule, systems=systems, quick=quick, progress=progress, **asked)
    if timeline is not None:
        from dysharp.analysis.timeline.perfetto import write_perfetto
        from dysharp.training.step_timeline import step_timeline

        write_perfetto(step_timeline(done.best.replayed), timeline, f"{done.model}, {done.schedule.name}, {done.best.system}")
    draw(plot, "step_plot.plot_step", done)
    if report is not None:
        from dysharp.show.step_report import render_steps

        write_page(render_steps(done, command_line(ctx)), report)
    print_answer(done.to_dict()) if as_json else _print_steps(done)
    print_header(done.header)


def _print_steps(done: Steps) -> None:
    """The sentence, the table, the memory of the fullest rank."""

    print_lines([done.sentence()])
    click.echo()
    print_columns(done.columns, done.rows())
    click.echo()
    print_lines([done.memory_line()])
