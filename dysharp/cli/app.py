"""The commands. Heavy modules are imported inside them, so that `--help` stays fast."""

from collections.abc import Sequence
from typing import Any

import click

from dysharp import __version__
from dysharp.base import ByName, ConfigError, check_word, nearest
from dysharp.cli.advise import advise
from dysharp.cli.calibrate import calibrate
from dysharp.cli.emulate import emulate
from dysharp.cli.explain import explain
from dysharp.cli.flags import Json, Plot, complete_systems, complete_words, draw, import_flag, options
from dysharp.cli.kept import Fresh, kept_rows
from dysharp.cli.lint import lint
from dysharp.cli.measure import measure
from dysharp.cli.model import model
from dysharp.cli.network import network
from dysharp.cli.plan import plan
from dysharp.cli.progress_bar import progress_bar
from dysharp.cli.quick import Quick, lines_of, print_quick, refuse_simulated
from dysharp.cli.report import ReportFile, command_line, report, write_report
from dysharp.cli.reproduce import reproduce, sweep
from dysharp.cli.rtl import rtl
from dysharp.cli.schema import schema_flag
from dysharp.cli.serve import serve
from dysharp.cli.step import step
from dysharp.cli.study import query, study
from dysharp.cli.texts.examples import EXAMPLES
from dysharp.cli.trace import trace
from dysharp.cli.traces import capture, routing
from dysharp.cli.validate import validate
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_answer, print_header, print_json

LISTS = ("systems", "collectives", "sub-layers", "models", "clusters", "cluster-keys", "options", "figures", "blocks", "routings")
SETTINGS: ByName = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


