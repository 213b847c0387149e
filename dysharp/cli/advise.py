"""`dysharp advise`."""

from typing import Any

import click

from dysharp.cli.flags import complete_models, json_flag, options, systems_flag, words_of
from dysharp.cli.kept import fresh_flag, kept_rows
from dysharp.cli.quick import lines_of, print_quick, quick_flag, refuse_files
from dysharp.cli.report import command_line, report_flag, write_report
from dysharp.runs.arguments import SharedArgs
from dysharp.show.output import print_answer, print_header


@click.command()
@click.argument("model", metavar="MODEL", shell_complete=complete_models)
@systems_flag("all with kernels of today")
@options(SharedArgs, cluster={"default": "hw-dgx-h100"})
@click.option(
    "--phase", metavar="decode|prefill|train", help="Set tokens per GPU (128, 4096, 4096), passes and systems, which need kernels for the phase."
)
@click.option("--libraries", is_flag=True, help="Instead: which library's calls are fastest, by batch and GPUs. --cluster takes names with commas.")
@click.option("--regime", metavar="drained|chained|graph", help="With --libraries: how calls run. [default: drained]")
@click.option("--details", is_flag=True, help="Print all tables after the answer.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a design review.")
@report_flag
@fresh_flag
@quick_flag
@json_flag
@click.pass_context
def advise(
    ctx: click.Context, /, model: str, systems: list[str] | None, settings: tuple[str, ...], phase: str | None, libraries: bool, regime: str | None,
    details: bool, markdown: bool, report: str | None, fresh: bool, quick: bool, as_json: bool, **workload: Any,
) -> None:  # fmt: skip
    """Say which EP system to run for MODEL on a machine, what limits it, and what would help.

    MODEL is the name of a packaged model, a TOML file, or a Hugging Face config.json. The machine is an hw-* cluster, or a file of
    `dysharp calibrate`: one NVLink domain, or several that network cards join. Times have error bars from measurements. A prediction outside the
    measured range has a warning.
    """
    from dysharp.api import advise as ask
    from dysharp.api.quick import QuickAnswer, quick_advise
    from dysharp.base.errors import ConfigError
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.advice_details import markdown_of, print_details
    from dysharp.cli.texts.advice_text import screen
    from dysharp.runs.options import parse_set

    if libraries or regime is not None:
        return _libraries(ctx, model, regime, workload, as_json)
    if markdown and as_json:
        raise ConfigError("advise: found --markdown and --json, expected one of the two")

    def first() -> QuickAnswer:
        return quick_advise(model, systems=systems, phase=phase, options=parse_set(settings), **workload)

    if quick:
        refuse_files(report=report)
        return print_quick(first(), as_json, advice=True)
    with kept_rows(fresh), progress_bar(header=False, first=lambda: lines_of(first())) as progress:  # the screen has the header
        done = ask(model, systems=systems, phase=phase, options=parse_set(settings), progress=progress, **workload)
    if report is not None:
        from dysharp.show.html_report import report_of_advice

        write_report(report_of_advice(done, command_line(ctx)), report)
    if as_json:
        print_answer(done.to_dict())
        print_header(done.header)
    elif markdown:
        click.echo(markdown_of(done))
    else:
        for line in screen(done):
            click.echo(line)
        if details:
            print_details(done)
        print_header(())


OF_LIBRARIES = ("model", "libraries", "regime", "cluster", "gpus", "tokens", "as_json", "fresh")


def _libraries(ctx: click.Context, model: str, regime: str | None, workload: dict[str, Any], as_json: bool) -> None:
    """The screen of `--libraries`."""
    from dysharp.base.errors import ConfigError
    from dysharp.cli.texts.libraries_text import screen
    from dysharp.planning.advice.libraries import BATCHES, SIZES, advise_libraries

    given = [name for name in ctx.params if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE]
    if not ctx.params["libraries"]:
        raise ConfigError("advise: found --regime without --libraries, expected both")
    if others := [name for name in given if name not in OF_LIBRARIES]:
        raise ConfigError(f"advise --libraries: found --{others[0].replace('_', '-')}, expected --cluster, --gpus, --tokens, --regime or --json")
    tokens, gpus = workload["tokens"], workload["gpus"]
    clusters = words_of(workload["cluster"]) or []
    batches, sizes = BATCHES if tokens is None else (tokens,), SIZES if gpus is None else (gpus,)
    done = advise_libraries(model, clusters, tokens=batches, gpus=sizes, regime=regime or "drained")
    if as_json:
        print_answer(done.to_dict())
    else:
        for line in screen(done):
            click.echo(line)
    print_header(())
