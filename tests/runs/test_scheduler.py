"""Studies on a dask scheduler: the same points in the same folder; a worker that is killed costs no point."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError, MissingExtra
from dysharp.figures.studies.study import load_study, run_study
from dysharp.figures.studies.study_folder import JOURNAL, StudyFolder
from dysharp.runs import on_dask
from dysharp.runs.point import Point
from tests.runs.fake_points import fake_row, large_row, logged_row

duckdb = pytest.importorskip("duckdb")
STUDY = """
[points]
systems = ["deepep", "dysharp"]
models = ["S-8"]
gpus = 4
tokens = [16, 32]
[points.grid]
"cluster.link_GBps" = LINKS
"dysharp.dispatch_window" = [0, 32]
"""
FAKE = Path(__file__).parent / "fake_points.py"


@pytest.fixture
def address() -> Iterator[str]:
    """A scheduler with two workers, all in this process."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=logging.ERROR) as cluster:
        yield cluster.scheduler_address


def _study(folder: Path, links: list[int]) -> str:
    (folder / "my.toml").write_text(STUDY.replace("LINKS", str(links)))
    return str(folder / "my.toml")


def test_a_scheduler_runs_the_points_and_continues_a_study(tmp_path: Path, address: str) -> None:
    folder = tmp_path / "f"
    run_study(load_study(_study(tmp_path, [450])), StudyFolder(folder), simulate=fake_row)
    study = load_study(_study(tmp_path, [450, 900]))
    file = str(tmp_path / "scheduler.json")
    with import_module("distributed").Client(address, set_as_default=False) as client:
        client.write_scheduler_file(file)  # before any task: dask cannot write the statistics of tasks as JSON
    first = run_study(study, StudyFolder(folder), scheduler=address, simulate=fake_row)
    again = run_study(study, StudyFolder(folder), scheduler=file, simulate=fake_row)
    assert [(o.done, o.kept, o.failed) for o in (first, again)] == [(6, 6, {}), (0, 12, {})]
    assert StudyFolder(folder).connect().sql("select count(*), count(distinct key) from points").fetchall() == [(12, 12)]


def test_dask_runs_a_point_again_that_raises(tmp_path: Path, address: str) -> None:
    """An error that dysharp does not know, such as that of a file system: twice more. Other points go on."""
    log = tmp_path / "log"

    def tries() -> list[str]:
        return log.read_text().splitlines()

    def row(point: Point, part: float) -> dict[str, object]:
        assert part == 0.5  # two workers share the memory
        with log.open("a") as file:
            file.write(point.label + "\n")
        if point.system == "deepep" and (point.tokens == 16 or tries().count(point.label) < 2):
            raise OSError("stale file handle")
        return fake_row(point)

    outcome = run_study(load_study(_study(tmp_path, [450])), StudyFolder(tmp_path / "f"), scheduler=address, simulate=row)
    assert outcome.done == 5
    assert list(outcome.failed.values()) == ["OSError: stale file handle"]
    assert sorted(tries().count(label) for label in set(tries())) == [1, 1, 1, 1, 2, 1 + on_dask.RETRIES]


def test_points_above_their_share_of_the_memory_run_after_the_others(tmp_path: Path, address: str) -> None:
    log = tmp_path / "log"
    simulate = partial(large_row, log=str(log))
    outcome = run_study(load_study(_study(tmp_path, [450])), StudyFolder(tmp_path / "f"), jobs=2, scheduler=address, simulate=simulate)
    assert (outcome.done, outcome.failed) == (6, {})
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["deepep"] * 2 + ["dysharp"] * 4


@pytest.mark.slow
def test_a_study_that_is_interrupted_cancels_its_points(tmp_path: Path, address: str) -> None:
    log = tmp_path / "log"

    def interrupted(done: int, total: int, label: str) -> None:
        raise KeyboardInterrupt

    study = load_study(_study(tmp_path, [450 + i for i in range(25)]))
    with pytest.raises(KeyboardInterrupt):
        run_study(study, StudyFolder(tmp_path / "f"), 1, interrupted, address, partial(logged_row, log=str(log), seconds=0.05))
    begun = -1
    while begun != (now := log.read_text().count("\n")):  # points that ran go on; on a busy machine they take long
        begun = now
        time.sleep(1)
    assert begun < len(study.grid())
    assert StudyFolder(tmp_path / "f").connect().sql("select count(*) from points").fetchall() == [(1,)]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no-such-file.json", "no address", "other.json", "number.json"])
def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(on_dask, "CONNECT_S", 0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"hidden_size": 7168}')
    (tmp_path / "number.json").write_text('{"address": 3}')
    with pytest.raises(ConfigError, match="found no dask scheduler at"):
        run_study(load_study(_study(tmp_path, [450])), StudyFolder(tmp_path / "f"), scheduler=address)


def test_without_dask_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dysharp\[dask\]'"):
        run_study(load_study(_study(tmp_path, [450])), StudyFolder(tmp_path / "f"), scheduler="tcp://127.0.0.1:9")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills by signal")
def test_a_worker_of_a_cluster_that_is_killed_costs_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of four processes; one is killed with -9 while points run. Then the driver is, and a second driver goes on."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.syspath_prepend(str(FAKE.parent))  # the workers, too
    file, folder, log = _study(tmp_path, [450 + i for i in range(25)]), tmp_path / "f", tmp_path / "log"
    with distributed.LocalCluster(4, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL) as cluster:
        command = [sys.executable, str(FAKE), file, str(folder), str(log), "0.1", "1", cluster.scheduler_address]
        driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for lines, victim in ((10, next(iter(cluster.workers.values())).pid), (50, driver.pid)):
            until = time.monotonic() + 60
            while not (folder / JOURNAL).is_file() or (folder / JOURNAL).read_text().count("\n") < lines:
                assert driver.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            os.kill(victim, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    found = duckdb.sql(f"select count(*), count(distinct key) from read_parquet('{folder}/part-*.parquet', union_by_name=true)").fetchall()
    assert found == [(150, 150)]
