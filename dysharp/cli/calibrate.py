"""`dysharp calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import CalibrateArgs
from dysharp.cli.flags import Json, Out, complete_files, options
from dysharp.runs.arguments import Argument
from dysharp.show.output import console, print_answer, print_header, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dysharp.api.calibration import Calibration
    from dysharp.measured.cluster_fit import Improvement
    from dysharp.measured.measurements import Measurement

_OUT = Argument(..., "cluster file to write; --cluster OUT.toml uses it.", "OUT.toml", None, "-o --out")
ALMOST = 1.001  # a fit that ends so near the end of a constant's range wants to go further


@click.command()
@click.argument("measurements", metavar="MEASUREMENTS.csv", shell_complete=complete_files)
@options(CalibrateArgs)
def calibrate(measurements: str, *, out: Annotated[str, _OUT, {"type": Out()}], as_json: Json, **asked: Any) -> None:
    """Fit a cluster file to measurements of your own machine.

    examples/measure_gpu.py writes MEASUREMENTS.csv; docs/measurements.md lists its columns; `validate --cluster OUT.toml` judges rows with the new
    constants. Constants that the rows do not determine are not fitted; the output says which and why.
    """
    from dysharp.api.calibration import calibrate as fit

    done = fit(measurements, out, **asked, begun=lambda: click.echo("fitting, and fitting again with every shape held out", err=True))
    print_answer(done.to_dict()) if as_json else print_calibration(done)
    print_header(())


def print_calibration(done: Calibration) -> None:
    """Errors before and after, constants, refusals."""

    fit, out = done.fit, console()
    out.print("error, median / 90th percentile, % of the measured value", markup=False)
    print_table(("family", "rows", "shapes", "before", "after", "held out"), [_row(row) for row in fit.errors])
    out.print("\nfitted", markup=False)
    cells = [_constant(name, fit.before[name], value) for name, value in fit.fitted.items()]
    print_table(("constant", "packaged", "here", "change %", "note"), cells, text=("note",))
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


def _constant(name: str, before: float, after: float) -> tuple[str, ...]:
    from dysharp.specs.fitted import fitted

    known = fitted()[name]
    ends = "end of its range" if min(after / known.low, known.high / after) < ALMOST else ""
    return name, f"{before:.4g}", f"{after:.4g}", f"{100 * (after / before - 1):+.0f}", ends


def _row(row: Improvement) -> tuple[str, ...]:
    errors = [row.before, row.after, row.held_out]
    shown = ("-" if e is None else f"{e.median_ape:.1f} / {e.p90_ape:.1f}" for e in errors)
    return (row.family, str(row.before.n), str(row.shapes), *shown)
