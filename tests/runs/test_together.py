"""Systems of a comparison side by side in processes: the same Rows, the same errors, the same choices."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dysharp
from dysharp.base import processes
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.runs import job, together
from dysharp.runs.progress import Step
from dysharp.specs.choices import choices_overridden
from dysharp.systems import System

SYSTEMS = ("deepep", "dysharp", "ideal")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of processes of the calls; two processes from the first row on. They are copies, with what a test replaced, whatever ran before."""
    found: list[int] = []
    monkeypatch.setattr(processes, "may_copy", lambda: sys.platform == "linux")
    chosen = together._processes
    monkeypatch.setattr(together, "POOL_ROWS", 0)
    monkeypatch.setattr(together, "_cores", lambda: 2)
    monkeypatch.setattr(together, "_processes", lambda todo, running: found.append(n := chosen(todo, running)) or n)
    return found


def test_processes_change_no_row(used: list[int]) -> None:
    steps: list[Step] = []
    asked = {"model": "S-8", "gpus": 4, "tokens": 32, "routing": "uniform"}
    with choices_overridden({"machine.responder_ns": 1000}):
        apart = dysharp.compare(SYSTEMS, **asked, progress=steps.append)
        alone = [dysharp.run(name, **asked) for name in SYSTEMS]
    assert used[0] == 2
    assert [(r.system, r.digest, r.time_us) for r in apart.rows] == [(r.system, r.digest, r.time_us) for r in alone]
    assert alone[1].digest != dysharp.run("dysharp", **asked).digest, "the choice has an effect"
    assert [s.share for s in steps] == sorted(s.share for s in steps)
    assert [s.index for s in steps if s.stage == "analysis"] == [1, 2, 3]


def test_a_deadlock_in_a_process_is_raised(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: object) -> None:
        raise SimulationError(f"deadlock in {os.getpid()}")

    monkeypatch.setattr(job, "run_point", stuck)
    with pytest.raises(SimulationError, match="deadlock in") as caught:
        dysharp.compare(SYSTEMS, model="S-8", gpus=4, tokens=32)
    assert str(os.getpid()) not in str(caught.value)


def test_a_system_that_is_refused_is_named_before_anything_runs(used: list[int]) -> None:
    with pytest.raises(ConfigError, match="needs about"):
        dysharp.compare(SYSTEMS, model="L-8", tokens=10_000_000)
    assert used == []


SCRIPT = """
import threading, time
import dysharp
from dysharp.runs import together
together.POOL_ROWS, together._cores, chosen, used = 0, lambda: 2, together._processes, []
together._processes = lambda todo, running: used.append(chosen(todo, running)) or used[-1]
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
done = dysharp.compare(["deepep", "ideal"], model="S-8", gpus=4, tokens=32)
print(len(done.rows), "rows,", used[0], "processes,", "__file__" in globals())
"""


@pytest.mark.slow
def test_a_script_with_threads_and_without_a_guard_is_not_run_twice(tmp_path: Path) -> None:
    """Processes begin anew, not as copies, and do not run the script, which would begin processes itself."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("2 rows, 2 processes, True\n", 0), done.stderr


def test_a_process_that_is_killed_is_one_line(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(job, "run_point", killed)
    with pytest.raises(SimulationError, match="a process was ended each time it ran deepep; if memory ran out") as caught:
        dysharp.compare(SYSTEMS, model="S-8", gpus=4, tokens=32)
    assert "\n" not in str(caught.value)


def test_an_error_ends_what_runs(used: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stuck(system: System, *_: object) -> None:
        if system.name == "ideal":
            raise SimulationError("deadlock")
        time.sleep(20)
        (tmp_path / "finished").touch()

    monkeypatch.setattr(job, "run_point", stuck)
    with pytest.raises(SimulationError, match="deadlock"):
        dysharp.compare(("deepep", "ideal"), model="S-8", gpus=4, tokens=32)
    assert not (tmp_path / "finished").exists(), "waited for the other process"
    assert multiprocessing.active_children() == []


def test_progress_goes_on_while_systems_run(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "EVERY_S", 0.01)
    steps: list[Step] = []
    dysharp.compare(SYSTEMS, model="S-8", gpus=4, tokens=64, progress=steps.append)
    assert any(s.system == "systems side by side" and s.stage == "engine" for s in steps)
    assert [s.share for s in steps] == sorted(s.share for s in steps)


@pytest.mark.slow
def test_a_script_in_a_folder_of_the_same_name_is_not_run_twice(tmp_path: Path) -> None:
    (tmp_path / "dysharp").mkdir()
    (tmp_path / "dysharp" / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "dysharp" / "mine.py")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("2 rows, 2 processes, True\n", 0), done.stderr


def test_a_system_of_a_script_stays_in_the_process_that_knows_it(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "may_copy", lambda: False)
    monkeypatch.setattr(dysharp.systems.get_system("ideal").paper, "__module__", "mine")
    done = dysharp.compare(["deepep", "ideal"], model="S-8", gpus=4, tokens=32)
    assert [row.system for row in done.rows] == ["deepep", "ideal"]
    assert used == [1]
