"""Figures: `plot_x(rows, *, ax=None) -> Axes`. No function shows a figure, and only `save_figure` writes a file."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from dysharp.analysis import Row
from dysharp.analysis.row import DIRECTIONS
from dysharp.errors import ConfigError
from dysharp.files import check_destination, write_file
from dysharp.program import LAYER
from dysharp.systems import OTHER_COLOUR, all_systems
from dysharp.systems.collectives import all_collectives

# Colours of curves that are no systems, in this order: Okabe-Ito and two more. The common forms of colour blindness
# can tell them apart.
PALETTE = ("#0072B2", "#E69F00", "#CC79A7", "#009E73", "#999999", "#56B4E9", "#D55E00", "#F0E442", "#332288")
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "dysharp"}
FORMATS = ("svg", "png")


def operator_colours(names: Iterable[str]) -> dict[str, str]:
    """{operator: colour}: fixed colours for the operators of a layer, the rest of the palette in turn for others.

    Operators of later parts of a merge ("B.gemm1") have the colour of the first part, paler.
    """
    colours = dict(zip((o.name for o in LAYER), PALETTE, strict=False))
    rest, parts, out = itertools.cycle(PALETTE[len(colours) :]), dict[str, int](), {}
    for name in names:
        part, _, own = name.rpartition(".")
        if own not in colours:
            colours[own] = next(rest)
        share = 0.5 ** parts.setdefault(part, len(parts))
        red, green, blue = (1 - share * (1 - c) for c in to_rgb(colours[own]))
        out[name] = to_hex((red, green, blue)).upper()
    return out


def colour_of(system: str) -> str:
    """The colour that a system declares, equal in all figures. A system that is not installed has the shared colour."""
    installed, collectives = all_systems().get(system), list(all_collectives())
    if installed is None and system in collectives:
        return PALETTE[collectives.index(system) % len(PALETTE)]
    return OTHER_COLOUR if installed is None else installed.shown.colour


@contextmanager
def drawn(ax: Axes | None, width: float, height: float) -> Iterator[Axes]:
    """`ax`, or the axes of a new figure of `width` x `height` inches. All that is drawn inside has the shared style."""
    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained").subplots() if ax is None else ax


def plot_compare(rows: Sequence[Row], *, ax: Axes | None = None) -> Axes:
    """Layer time (us) per system as bars. Black mark: bound of the system. Dashed line: bound of every system."""
    with drawn(ax, 6.4, 0.8 + 0.4 * len(rows)) as axes:
        place = range(len(rows))
        times = [row.layer_us for row in rows]
        bars = axes.barh(place, times, color=[colour_of(row.system) for row in rows], height=0.7)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.plot([row.bound_us for row in rows], place, "k|", markersize=14, label="bound of this system")
        least = max((row.workload_bound_us for row in rows), default=0.0)
        axes.axvline(least, color="black", linestyle="--", linewidth=1, label="bound of every system")
        axes.set_yticks(place, [f"{row.system}\n(drops {row.dropped_share:.0%})" if row.dropped_rows else row.system for row in rows])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        passes = ", ".join(dict.fromkeys(DIRECTIONS[row.direction] for row in rows))
        of = "the collective" if rows and rows[0].workload else f"one MoE layer, {passes}" if passes else "one MoE layer"
        axes.set_xlabel(f"time of {of} (us)")
        if rows:
            first = rows[0]
            layer = f"{first.model}, {first.gpus} GPUs x {first.tokens_per_gpu} tokens, {first.cluster}\n{first.routing}"
            axes.set_title(first.asked if first.workload else layer, loc="left")
        axes.legend(loc="lower right", frameon=False)
    return axes


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless `path` has a known ending and can be written to. Call it before long work."""
    file = Path(path)
    ending = file.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"{file}: found ending {file.suffix!r}, expected .svg or .png")
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
