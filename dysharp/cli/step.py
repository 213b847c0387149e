"""`dysharp step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.base.errors import ConfigError
from dysharp.cli.flags import complete_clusters, complete_routings, complete_systems, complete_words, json_flag, plot_flag, precision_flag, words_of
from dysharp.cli.kept import fresh_flag, kept_rows
from dysharp.cli.report import command_line, report_flag
from dysharp.show.output import print_answer, print_header, print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.training import Steps

LAYOUT_HELP = (
    "tp=, pp=, vpp=, ep=, dp= or gpus=, mbs= (sequences of a micro-batch), gbs= or m= (micro-batches), "
    "stages= (Megatron's layout string, such as Et|(tt|)*30mL)."
)


@click.command()
@click.argument("model", metavar="MODEL|FILE")
@click.option("--layout", default="", metavar="KEY=N,...", help=LAYOUT_HELP)
@click.option(
    "--megatron-args", "megatron", metavar="ARGS|FILE",
    help="Layout from arguments of Megatron-LM in quotes, a file of them, or a Megatron-Bridge recipe (YAML, TOML, JSON, FILE.py:NAME). "
    "Nothing is executed. --layout, --sequence, --precision and --recompute count first.",
)  # fmt: skip
@click.option(
    "--cluster", default="paper-gh200-nvl32", show_default=True, metavar="NAME|FILE", shell_complete=complete_clusters,
    help="The machine of one EP group; pipelines and replicas are more of the same.",
)  # fmt: skip
@click.option(
    "--schedule", metavar="NAME", shell_complete=complete_words("1f1b", "dualpipe", "dualpipev", "interleaved", "zb-h1", "zbv"),
    help="Pipeline schedule.  [default: 1f1b; interleaved with vpp above 1]",
)  # fmt: skip
@click.option("--systems", metavar="A,B,...", shell_complete=complete_systems, help="EP systems.  [default: the systems of `dysharp compare`]")
@click.option("--sequence", type=click.IntRange(1), metavar="S", help="Tokens of a sequence.  [default: 4096]")
@precision_flag
@click.option("--recompute", default="", metavar="A,B", help="Modules that are computed again, as Megatron names them.")
@click.option("--routing", metavar="R", shell_complete=complete_routings, help="Source of expert choices.  [default: routing of the model]")
@click.option("--tensor", default="", metavar="NAME", help="System of tensor-parallel sub-layers, such as cais.  [default: collectives]")
@click.option(
    "--blocks", type=click.Choice(["closed", "merged"]), default="closed", show_default=True,
    help="MoE blocks: sums of parts (fast), or one Program each on common SMs and links.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of everything that is drawn.")
@click.option(
    "--timeline", metavar="FILE", help="Also write the step of the fastest system for Perfetto: NAME.perfetto-trace or NAME.perfetto-trace.gz."
)
@plot_flag("the pipeline of the fastest system into FILE (.svg or .png)")
@report_flag
@fresh_flag
@json_flag
@click.pass_context
def step(
    ctx: click.Context, /, model: str, layout: str, systems: str | None, recompute: str, timeline: str | None, plot: str | None, report: str | None,
    fresh: bool, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Simulate one training step of MODEL under each EP system: tokens/s per GPU, MFU, and where the time goes.

    MoE layers are simulated; other operators, sends, gradient traffic and the optimizer are closed forms, and a pipeline schedule orders them.
    The header says how far such closed forms miss measured steps.
    """
    from dysharp.api import step as simulate
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.model_text import shown_if_refused
    from dysharp.cli.trace import check_timeline

    if not layout and not asked["megatron"]:
        raise ConfigError("layout: found none, expected --layout or --megatron-args")
    if timeline is not None:
        check_timeline("--timeline", timeline)
    names = words_of(systems)
    modules = words_of(recompute) or ()
    with shown_if_refused(), kept_rows(fresh), progress_bar() as progress:
        done = simulate(model, layout=layout, systems=names, recompute=modules, progress=progress, **asked)
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
    print_table(done.HEADINGS, done.cells())
    click.echo()
    print_lines([done.memory_line()])
