"""Figures: `plot_x(rows, *, ax=None) -> Axes`. No function shows a figure, and only `save_figure` writes a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from dysharp.analysis import Row
from dysharp.errors import ConfigError, nearest
from dysharp.files import check_destination, write_file
from dysharp.runs.request import DIRECTIONS
from dysharp.systems import OTHER_COLOUR, all_systems

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of curves that are no systems, in this order: Okabe-Ito and two more. The common forms of colour blindness
# can tell them apart.
PALETTE = ("#0072B2", "#E69F00", "#CC79A7", "#009E73", "#999999", "#56B4E9", "#D55E00", "#F0E442", "#332288")
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "dysharp"}
FORMATS = ("svg", "png")


def colour_of(system: str) -> str:
    """The colour that a system declares, equal in all figures. A system that is not installed has the shared colour."""
    installed = all_systems().get(system)
    return OTHER_COLOUR if installed is None else installed.shown.colour


def plot_compare(rows: Sequence[Row], *, ax: Axes | None = None) -> Axes:
    """Layer time (us) per system as bars. Black mark: bound of the system. Dashed line: bound of every system."""
    with matplotlib.rc_context(STYLE):
        if ax is None:
            ax = Figure(figsize=(6.4, 0.8 + 0.4 * len(rows)), layout="constrained").subplots()
        place = range(len(rows))
        times = [row.layer_us for row in rows]
        bars = ax.barh(place, times, color=[colour_of(row.system) for row in rows], height=0.7)
        ax.bar_label(bars, fmt="%.1f", padding=3)
        ax.plot([row.bound_us for row in rows], place, "k|", markersize=14, label="bound of this system")
        least = max((row.workload_bound_us for row in rows), default=0.0)
        ax.axvline(least, color="black", linestyle="--", linewidth=1, label="bound of every system")
        ax.set_yticks(place, [row.system for row in rows])
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlim(left=0)
        passes = ", ".join(dict.fromkeys(DIRECTIONS[row.direction] for row in rows))
        ax.set_xlabel(f"time of one MoE layer, {passes} (us)" if passes else "time of one MoE layer (us)")
        if rows:
            first = rows[0]
            ax.set_title(f"{first.model}, {first.gpus} GPUs x {first.tokens_per_gpu} tokens, {first.cluster}\n{first.routing}", loc="left")
        ax.legend(loc="lower right", frameon=False)
    return ax


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless `path` has a known ending and can be written to. Call it before long work."""
    file = Path(path)
    ending = file.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"{file}: found ending {file.suffix!r}, expected .svg or .png{nearest(ending, FORMATS) if ending else ''}")
    check_destination(file)


def save_figure(axes: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of `axes` as .svg or .png, complete or not at all. Returns the path.

    Raises ConfigError where `check_format` and `files.write_file` do.
    """
    check_format(path)
    file, figure = Path(path), axes.figure
    assert isinstance(figure, Figure), "axes of a subfigure"
    with matplotlib.rc_context(STYLE):
        ending = file.suffix.removeprefix(".").lower()
        return write_file(file, lambda stream: figure.savefig(stream, format=ending, dpi=150, metadata=_undated(file)))


def _undated(file: Path) -> dict[str, str | None]:
    """Metadata without a date, so that equal Rows give equal bytes."""
    return {"Date": None} if file.suffix.lower() == ".svg" else {}
