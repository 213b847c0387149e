"""Pictures of the papers' figures: bars, lines, and bars in two parts."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dysharp.show.plots import PALETTE, colour_of, drawn
from dysharp.systems import all_systems

ROOM = 90
"""Letters of a line below a picture; longer labels of places are turned, longer legends take several lines."""


def plot_series(series: Any, title: str, *, ax: Axes | None = None) -> Axes:
    """Draw a figure of a paper from its `figures.series.Series`. Black marks at the place "mean": the published geometric means."""
    with drawn(ax, 7.2, 3.2) as axes:
        draw = {"bars": _bars, "lines": _lines, "parts": _parts}[series.kind]
        draw(axes, series)
        axes.set(ylim=(0, None), xlabel=series.x.replace("_", " "), ylabel=series.unit)
        axes.set_title(title, wrap=True)
        if sum(map(len, series.places)) > ROOM:
            axes.tick_params("x", rotation=30)
            for label in axes.get_xticklabels():
                label.set_horizontalalignment("right")
        columns = max(1, min(5, ROOM // (6 + max(map(len, series.values)))))
        axes.figure.legend(frameon=False, fontsize=8, ncols=columns, loc="outside lower center")
    return axes


def _colours(series: Any) -> dict[str, str]:
    """Systems have their own colours. Other series take the palette."""
    installed = all_systems()
    others = [name for name in series.values if name not in installed]
    return {name: PALETTE[others.index(name) % len(PALETTE)] if name in others else colour_of(name) for name in series.values}


def _numbers(values: tuple[float | None, ...]) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _bars(ax: Axes, series: Any) -> None:
    place, width, colours = np.arange(len(series.places)), 0.8 / max(1, len(series.values)), _colours(series)
    marked = False
    for i, (name, values) in enumerate(series.values.items()):
        own = place + (i - (len(series.values) - 1) / 2) * width
        ax.bar(own, _numbers(values), width, color=colours[name], label=name)
        if name in series.published:
            label = None if marked else "published"
            ax.plot(own[-1], series.published[name], "k_", markersize=9, markeredgewidth=2, label=label)
            marked = True
    ax.set_xticks(place, series.places)


def _lines(ax: Axes, series: Any) -> None:
    colours = _colours(series)
    for name, values in series.values.items():
        ax.plot(series.places, _numbers(values), marker="o", markersize=4, color=colours[name], label=name)


def _parts(ax: Axes, series: Any) -> None:
    low = np.zeros(len(series.places))
    for i, (name, values) in enumerate(series.values.items()):
        ax.bar(series.places, _numbers(values), 0.6, bottom=low, color=PALETTE[i], label=name)
        low += np.nan_to_num(_numbers(values))
    ax.tick_params("x", rotation=15)
