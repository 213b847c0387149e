"""The answer of `serve` as a picture and as a page: one HTML file without scripts that loads nothing."""

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dysharp.api.serving_answer import POINTS, REJECTED, SYSTEMS, WHAT_IFS, Serving, memory_line
from dysharp.api.serving_replay import REPLAYS
from dysharp.base import AnyPath, Columns, write_text
from dysharp.serving.search import ServePoint
from dysharp.show.markdown import page
from dysharp.show.plots import PALETTE, STYLE, drawn

MOST_LAYOUTS = 8
"""Layouts with a colour of their own: those of the best points."""


def plot_serving(done: Serving, *, ax: Axes | None = None) -> Axes:
    """Tokens per second of a GPU against tokens per second of a user: all points, the best layouts in colour, and the front as a line."""
    with drawn(ax, 6.4, 4.2) as axes:
        named = list(dict.fromkeys(p.replica.layout.name for p in (*done.best, *done.front)))[:MOST_LAYOUTS]
        others = [p for p in done.points if p.replica.layout.name not in named]
        _scatter(axes, others, PALETTE[4], "other layouts")
        for name, colour in zip(named, cycle(PALETTE), strict=False):
            _scatter(axes, [p for p in done.points if p.replica.layout.name == name], colour, name)
        axes.plot([p.per_user for p in done.front], [p.tokens_per_gpu for p in done.front], "k-", linewidth=1, label="front")
        axes.axvline(1e3 / done.slo.tpot, color="black", linestyle=":", linewidth=1, label=f"TPOT of {done.slo.tpot:g} ms")
        title, scale = f"{done.model} on {done.gpus} GPUs of {done.cluster}", "log" if done.points else "linear"
        axes.set(xscale=scale, yscale=scale, xlabel="tokens/s of a user", ylabel="tokens/s of a GPU", title=title)
        axes.legend(frameon=False)
    return axes


def plot_replay(done: Serving, *, ax: Axes | None = None) -> Axes:
    """Requests that wait and that run over time, one colour a layout that was replayed."""
    with drawn(ax, 6.4, 4.2) as axes:
        for one, colour in zip(done.replays, cycle(PALETTE), strict=False):
            seconds, waiting, running = np.array(one.run.queue, dtype=float).reshape(-1, 3).T
            axes.step(seconds / 1e6, running, color=colour, linewidth=1, label=f"{one.layout}: running")
            axes.step(seconds / 1e6, waiting, color=colour, linewidth=1, linestyle=":", label=f"{one.layout}: waiting")
        axes.set(xlabel="s", ylabel="requests", title=f"{done.model}: {done.replays[0].run.name}"[:70])
        axes.legend(frameon=False)
    return axes


def _scatter(axes: Axes, points: Sequence[ServePoint], colour: str, label: str) -> None:
    if points:
        axes.plot([p.per_user for p in points], [p.tokens_per_gpu for p in points], "o", color=colour, markersize=4, label=label)


def write_page(done: Serving, path: AnyPath, command: str) -> Path:
    """Write the page. `command` repeats it. Text of files and options is escaped."""
    tables: list[tuple[str, Columns, Sequence[Any]]] = [
        ("Replay", REPLAYS, done.replays),
        ("Best layouts within the limits", POINTS, done.points_of(done.best)), ("What if", WHAT_IFS, done.changes()),
        ("EP systems", SYSTEMS, done.systems), ("Front", POINTS, done.points_of(done.front)), ("Layouts that do not fit", REJECTED, done.rejected),
    ]  # fmt: skip
    return write_text(path, page(
        "serving.html", {}, title=f"Serving {done.model} on {done.gpus} GPUs of {done.cluster}", answer=(*done.sentences(), *done.trust()),
        advice=done.advice(), memory=memory_line(done.best[0]) if done.best else "", launch=done.starting(),
        tables=[(name, columns.headings, columns.cells(rows)) for name, columns, rows in tables if rows],
        picture=_svg(done), header=done.header, command=command,
    ))  # fmt: skip


def _svg(done: Serving) -> str:
    """The picture as an SVG element; "" without points."""
    import matplotlib

    if not done.points:
        return ""
    with matplotlib.rc_context(STYLE):
        figure: Any = plot_serving(done).figure
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue().decode()
    return text[text.index("<svg") :]
