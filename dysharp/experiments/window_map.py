"""The default windows on the map of layer time over both windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from dysharp.experiments.figure import Point
from dysharp.specs import load_cluster, load_model
from dysharp.systems.building.windows import windows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def default_windows(point: Point) -> tuple[int, int]:
    """Default (dispatch, combine) windows of a point, in tokens per source GPU."""
    return windows(load_model(point.model), load_cluster(point.cluster), 0, 0)


def mark_defaults(first: Axes, points: Iterable[Point]) -> None:
    """Draw a frame around the cell of the default windows in each map of `reports.windows.plot_windows`.

    `first`: the axes of the first map. Defaults outside the grid get no frame.
    """
    points = list(points)
    defaults = {p.model: default_windows(p) for p in points if not p.options}
    combine, dispatch = (sorted({dict(p.options)[name] for p in points if p.options}) for name in ("combine_window", "dispatch_window"))
    maps = dict.fromkeys(p.model for p in points)
    for ax, model in zip(first.figure.axes, maps, strict=True):
        wanted = defaults.get(model, (0, 0))
        if wanted[0] in dispatch and wanted[1] in combine:
            # Inside the cell, so that a frame at the edge of the map is not cut.
            place = combine.index(wanted[1]) - 0.46, dispatch.index(wanted[0]) - 0.46
            ax.add_patch(_frame(place))


def _frame(place: tuple[float, float]) -> Rectangle:
    return Rectangle(place, 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2.2)
