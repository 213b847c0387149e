"""The default windows on the map of layer time over both windows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from dysharp.runs import Point
from dysharp.specs import load_cluster, load_model
from dysharp.systems.building.layer import DYMULTIMEM, LayerBuilder
from dysharp.workload import make_routing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = 2048


def _default_windows(point: Point) -> tuple[int, int]:
    """Default (dispatch, combine) windows of a point, in tokens per source GPU.

    A few tokens of uniform routing are enough: the windows depend on the copies per token at the busiest hub.
    """
    model, cluster = load_model(point.model), load_cluster(point.cluster)
    routing = make_routing("uniform", model, cluster.n_gpus, TOKENS)
    return LayerBuilder(model, cluster, routing, "fwd").windows(DYMULTIMEM, 0, 0)


def mark_defaults(first: Axes, points: Iterable[Point]) -> None:
    """Draw a frame around the cell nearest to the default windows in each map of `show.plots.plot_windows`.

    `first`: the axes of the first map. Nearest: in factors.
    """
    points = list(points)
    defaults = {p.model: _default_windows(p) for p in points if not p.options}
    combine, dispatch = (sorted({dict(p.options)[name] for p in points if p.options}) for name in ("combine_window", "dispatch_window"))
    maps = dict.fromkeys(p.model for p in points)
    for ax, model in zip(first.figure.axes, maps, strict=True):
        if model in defaults:
            row, column = _nearest(dispatch, defaults[model][0]), _nearest(combine, defaults[model][1])
            # Inside the cell, so that a frame at the edge of the map is not cut.
            ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2.2))


def _nearest(values: list[int], wanted: int) -> int:
    """The index of the value that is nearest to `wanted` in factors."""
    return min(range(len(values)), key=lambda i: abs(math.log(values[i] / wanted)))
