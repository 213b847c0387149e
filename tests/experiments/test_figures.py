"""Figures as TOML: what is refused, how a claim is judged, and that a killed run repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.errors import ConfigError
from dysharp.experiments import Check, Figure, Point, Store, judge, list_figures, load_figure, run_points

TINY = """
title = "tiny"
source = "a test"
[points]
systems = ["dysharp", "deepep"]
models = ["S-8"]
cluster = "paper-gh200-nvl32"
gpus = 4
tokens = 32
routing = ["uniform"]
seeds = [0, 1, 2]
[[check]]
name = "faster"
metric = "speedup"
system = "dysharp"
over = "deepep"
at_least = 0.1
status = "reproduced"
"""


def figure_file(tmp_path: Path, text: str = TINY) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


def test_every_packaged_figure_loads_and_names_its_source() -> None:
    names = list_figures()
    assert {"fig15", "fig16", "fig18", "windows"} <= set(names)
    for name in names:
        figure = load_figure(name)
        assert figure.source
        assert figure.points
        assert figure.checks


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('source = "a test"', 'sorce = "a"', r'tiny.toml.sorce: unknown key; did you mean "source"'),
        ("tokens = 32", "tokns = 32", r'points.tokns: unknown key; did you mean "tokens"'),
        ('metric = "speedup"', 'metric = "spedup"', r'check\[0\].metric: found \'spedup\'; did you mean "speedup"'),
        ('status = "reproduced"', 'status = "gap"', r"found a gap without its reason or ablation command, expected both"),
        ("at_least = 0.1\n", "", r"found status 'reproduced', expected a bound"),
        ('systems = ["dysharp", "deepep"]', 'systems = "dysharp"', r"points.systems: found 'dysharp', input should be a valid tuple"),
        ("tokens = 32", 'tokens = "many"', r"points.tokens: found 'many', input should be a valid integer"),
        ("at_least = 0.1", 'at_least = "x"', r"check\[0\].at_least: found 'x', input should be a valid number"),
        ('name = "faster"\n', "", r"check\[0\].name: found"),
    ],
)
def test_a_bad_figure_is_refused_by_name(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in TINY
    with pytest.raises(ConfigError, match=text):
        load_figure(figure_file(tmp_path, TINY.replace(old, new)))


def test_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'figure \'fig155\': unknown; did you mean "fig15"'):
        load_figure("fig155")


CHECK = Check("c", "speedup", "dysharp", "deepep", paper=2.0, within=0.05, status="reproduced")


def judged(check: Check, *, slow: float, fast: float) -> bool:
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    figure = Figure("f", "t", "s", (a, b), (check,))
    results, holds = judge(figure, {a: {"time_us": fast}, b: {"time_us": slow}})
    assert results[0].ours == pytest.approx(slow / fast)
    return holds


def test_verdicts() -> None:
    assert judged(CHECK, slow=2.05, fast=1.0)
    assert not judged(CHECK, slow=2.2, fast=1.0)
    gap = replace(CHECK, status="gap", reason="r", ablation="a")
    assert judged(gap, slow=2.2, fast=1.0)
    assert not judged(gap, slow=2.05, fast=1.0), "a gap that has closed fails"
    assert judged(replace(CHECK, status="no_published_value"), slow=9.0, fast=1.0)


def test_claims_over_all_points_are_not_judged_on_some() -> None:
    a, b = Point("dysharp", "S-8", "c", "uniform"), Point("deepep", "S-8", "c", "uniform")
    figure = Figure("f", "t", "s", (a, b, replace(a, model="M-8")), (CHECK,))
    results, holds = judge(figure, {a: {"time_us": 1.0}, b: {"time_us": 9.0}})
    assert holds
    assert results[0].status == "no_published_value"


def test_a_killed_run_leaves_a_readable_store_and_repeats_nothing(tmp_path: Path) -> None:
    path, store = figure_file(tmp_path), Store(tmp_path / "store")
    command = [sys.executable, "-m", "dysharp", "reproduce", str(path), "--store", str(store.folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    give_up = time.monotonic() + 120
    while not list(store.folder.glob("*.json")):
        assert time.monotonic() < give_up, "no point was finished"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    figure = load_figure(path)
    finished = {p: store.path(p).stat().st_mtime_ns for p in figure.points if store.get(p) is not None}
    assert 1 <= len(finished) < len(figure.points)
    rows, failed = run_points(figure.points, store, jobs=2)
    assert not failed
    assert list(rows) == list(figure.points)
    assert all(store.path(p).stat().st_mtime_ns == when for p, when in finished.items())


def test_a_failing_point_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = Point("ideal", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)
    bad = replace(good, model="S-9")
    rows, failed = run_points([bad, good], Store(tmp_path))
    assert list(rows) == [good]
    assert "S-9" in failed[bad]


def test_command_prints_json_and_exits_with_the_verdict(tmp_path: Path) -> None:
    path = figure_file(tmp_path, TINY.replace("seeds = [0, 1, 2]", "seeds = [0]"))
    arguments = ["reproduce", str(path), "--json", "--store", str(tmp_path / "s"), "--report", str(tmp_path / "r.md")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    (figure,) = json.loads(done.stdout)
    assert figure["figure"] == "tiny"
    assert figure["verdict"] == "holds"
    assert set(figure["rows"][0]) >= {"point", "metric", "paper", "ours", "tolerance", "status"}
    assert "## tiny" in (tmp_path / "r.md").read_text()
    path.write_text(TINY.replace("seeds = [0, 1, 2]", "seeds = [0]").replace("at_least = 0.1", "at_least = 100.0"))
    assert CliRunner().invoke(cli, arguments).exit_code == 1
