"""`dysharp network`: latency against load of a switch or a network, flit by flit, and a comparison with recorded curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import NetworkArgs
from dysharp.base import ConfigError
from dysharp.cli.flags import Json, Plot, draw, options, refuse_others
from dysharp.cli.progress_bar import progress_bar
from dysharp.show.output import print_answer, print_columns, print_header, print_lines

if TYPE_CHECKING:
    from dysharp.api.network_curve import CurveComparison, NetworkCurve

PACKAGED = "packaged"
"""The value of --compare without a file."""
WITH_COMPARE = {"compare", "curve", "every", "seeds", "as_json"}


@click.command()
@options(NetworkArgs)
@click.pass_context
def network(
    ctx: click.Context, /, load: str, *, compare: Annotated[str | None, {"type": str, "flag_value": PACKAGED}], every: int, seeds: int, plot: Plot,
    as_json: Json, **asked: Any,
) -> None:  # fmt: skip
    """Measure latency against load of a switch or a network, flit by flit.

    Input-queued routers with virtual channels, credits and allocators (docs/network.md). A latency is the time from the creation of a
    packet to the arrival of its tail. Exit code 1 on a deadlock; the message names the virtual channels that wait for each other.

    \b
    dysharp network --k 32 --packet-flits 9                         a 32-port crossbar
    dysharp network --cluster paper-gh200-nvl32 --saturation        one switch of the paper's machine
    dysharp network --topology fattree --k 4 --n 2 --plot tree.svg
    dysharp network --compare --curve 'fly4x4_*'
    """
    if compare is not None:
        refuse_others("--compare", WITH_COMPARE, "only --curve, --every, --seeds and --json beside --compare")
        ctx.exit(0 if _compare(None if compare == PACKAGED else compare, asked["curve"], every, seeds, as_json) else 1)
    if every != 1 or seeds != 0:
        raise ConfigError("--every, --seeds: found no --compare, expected --compare with them")
    from dysharp.api import network as measure_network

    with progress_bar("periods") as progress:
        done = measure_network(load, progress=progress, **asked)
    draw(plot, "plots.plot_network", [done])
    print_answer(done.to_dict()) if as_json else _print_curve(done)
    print_header(())


def _compare(csv: str | None, curve: str | None, every: int, seeds: int, as_json: bool) -> bool:
    """Print the comparison; True when all bars hold."""
    from dysharp.api.network_curve import compare_network

    with progress_bar("rows") as progress:
        done = compare_network(csv, curve, every=every, seeds=seeds, progress=progress)
    print_answer(done.to_dict()) if as_json else _print_comparison(done)
    print_header(())
    for error in done.errors:
        if not error.holds:
            click.echo(f"dysharp: {error.curve}: error outside the bars", err=True)
    return done.holds


def _print_comparison(done: CurveComparison) -> None:
    from dysharp.engine.flit.curves import MEAN_ERROR, POINT_ERROR, RATE_ERROR, error_table

    n, rows, same = sum(e.holds for e in done.errors), sum(e.n_rows for e in done.errors), sum(e.n_same for e in done.errors)
    click.echo(
        f"{n} of {len(done.errors)} curves within the bars\n"
        f"bars: latency {100 * MEAN_ERROR:g} % in the mean and {100 * POINT_ERROR:g} % at a point, up to 90 % of saturation; "
        f"largest accepted rate {100 * RATE_ERROR:g} %\n"
        f"{same} of {rows} rows are equal to the recorded rows in all digits (rates, packet latency, network latency)\n"
    )
    click.echo(error_table(done.errors))


def _print_curve(done: NetworkCurve) -> None:
    """The answer, one line per load, then the network and the speed of the simulation."""

    c, t, cycle_ps = done.setting.config, done.setting.traffic, done.setting.cycle_ps
    r, lanes = c.router, max(c.router.input_speedup, c.router.output_speedup)
    any_saturated = any(p.saturated for p in done.points)
    print_lines([_answer(done), ""])
    print_columns(done.columns, done.points, fold=False)
    print_lines(
        [
            "",
            *(["saturated: less than 97 % of the load is carried; packet latency grows with the length of the run"] if any_saturated else []),
            "rates: flits per cycle and terminal; latency: from the creation of a packet to the arrival of its tail",
            f"{done.setting.name}: {c.topology} k={c.k} n={c.n}, {c.n_terminals} terminals" + (f"; a cycle is {cycle_ps} ps" if cycle_ps else ""),
            f"router: {r.num_vcs} virtual channels x {r.vc_buf_size} flits, speed-up {r.internal_speedup}, lanes {lanes}, {r.vc_allocator}",
            f"link delays: {c.terminal_delay} to terminals, {c.link_delay} between routers (cycles)",
            f"traffic: {t.pattern}, packets of {t.packet_flits} flits, seed {done.seed}",
            *done.notes,
            f"{done.flits_per_s:,.0f} flits/s simulated",
        ]
    )


def _answer(done: NetworkCurve) -> str:
    """The latency without load and the load that the network carries, in one sentence."""
    first, carried = done.points[0], [p.load for p in done.points if not p.saturated]
    latency = f"Latency at load {first.load:.4g} is {first.packet_latency:.1f} cycles"
    s = done.saturation
    if s is None:
        return f"{latency}. {f'The network carries load {max(carried):.4g}.' if carried else 'The network carries none of the loads.'}"
    edge = "carries every load" if s["saturated_at"] == s["load"] else f"carries load {s['load']:.4g}, does not carry {s['saturated_at']:.4g}"
    return f"{latency}. The network {edge}; it accepts at most {s['accepted']:.4f} flits per cycle and terminal, at load {s['accepted_at']:.4g}."
