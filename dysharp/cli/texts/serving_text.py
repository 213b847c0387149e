"""Serving runs beside predictions as text: families, groups, then rows one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dysharp.cli.output import print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.serving_validation import ServingReport

MOST_ROWS = 100


def print_serving_report(done: ServingReport, data: str | None = None) -> None:
    """One line per family, the layouts, and with `data`, the name of a user's file, groups and rows."""
    cells = [
        (row["family"], str(row["n_rows"]), str(row["n"]), _percent(row["median_ape"]), _percent(row["p90_ape"]), _percent(row["bias"], "+"))
        for row in done.families
        if row["n_rows"]
    ]
    print_lines([f"{data}: serving runs" if data else "serving runs; in no number above", ""])
    print_table(("what", "rows", "predicted", "median\nerror %", "90 % of\nerrors below", "bias\n%"), cells)
    if done.layouts.get("groups"):
        found = done.layouts
        parts = f"of fronts {found['fronts_right']} of {found['fronts']}, with EP beside TP {found['ep_right']} of {found['ep_groups']}"
        line = f"fastest layout: right or within 5 % in {found['right']} of {found['groups']} groups ({found['share']:.0f} %); {parts}"
        print_lines(["", line])
    if data is None:
        return
    print_lines(["", "TPOT by group"])
    groups = [
        (
            row["model"].split("/")[-1],
            row["hardware"],
            row["engine"],
            row["mode"],
            str(row["n"]),
            _percent(row["median_ape"]),
            _percent(row["bias"], "+"),
        )
        for row in done.groups
    ]
    print_table(("model", "hardware", "engine", "mode", "n", "median\nerror %", "bias\n%"), groups, left=4)
    print_lines(["", "rows, ms"])
    rows = [
        (row["id"], _ms(row["measured_tpot_ms"]), _ms(row["tpot_ms"]), _percent(row["tpot_error"], "+"), _ms(row["measured_ttft_ms"]),
         _ms(row["ttft_ms"]), _percent(row["ttft_error"], "+"), row["note"])
        for row in done.rows[:MOST_ROWS]
    ]  # fmt: skip
    print_table(("id", "TPOT", "predicted", "error %", "TTFT", "predicted", "error %", "note"), rows, text=("note",))
    more = [f"the first {MOST_ROWS} rows are printed; --json has all"] if len(done.rows) > MOST_ROWS else []
    print_lines(["", *more, "error: predicted over measured, minus 1"])


def _percent(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
