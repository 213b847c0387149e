"""A report of `validate` as text: a user's rows, errors per kind of measurement, the maintainers' tables, and runs of training and of serving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from dysharp.base import AnyMapping, ByName, Columns, Tally, read_toml
from dysharp.measured.validation_tables import TABLES
from dysharp.show.output import print_columns, print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.run_validation import ServingReport, TrainingReport
    from dysharp.measured.validation import Validation

FAMILIES: ByName = read_toml(Path(__file__).with_name("families.toml"))
"""What was measured, by family of measurements; "training": by family of training runs. "groups": rows that are left out of the bars, by their note.
"above": the words above a table of `print_bars`."""
OWN = ("id=id", "what=family", "measured=measured:.4g", "predicted=predicted:.4g", "unit=unit")
ERRORS = ("median\nerror %=median_ape:.1f", "nine of ten\nwithin %=p90_ape:.1f")
MOST_ROWS = 100
MOST_REASONS = 3


def print_own_rows(done: Validation, data: str) -> None:
    """The rows with a prediction, then the rows without and why, then what the columns mean."""
    told = [row for row in done.rows if row["error"] is not None]
    doubted = [row for row in told if row["doubt"]]
    verdict = f" {len(doubted)} do not fit the library that they name." if doubted else ""
    print_lines([f"{data}: {len(told)} of {len(done.rows)} rows are predicted{_errors(told)}.{verdict}", ""])
    notes = ["note=note"] * any(row["note"] for row in told)
    print_columns(Columns(*OWN, "nine of ten=interval90:.4g", "error %=error:+.1f", *notes), told[:MOST_ROWS])
    if doubted:
        print_lines(["", "rows that another library fits far better: did the framework run the dispatcher that you named?"])
        print_columns(Columns("id=id", "named=system", "measured=measured:.4g", "predicted=predicted:.4g", "fits=doubt"), doubted[:MOST_ROWS])
    rest = [row for row in done.rows if row["error"] is None]
    if rest:
        print_lines(["", "rows without a prediction"])
        print_columns(Columns("id=id", "why=note"), rest[:MOST_ROWS])
    more = max(len(told), len(rest)) > MOST_ROWS
    print_lines(
        [
            "",
            *([f"the first {MOST_ROWS} rows of a kind are printed; --json has all"] if more else []),
            "what: the kind of measurement; the list below explains each kind",
            "error: predicted over measured, minus 1",
            *(f"{group}: {text}; the error is in no mean" for group, text in FAMILIES["groups"].items() if any(row["note"] == group for row in told)),
            "nine of ten: nine of ten measurements of such a prediction lie there, if nobody fitted to them",
            *([f"your own constants: dysharp calibrate {data} -o mine.toml fits them, where the rows determine them"] if told else []),
            "",
        ]
    )


def _errors(told: Sequence[AnyMapping]) -> str:
    """The median error of a user's rows, and how many are outside their interval."""
    judged = [row for row in told if not row["note"]]
    if not judged:
        return ""
    far = sum(not row["interval90"][0] <= row["measured"] <= row["interval90"][1] for row in judged)
    return f"; median error {median(abs(row['error']) for row in judged):.1f} %, {far} outside the interval of nine of ten"


def print_families(done: Validation) -> None:
    """The answer over all packaged kinds; then per kind of measurement how many are predicted, and how well."""
    micro = done.overall
    if done.out_of_sight:
        print_lines(["errors on rows that no fit saw: their GPU, their model or their source left out, or newer than the constants"])
        seen = ("in sight:\nmedian %=seen_median_ape:.1f", "nine of ten\nwithin %=seen_p90_ape:.1f")
        print_columns(Columns("what=what", "rows=n:", *ERRORS, "bar of the\nmedian %=bar:g", "of nine\nof ten %=bar_p90:g", *seen), done.out_of_sight)
    if not done.rows and micro["n"]:
        print_lines(["", f"In sight {micro['n']} public measurements are predicted with a median error of {micro['median_ape']:.1f} %, "
                     f"nine of ten within {micro['p90_ape']:.1f} %.", ""])  # fmt: skip
    beyond = [row for row in done.beyond if row["system"] == "all" and row["n"] and not row["between"]]
    _print_families([*done.families, *beyond])
    lines = ["", "in scope: rows of one NVLink domain, or node without a switch, that a prediction is promised for"]
    lines.append("median error: distance of the prediction from the measured value, in percent of the measured value")
    if beyond:
        lines.append(f"not used for error bars: {', '.join(row['family'] for row in beyond)}")
    print_lines(lines)
    _print_between(done)
    if done.calls:
        print_lines(["", "calls of libraries, host included, by regime"])
        print_columns(Columns("what=what", "regime=regime", "rows=n:", *ERRORS, "bias %=bias:.1f"), done.calls, whole=1)


