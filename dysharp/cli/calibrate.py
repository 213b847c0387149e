"""`dysharp calibrate`."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import CalibrateArgs
from dysharp.base.columns import Column, Columns
from dysharp.cli.flags import Json, Out, complete_files, options
from dysharp.runs.arguments import Argument
from dysharp.show.output import console, print_answer, print_columns, print_header, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dysharp.api.calibration import Calibration
    from dysharp.api.learning import Learning
    from dysharp.measured.measurements import Measurement
    from dysharp.measured.predictions import Errors

_OUT = Argument(..., "cluster file to write; --cluster OUT.toml uses it.", "OUT.toml", None, "-o --out")
ALMOST = 1.001  # a fit that ends so near the end of a constant's range wants to go further


@click.command()
@click.argument("measurements", metavar="MEASUREMENTS.csv", shell_complete=complete_files)
@options(CalibrateArgs)
def calibrate(measurements: str, *, out: Annotated[str, _OUT, {"type": Out()}], as_json: Json, **asked: Any) -> None:
    """Fit a cluster file to measurements of your own machine: kernels and collectives, or whole runs of training or serving.

    examples/measure_gpu.py writes MEASUREMENTS.csv; docs/measurements.md lists its columns; `validate --cluster OUT.toml` judges rows with the new
    constants. Constants that the rows do not determine are not fitted; the output says which and why.
    """
    from dysharp.api.calibration import Calibration
    from dysharp.api.calibration import calibrate as fit

    done = fit(measurements, out, **asked, begun=lambda: click.echo("fitting; rows of kernels a second time, with every shape held out", err=True))
    if as_json:
        print_answer(done.to_dict())
    else:
        print_calibration(done) if isinstance(done, Calibration) else print_learning(done)
    print_header(())


def print_learning(done: Learning) -> None:
    """Errors, then costs, then what no row touches."""
    out, errors = console(), [sorted(abs(row[when]) for row in done.rows) for when in ("before", "after")]
    before, after = (f"{median(one):.1f} % (largest {one[-1]:.1f})" for one in errors)
    out.print(f"{len(done.rows)} runs: median error {before} before, {after} after", markup=False)
    print_columns(COSTS, done.costs)
    for title, names in (("no row touches", done.untouched), ("contradict the others", [row["id"] for row in done.rows if row["contradicts"]])):
        if names:
            out.print(f"{title}: {', '.join(names)}", markup=False)
    if done.skipped:
        out.print("\nrows not used", markup=False)
        print_table(("id", "why"), [(row["id"], row["reason"]) for row in done.skipped], text=("why",))
    click.echo(f"\nwritten: {done.path} (cluster {done.cluster}); use it with --cluster {done.path}")


def print_calibration(done: Calibration) -> None:
    """Errors before and after, constants, refusals."""

    fit, out = done.fit, console()
    out.print("error, median / 90th percentile, % of the measured value", markup=False)
    print_columns(FAMILIES, fit.errors)
    out.print("\nfitted", markup=False)
    print_columns(CONSTANTS, done.constants)
    out.print("\nnot fitted", markup=False)
    reasons: dict[str, list[str]] = {}
    for constant, why in fit.refused.items():
        reasons.setdefault(why, []).append(constant)
    print_table(("why", "constants"), [(why, ", ".join(names)) for why, names in reasons.items()], left=2)
    if fit.skipped:
        out.print("\nrows not used", markup=False)
        print_table(("why", "rows", "the first"), _skipped(fit.skipped), text=("the first",))
    click.echo(f"\nwritten: {done.path} (cluster {done.name}); use it with --cluster {done.path}")


def _skipped(skipped: Sequence[tuple[Measurement, str]]) -> list[tuple[str, ...]]:
    """By reason: how many measurements, and the first ones with their kinds."""
    by: dict[str, list[Measurement]] = {}
    for measurement, reason in skipped:
        by.setdefault(reason, []).append(measurement)
    named = {why: ", ".join(f"{m.id} ({m.kind})" for m in group[:3]) for why, group in by.items()}
    return [(why, str(len(group)), named[why] + " ..." * (len(group) > 3)) for why, group in by.items()]


def _end(row: Mapping[str, Any]) -> str:
    from dysharp.specs.fitted import fitted

    known = fitted()[row["name"]]
    return "end of its range" if min(row["after"] / known.low, known.high / row["after"]) < ALMOST else ""


def _errors(e: Errors | None) -> str:
    return "-" if e is None else f"{e.median_ape:.1f} / {e.p90_ape:.1f}"


COSTS = Columns(
    "cost=name", "before:.4g", "here=after:.4g", Column("prior", "prior\n+- %", ".0f"), Column("now", "now\n+- %", ".0f"),
    Column("rows", "moved most by", of=lambda row: ", ".join(row["rows"])), "meaning",
)  # fmt: skip
CONSTANTS = Columns(
    "constant=name", "packaged=before:.4g", "here=after:.4g", Column("change", "change %", "+.0%", lambda row: row["after"] / row["before"] - 1),
    Column("note", of=_end),
)  # fmt: skip
FAMILIES = Columns(
    "family", Column("rows", of=lambda row: row.before.n, number=True), "shapes:", Column("before", of=lambda row: _errors(row.before), number=True),
    Column("after", of=lambda row: _errors(row.after), number=True),
    Column("held_out", "held out", of=lambda row: _errors(row.held_out), number=True),
)  # fmt: skip
"""Rows: `Improvement`."""
