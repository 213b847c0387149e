"""`dysharp validate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dysharp.cli.flags import json_flag
from dysharp.errors import ConfigError, SimulationError

if TYPE_CHECKING:
    from dysharp.measured.validation import Validation


def _cores() -> int:
    return min(os.cpu_count() or 1, 256)


@click.command()
@click.option("--data", metavar="CSV", help="Measurements to use in place of the packaged ones (docs/measurements.md).")
@click.option("--check", is_flag=True, help="Exit code 1 if a bar does not hold.")
@click.option("--hold-out", multiple=True, metavar="shape|gpu", help="Also refit with whole shapes or whole GPUs held out; repeatable.")
@click.option("--groups", is_flag=True, help="Print every group, the worst rows, constants and every row without a prediction too.")
@click.option("--constants", metavar="FILE", help="Judge constants of your own, as --refit writes them (TOML), not the packaged ones.")
@click.option("--cluster", metavar="FILE", help="Judge a cluster file as calibrate writes it: its constants, on the rows of its GPU.")
@click.option("--plot", metavar="FILE", help="Also draw predicted against measured into FILE (.svg or .png).")
@click.option("--page", metavar="FILE", help="Also write the full report as Markdown, and its plot to figures/ beside it.")
@click.option("--refit", metavar="FILE", help="Fit the constants to the measurements first and write them to FILE (TOML).")
@click.option("--summary", metavar="FILE", help="Also write the errors per family and GPU, as in the packaged validated.toml (TOML).")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=_cores, show_default="all cores", help="Processes that run Programs.")
@json_flag
def validate(
    data: str | None,
    check: bool,
    hold_out: tuple[str, ...],
    groups: bool,
    constants: str | None,
    cluster: str | None,
    plot: str | None,
    page: str | None,
    refit: str | None,
    summary: str | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Compare predictions with public measurements: errors per family, large ones included.

    The measurements are the packaged ones, or those of --data. Systems are predicted by running their Programs, which takes minutes;
    NCCL and GEMMs by rate forms.
    """
    from dysharp.api.validation import refit as refit_constants
    from dysharp.api.validation import validate as validate_data
    from dysharp.cli.output import print_json
    from dysharp.cli.progress import progress_bar
    from dysharp.files import check_destination, write_text

    if plot is not None:
        from dysharp.reports.plots import check_format

        check_format(plot)
    for written in filter(None, (refit, summary, page)):  # before minutes of work, not after
        check_destination(written)
    if refit is not None and (constants or cluster):
        raise ConfigError("validate: found --refit beside --constants or --cluster, expected one: --refit fits new constants")
    with progress_bar("rows") as progress:
        fitted = refit_constants(data, refit, jobs=jobs, progress=progress) if refit is not None else constants
        done = validate_data(data, hold_out=hold_out, constants=fitted, cluster=cluster, jobs=jobs, progress=progress)
    if plot is not None:
        from dysharp.reports.plots import save_figure
        from dysharp.reports.validation import plot_validation

        save_figure(plot_validation(done.points), plot)
    if summary is not None:
        write_text(Path(summary), done.summary)
    if page is not None:
        from dysharp.reports.validation import write_page

        write_page(done, page)
    print_json(done.to_dict()) if as_json else print_validation(done, groups)
    if check and not done.holds:
        missed = ", ".join(f"{bar['name']} {_cell(bar['value'])} (bar {_cell(bar['bar'])})" for bar in done.bars if not bar["holds"])
        raise SimulationError(f"validate: found {missed}, expected every bar to hold")


def print_validation(done: Validation, groups: bool) -> None:
    """Families, bars, hold-out, why rows have no prediction; with `groups` the rest too."""
    from dysharp.measured.validation import by_reason

    _print(done.families, ("family", "by", "n", "n_rows", "coverage", "median_ape", "p90_ape", "mape", "bias"))
    micro = done.overall
    if micro["n"]:
        click.echo(f"all {micro['n']} rows with a prediction: median {micro['median_ape']:.1f} %, 90th percentile {micro['p90_ape']:.1f} %\n")
    _print(done.bars, ("name", "value", "bar", "holds"))
    if done.parts:
        click.echo("whole layers by part: host where its launches take more than half of the time, else device")
        _print(done.parts, PART_KEYS)
    if done.apart:
        click.echo("judged apart: predicted, but in no mean, bar or fit")
        _print(done.apart, APART_KEYS)
    if done.forms:
        _print(done.forms, FORM_KEYS)
    if done.hold_out:
        _print(done.hold_out, ("by", "family", "n", "groups", "fit", "held_out", "ratio"))
        _print(done.borrowed, BORROWED_KEYS)
    if done.beyond:
        click.echo("beyond the bars: in no mean, coverage or bar")
        _print([row for row in done.beyond if groups or row["system"] == "all"], BEYOND_KEYS if groups else BEYOND_KEYS[:2] + BEYOND_KEYS[4:])
    reasons = by_reason(done.unsupported)
    if reasons:
        counted = sum(row["counted"] for row in reasons)
        click.echo(f"{sum(row['n'] for row in reasons)} rows without a prediction; {counted} count against coverage")
    if reasons and not groups:
        _print([row | {"kinds": _few(row["kinds"]), "ids": _few(row["ids"])} for row in reasons], ("reason", "n", "kinds", "ids"))
    if groups:
        _print([row | {"ids": _few(row["ids"])} for row in done.unsupported], ("family", "kind", "system", "hardware", "n", "reason", "ids"))
        _print(done.groups, ("family", "kind", "system", "hardware", "regime", "n", "median_ape", "p90_ape", "bias"))
        _print(done.regimes, REGIME_KEYS)
        _print(done.sizes, ("family", "from_us", "to_us", "n", "median_ape", "p90_ape", "bias"))
        _print(done.worst, ("id", "hardware", "measured", "predicted", "unit", "error"))
        _print(done.fitted_constants, ("name", "value", "unit", "seen_by", "meaning"))
        _print(done.counted_numbers, COUNTED_KEYS)
    click.echo("errors in percent of the measured value; median_ape and p90_ape of the absolute error, bias: median of the signed one")


PART_KEYS = ("family", "part", "n", "median_ape", "p90_ape", "bias")
APART_KEYS = ("family", "group", "n", "median_ape", "p90_ape", "bias")
BORROWED_KEYS = ("by", "held_out", "constant", "from")
COUNTED_KEYS = ("module", "name", "count", "text")
REGIME_KEYS = ("family", "regime", "predicted_as", "n", "median_ape", "p90_ape", "bias")
BEYOND_KEYS = ("family", "by", "system", "hardware", "n", "n_rows", "median_ape", "p90_ape", "bias")
FORM_KEYS = ("family", "n", "closed_over_program", "p90_apart", "closed_median_ape", "closed_p90_ape")
_LEFT = (
    *("meaning", "family", "kind", "system", "hardware", "name", "id", "reason", "by", "unit", "kinds", "ids"),
    *("group", "part", "regime", "predicted_as", "module", "text", "constant", "from"),
)


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _print(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    from rich.table import Table

    from dysharp.cli.output import console

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for key in keys:
        table.add_column(key, justify="left" if key in _LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in keys))
    console().print(table)
    click.echo()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
