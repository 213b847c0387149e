"""Latency against load, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from dysharp.reports.plots import PALETTE, drawn

if TYPE_CHECKING:
    from dysharp.api.network_curve import NetworkCurve

SHOWN = 20.0  # largest drawn latency over smallest latency: past saturation, latency grows with the length of the run


def plot_network(curves: Sequence[NetworkCurve], *, ax: Axes | None = None) -> Axes:
    """Packet latency (cycles) against offered load, one line per curve. Hollow marks: the network is saturated.

    A mark above the drawn range lies at the upper edge. Returns the axes.
    """
    with drawn(ax, 6.4, 4.0) as axes:
        seen = [p.packet_latency for c in curves for p in c.points if p.n_packets] or [1.0]
        top = min(1.1 * max(seen), SHOWN * min(seen))
        for curve, colour in zip(curves, PALETTE * len(curves), strict=False):
            points = [p for p in curve.points if p.n_packets]
            loads, latencies = [p.load for p in points], [min(p.packet_latency, top) for p in points]
            c, t = curve.setting.config, curve.setting.traffic
            name = curve.setting.name if curve.setting.name != "network" else f"{c.topology}, k = {c.k}, n = {c.n}"
            axes.plot(loads, latencies, color=colour, linewidth=1.2, label=f"{name}: {t.packet_flits}-flit packets, {t.pattern}")
            for saturated in (False, True):
                some = [i for i, p in enumerate(points) if p.saturated == saturated]
                face = "white" if saturated else colour
                x, y = [loads[i] for i in some], [latencies[i] for i in some]
                axes.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=4, clip_on=False)
        axes.set_ylim(0, top)
        axes.set_xlim(0, 1)
        axes.set_xlabel("offered load (flits per cycle and terminal)")
        axes.set_ylabel("packet latency (cycles)")
        axes.set_title("latency against load (hollow: saturated)", loc="left")
        axes.legend(loc="upper left", frameon=False)
    return axes
