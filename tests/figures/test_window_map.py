"""The default windows on the map."""

from dysharp.figures import Point, load_figure
from dysharp.figures.window_map import _default_windows, mark_defaults
from dysharp.show.plots import plot_windows


def test_default_windows_follow_rate_round_trip_and_tables() -> None:
    found = {m: _default_windows(Point("dysharp", m, "paper-gh200-nvl32", "uniform")) for m in ("S-8", "M-8", "L-8")}
    assert found == {"S-8": (30, 60), "M-8": (16, 32), "L-8": (9, 18)}


def test_each_map_has_a_frame_around_its_default() -> None:
    figure = load_figure("windows")
    rows = {p: {"time_us": 100.0 + i} for i, p in enumerate(figure.points)}
    first = plot_windows(rows)
    mark_defaults(first, rows)
    assert first.figure is not None
    corners = [tuple(round(v + 0.46) for v in ax.patches[-1].get_xy()) for ax in first.figure.axes]  # type: ignore[attr-defined]
    assert corners == [(2, 3), (1, 2), (0, 1)]
