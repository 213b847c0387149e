"""`dysharp trace`: a timeline of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.base import ConfigError
from dysharp.cli.flags import ENDINGS, Json, Out, Plot, complete_systems, draw, options
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_answer, print_facts, print_header, print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.timed import Timed


@click.command()
@click.argument("system", shell_complete=complete_systems)
@options(
    RequestArgs, window=None, precision_of_time=None, exact=None, direction={"metavar": "fwd|bwd", "help": "Forward pass or backward pass."},
    fidelity={"metavar": "burst"},
)  # fmt: skip
def trace(
    system: str, *, out: Annotated[str | None, {"type": Out(*ENDINGS)}], plot: Plot, chakra: Annotated[str | None, {"type": Out(folder=True)}],
    parts: int | None, start_us: float, end_us: float | None, only: str | None, follow: str | None, dies: str | None, as_json: Json, **workload: Any,
) -> None:  # fmt: skip
    """Write a timeline of one run of SYSTEM: trains of links, GEMM tiles, ways of tokens.

    Open FILE on https://ui.perfetto.dev (the file stays on your computer) or with trace_processor. Its times are in picoseconds, which viewers call
    nanoseconds: 1 ms on the screen is 1 us simulated.
    """
    from dysharp.api import trace as trace_system
    from dysharp.api.comparison import header_lines
    from dysharp.cli.progress_bar import progress_bar

    if out is None and plot is None and chakra is None and dies is None:
        raise click.UsageError("Missing option '-o', '--plot', '--chakra' or '--dies'")
    if not as_json and out is None and plot is None and chakra is None:
        for flag, value in (("--from", start_us or None), ("--to", end_us), ("--only", only), ("--follow", follow)):
            if value is not None:
                raise ConfigError(f"{flag}: found it with --dies alone, expected a file too (-o, --plot or --chakra)")
    if chakra is None and parts is not None:
        raise ConfigError("--parts: found no --chakra, expected the folder of the Chakra traces")
    kept = () if only is None else _tokens("--only", only)
    followed = None if follow is None else _tokens("--follow", follow)
    with progress_bar() as progress:
        done = trace_system(system, start_us, end_us, kept, followed, dies, progress=progress, **workload)
        if out is not None:
            done.save(out)
        files = done.save_chakra(chakra, parts or 8) if chakra is not None else []
    draw(plot, "timeline.plot_timeline", done.timeline, title=done.words)
    print_header(header_lines([done.row]))
    if as_json:
        print_answer(done.to_dict() | ({"chakra": [str(path) for path in files]} if files else {}))
        return
    print_facts(done.dies)
    if dies is None or out:
        _print(done, out)
    if files:
        megabytes = sum(path.stat().st_size for path in files) / 1e6
        print_lines([f"{files[0]} to {files[-1].name}: {megabytes:.1f} MB of Chakra execution traces, one file per GPU"])


def _tokens(flag: str, text: str) -> Sequence[int]:
    """The tokens of `3,17` or of `0:64` (64 excluded)."""
    first, colon, last = text.partition(":")
    try:
        tokens = range(int(first), int(last)) if colon else tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag}: found {text[:40]!r}, expected tokens such as 3,17 or 0:64") from None
    if not tokens:
        raise ConfigError(f"{flag}: found {text[:40]!r}, which holds no token; expected a first token below the last one")
    return tokens


def _print(done: Timed, out: str | None) -> None:
    """Busy times by group, and what the file holds."""
    from pathlib import Path

    lines = [(group, track, f"{mean:.2f}", f"{most:.2f}") for group, track, mean, most in done.busy()]
    print_lines([f"{done.words}: {done.row.time_us:.2f} us"])
    print_table(("on each GPU", "track", "busy us, mean", "maximum"), lines, left=2)
    line = done.timeline
    size = f"{out}: {Path(out).stat().st_size / 1e6:.1f} MB, " if out else ""
    joined = "; neighbours are joined (--from and --to show them apart)" if line.merged else ""
    followed = f"{len(line.flows)} flows of {len({f.token for f in line.flows})} tokens"
    print_lines([f"{size}{len(line.slices)} slices on {len(line.tracks)} tracks, {followed}, {len(line.counters)} counters{joined}"])
    if out:
        print_lines(["Open the file on https://ui.perfetto.dev; 1 ms on the screen is 1 us simulated"])
