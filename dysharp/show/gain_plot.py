"""The picture of `compare --map`."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dysharp.api.gain_map import GainMap
from dysharp.planning.gain import EVEN
from dysharp.show.plots import PALETTE, STYLE

PERCENT = (10, 25, 50)
LINES = {"overlap": PALETTE[1], "multicast": PALETTE[3], "reduction": PALETTE[2]}


def plot_gain_map(found: GainMap) -> Axes:
    """One panel per input over tokens per GPU: the switch's gain over the best system without it as areas, and a line where each part gains `EVEN`.

    Dots: runs at the edges of the layer asked for, in the first panel. Returns the axes of the first panel.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(found.panels) + 1, 3.4), layout="constrained")
        axes = figure.subplots(1, len(found.panels), squeeze=False)[0]
        for ax, (name, panel) in zip(axes, found.panels.items(), strict=True):
            area = _panel(ax, name, dict(sorted(panel.items())), found)
        figure.colorbar(area, ax=list(axes), label="gain of the switch", format=lambda x, _: f"{x:+.0%}")
        axes[0].legend(
            handles=[Line2D([], [], color=colour, label=f"{name} gains {EVEN:.0%}") for name, colour in LINES.items()], frameon=True, fontsize=7
        )
    first: Axes = axes[0]
    return first


def _panel(ax: Any, name: str, panel: dict[float, Any], found: GainMap) -> Any:
    """Areas and lines; a panel of one value has it twice, because a contour has two sides."""
    values, gains = list(panel), list(panel.values())
    values, gains = (values * 2, gains * 2) if len(values) == 1 else (values, gains)
    rows, above = np.arange(len(values)), [EVEN, *(percent / 100 for percent in PERCENT)]
    levels = [*(-level for level in reversed(above)), *above]
    area = ax.contourf(found.tokens, rows, np.array([one["switch"] for one in gains]), levels, cmap="RdBu", extend="both")
    for part, colour in LINES.items():
        ax.contour(found.tokens, rows, np.array([one[part] for one in gains]), [EVEN], colors=colour, linewidths=1.5)
    own = next((i for i, one in enumerate(gains) if one is found.own), None)
    if own is not None:
        for tokens, (_, run) in found.confirmed.items():
            ax.plot(tokens, own, "o", color="white", markeredgecolor="black", markersize=5)
            ax.annotate(f"{run:+.0%}", (tokens, own), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=6)
    ax.set_xscale("log", base=2)
    ax.set_xticks(found.tokens, [str(n) for n in found.tokens], rotation=60)
    ax.set_yticks(rows, [f"{value:g}" for value in values])
    ax.set(xlabel="tokens per GPU", title=name)
    return area
