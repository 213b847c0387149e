"""The picture of a study with two objectives: all points, and the front: points that no other point beats in both objectives."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dysharp.reports.plots import PALETTE, drawn


def front_of(values: NDArray[np.float64]) -> NDArray[np.intp]:
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
        front = values[front_of(values * signs)]
        axes.plot(*values.T, "o", color=PALETTE[4], markersize=4, label=f"{len(values)} points")
        axes.plot(*front.T, "o", color=PALETTE[0], markersize=6, drawstyle="steps-post", linestyle="-", label=f"front of {len(front)}")
        words = [f"{name.removeprefix('-')}, {'larger' if sign < 0 else 'smaller'} is better" for name, sign in zip(objectives, signs, strict=True)]
        axes.set(xlabel=words[0], ylabel=words[1])
        if title:
            axes.set_title(title, loc="left")
        axes.legend(frameon=False)
    return axes
