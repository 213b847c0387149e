"""A Timeline as a picture: one row per GPU, for papers and issues."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from dysharp.arrays import F64
from dysharp.reports.plots import PALETTE, drawn
from dysharp.timeline import Timeline
from dysharp.units import ps_to_us

BINS = 1000
BANDS = ("up link", "operators", "down link")
"""Bands of each row, from the top. The band of the SMs shows whether a GEMM runs."""
COLOURS = {"dispatch": PALETTE[0], "gemm1": PALETTE[1], "gemm2": PALETTE[2], "combine": PALETTE[3], "other": PALETTE[4]}
LABELS = {"gemm1": "GEMM 1", "gemm2": "GEMM 2", "other": "other, acknowledgements"}


def plot_timeline(timeline: Timeline, *, title: str = "", ax: Axes | None = None) -> Axes:
    """One row per GPU with three bands: up link, GEMMs, down link. The darker the colour, the more of the time is used."""
    used = shares(timeline)
    with drawn(ax, 7.2, 1.2 + 0.22 * timeline.n_gpus) as axes:
        rows = np.ones((timeline.n_gpus * (len(BANDS) + 1), BINS, 3))
        names = list(COLOURS)
        colours = np.array([to_rgb(COLOURS[name]) for name in names])
        for (gpu, band), share in used.items():
            paint = np.clip(share, 0, 1)
            total = np.maximum(1.0, paint.sum(axis=0))
            rows[gpu * (len(BANDS) + 1) + band] = 1 - ((paint / total)[:, :, None] * (1 - colours)[:, None, :]).sum(axis=0)
        end = ps_to_us(timeline.time_ps)
        axes.imshow(rows, aspect="auto", interpolation="nearest", extent=(0.0, end, len(rows), 0.0))
        axes.set_yticks([gpu * (len(BANDS) + 1) + 1.5 for gpu in range(timeline.n_gpus)], [f"GPU {gpu}" for gpu in range(timeline.n_gpus)])
        axes.set_xlabel("time (us); bands of a GPU: up link, GEMMs, down link")
        axes.set_title(title, loc="left")
        axes.legend(
            handles=[Patch(color=COLOURS[name], label=LABELS.get(name, name.capitalize())) for name in names],
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )
    return axes


def shares(timeline: Timeline, bins: int = BINS) -> dict[tuple[int, int], F64]:
    """{(GPU, band): `[operators, bins]` share of each bin that is used}, operators in the order of `COLOURS`."""
    edges = np.linspace(0, max(1, timeline.time_ps), bins + 1)
    out: dict[tuple[int, int], F64] = {}
    s = timeline.slices
    ptr = np.searchsorted(s.track, np.arange(len(timeline.tracks) + 1))
    for i, track in enumerate(timeline.tracks):
        operator = track.name.split()[0]
        if track.group not in BANDS or (track.group == "operators" and not operator.startswith("gemm")) or ptr[i] == ptr[i + 1]:
            continue
        here = slice(int(ptr[i]), int(ptr[i + 1]))
        start, end = s.start[here], s.end[here]
        busy = np.concatenate([[0], np.cumsum(end - start)])
        corners, heights = np.stack([start, end], axis=1).ravel(), np.stack([busy[:-1], busy[1:]], axis=1).ravel()
        use = np.diff(np.interp(edges, corners, heights)) / np.diff(edges)
        band = out.setdefault((track.gpu, BANDS.index(track.group)), np.zeros((len(COLOURS), bins)))
        band[list(COLOURS).index(operator if operator in COLOURS else "other")] += use
    return out
