"""Regression values: pictures, pages and screens of results that `made_results` makes without a run, each held as a file of text in `made/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes

from dysharp.api import Comparison
from dysharp.cli.step import _print_steps
from dysharp.cli.texts import advice_details, advice_text, comparison_text, row_text
from dysharp.figures.series import _Series
from dysharp.figures.window_map import mark_defaults
from dysharp.runs.point import Point
from dysharp.show import html_report
from dysharp.show.figure_plots import plot_series
from dysharp.show.plan_plots import plot_plan
from dysharp.show.plots import plot_compare, plot_network, plot_pareto, plot_windows
from dysharp.show.step_plot import plot_step
from dysharp.show.step_report import render_steps
from dysharp.show.timeline import plot_timeline
from dysharp.show.validation_page import plot_validation
from tests.show.drawn import drawn_lines
from tests.show.held import Lines, lines_of, page_lines, plain, printed, stored_lines
from tests.show.made_results import made_advice, made_comparison, made_load, made_row, made_steps, made_timeline, window

FOLDER = Path(__file__).with_name("made")


ROOM = 90
"""Letters of a line below a picture (`figure_plots.ROOM`)."""


def series(kind: str) -> Axes:
    values: dict[str, tuple[float | None, ...]] = {
        "deepep": (1.0, 1.0, 1.0),
        "dysharp": (2.5, None, 3.5),
        "made " + "s" * (ROOM // 3 - 11): (0.5, 0.75, 0.25),
    }
    places = ("one", "two", "mean") if kind == "bars" else ("a" * (ROOM - 2 + (kind == "lines")), "b", "c")  # parts: as many letters as there is room
    published = {"dysharp": 3.25, list(values)[2]: 0.5} if kind == "bars" else {}
    return plot_series(_Series(kind, places, values, published, "made_axis", "made unit"), f"made {kind}")


def windows() -> Axes:
    base = Point("dysharp", "S-8", "paper-gh200-nvl32", "uniform")
    sizes = [(d, c) for d in (16, 64, 256) for c in (32, 96)]
    rows: dict[Point, dict[str, float]] = {base: {"time_us": 9.5}}
    for i, (d, c) in enumerate(sizes):
        rows[replace(base, options=(("combine_window", c), ("dispatch_window", d)))] = {"time_us": 8.0 + i**2 / 10}
    axes = plot_windows(rows)
    mark_defaults(axes, rows)
    return axes


def network() -> Axes:
    def curve(name: str, scale: float) -> Any:
        points = [
            SimpleNamespace(load=load, packet_latency=scale * late, saturated=load > 0.5, n_packets=n)
            for load, late, n in ((0.125, 10.0, 5), (0.5, 16.0, 9), (0.625, 500.0, 9), (0.75, 0.0, 0))
        ]
        config, traffic = SimpleNamespace(topology="fly", k=8, n=2), SimpleNamespace(packet_flits=9, pattern="uniform")
        return SimpleNamespace(points=points, setting=SimpleNamespace(name=name, config=config, traffic=traffic))

    return plot_network([curve("network", 1.0), curve("made-cluster", 1.5)])


def plan() -> Axes:
    return plot_plan("a plan", ["one", "two"], [900.5, 700.25], ["memory", "bubble"], [60.5, 80.0, 81.25], 80.0, made_steps().best.replayed)


def collective() -> Comparison:
    done = made_comparison("paper")
    return replace(
        done, rows=tuple(replace(row, workload="all-reduce of 3 MiB", direction="both", dropped_rows=9 * i) for i, row in enumerate(done.rows))
    )


def first_table(lines: Lines) -> Lines:
    return takewhile(lambda line: "Where the time goes" not in line, lines)


def report_of_stored() -> Lines:
    rows = [made_row("deepep"), made_row("dysharp"), made_row("dysharp", options={"window": 48}), made_row("made-elsewhere", seed=8, form="real")]
    rows += [window(made_row("deepep", direction="bwd", model="S-8", cluster="paper-gh200-nvl32"))]
    stored = [row.to_dict() | {"stalls": row.stalls} for row in rows]
    return page_lines(html_report.render(html_report.report_of_rows(stored, "dysharp report", left_out=[(stored[0], {"nvls": "made reason"})])))


def report_with_load() -> Lines:
    report = html_report.report_of_comparison(made_comparison("hw"), "dysharp compare")
    load = made_load("auto", 4, nics=True)
    paths, bounds = html_report._heat(load)
    bars = html_report._bars(load.rows)
    view = html_report._LoadView(paths, bounds, 4, (0, 2, 55), bars, (3, 77), tuple(load.rows.tolist()), (1.25, 1.5, 1.75), load.nics_max_mean)
    return page_lines(html_report.render(html_report.with_load(report, view)))


PICTURES: dict[str, Callable[[], Axes]] = {
    "compare": lambda: plot_compare([*made_comparison("hw").rows, replace(made_row("nvls"), direction="bwd")]),
    "compare-collective": lambda: plot_compare(collective().rows),
    "pareto": lambda: plot_pareto([(1.0, 5.0), (2.0, 9.0), (3.0, 4.0), (2.5, 9.5)], ("time_us", "-use_up"), "made"),
    "windows": windows, "network": network, "plan": plan, "step": lambda: plot_step(made_steps()),
    "timeline": lambda: plot_timeline(made_timeline(), title="made"),
    "validation": lambda: plot_validation([("a", 1.0, 1.25), ("b", 20.0, 15.0), ("a", 4.0, 3.0)]),
    "series-bars": lambda: series("bars"), "series-lines": lambda: series("lines"), "series-parts": lambda: series("parts"),
}  # fmt: skip
PAGES: dict[str, Callable[[], Lines]] = {
    "page-hw": report_with_load, "page-stored": report_of_stored,
    "page-advice": lambda: first_table(page_lines(html_report.render(html_report.report_of_advice(made_advice("ranked"), "dysharp advise")))),
    "page-step": lambda: page_lines(render_steps(made_steps(), "dysharp step")),
}  # fmt: skip
SCREENS: dict[str, Callable[[], Lines]] = {
    "row": lambda: printed(row_text.print_row, made_row("dysharp")),
    "row-hw": lambda: printed(row_text.print_row, window(made_row("deepep", real=True, nics=True))),
    "compare-paper": lambda: printed(comparison_text.print_comparison, made_comparison("paper")),
    "compare-hw": lambda: printed(comparison_text.print_comparison, made_comparison("hw")),
    "compare-window": lambda: printed(comparison_text.print_comparison, made_comparison("window")),
    "compare-text": lambda: [*str(made_comparison("window")).splitlines(), *made_comparison("window")._repr_html_().splitlines()],
    "compare-json": lambda: plain({k: v for k, v in made_comparison("hw").to_dict().items() if k != "rows"}),
    "advise": lambda: advice_text._screen(made_advice("ranked")), "advise-few": lambda: advice_text._screen(made_advice("few")),
    "advise-details": lambda: printed(advice_details.print_details, made_advice("ranked")),
    "advise-details-few": lambda: advice_details.markdown_of(made_advice("few")).splitlines(),
    "step": lambda: [*printed(_print_steps, made_steps()), *str(made_steps()).splitlines()],
    "step-json": lambda: plain(made_steps().to_dict()),
}  # fmt: skip


def picture(name: str) -> Lines:
    return drawn_lines(PICTURES[name]())


TEXTS: dict[str, Callable[[], Lines]] = {
    **{f"picture-{name}": partial(picture, name) for name in PICTURES}, **PAGES,
    **{f"screen-{name}": show for name, show in SCREENS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_made_result(name: str) -> None:
    assert lines_of(TEXTS, name) == stored_lines(FOLDER, name)


def test_exposed_communication_is_no_promise() -> None:
    row = replace(made_row("dysharp"), time_us=225.2, exposed_comm_us=87.7, workload_bound_us=211.4)
    assert "87.70 us, of which at most 13.80 us can be saved: lower bound, any system" in " ".join(" ".join(printed(row_text.print_row, row)).split())
