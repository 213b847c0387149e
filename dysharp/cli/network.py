"""`dysharp network`: latency against load of a switch or a network, flit by flit, and the recorded curves beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dysharp.cli.flags import complete_clusters, json_flag
from dysharp.errors import ConfigError

if TYPE_CHECKING:
    from dysharp.api.network_curve import CurveComparison, NetworkCurve

PATTERN_HELP = (
    "Who sends to whom: uniform, transpose, bitcomp, bitrev, shuffle, tornado, neighbor, hotspot:W,... (weights of the first terminals, "
    "1 for the others) or permutation:T,... (one target per terminal).  [default: uniform]"
)
DELAYS_HELP = (
    "Cycles of links (terminal=, link=) and of router stages (routing=, vc=, switch=, traversal=, credit=).  [default: 1 each, routing and credit 0]"
)
WITH_COMPARE = {"compare", "curve", "every", "seeds", "as_json"}


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


@click.command()
@click.option("--cluster", metavar="NAME|FILE", shell_complete=complete_clusters, help="One switch of this cluster, under 128 B stores.")
@click.option("--curve", metavar="NAME", help="A recorded configuration, such as xbar8_v4b8_p9_int2; with --compare also a pattern, 'xbar8_*'.")
@click.option("--topology", metavar="T", help="fly (k-ary n-fly; n = 1 is one crossbar), fattree (k-ary n-tree) or ring.  [default: fly]")
@click.option("--k", type=int, metavar="K", help="Ports down of a router; routers of a ring.  [default: 8]")
@click.option("--n", type=int, metavar="N", help="Stages or levels.  [default: 1]")
@click.option("--vcs", type=int, metavar="V", help="Virtual channels per input port.  [default: 4]")
@click.option("--buffer", type=int, metavar="B", help="Flits of one virtual channel.  [default: 8]")
@click.option("--packet-flits", type=int, metavar="P", help="Flits of a packet.  [default: 1; with --cluster 9, a 128 B store]")
@click.option("--pattern", metavar="P", help=PATTERN_HELP)
@click.option("--burst", metavar="ON:OFF", help="Bursty sources: mean cycles in the two states; the load stays the same.")
@click.option("--load", default="0.1:0.9:0.1", show_default=True, metavar="L", help="Flits per cycle and terminal: 0.1,0.5 or first:last:step.")
@click.option("--saturation", is_flag=True, help="Also search the largest load that is carried, by bisection.")
@click.option("--speedup", type=int, metavar="S", help="Router cycles per link cycle.  [default: 1]")
@click.option("--lanes", type=int, metavar="L", help="Lanes per port into and out of the crossbar.  [default: 1]")
@click.option("--allocator", metavar="A", help="separable_input_first or islip, both allocators.  [default: separable_input_first]")
@click.option("--speculative", is_flag=True, help="Allocate virtual channel and switch in one cycle.")
@click.option("--hold-switch", is_flag=True, help="Serve packets whole: the winner keeps the switch until its tail has passed.")
@click.option("--delays", metavar="NAME=C,...", help=DELAYS_HELP)
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Seed of everything that is drawn.")
@click.option("--period", type=int, default=6000, show_default=True, metavar="C", help="Cycles of a sample period.")
@click.option("--warm-up", type=int, default=3, show_default=True, metavar="N", help="Periods discarded; then up to 4 are measured.")
@click.option("--compare", metavar="CSV", help="Set ours beside the recorded curves of this file; exit code 1 if a bar does not hold.")
@click.option("--every", type=int, default=1, show_default=True, metavar="N", help="With --compare: only every n-th row of a curve and its last.")
@click.option(
    "--seeds", type=int, default=0, show_default=True, metavar="N",
    help="With --compare: 0 = the packets of the recorded runs, else packets of our own, mean of up to N seeds.",
)  # fmt: skip
@click.option("--plot", metavar="FILE", help="Also draw latency against load into FILE (.svg or .png).")
@json_flag
@click.pass_context
def network(
    ctx: click.Context, /, curve: str | None, load: str, saturation: bool, seed: int, period: int, warm_up: int, compare: str | None, every: int,
    seeds: int, plot: str | None, as_json: bool, **setting: Any,
) -> None:  # fmt: skip
    """Latency against load of a switch or a network, flit by flit.

    Input-queued routers with virtual channels, credits and allocators (docs/network.md). Latencies count from the creation of a packet
    to the arrival of its tail. Exit code 1 on a deadlock, with the virtual channels that wait for each other.

    \b
    dysharp network --k 32 --packet-flits 9                         a 32-port crossbar
    dysharp network --cluster paper-gh200-nvl32 --saturation        one switch of the paper's machine
    dysharp network --topology fattree --k 4 --n 2 --plot tree.svg
    dysharp network --compare booksim_curves.csv --curve 'fly4x4_*'
    """
    if compare is not None:
        extra = [f"--{name.replace('_', '-')}" for name in sorted(ctx.params.keys() - WITH_COMPARE) if _given(ctx, name)]
        if extra:
            raise ConfigError(f"--compare: found {', '.join(extra)} beside it, expected only --curve, --every, --seeds and --json")
        ctx.exit(0 if _compare(compare, curve, every, seeds, as_json) else 1)
    if every != 1 or seeds != 0:
        raise ConfigError("--every, --seeds: found no --compare, expected one beside them")
    from dysharp.api import network as measure_network
    from dysharp.cli.output import print_json
    from dysharp.cli.progress import progress_bar

    if plot is not None:  # before minutes of work, not after
        from dysharp.reports.plots import check_format

        check_format(plot)
    with progress_bar("periods") as progress:
        done = measure_network(load, saturation=saturation, seed=seed, period=period, warm_up=warm_up, curve=curve, progress=progress, **setting)
    if plot is not None:
        from dysharp.reports.network import plot_network
        from dysharp.reports.plots import save_figure

        save_figure(plot_network([done]), plot)
    print_json(done.to_dict()) if as_json else print_curve(done)


def _compare(csv: str, curve: str | None, every: int, seeds: int, as_json: bool) -> bool:
    """Prints the comparison; whether all bars hold."""
    from dysharp.api.network_curve import compare_network
    from dysharp.cli.output import print_json
    from dysharp.cli.progress import progress_bar

    with progress_bar("rows") as progress:
        done = compare_network(csv, curve, every=every, seeds=seeds, progress=progress)
    print_json(done.to_dict()) if as_json else _print_comparison(done)
    for error in done.errors:
        if not error.holds:
            click.echo(f"dysharp: {error.curve}: outside the bars", err=True)
    return done.holds


def _print_comparison(done: CurveComparison) -> None:
    from dysharp.engine.flit.curves import MEAN_ERROR, POINT_ERROR, RATE_ERROR, error_table

    click.echo(error_table(done.errors))
    n, rows, same = sum(e.holds for e in done.errors), sum(e.n_rows for e in done.errors), sum(e.n_same for e in done.errors)
    click.echo(
        f"\n{n} of {len(done.errors)} curves within the bars: latency {100 * MEAN_ERROR:g} % in the mean and {100 * POINT_ERROR:g} % at a point "
        f"up to 90 % of saturation, largest accepted rate {100 * RATE_ERROR:g} %\n{same} of {rows} rows are the recorded ones in all their digits "
        "(rates, packet and network latency)"
    )


def print_curve(done: NetworkCurve) -> None:
    """The network, one line per load, and how fast that was."""
    from rich.table import Table

    from dysharp.cli.output import console

    c, t, out = done.setting.config, done.setting.traffic, console()
    r, cycle_ps = c.router, done.setting.cycle_ps
    out.print(
        f"{done.setting.name}: {c.topology} k={c.k} n={c.n}, {c.n_terminals} terminals; {r.num_vcs} virtual channels x {r.vc_buf_size} flits, "
        f"speed-up {r.internal_speedup}, {max(r.input_speedup, r.output_speedup)} lanes, {r.vc_allocator}; links {c.terminal_delay} cycles to "
        f"terminals, {c.link_delay} between routers" + (f"; a cycle is {cycle_ps} ps" if cycle_ps else ""),
        markup=False,
    )
    out.print(f"packets of {t.packet_flits} flits, {t.pattern}, seed {done.seed}", markup=False)
    for note in done.notes:
        out.print(note, markup=False)
    out.print("rates in flits per cycle and terminal; packet latency from creation to the arrival of the tail\n")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    last = ["latency\nns"] if cycle_ps else []
    for heading in ("load", "injected", "accepted", "latency\ncycles", "in network\ncycles", "min / max\ncycles", *last, ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for p in done.points:
        table.add_row(
            f"{p.load:.4g}", f"{p.injected:.4f}", f"{p.accepted:.4f}", f"{p.packet_latency:.2f}", f"{p.network_latency:.2f}",
            f"{p.packet_latency_min} / {p.packet_latency_max}", *([f"{p.packet_latency * cycle_ps / 1000:.1f}"] if cycle_ps else []),
            "saturated" if p.saturated else "",
        )  # fmt: skip
    out.print(table)
    if done.saturation is not None:
        s = done.saturation
        edge = "carries every load" if s["saturated_at"] == s["load"] else f"carries load {s['load']:.4g}, no more {s['saturated_at']:.4g}"
        out.print(f"\nsaturation: {edge}; largest accepted rate {s['accepted']:.4f} flits per cycle and terminal, at load {s['accepted_at']:.4g}")
    if any(p.saturated for p in done.points):
        out.print("saturated: less than 97 % of the load is carried, and packet latency grows with the length of the run")
    out.print(f"{done.flits_per_s:,.0f} flits/s simulated")
