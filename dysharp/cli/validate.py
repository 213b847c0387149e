"""`dysharp validate`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import ValidateArgs
from dysharp.base import AnyMapping, ConfigError, SimulationError, Texts
from dysharp.cli.flags import WRITTEN, Json, Plot, complete_files, draw, file_of, options
from dysharp.show.output import print_answer, print_header

if TYPE_CHECKING:
    from dysharp.measured.validation import Validation


@click.command()
@options(ValidateArgs, jobs={"default": lambda: min(os.cpu_count() or 1, 256), "show_default": "all cores"})
def validate(
    data: Annotated[str | None, {"shell_complete": complete_files}], said: Texts, check: bool, bars: bool, groups: bool, *, jobs: int, plot: Plot,
    page: Annotated[str | None, WRITTEN], refit: Annotated[str | None, WRITTEN], summary: Annotated[str | None, WRITTEN], as_json: Json,
    **judged: Any,
) -> None:  # fmt: skip
    """Compare predictions with public measurements, or with your own.

    Without --data: per kind of measurement, how many of the packaged public ones are predicted, and how well. With --data: your rows one by one,
    measured and predicted, and why a row has no prediction. A file of training runs has the columns of docs/models.md, one of serving runs those of
    docs/serving.md. Systems are predicted by simulation, which takes minutes for the packaged measurements; NCCL and GEMMs by formulas.
    """
    from dysharp.api.run_validation import plan_bars, validate_serving, validate_training
    from dysharp.api.validation import refit as refit_constants
    from dysharp.api.validation import validate as validate_data
    from dysharp.base.files import write_text
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.cli.texts.validate_text import print_serving_report, print_training

    data = None if data is None else file_of(data, said)
    if data is not None and (runs := _runs_in(data)):
        if given := [name for name, value in (judged | {"plot": plot, "page": page, "refit": refit, "summary": summary}).items() if value]:
            raise ConfigError(f"{data}: found {runs} runs of whole models, expected no --{given[0].replace('_', '-')} beside them")
        return _validate_runs(runs, data, check, as_json)
    if refit is not None and (judged["constants"] or judged["cluster"]):
        raise ConfigError("validate: found --refit beside --constants or --cluster, expected only one of the three: --refit fits new constants")
    with progress_bar("rows") as progress:
        if refit is not None:
            judged["constants"] = refit_constants(data, refit, jobs=jobs, progress=progress)
        done = validate_data(data, jobs=jobs, progress=progress, **judged)
    trained, served = (validate_training(), validate_serving()) if data is None else (None, None)
    if trained is not None and served is not None:
        done = replace(done, bars=[*done.bars, *trained.bars, *served.bars, *plan_bars()])
    draw(plot, "validation_page.plot_validation", done.points)
    if summary is not None:
        write_text(Path(summary), done.summary)
    if page is not None:
        from dysharp.show.validation_page import write_page

        write_page(done, page)
    if as_json:
        print_answer(done.to_dict() | ({} if trained is None else {"training": trained.to_dict()}))
    else:
        _print(done, data, bars, groups)
        if trained is not None and served is not None:
            print_training(trained)
            print_serving_report(served)
    print_header(())
    if check:
        _check(done.bars)


def _check(bars: Iterable[AnyMapping]) -> None:
    from dysharp.base.text import cell

    if missed := ", ".join(f"{bar['name']} {cell(bar['value'])} (bar {cell(bar['bar'])})" for bar in bars if not bar["holds"]):
        raise SimulationError(f"validate: found {missed}, expected every bar to hold")


def _runs_in(data: str) -> str:
    """What a file holds: "training" or "serving" runs of whole models, or "" for anything else."""
    from dysharp.measured.formats import rows_text
    from dysharp.measured.serving.setting import ServingRow
    from dysharp.measured.training.setting import TrainingRow

    text = rows_text(data)
    return "training" if TrainingRow.columns.fit(text) else "serving" if ServingRow.columns.fit(text) else ""


def _validate_runs(of: str, data: str, check: bool, as_json: bool) -> None:
    """Print runs of "training" or of "serving" beside predictions. Raises SimulationError with the bars that do not hold, if `check`."""
    from dysharp.api.run_validation import validate_serving, validate_training
    from dysharp.cli.texts.validate_text import print_serving_report, print_training

    training = of == "training"
    done: Any = (validate_training if training else validate_serving)(data)
    show: Any = print_training if training else print_serving_report
    print_answer(done.to_dict()) if as_json else show(done, data)
    print_header(())
    if check:
        _check(done.bars)


def _print(done: Validation, data: str | None, bars: bool, groups: bool) -> None:
    """A user's rows first; then errors per kind of measurement; the maintainers' tables on request."""
    from dysharp.cli.texts.validate_text import print_bars, print_families, print_hold_out, print_more, print_own_rows

    if data is not None:
        print_own_rows(done, data)
    if bars or groups:
        print_bars(done, groups)
    else:
        print_families(done)
        print_more(done, own=data is not None)
    if done.hold_out:
        click.echo()
        print_hold_out(done)
