"""Serving runs beside predictions as text: families, groups, then rows one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dysharp.cli.output import print_lines, print_table
from dysharp.text import cells

if TYPE_CHECKING:
    from dysharp.api.serving_validation import ServingReport

MOST_ROWS = 100


def print_serving_report(done: ServingReport, data: str | None = None) -> None:
    """One line per family, the layouts, and with `data`, the name of a user's file, groups and rows."""
    shown = cells((row for row in done.families if row["n_rows"]), "family", "n_rows", "n", "median_ape:.1f", "p90_ape:.1f", "bias:+.1f")
    print_lines([f"{data}: serving runs" if data else "serving runs; in no number above", ""])
    print_table(("what", "rows", "predicted", "median\nerror %", "90 % of\nerrors below", "bias\n%"), shown)
    if done.layouts.get("groups"):
        found = done.layouts
        parts = f"of fronts {found['fronts_right']} of {found['fronts']}, with EP beside TP {found['ep_right']} of {found['ep_groups']}"
        line = f"fastest layout: right or within 5 % in {found['right']} of {found['groups']} groups ({found['share']:.0f} %); {parts}"
        print_lines(["", line])
    if data is None:
        return
    print_lines(["", "TPOT by group"])
    named = [row | {"model": row["model"].split("/")[-1]} for row in done.groups]
    groups = cells(named, "model", "hardware", "engine", "mode", "n", "median_ape:.1f", "bias:+.1f")
    print_table(("model", "hardware", "engine", "mode", "n", "median\nerror %", "bias\n%"), groups, left=4)
    print_lines(["", "rows, ms"])
    keys = ("measured_tpot_ms:,.1f", "tpot_ms:,.1f", "tpot_error:+.1f", "measured_ttft_ms:,.1f", "ttft_ms:,.1f", "ttft_error:+.1f")
    rows = cells(done.rows[:MOST_ROWS], "id", *keys, "note")
    print_table(("id", "TPOT", "predicted", "error %", "TTFT", "predicted", "error %", "note"), rows, text=("note",))
    more = [f"the first {MOST_ROWS} rows are printed; --json has all"] if len(done.rows) > MOST_ROWS else []
    print_lines(["", *more, "error: predicted over measured, minus 1"])