class _Commands(click.Group):
    """A group of commands; for an unknown command its error names the nearest known one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(f"command {args[0][:60]!r}: unknown{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, invoke_without_command=True, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="dysharp", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compare expert-parallel (EP) communication systems on real models and real routing.

    Modelled: one Mixture-of-Experts layer, forward and backward, on the GPUs of one NVLink domain (up to 72 in packaged clusters);
    some systems also on several domains that network cards join (clusters with a [scale_out] table).

    Whole models: parameters, FLOPs and training memory (`dysharp model`); a training step (`dysharp step`); the layout that trains fastest
    (`dysharp plan`); serving: layouts, tokens per second, TTFT and TPOT (`dysharp serve`). Hardware: tables as Verilog (`dysharp rtl`).

    Measured: predictions for hw-* clusters are compared with public measurements (`dysharp validate`).

    Not measured: paper-* clusters, and systems that nobody can run today, such as DySHARP and MoE-Hub; for these, read ratios, not times.

    `dysharp advise MODEL` says which system to run on a machine; `dysharp compare` compares mechanisms.

    stdout is data; stderr is progress and warnings. Exit codes: 0 done, 1 a check failed, 2 wrong input, 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _packets(finite: bool, fidelity: str) -> ByName:
    """The level of --finite, {} without it. Raises ConfigError beside another level that is asked for."""
    if finite and fidelity != "packet" and click.get_current_context().get_parameter_source("fidelity") == click.core.ParameterSource.COMMANDLINE:
        raise ConfigError(f"finite: found --fidelity {fidelity}, expected packet (finite tables are simulated there alone)")
    return {"fidelity": "packet"} if finite else {}


def _say_packet_time(systems: Sequence[str], asked: ByName, more: str = "") -> None:
    """How long a run at packet level takes, on stderr."""
    from dysharp.runs.packet_time import packet_time

    if asked["fidelity"] == "packet" and (line := packet_time(systems, **asked)):
        click.echo(line + more, err=True)


@cli.command()
@click.argument("system", shell_complete=complete_systems)
@options(RequestArgs)
@import_flag
@schema_flag
def run(system: str, *, finite: bool, quick: Quick, as_json: Json, **workload: Any) -> None:
    """Simulate one Mixture-of-Experts layer under SYSTEM: time, bytes, bounds.

    The answer also has the critical path. With --workload one collective, or one sub-layer of tensor parallelism, takes the place of the layer.
    """
    from dysharp.api import run as run_system
    from dysharp.api.comparison import header_lines
    from dysharp.api.quick import quick_compare
    from dysharp.cli.texts.row_text import print_row
    from dysharp.runs.finite import finite_lines

    if quick:
        refuse_simulated(workload, finite=finite)
        return print_quick(quick_compare([system], **workload), as_json, one=True)
    level = _packets(finite, workload["fidelity"])
    _say_packet_time([system], workload | level, "; then it runs six times more" * finite)
    with progress_bar(first=lambda: lines_of(quick_compare([system], **workload))) as progress:
        row = run_system(system, progress=progress, **workload | level)
        taken = finite_lines(system, **workload) if finite else ()
    print_answer(row.to_dict() | ({"finite": taken} if finite else {})) if as_json else print_row(row)
    print_header((*header_lines([row]), *taken))


@cli.command()
@options(RequestArgs)
@import_flag
@schema_flag
@click.pass_context
def compare(
    ctx: click.Context, /, systems: list[str] | None, forms: str | None, baseline: str | None, tuned: bool, why: bool, mapped: bool, finite: bool, *,
    plot: Plot, report: ReportFile, fresh: Fresh, quick: Quick, as_json: Json, **workload: Any,
) -> None:  # fmt: skip
    """Simulate several systems on one workload, and say what limits the fastest."""
    from dysharp.api import DEFAULT_SYSTEMS
    from dysharp.api import compare as compare_systems
    from dysharp.api.quick import quick_compare
    from dysharp.cli.texts.comparison_text import print_comparison

    if quick:
        refuse_simulated(workload, baseline=baseline, plot=plot, report=report, tuned=tuned, why=why, map=mapped, finite=finite)
        return print_quick(quick_compare(systems, forms, **workload), as_json)
    asked = workload | _packets(finite, workload["fidelity"])
    _say_packet_time(systems or DEFAULT_SYSTEMS, asked, "; then six runs of the fastest system and its baseline" * finite)
    with kept_rows(fresh), progress_bar(first=lambda: lines_of(quick_compare(systems, forms, **workload))) as progress:
        done = compare_systems(systems, baseline, forms, tuned=tuned, why=why, mapped=mapped, finite=finite, progress=progress, **workload)
    draw(plot, *(("gain_plot.plot_gain_map", done.gain_map) if done.gain_map else ("plots.plot_compare", done.rows)))
    if report is not None:
        from dysharp.show.html_report import report_of_comparison

        write_report(report_of_comparison(done, command_line(ctx)), report, workload)
    runs = done.why.runs(paper=bool(done.formats)) if done.why else []
    commands = {name: command_line(ctx, begins, {*workload, "settings"}) for name, begins in runs}
    answer = done.to_dict()
    print_answer(answer | ({"why": answer["why"] | {"commands": commands}} if commands else {})) if as_json else print_comparison(done, commands)
    print_header(done.header)


@cli.command("list")
@click.argument("what", metavar="|".join(LISTS), shell_complete=complete_words(*LISTS))
@options()
def _list(what: str, as_json: Json) -> None:
    """List what other commands take: systems, models, clusters, options, figures and more."""
    check_word(what, LISTS, f"list: found {what[:60]!r}")
    from dysharp.cli.listing import listing, print_list

    rows = listing(what)
    print_json(rows) if as_json else print_list(what, rows)


for command in (
    advise, calibrate, capture, emulate, explain, measure, model, network, plan, query, report, reproduce, routing, rtl, serve, step, study, sweep,
    trace, validate,
):  # fmt: skip
    cli.add_command(command)
routing.add_command(lint)


def _add_examples(group: click.Group, above: str = "") -> None:
    """Put the examples of each command at the end of its help."""
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        if path in EXAMPLES:
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
        if isinstance(command, click.Group):
            _add_examples(command, path)


_add_examples(cli)
