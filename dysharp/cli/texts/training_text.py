"""Training runs beside predictions as text: families, then rows one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dysharp.cli.output import print_lines, print_table
from dysharp.cli.texts.validate_text import FAMILIES

if TYPE_CHECKING:
    from dysharp.api.training_validation import TrainingReport

MOST_ROWS = 100


def print_training(done: TrainingReport, data: str | None = None) -> None:
    """One line per family; with `data`, the name of a user's file, also its rows."""
    shown = [row for row in done.families if row["n_rows"]]
    cells = [
        (row["family"], FAMILIES["training"][row["family"]], str(row["n_rows"]), str(row["n"]), _percent(row["median_ape"]), _percent(row["max_ape"]))
        for row in shown
    ]
    print_lines([f"{data}: training runs of whole models" if data else "training runs of whole models; in no number above", ""])
    print_table(("what", "that is", "rows", "judged", "median\nerror %", "largest\n%"), cells, left=2, whole=1)
    if done.groups:
        _print_groups(done)
    if data is None:
        return
    rows = done.rows[:MOST_ROWS]
    print_lines(["", "rows"])
    print_table(
        ("id", "what", "measured", "predicted", "unit", "error %", "note"),
        [
            (row["id"], row["family"], f"{row['measured']:.2f}", "-" if row["predicted"] is None else f"{row['predicted']:.2f}", row["unit"],
             _percent(row["error"], "+"), row["note"])
            for row in rows
        ],
        left=2, text=("unit", "note"),
    )  # fmt: skip
    more = [f"the first {MOST_ROWS} rows are printed; --json has all"] if len(done.rows) > MOST_ROWS else []
    print_lines(["", *more, "error: predicted over measured, minus 1; a row with a note is not judged"])


def _print_groups(done: TrainingReport) -> None:
    """Step time by group, each with its bar and the unfitted floor."""
    cells = [
        (row["group"], str(row["n"]), str(row["votes"]), _percent(row["median_ape"]), _percent(row["p90_ape"]), _percent(row["bias"], "+"),
         _percent(row["floor_median_ape"]), f"{row['bar']:g}", "yes" if row["holds"] else "NO")
        for row in done.groups
    ]  # fmt: skip
    print_lines(["", "step time by group; all rows of a model and GPU are one vote"])
    print_table(("group", "rows", "votes", "median\nerror %", "90 % of\nrows", "bias %", "floor's\nmedian %", "bar %", "holds"), cells, left=1)


def _percent(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.2f}"
