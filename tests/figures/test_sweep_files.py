"""Sweep files: the packaged example, keys of clusters, options of one system, and errors in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.cli.reproduce import _example_sweep
from dysharp.figures import Figure, check_points, load_figure
from dysharp.specs import load_cluster

FILE = """
[points]
systems = ["deepep", "dysharp"]
models = "S-8"
gpus = 4
"""


def sweep_of(tmp_path: Path, text: str) -> Figure:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE + text)
    return load_figure(path)


def test_the_example_is_a_sweep_of_twelve_points(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(_example_sweep())
    points = load_figure(path).points
    check_points(points)
    assert len(points) == 12  # 2 GPU counts x 2 link rates x (deepep once, dysharp at two windows)
    assert len({point.label for point in points}) == 12
    assert all(len(line) <= 100 for line in _example_sweep().splitlines())


def test_keys_of_clusters_are_an_axis(tmp_path: Path) -> None:
    points = sweep_of(tmp_path, '[points.grid]\n"cluster.link_GBps" = [450, 900.5]\n').points
    assert [load_cluster(p.cluster).link_bytes_per_us for p in points] == [450_000, 900_500] * 2
    assert points[1].command()[5:7] == ["paper-gh200-nvl32,link_GBps=900.5", "--seed"]


def test_two_clusters_have_two_labels(tmp_path: Path) -> None:
    points = sweep_of(tmp_path, 'cluster = ["paper-gh200-nvl32", "paper-nvl72"]\n').points
    assert len({p.label for p in points}) == 4
    assert points[-1].label == "dysharp S-8 paper-nvl72 4 GPUs"


def test_options_of_one_system_leave_the_others_alone(tmp_path: Path) -> None:
    points = sweep_of(tmp_path, '[points.grid]\n"dysharp.dispatch_window" = [0, 16, 32]\ndispatch = ["rows", "fp8"]\n').points
    assert [dict(p.options) for p in points if p.system == "deepep"] == [{"dispatch": "rows"}, {"dispatch": "fp8"}]
    assert len([p for p in points if p.system == "dysharp"]) == 6


@pytest.mark.parametrize(("every", "own"), [(16, 24), (24, 16)])
def test_an_option_of_one_system_counts_before_that_of_all(tmp_path: Path, every: int, own: int) -> None:
    points = sweep_of(tmp_path, f'[points.options]\n"dysharp.dispatch_window" = {own}\ndispatch_window = {every}\n').points
    assert [dict(p.options)["dispatch_window"] for p in points] == [every, own]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"options" = { dispatch_window = [8, 16] }', "points.options.dispatch_window: found [8, 16], expected a table of options with one"),
        ("[points.grid]\ndispatch_window = 8", "points.grid.dispatch_window: found 8, expected a table of options with a list of values each"),
        ("gpu = 4", 'points.gpu: unknown key; did you mean "gpus"?'),
        ('[points.grid]\n"nvls.dispatch_window" = [8]', "points: option 'nvls.dispatch_window': found 'nvls'"),
        ('tokens = "many"', "points.tokens: found 'many', expected a whole number or a list of whole numbers"),
        ("tokens = true", "points.tokens: found True, expected a whole number or a list of whole numbers"),
        ("seeds = [true]", "points.seeds.0: found True, expected a whole number or a list of whole numbers"),
        ("seeds = [0, -1]", "points.seeds: found -1, expected at least 0"),
        ("tokens = []", "points.tokens: found an empty list, expected at least one value"),
        ('[points.grid]\n"cluster.link_GBps" = []', "points.grid.cluster.link_GBps: found an empty list, expected at least one value"),
        ("[points.choices]\n'hub.al_misses' = []", "points.choices.hub.al_misses: found an empty list, expected at least one value"),
        ("seeds = [0.5]", "points.seeds.0: found 0.5, expected a whole number or a list of whole numbers"),
    ],
)
def test_errors_in_plain_words(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        sweep_of(tmp_path, text + "\n")
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["points = []", ""])
def test_a_file_without_points_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"found no \[points\], expected systems and models to run"):
        load_figure(path)


def test_a_file_without_systems_says_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('[points]\nmodels = ["S-8"]\n')
    with pytest.raises(ConfigError, match=r'points.systems: missing, expected a list of systems, such as \["deepep", "dysharp"\]'):
        load_figure(path)
