"""Figures: `plot_x(rows, *, ax=None) -> Axes`. No function shows a figure, and only `save_figure` writes a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from dysharp.analysis import Row
from dysharp.analysis.row import DIRECTIONS
from dysharp.base import F64, AnyMapping, AnyPath, Cells, ConfigError, Ints, Numbers, Tally, check_destination, write_file
from dysharp.program import LAYER
from dysharp.systems import all_systems
from dysharp.systems.collectives import all_collectives
from dysharp.systems.facts import OTHER_COLOUR

if TYPE_CHECKING:
    from dysharp.api.network_curve import NetworkCurve


# Colours of curves that are no systems, in this order: Okabe-Ito and two more. The common forms of colour blindness
# can tell them apart.
PALETTE = ("#0072B2", "#E69F00", "#CC79A7", "#009E73", "#999999", "#56B4E9", "#D55E00", "#F0E442", "#332288")
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "svg.hashsalt": "dysharp"}
FORMATS = ("svg", "png")


def operator_colours(names: Iterable[str]) -> Cells:
    """{operator: colour}: fixed colours for the operators of a layer, the rest of the palette in turn for others.

    Operators of later parts of a merge ("B.gemm1") have the colour of the first part, paler.
    """
    colours = dict(zip((o.name for o in LAYER), PALETTE, strict=False))
    rest, parts, out = itertools.cycle(PALETTE[len(colours) :]), Tally(), {}
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
        passes = ", ".join(dict.fromkeys(DIRECTIONS[row.direction] for row in rows))
        of = "the collective" if rows and rows[0].workload else f"one MoE layer, {passes}" if passes else "one MoE layer"
        axes.set(xlim=(0, None), xlabel=f"time of {of} (us)")
        if rows:
            first = rows[0]
            layer = f"{first.model}, {first.gpus} GPUs x {first.tokens_per_gpu} tokens, {first.cluster}\n{first.routing}"
            axes.set_title(first.asked if first.workload else layer)
        axes.legend(loc="lower right", frameon=False)
    return axes


def check_format(path: AnyPath) -> None:
    """Raise ConfigError unless `path` has a known ending and can be written to. Call it before long work."""
    file = Path(path)
    ending = file.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"{file}: found ending {file.suffix!r}, expected .svg or .png")
    check_destination(file)


def save_figure(axes: Axes, path: AnyPath) -> Path:
    """Write the figure of `axes` as .svg or .png, complete or not at all. Returns the path.

    Raises ConfigError where `check_format` and `files.write_file` do.
    """
    check_format(path)
    file, figure = Path(path), axes.figure
    assert isinstance(figure, Figure), "axes of a subfigure"
    with matplotlib.rc_context(STYLE):
        ending = file.suffix.removeprefix(".").lower()
        undated = {"Date": None} if ending.lower() == "svg" else {}  # so that equal Rows give equal bytes
        return write_file(file, lambda stream: figure.savefig(stream, format=ending, dpi=150, metadata=undated))


def _front_of(values: F64) -> Ints:
    """Rows of `values` `[points, 2]` on the front, by the first column: no other row is smaller in one column and not larger in the other.

    Smaller is better. Of equal rows the first is kept.
    """
    order = np.lexsort((values[:, 1], values[:, 0]))
    second = values[order, 1]
    least = np.minimum.accumulate(second)
    better = np.ones(len(order), dtype=bool)
    better[1:] = second[1:] < least[:-1]
    return order[better]


def plot_pareto(records: Sequence[Sequence[float]], objectives: Sequence[str], title: str = "", *, ax: Axes | None = None) -> Axes:
    """Points by two objectives, and their front as a stair. `records`: two values of each point; -COLUMN in `objectives`: larger is better."""
    with drawn(ax, 6.4, 4.2) as axes:
        values = np.asarray(records, dtype=np.float64).reshape(-1, 2)
        signs = np.array([-1.0 if name.startswith("-") else 1.0 for name in objectives])
        front = values[_front_of(values * signs)]
        axes.plot(*values.T, "o", color=PALETTE[4], markersize=4, label=f"{len(values)} points")
        axes.plot(*front.T, "o", color=PALETTE[0], markersize=6, drawstyle="steps-post", linestyle="-", label=f"front of {len(front)}")
        words = [f"{name.removeprefix('-')}, {'larger' if sign < 0 else 'smaller'} is better" for name, sign in zip(objectives, signs, strict=True)]
        axes.set(xlabel=words[0], ylabel=words[1], title=title)
        axes.legend(frameon=False)
    return axes


def plot_windows(rows: Mapping[Any, AnyMapping]) -> Axes:
    """One heat map per model: layer time divided by the best time, by dispatch and combine window.

    The title has the time with the default windows.

    `rows` maps points (with `model` and `options`) to the Rows of `dysharp run`. Returns the axes of the first map.
    """
    models = list(dict.fromkeys(p.model for p in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(models), 4.0), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False)[0]
        for ax, model in zip(axes, models, strict=True):
            _map(ax, model, {tuple(v for _, v in sorted(p.options)): float(r["time_us"]) for p, r in rows.items() if p.model == model})
    first: Axes = axes[0]
    return first


def _map(ax: Any, model: str, times: dict[Numbers, float]) -> None:
    best = min(times.values())
    combine, dispatch = (sorted({key[i] for key in times if key}) for i in (0, 1))
    grid = np.array([[times[c, d] / best for c in combine] for d in dispatch])
    ax.imshow(grid, cmap="cividis_r", vmin=1.0, vmax=1.25, aspect="auto", origin="lower")
    for (i, j), value in np.ndenumerate(grid):
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 1.12 else "black", fontsize=8)
    ax.set_xticks(range(len(combine)), combine)
    ax.set_yticks(range(len(dispatch)), dispatch)
    title = f"{model}: time over best ({best:.1f} us)\ndefault windows: {times[()] / best:.3f}"
    ax.set(xlabel="combine window (tokens per GPU)", ylabel="dispatch window (tokens per GPU)", title=title)


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
        axes.set(xlim=(0, 1), ylim=(0, top), title="latency against load (hollow: saturated)")
        axes.set(xlabel="offered load (flits per cycle and terminal)", ylabel="packet latency (cycles)")
        axes.legend(loc="upper left", frameon=False)
    return axes
