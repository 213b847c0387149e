"""A Timeline as a picture: one row per GPU, for papers and issues."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from dysharp.analysis.timeline import Timeline
from dysharp.analysis.timeline.counters import used_in
from dysharp.base import F64, ps_to_us
from dysharp.program import Nature
from dysharp.show.plots import drawn, operator_colours

BINS = 1000
BANDS = ("up link", "operators", "down link")
"""Bands of each row, from the top. The band of the SMs shows whether a GEMM runs."""
AT_ONCE, AT_ONCE_BINS = 0.25, BINS // 100
"""Two operators are shown as one more colour from this share of each, in as many bins of one band."""
LABELS = {"gemm1": "GEMM 1", "gemm2": "GEMM 2"}


def plot_timeline(timeline: Timeline, *, title: str = "", ax: Axes | None = None) -> Axes:
    """One row per GPU with three bands: up link, GEMMs, down link. The darker the colour, the more of the time is used.

    Operators that run at once have the mean of their colours; the legend shows the mean of each pair that does.
    """
    used = _shares(timeline)
    with drawn(ax, 7.2, 1.2 + 0.22 * timeline.n_gpus) as axes:
        rows = np.ones((timeline.n_gpus * (len(BANDS) + 1), BINS, 3))
        colour = operator_colours(operator.name for operator in timeline.operators)
        names = list(colour)
        colours = np.array([to_rgb(code) for code in colour.values()])
        for (gpu, band), share in used.items():
            paint = np.clip(share, 0, 1)
            total = np.maximum(1.0, paint.sum(axis=0))
            rows[gpu * (len(BANDS) + 1) + band] = 1 - ((paint / total)[:, :, None] * (1 - colours)[:, None, :]).sum(axis=0)
        end = ps_to_us(timeline.time_ps)
        axes.imshow(rows, aspect="auto", interpolation="nearest", extent=(0.0, end, len(rows), 0.0))
        axes.set_yticks([gpu * (len(BANDS) + 1) + 1.5 for gpu in range(timeline.n_gpus)], [f"GPU {gpu}" for gpu in range(timeline.n_gpus)])
        axes.set(xlabel="time (us); bands of a GPU: up link, GEMMs, down link", title=title)
        axes.legend(
            handles=[
                *(Patch(color=code, label=_label(timeline, name)) for name, code in colour.items()),
                *(
                    Patch(color=tuple((colours[i] + colours[j]) / 2), label=" and ".join(LABELS.get(names[n], names[n].capitalize()) for n in (i, j)))
                    for i, j in _at_once(used)
                ),
            ],
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )
    return axes


def _shares(timeline: Timeline, bins: int = BINS) -> dict[tuple[int, int], F64]:
    """{(GPU, band): `[operators, bins]` share of each bin that is used}, operators in the order of the Timeline."""
    edges = np.linspace(0, max(1, timeline.time_ps), bins + 1)
    out: dict[tuple[int, int], F64] = {}
    s, names = timeline.slices, [operator.name for operator in timeline.operators]
    computes = [operator.name for operator in timeline.operators if operator.nature is Nature.COMPUTE]
    ptr = np.searchsorted(s.track, np.arange(len(timeline.tracks) + 1))
    for i, track in enumerate(timeline.tracks):
        operator = track.name.split()[0]
        if track.group not in BANDS or (track.group == "operators" and operator not in computes) or ptr[i] == ptr[i + 1]:
            continue
        here = slice(int(ptr[i]), int(ptr[i + 1]))
        use = used_in(edges, s.start[here], s.end[here]) / np.diff(edges)
        band = out.setdefault((track.gpu, BANDS.index(track.group)), np.zeros((len(names), bins)))
        band[names.index(operator if operator in names else _acknowledges(timeline))] += use
    return out


def _at_once(used: Mapping[tuple[int, int], F64]) -> list[tuple[int, int]]:
    """Pairs of operators that both use much of one band in the same bins, in ascending order. `used`: see `_shares`."""
    found = set()
    for share in used.values():
        much = (share >= AT_ONCE).astype(np.int64)
        found |= {(int(i), int(j)) for i, j in np.argwhere(np.triu(much @ much.T, 1) >= AT_ONCE_BINS)}
    return sorted(found)


def _acknowledges(timeline: Timeline) -> str:
    """The operator that has the acknowledgements: the first host operator."""
    return next(operator.name for operator in timeline.operators if operator.nature is Nature.HOST)


def _label(timeline: Timeline, name: str) -> str:
    words = LABELS.get(name, name if name == _acknowledges(timeline) else name.capitalize())
    return f"{words}, acknowledgements" if name == _acknowledges(timeline) else words