def _print_families(rows: Sequence[AnyMapping]) -> None:
    named = [{**row, "words": FAMILIES.get(row["family"], "")} for row in rows]
    print_columns(Columns("what=family", "that is=words", "in scope=n_rows:", "predicted=n:", *ERRORS), named, whole=1)


def _print_between(done: Validation) -> None:
    """Families of several NVLink domains: how well their rows are predicted, and which rows are not predicted."""
    rows = [row for row in done.beyond if row["between"] and row["system"] == "all"]
    if not rows:
        return
    print_lines(["", "between NVLink domains (nodes of 8 GPUs with NICs); in no number above"])
    if any(row["n"] for row in rows):
        _print_families([row for row in rows if row["n"]])
    reasons = [(row["family"], reason) for row in rows for reason in row["unpredicted"].split("; ") if reason]
    if reasons:
        print_lines(["", "their rows without a prediction"])
        print_table(("what", "rows and why"), reasons, left=2, text=("rows and why",))
    print_lines([""])


def print_more(done: Validation, *, own: bool) -> None:
    """Why rows have no prediction, in short, and where more is."""
    from dysharp.measured.family import NO_FAMILY

    missing: Tally = {}
    for row in done.unsupported:
        reason = "of a kind that nothing predicts" if row["reason"] == NO_FAMILY else row["reason"]
        missing[reason] = missing.get(reason, 0) + row["n"]
    frequent = sorted(missing, key=lambda reason: -missing[reason])
    lines = []
    if frequent and not own:
        shown = "; ".join(f"{missing[reason]}: {reason}" for reason in frequent[:MOST_REASONS])
        rest = sum(missing[reason] for reason in frequent[MOST_REASONS:])
        lines.append(f"{sum(missing.values())} rows have no prediction. {shown}{f'; {rest}: other reasons' if rest else ''}")
    lines.append("more: --groups (every group, the worst rows, all reasons), --bars (limits that each version of dysharp keeps)")
    if not own:
        lines.append("your own rows: --data FILE.csv")
    print_lines(lines)


def print_bars(done: Validation, groups: bool) -> None:
    """The maintainers' tables: coverage, bars, hold-out, why rows have no prediction; with `groups` the rest too."""
    from dysharp.measured.validation import by_reason

    _print(done, "families")
    micro = done.overall
    if micro["n"]:
        click.echo(f"all {micro['n']} rows with a prediction: median {micro['median_ape']:.1f} %, 90th percentile {micro['p90_ape']:.1f} %\n")
    _print(done, "bars", "fits")
    for name, words in FAMILIES["above"].items():
        if getattr(done, name):
            click.echo(words, nl=bool(words))
            _print(done, name)
    one = [row for row in done.beyond if not row["between"] and (groups or row["system"] == "all")]
    if one:
        click.echo("beyond the bars: in no mean, coverage or bar")
        _print_rows(one, "beyond", *(() if groups else ("system", "hardware")))
    _print_between(done)
    reasons = by_reason(done.unsupported)
    if reasons:
        counted = sum(row["counted"] for row in reasons)
        click.echo(f"{sum(row['n'] for row in reasons)} rows without a prediction; {counted} count against coverage")
    if reasons and not groups:
        _print_rows([row | {"kinds": _few(row["kinds"]), "ids": _few(row["ids"])} for row in reasons], "reasons")
    if groups:
        _print_rows([row | {"ids": _few(row["ids"])} for row in done.unsupported], "absent")
        _print(done, "groups", "regimes", "sizes", "worst", "fitted_constants", "counted_numbers")
    click.echo("errors in percent of the measured value; median_ape and p90_ape of the absolute error, bias: median of the signed one")


