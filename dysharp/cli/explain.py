"""`dysharp explain`."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import ExplainArgs
from dysharp.base import KEPT, Column, Columns, ConfigError, Texts
from dysharp.cli.flags import Json, Out, complete_files, options
from dysharp.cli.report import ReportFile, command_line, write_page
from dysharp.cli.schema import schema_flag
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.explaining import Difference, Explanation

OPERATORS = Columns(
    Column("operator"), Column("library", place=KEPT), Column("kernels", format=",.0f", number=True), Column("us", "took", ",.0f", unit="us"),
    Column("timed", "judged %", ".0%", lambda one: one.timed / one.us if one.expected else None),
    Column("expected", "should take", ",.0f", unit="us"),
    Column("interval90", "90 %", ",.0f", lambda one: [one.low, one.high] if one.low else None, "us"),
    Column("floor", format=",.0f", of=lambda one: one.floor or None, unit="us"), Column("beside", "beside others %", ".0%"),
    Column("wait", format=",.0f", unit="us"),
)  # fmt: skip
DIFFERENCES = Columns(
    Column("operator", of=lambda row: row[0]), Column("first", format=",.0f", of=lambda row: row[1], unit="us"),
    Column("second", format=",.0f", of=lambda row: row[2], unit="us"),
    Column("difference", format="+,.0f", of=lambda row: row[2] - row[1], unit="us"),
)  # fmt: skip
FEWEST = 0.002
"""Operators with a smaller part of the time are not shown."""
FEWEST_LAYERS = 3
"""Layers are compared where there are more."""


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=complete_files)
@options(ExplainArgs)
@schema_flag
@click.pass_context
def explain(
    ctx: click.Context, /, files: Texts, *, timeline: Annotated[str | None, {"type": Out(".json", ".json.gz")}],
    chakra: Annotated[str | None, {"type": Out(folder=True)}], report: ReportFile, as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Say why a real run takes its time: profiles of torch.profiler (JSON, also gzip).

    FILE is one rank, every rank of a run, or two runs, which are compared. Kernels are recognised by their names; what they should take follows from
    the shapes in the profile, or from --model with --layout (training) or --batch (decode).
    """
    from dysharp.api.explaining import Explanation
    from dysharp.api.explaining import explain as answer

    if not files:
        raise click.UsageError("Missing argument 'FILE...'; torch.profiler.profile(...).export_chrome_trace(FILE) writes one")
    done = answer(*files, **asked)
    if timeline is not None or report is not None or chakra is not None:
        if not isinstance(done, Explanation):
            raise ConfigError("explain: found two runs, expected one run for --timeline, --report and --chakra")
        _write_files(done, timeline, chakra, report, command_line(ctx))
    if as_json:
        print_answer(done.to_dict())
    elif isinstance(done, Explanation):
        _print_explanation(done)
    else:
        _print_difference(done)
    print_header(())


def _write_files(done: Explanation, timeline: str | None, chakra: str | None, report: str | None, command: str) -> None:
    """The trace with both tracks, the step for other simulators, and the page."""
    from dysharp.api.profile_chakra import write_step
    from dysharp.base.files import write_file
    from dysharp.show.explain_report import render_explanation, trace_of

    if timeline is not None:
        text = json.dumps(trace_of(done)).encode()
        write_file(Path(timeline), lambda stream: stream.write(gzip.compress(text, mtime=0) if timeline.endswith(".gz") else text))
    if chakra is not None:
        write_step(done, chakra)
    if report is not None:
        write_page(render_explanation(done, command), report)


def _print_explanation(done: Explanation) -> None:
    """The largest losses, then operators."""
    losses = [f"{number}. {loss.text}" for number, loss in enumerate(done.losses, 1)]
    print_lines([*(losses or ["no loss found: no launch is late, and no operator that is judged takes longer than it should"]), "", _run(done)])
    every = sum(one.us for one in done.operators)
    print_columns(OPERATORS, [one for one in done.operators if one.us >= FEWEST * every])
    print_lines(_notes(done))


def _run(done: Explanation) -> str:
    """What was run, in a line."""
    hidden = f"; exchanges {done.exchange_us:,.0f} us, {done.hidden_us / done.exchange_us:.0%} beside computing" if done.exchange_us else ""
    ranks = f"{len(done.files)} of {done.ranks} ranks, " * (done.ranks > 1) + f"{done.steps} steps, " * (done.steps > 1)
    idle = f"idle {done.idle_us / done.span_us:.0%}{hidden}; {done.recognised:.1%} of the time recognised"
    return f"{done.gpu or 'GPU without a name'} as {done.cluster}, {ranks}{done.span_us:,.0f} us, {done.passes}; {idle}"


def _notes(done: Explanation) -> list[str]:
    wrong = [f"{one.operator} ({one.below_floor})" for one in done.operators if one.below_floor]
    notes = [f"{name}: {us:,.0f} us" for name, us in done.what_if]
    notes += [f"faster than their floor, so of another shape or from a cache: {', '.join(wrong)}"] if wrong else []
    if len(done.layer_us) > FEWEST_LAYERS:
        own = done.layer_us[:-1]  # what comes behind the last one is not a layer's
        worst, usual = max(own, key=lambda one: one["whole"]), statistics.median(one["whole"] for one in own)
        more = {name: us - statistics.median(one.get(name, 0.0) for one in own) for name, us in worst.items() if name != "whole"}
        why = max(more, key=lambda name: more[name])
        place = f"number {own.index(worst) + 1} of {len(done.layer_us)}"
        notes += [f"a layer takes {usual:,.0f} us; the longest, {place}, {worst['whole']:,.0f}: {why} {more[why]:+,.0f}"] * bool(round(more[why]))
    return [*notes, *done.remarks]


def _print_difference(done: Difference) -> None:
    """The answer, both runs, and operators."""
    both = ("first", done.first), ("second", done.second)
    print_lines([done.line, *(f"{word}: {text}" for word, run in both for text in (_run(run), *_notes(run))), ""])
    print_columns(DIFFERENCES, [row for row in done.rows if max(row[1:]) >= FEWEST * done.first.span_us])
