"""`dysharp validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.cli.flags import json_flag
from dysharp.errors import SimulationError

if TYPE_CHECKING:
    from dysharp.analysis.validation import Validation


@click.command()
@click.option("--data", metavar="CSV", help="Measurements; columns id, kind, system, hardware, config_json, metric, value, unit, source.")
@click.option("--check", is_flag=True, help="Exit code 1 if a bar does not hold.")
@click.option("--hold-out", multiple=True, metavar="shape|gpu", help="Also refit with whole shapes or whole GPUs held out; repeatable.")
@click.option("--groups", is_flag=True, help="Print every group, the worst rows and the unsupported rows too.")
@click.option("--plot", metavar="FILE", help="Also draw predicted against measured into FILE (.svg or .png).")
@click.option("--page", metavar="FILE", help="Also write the full report as Markdown.")
@click.option("--refit", metavar="FILE", help="Fit the constants to the data first and write them to FILE (TOML).")
@click.option("--summary", metavar="FILE", help="Also write the errors per family and GPU that error bars rest on (TOML); takes minutes.")
@json_flag
def validate(
    data: str | None,
    check: bool,
    hold_out: tuple[str, ...],
    groups: bool,
    plot: str | None,
    page: str | None,
    refit: str | None,
    summary: str | None,
    as_json: bool,
) -> None:
    """Compare predictions with public measurements: errors per family, also where they are bad."""
    from dysharp.api.validation import refit as refit_constants
    from dysharp.api.validation import validate as validate_data
    from dysharp.cli.output import print_json

    if plot is not None:
        from dysharp.reports.plots import check_format

        check_format(plot)
    constants = refit_constants(data, refit) if refit is not None and data is not None else None
    done = validate_data(data, hold_out=hold_out, constants=constants)
    if plot is not None:
        from dysharp.reports.plots import save_figure
        from dysharp.reports.validation import plot_validation

        save_figure(plot_validation(done.points), plot)
    if summary is not None and data is not None:
        from dysharp.api.validation import write_summary
        from dysharp.cli.progress import progress_bar

        with progress_bar("rows") as progress:
            write_summary(data, summary, done.hold_out, constants, progress)
    if page is not None:
        from dysharp.reports.validation import write_page

        write_page(done, page)
    print_json(done.to_dict()) if as_json else print_validation(done, groups)
    if check and not done.holds:
        missed = ", ".join(f"{bar['name']} {_cell(bar['value'])} (bar {_cell(bar['bar'])})" for bar in done.bars if not bar["holds"])
        raise SimulationError(f"validate: found {missed}, expected every bar to hold")


def print_validation(done: Validation, groups: bool) -> None:
    """Families, bars, hold-out; with `groups` the rest too."""
    _print(done.families, ("family", "n", "n_rows", "coverage", "median_ape", "p90_ape", "mape", "bias"))
    _print(done.bars, ("name", "value", "bar", "holds"))
    if done.hold_out:
        _print(done.hold_out, ("by", "family", "n", "groups", "fit", "held_out", "ratio"))
    if groups:
        _print(done.groups, ("family", "kind", "system", "hardware", "n", "median_ape", "p90_ape", "bias"))
        _print(done.sizes, ("family", "from_us", "to_us", "n", "median_ape", "p90_ape", "bias"))
        _print(done.worst, ("id", "hardware", "measured", "predicted", "unit", "error"))
        _print([row for row in done.unsupported if row["family"]], ("family", "kind", "system", "hardware", "n", "reason"))
    click.echo("errors in percent of the measured value; median_ape and p90_ape of the absolute error, bias: median of the signed one")


_LEFT = ("family", "kind", "system", "hardware", "name", "id", "reason", "by", "unit")


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
