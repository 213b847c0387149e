"""`dysharp calibrate`."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import CalibrateArgs
from dysharp.base import AnyMapping, Column, Columns, ConfigError, Texts, by_key
from dysharp.cli.flags import Json, Out, complete_files, options
from dysharp.show.output import print_answer, print_columns, print_header, print_lines, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dysharp.api.asking import Answer
    from dysharp.api.calibration import Calibration
    from dysharp.api.learning import Learning
    from dysharp.measured.predictions import Errors

ANSWERS = {"step": ("step_us",), "plan": ("tokens_per_s_gpu",), "serve": ("tokens_per_s_gpu",), "advise": ("time_us",)}
"""Verb -> the number that its answer is about: the first of these keys in its JSON."""
ALMOST = 1.001  # a fit that ends so near the end of a constant's range wants to go further


@click.command()
@click.argument("files", metavar="FILES...", nargs=-1, shell_complete=complete_files)
@options(CalibrateArgs)
def calibrate(
    files: Texts, *, out: Annotated[str | None, {"type": Out()}], question: str | None, n: int, among: str | None, diff: bool, as_json: Json,
    **asked: Any,
) -> None:  # fmt: skip
    """Fit a cluster file to measurements of your own machine: kernels and collectives, or whole runs of training or serving.

    `dysharp measure` writes a file of rows; docs/measurements.md lists its columns, and the logs that are read as they are. `validate --cluster
    OUT.toml` judges rows with the new constants. Constants that the rows do not determine are not fitted; the output says which and why.
    """
    from dysharp.api.calibration import Calibration
    from dysharp.api.calibration import calibrate as fit

    if (diff and (out or among)) or (out if question else among):
        raise ConfigError(f"calibrate: found {'--among' if among else '-o'}, expected -o to write a file, --among for --next alone")
    verb, answer = _question(question) if question else ("", None)
    if diff:
        return _print_diff(files, answer, as_json)
    if answer:
        return _print_next(files, verb, answer, n, among, as_json, asked)
    if not files or out is None:
        raise ConfigError(f"calibrate: found {'no -o' if files else 'no file'}, expected FILES... -o OUT.toml, --next or --diff")
    done = fit(files, out, **asked, begun=lambda: click.echo("fitting; rows of kernels a second time, with every shape held out", err=True))
    if as_json:
        print_answer(done.to_dict())
    else:
        _print_calibration(done) if isinstance(done, Calibration) else _print_learning(done)
    print_header(())


def _question(line: str) -> tuple[str, Answer]:
    """The verb of a command line, and its answer on a machine."""
    from dysharp.specs.fitted import KERNELS

    every: Any = click.get_current_context().find_root().command
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"--next: found {line[:60]!r} ({error}), expected a command line") from None
    words = words[1:] if words[:1] == ["dysharp"] else words
    if not words or words[0] not in ANSWERS:
        raise ConfigError(f"--next: found {line[:60]!r}, expected a command line of {', '.join(ANSWERS)}")
    if other := next((word for word in words if word.startswith(("--cluster", "--help", "-h"))), ""):
        raise ConfigError(f"--next: found {other} in the question, expected a question about the machine of --base")

    def answer(machine: str) -> tuple[float, Texts]:
        with tempfile.TemporaryDirectory() as folder:
            path, said = Path(folder) / "asked.toml", io.StringIO()
            path.write_text(machine)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                every.main([*words, "--cluster", str(path), "--json"], prog_name="dysharp", standalone_mode=False)
        found = json.loads(said.getvalue())
        kinds = found["formats"]["weights"] if words[0] == "serve" else {}
        return _number(found, ANSWERS[words[0]]), tuple(f"{KERNELS}{found['model']} {kinds[part]}" for part in ("experts", "dense") if part in kinds)

    return words[0], answer


def _number(found: Any, keys: Sequence[str]) -> float:
    """The number under the first of `keys`, nearest to the top."""
    level: list[Any] = [found]
    while level:
        for one in level:
            for key in keys:
                if isinstance(one, dict) and isinstance(one.get(key), int | float) and one[key] > 0:
                    return float(one[key])
        level = [inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)]
    raise ConfigError(f"--next: found no {keys[0]} in the answer, expected one")


def _print_next(files: Sequence[str], verb: str, answer: Answer, n: int, among: str | None, as_json: bool, asked: AnyMapping) -> None:
    """Measurements in order of what they tell."""
    from dysharp.api.asking import next_measurements
    from dysharp.api.calibration import rows_of_files
    from dysharp.specs import load_cluster

    base, said = asked["base"], asked["said"]
    rows, could = rows_of_files(files, base, said), rows_of_files(among or (), base, said)
    done = next_measurements(answer, verb, load_cluster(base), n, rows, could)
    if as_json:
        return print_answer(done)
    parts = ", ".join(f"{one['meaning']} +-{one['percent']:.1f} %" for one in done["costs"][:4])
    value = done["answer"]
    what = f"{ANSWERS[verb][0]} = {f'{value:,.0f}' if value >= 1000 else f'{value:.4g}'}"
    print_lines([f"{what} +-{done['uncertainty']:.1f} %, by what is known of {base}: {parts}"])
    print_columns(NEXT, done["measurements"])


def _print_diff(files: Sequence[str], answer: Answer | None, as_json: bool) -> None:
    """Costs of two cluster files side by side."""
    from dysharp.api.asking import differences
    from dysharp.specs import load_cluster

    if len(files) != 2:
        raise ConfigError(f"--diff: found {len(files)} files, expected two cluster files")
    rows, (one, other) = differences(files[0], files[1], answer), (load_cluster(file).gpu for file in files)
    if as_json:
        return print_answer(rows)
    print_columns(DIFFERENCES, rows) if rows else print_lines(["no cost differs"])
    print_lines([f"the GPUs differ, too, whose data sheets are no costs: {one} and {other}"] * (one != other))


def _print_learning(done: Learning) -> None:
    """Errors, then costs, then what no row touches."""
    errors = [sorted(abs(row[when]) for row in done.rows) for when in ("before", "after")]
    before, after = (f"{median(one):.1f} % (largest {one[-1]:.1f})" for one in errors)
    print_lines([f"{len(done.rows)} row{'s' * (len(done.rows) != 1)}: median error {before} before, {after} after"])
    print_columns(COSTS, done.costs)
    far = [row["id"] for row in done.rows if row["contradicts"]]
    told = ("no row touches", done.untouched), ("contradict the others or what is known", far)
    print_lines(f"{title}: {', '.join(names)}" for title, names in told if names)
    _print_skipped([(row["id"], row["reason"]) for row in done.skipped])
    click.echo(f"\nwritten: {done.path} (cluster {done.cluster}); use it with --cluster {done.path}")


def _print_calibration(done: Calibration) -> None:
    """Errors before and after, constants, refusals."""
    fit = done.fit
    print_lines(["error, median / 90th percentile, % of the measured value"])
    print_columns(FAMILIES, fit.errors)
    print_lines(["", "fitted"])
    print_columns(CONSTANTS, done.constants)
    print_lines(["", "not fitted"])
    reasons = by_key((why, constant) for constant, why in fit.refused.items())
    print_table(("why", "constants"), [(why, ", ".join(names)) for why, names in reasons.items()], left=2)
    _print_skipped([(f"{m.id} ({m.kind})", why) for m, why in fit.skipped])
    click.echo(f"\nwritten: {done.path} (cluster {done.name}); use it with --cluster {done.path}")


def _print_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Rows by the reason for which they are not used: how many, and the first ones."""
    if skipped:
        print_lines(["", "rows not used"])
        by = by_key((reason, name) for name, reason in skipped)
        rows = [(why, str(len(names)), ", ".join(names[:3]) + " ..." * (len(names) > 3)) for why, names in by.items()]
        print_table(("why", "rows", "the first"), rows, text=("the first",))


def _percent(value: float | None, form: str = ".0f") -> str:
    return "-" if value is None else format(value, form)


def _end(row: AnyMapping) -> str:
    from dysharp.specs.fitted import fitted

    known = fitted()[row["name"]]
    return "end of its range" if min(row["after"] / known.low, known.high / row["after"]) < ALMOST else ""


def _errors(e: Errors | None) -> str:
    return "-" if e is None else f"{e.median_ape:.1f} / {e.p90_ape:.1f}"


NEXT = Columns(
    "measurement=name", Column("minutes", of=lambda row: str(row["minutes"] or "-"), number=True), Column("after", "answer then\n+- %", ".1f"),
    Column("command", of=lambda row: row["command"] or "-"),
)  # fmt: skip
DIFFERENCES = Columns(
    "cost=name", "first:.4g", Column("first_percent", "+- %", of=lambda row: _percent(row["first_percent"]), number=True), "second:.4g",
    Column("second_percent", "+- %", of=lambda row: _percent(row["second_percent"]), number=True), Column("change", "change %", "+.1f"),
    Column("effect", "in the\nanswer %", of=lambda row: _percent(row["effect"], "+.1f"), number=True), "meaning",
)  # fmt: skip
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
