"""`dysharp advise`."""

from typing import Any

import click

from dysharp.base import ByName, ConfigError
from dysharp.cli.flags import Json, Words, complete_models, options, refuse_others
from dysharp.cli.kept import Fresh, kept_rows
from dysharp.cli.quick import Quick, lines_of, print_quick, refuse_simulated
from dysharp.cli.report import ReportFile, command_line, write_report
from dysharp.runs.arguments import AdviseArgs
from dysharp.show.output import print_answer, print_header


@click.command()
@click.argument("model", metavar="MODEL", shell_complete=complete_models)
@options((AdviseArgs, "systems"), AdviseArgs, cluster={"default": "hw-dgx-h100"})
@click.pass_context
def advise(
    ctx: click.Context, /, model: str, *, libraries: bool, regime: str | None, details: bool, markdown: bool, report: ReportFile, fresh: Fresh,
    quick: Quick, as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Say which system of expert parallelism to run for MODEL, and what limits it.

    MODEL is the name of a packaged model, a TOML file, or a Hugging Face config.json. The machine is an hw-* cluster, or a file of
    `dysharp calibrate`: one NVLink domain, or several that network cards join. Times have error bars from measurements. A prediction outside the
    measured range has a warning.
    """
    from dysharp.api import advise as ask
    from dysharp.api.quick import QuickAnswer, quick_advise
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.advice_details import markdown_of, print_details
    from dysharp.cli.texts.advice_text import _screen

    if libraries or regime is not None:
        return _libraries(ctx, model, regime, asked, as_json)
    if markdown and as_json:
        raise ConfigError("advise: found --markdown and --json, expected one of the two")

    def first() -> QuickAnswer:
        return quick_advise(model, **asked)

    if quick:
        refuse_simulated(asked, report=report, details=details, markdown=markdown)
        return print_quick(first(), as_json, advice=True)
    with kept_rows(fresh), progress_bar(header=False, first=lambda: lines_of(first())) as progress:  # the screen has the header
        done = ask(model, progress=progress, **asked)
    if report is not None:
        from dysharp.show.html_report import report_of_advice

        write_report(report_of_advice(done, command_line(ctx)), report)
    if as_json:
        print_answer(done.to_dict())
        print_header(done.header)
    elif markdown:
        click.echo(markdown_of(done))
    else:
        click.echo("\n".join(_screen(done)))
        if details:
            print_details(done)
        print_header(())


OF_LIBRARIES = ("model", "libraries", "regime", "cluster", "gpus", "tokens", "as_json", "fresh")


def _libraries(ctx: click.Context, model: str, regime: str | None, workload: ByName, as_json: bool) -> None:
    """The screen of `--libraries`."""
    from dysharp.cli.texts.libraries_text import screen
    from dysharp.planning.advice.libraries import BATCHES, SIZES, advise_libraries

    if not ctx.params["libraries"]:
        raise ConfigError("advise: found --regime without --libraries, expected both")
    refuse_others("advise --libraries", OF_LIBRARIES, "--cluster, --gpus, --tokens, --regime or --json")
    tokens, gpus = workload["tokens"], workload["gpus"]
    batches, sizes = BATCHES if tokens is None else (tokens,), SIZES if gpus is None else (gpus,)
    done = advise_libraries(model, Words(",").convert(workload["cluster"], None, None), tokens=batches, gpus=sizes, regime=regime or "drained")
    if as_json:
        print_answer(done.to_dict())
    else:
        click.echo("\n".join(screen(done)))
    print_header(())