def print_hold_out(done: Validation) -> None:
    """Errors with whole shapes or GPUs held out, and constants that a fold does not see."""
    click.echo("held out: errors with constants that were fitted without the group, beside the errors of the fit to all rows")
    _print(done, "hold_out", "borrowed")


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _print(done: Validation, *names: str) -> None:
    for name in names:
        _print_rows(getattr(done, name), name)


def _print_rows(rows: Iterable[AnyMapping], name: str, *without: str) -> None:
    print_columns(TABLES[name].columns.without(*without), rows)
    click.echo()


def print_training(done: TrainingReport, data: str | None = None) -> None:
    """One line per family; with `data`, the name of a user's file, also its rows."""
    shown = [row | {"words": FAMILIES["training"][row["family"]]} for row in done.families if row["n_rows"]]
    print_lines([f"{data}: training runs of whole models" if data else "training runs of whole models; in no number above", ""])
    errors = ("median\nerror %=median_ape:.2f", "largest\n%=max_ape:.2f")
    print_columns(Columns("what=family", "that is=words", "rows=n_rows:", "judged=n:", *errors), shown, whole=1)
    if done.groups:
        _print_groups(done)
    if data is None:
        return
    print_lines(["", "rows"])
    measured = ("measured=measured:.2f", "predicted=predicted:.2f", "unit=unit", "error %=error:+.2f")
    _print_runs(done, Columns("id=id", "what=family", *measured, "note=note"), "; a row with a note is not judged")


def _print_runs(done: TrainingReport | ServingReport, columns: Columns, more: str = "") -> None:
    """A user's rows, and what the last line says of their errors."""
    print_columns(columns, done.rows[:MOST_ROWS])
    few = [f"the first {MOST_ROWS} rows are printed; --json has all"] if len(done.rows) > MOST_ROWS else []
    print_lines(["", *few, f"error: predicted over measured, minus 1{more}"])


def _print_groups(done: TrainingReport) -> None:
    """Step time by group, each with its bar, beside plain rates."""
    judged = [row | {"held": "yes" if row["holds"] else "NO"} for row in done.groups]
    errors = ("median\nerror %=median_ape:.2f", "90 % of\nrows=p90_ape:.2f", "bias %=bias:+.2f", "floor's\nmedian %=floor_median_ape:.2f")
    print_lines(["", "step time by group; all rows of a model and GPU are one vote"])
    print_columns(Columns("group=group", "rows=n:", "votes=votes:", *errors, "bar %=bar:g", "holds=held:"), judged)


def print_serving_report(done: ServingReport, data: str | None = None) -> None:
    """One line per family, the layouts, and with `data`, the name of a user's file, groups and rows."""
    errors = ("median\nerror %=median_ape:.1f", "90 % of\nerrors below=p90_ape:.1f", "bias\n%=bias:+.1f")
    print_lines([f"{data}: serving runs" if data else "serving runs; in no number above", ""])
    print_columns(Columns("what=family", "rows=n_rows:", "predicted=n:", *errors), (row for row in done.families if row["n_rows"]))
    if done.layouts.get("groups"):
        found = done.layouts
        share = f" ({found['share']:.0f} %)" if found["fronts"] else ""
        parts = f"of all groups {found['right']} of {found['groups']}, with EP beside TP {found['ep_right']} of {found['ep_groups']}"
        line = f"fastest layout: right or within 5 % on {found['fronts_right']} of {found['fronts']} fronts{share}; {parts}"
        print_lines(["", line])
    if data is None:
        return
    print_lines(["", "TPOT by group"])
    named = [row | {"model": row["model"].split("/")[-1]} for row in done.groups]
    print_columns(Columns("model=model", "hardware=hardware", "engine=engine", "mode=mode", "n=n:", errors[0], errors[2]), named)
    print_lines(["", "rows, ms"])
    times = [f"{name}=measured_{key}_ms:,.1f;predicted={key}_ms:,.1f;error %={key}_error:+.1f" for name, key in (("TPOT", "tpot"), ("TTFT", "ttft"))]
    _print_runs(done, Columns("id=id", *";".join(times).split(";"), "note=note"))
