"""A plan as one picture: throughput over layouts, memory of every pipeline rank, one step of the best layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dysharp.base import PS_PER_US
from dysharp.show.plots import STYLE
from dysharp.training import COMPUTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dysharp.training import Replay

SPEED, TOO_MUCH = "#0072B2", "#D55E00"
CELLS = {
    "F": ("#56B4E9", "forward"), "B": ("#009E73", "backward"), "I": ("#009E73", "backward"), "W": ("#F0E442", "weights"),
    "o": ("#CC79A7", "optimizer"),
}  # fmt: skip
"""First letter of a node of a step -> its colour and name."""


def plot_plan(
    title: str, names: Sequence[str], speeds: Sequence[float], limits: Sequence[str], memory_gib: Sequence[float], capacity_gib: float, done: Replay
) -> Axes:
    """Draw three axes, one above the other, and return the first.

    Tokens/s per GPU of the best layouts, the fastest on top, with what limits each; reserved memory of every pipeline rank, dashed: what a plan
    may take; the cells of every pipeline rank over time.
    """
    with mpl.rc_context(STYLE):
        heights = (1.0 + 0.32 * len(names), 2.5, 1.6 + 0.22 * len(memory_gib))
        axes = Figure(figsize=(7.5, sum(heights)), layout="constrained").subplots(3, 1, height_ratios=heights)
        axes[0].barh(range(len(names)), list(speeds), color=SPEED)
        axes[0].set_yticks(range(len(names)), list(names))
        axes[0].invert_yaxis()
        for at, (speed, limit) in enumerate(zip(speeds, limits, strict=True)):
            axes[0].text(speed, at, f" {limit}", va="center", fontsize="small")
        axes[0].set(xlabel="tokens/s per GPU", xlim=(0, 1.4 * max(speeds)), title=title)
        axes[1].bar(range(len(memory_gib)), list(memory_gib), color=[SPEED if one <= capacity_gib else TOO_MUCH for one in memory_gib])
        axes[1].axhline(capacity_gib, color="black", linestyle="--", linewidth=1)
        axes[1].set(xlabel="pipeline rank", ylabel="GiB", xticks=range(len(memory_gib)))
        _draw_step(axes[2], done)
    first: Axes = axes[0]
    return first


def _draw_step(axes: Axes, done: Replay) -> None:
    graph, shown = done.graph, set[str]()
    queues = {int(name.split(" ")[1]): nodes for name, nodes in graph.queues.items() if name.endswith(COMPUTE)}
    for rank, nodes in queues.items():
        spans = [(done.start[n] / PS_PER_US / 1e6, graph.duration[n] / PS_PER_US / 1e6) for n in nodes]
        kinds = [next(letter for letter in graph.nodes[n].name if letter in CELLS) for n in nodes]
        axes.broken_barh(spans, (rank - 0.4, 0.8), color=[CELLS[kind][0] for kind in kinds])
        shown.update(kinds)
    axes.invert_yaxis()
    axes.set(xlabel="seconds", ylabel="pipeline rank", yticks=sorted(queues))
    legend = {CELLS[kind][1]: Patch(color=CELLS[kind][0], label=CELLS[kind][1]) for kind in CELLS if kind in shown}
    axes.legend(handles=list(legend.values()), loc="upper center", ncols=len(legend), bbox_to_anchor=(0.5, 1.25), frameon=False)
