"""Training runs beside predictions as text: families, then rows one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dysharp.cli.output import print_lines, print_table
from dysharp.cli.texts.validate_text import FAMILIES
from dysharp.text import cells

if TYPE_CHECKING:
    from dysharp.api.training_validation import TrainingReport

MOST_ROWS = 100


def print_training(done: TrainingReport, data: str | None = None) -> None:
    """One line per family; with `data`, the name of a user's file, also its rows."""
    shown = [row | {"words": FAMILIES["training"][row["family"]]} for row in done.families if row["n_rows"]]
    print_lines([f"{data}: training runs of whole models" if data else "training runs of whole models; in no number above", ""])
    headings = ("what", "that is", "rows", "judged", "median\nerror %", "largest\n%")
    print_table(headings, cells(shown, "family", "words", "n_rows", "n", "median_ape:.2f", "max_ape:.2f"), left=2, whole=1)
    if done.groups:
        _print_groups(done)
    if data is None:
        return
    print_lines(["", "rows"])
    rows = cells(done.rows[:MOST_ROWS], "id", "family", "measured:.2f", "predicted:.2f", "unit", "error:+.2f", "note")
    print_table(("id", "what", "measured", "predicted", "unit", "error %", "note"), rows, left=2, text=("unit", "note"))
    more = [f"the first {MOST_ROWS} rows are printed; --json has all"] if len(done.rows) > MOST_ROWS else []
    print_lines(["", *more, "error: predicted over measured, minus 1; a row with a note is not judged"])


def _print_groups(done: TrainingReport) -> None:
    """Step time by group, each with its bar and the unfitted floor."""
    judged = [row | {"held": "yes" if row["holds"] else "NO"} for row in done.groups]
    keys = ("median_ape:.2f", "p90_ape:.2f", "bias:+.2f", "floor_median_ape:.2f", "bar:g")
    print_lines(["", "step time by group; all rows of a model and GPU are one vote"])
    headings = ("group", "rows", "votes", "median\nerror %", "90 % of\nrows", "bias %", "floor's\nmedian %", "bar %", "holds")
    print_table(headings, cells(judged, "group", "n", "votes", *keys, "held"), left=1)
