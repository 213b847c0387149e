"""The map of layer time over dispatch window and combine window."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dysharp.reports.plots import STYLE


def plot_windows(rows: Mapping[Any, Mapping[str, Any]]) -> Axes:
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


def _map(ax: Any, model: str, times: dict[tuple[int, ...], float]) -> None:
    best = min(times.values())
    combine, dispatch = (sorted({key[i] for key in times if key}) for i in (0, 1))
    grid = np.array([[times[c, d] / best for c in combine] for d in dispatch])
    ax.imshow(grid, cmap="cividis_r", vmin=1.0, vmax=1.25, aspect="auto", origin="lower")
    for (i, j), value in np.ndenumerate(grid):
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 1.12 else "black", fontsize=8)
    ax.set_xticks(range(len(combine)), combine)
    ax.set_yticks(range(len(dispatch)), dispatch)
    ax.set_xlabel("combine window (tokens per GPU)")
    ax.set_ylabel("dispatch window (tokens per GPU)")
    ax.set_title(f"{model}: time over best ({best:.1f} us)\ndefault windows: {times[()] / best:.3f}", loc="left")
