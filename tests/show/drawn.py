"""What matplotlib drew, as text: words, places, numbers and colours, and no sizes of paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.ticker import AutoLocator, LogLocator


def _n(values: Iterable[float]) -> str:
    return " ".join(f"{float(value):.5g}" for value in values)


def _axis(name: str, axis: Axis, limits: tuple[float, float], is_auto: bool) -> Iterator[str]:
    yield f"{name}: {axis.get_label_text()!r} {axis.get_scale()}" + ("" if is_auto else f" from {_n(limits[:1])} to {_n(limits[1:])}")
    if not isinstance(axis.get_major_locator(), (AutoLocator, LogLocator)):
        labels = axis.get_majorticklabels()
        words, turned = " | ".join(t.get_text() for t in labels), {f"{t.get_rotation():g} {t.get_horizontalalignment()}" for t in labels}
        yield f"{name} ticks: {_n(axis.get_majorticklocs())}; {words}; turned {turned}"


def _legend(legend: Any) -> str:
    def colour(handle: Any) -> Any:
        return handle.get_facecolor() if hasattr(handle, "get_facecolor") else handle.get_color()

    return f"legend of {legend._ncols} columns: " + "; ".join(
        f"{t.get_text()} {to_hex(colour(h))}" for t, h in zip(legend.get_texts(), legend.legend_handles, strict=True)
    )


def _image(values: Any) -> Iterator[str]:
    """Every row of an image as runs of equal cells."""
    for row in np.asarray(values):
        cells = [to_hex(cell) for cell in row] if row.ndim == 2 else [f"{cell:.4g}" for cell in row]
        yield "  " + " ".join(f"{cell}*{len(list(run))}" for cell, run in groupby(cells))


def drawn_lines(first: Axes) -> Iterator[str]:
    """Line by line, all axes of the figure of `first`."""
    figure: Any = first.figure
    for ax in figure.axes:
        yield f"axes {ax.get_title(loc='left')!r}"
        yield from _axis("x", ax.xaxis, ax.get_xlim(), ax.get_autoscalex_on())
        yield from _axis("y", ax.yaxis, ax.get_ylim(), ax.get_autoscaley_on())
        for line in ax.get_lines():
            colours = f"{to_hex(line.get_color())} {to_hex(line.get_markerfacecolor())}"
            style = f"{line.get_linestyle()} {line.get_marker()} {line.get_drawstyle()} {colours} {line.get_linewidth()}"
            x, y = line.get_xdata(), line.get_ydata()
            yield f"line {line.get_label()!r} {style}: {' '.join(map(str, x)) if isinstance(x[0], str) else _n(x)} / {_n(y)}"
        for patch in ax.patches:
            if isinstance(patch, Rectangle):
                yield f"box {to_hex(patch.get_facecolor())} {_n((*patch.get_xy(), patch.get_width(), patch.get_height()))}"
        for each in ax.collections:
            if isinstance(each, PolyCollection):
                corners = [np.asarray(path.vertices, float) for path in each.get_paths()]
                colours = " ".join(to_hex(colour) for colour in np.asarray(each.get_facecolor()))
                yield f"area {each.get_alpha()} {colours}: {' | '.join(_n((*v.min(0), *v.max(0))) for v in corners)}"
        for image in ax.images:
            yield f"image {_n(image.get_extent())} {_n(v or 0 for v in image.get_clim()) if image.get_array().ndim == 2 else ''}"
            yield from _image(image.get_array())
        yield from (f"text {_n(t.get_position())} {t.get_text()!r} {t.get_color()}" for t in ax.texts)
        if ax.get_legend():
            yield _legend(ax.get_legend())
    yield from map(_legend, figure.legends)
