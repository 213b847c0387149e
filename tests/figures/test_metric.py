"""The register of metrics and of calculated systems."""

from __future__ import annotations

from pathlib import Path

import dysharp.figures.metrics
from dysharp.figures import list_figures, load_figure
from dysharp.figures.metric import Seen, all_calculated, all_metrics
from dysharp.figures.origin import origin_of
from dysharp.runs.point import Point
from dysharp.systems import all_systems

POINT = Point("dysharp", "S-8", "paper-gh200-nvl32", "uniform")


def test_every_file_of_the_folder_registers_a_metric() -> None:
    files = {path.stem for path in Path(dysharp.figures.metrics.__path__[0]).glob("*.py")} - {"__init__"}
    measures = [m.measure.__module__ for m in all_metrics().values() if not m.system] + [c.row.__module__ for c in all_calculated().values()]
    assert {module.rpartition(".")[2] for module in measures} == files
    assert all(m.unit for m in all_metrics().values())


def test_figures_use_every_calculated_system_and_its_name_is_no_simulated_system() -> None:
    used = {p.system for name in list_figures() for p in load_figure(name).points}
    assert set(all_calculated()) <= used
    assert not set(all_calculated()) & set(all_systems())


def test_a_metric_that_compares_has_no_value_without_its_partner() -> None:
    rows = {POINT: {"time_us": 2.0}}
    assert all_metrics()["speedup"].value(Seen(POINT, rows, "deepep")) is None
    assert all_metrics()["time_us"].value(Seen(POINT, rows)) == 2.0


def test_a_calculated_point_is_one_point_in_every_direction_and_under_all_choices() -> None:
    point = Point("hub-area", "S-8", "paper-dgx-h800", "")
    origin = origin_of("hub-area")
    assert origin.in_direction(point, "bwd") == origin.with_choices(point, {"packet.replay": 1}) == point
    assert origin_of("dysharp").in_direction(POINT, "bwd").direction == "bwd"
