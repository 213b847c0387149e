"""Signals end a command wherever they arrive, and it says what was kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

STUDY = '[points]\nsystems = ["deepep"]\nmodels = ["S-8"]\ngpus = 4\ntokens = [{}]\n'.format(", ".join(map(str, range(8, 808, 8))))
IN_LLVM = """
import os, signal, sys
from llvmlite.binding import ExecutionEngine

find, sent = ExecutionEngine._find_module_ptr, []

def find_module_ptr(self, pointer):
    if not sent and os.path.isdir('f'):  # kernels that a bare cache compiles earlier belong to no study
        sent.append(os.kill(os.getpid(), signal.{name}))
    return find(self, pointer)

ExecutionEngine._find_module_ptr = find_module_ptr
from dysharp.cli.entry import main
main(sys.argv[1:])
"""
"""A signal arrives in what LLVM calls when it has compiled: Python drops an error that is raised there."""


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Ctrl-C is no signal for what a script starts behind `&`, and commands keep that; here they hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "code", "words"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "ended by SIGTERM")])
def test_a_signal_while_llvm_compiles_is_not_lost(tmp_path: Path, name: str, code: int, words: str) -> None:
    (tmp_path / "my.toml").write_text(STUDY)
    command = [sys.executable, "-c", IN_LLVM.format(name=name), "study", "my.toml", "--folder", "f"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.split("\n")[-2].startswith(f"dysharp: {words}; "), done.stderr
    assert "points are finished and kept in f; the same command goes on from there" in done.stderr
    assert "Traceback" not in done.stderr


WAITS = """
import signal, sys, threading
from dysharp.cli import entry

class Drops:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def main(*args, **options):
    Drops()
    threading.Event().wait()

entry.cli.main = main
entry.main([])
"""
"""A signal is dropped, and then the main thread waits for what never comes."""


def test_a_dropped_signal_wakes_a_thread_that_waits() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "dysharp: interrupted\n")


BEGINS = """
import os, signal, time
from concurrent.futures.process import _ExecutorManagerThread as Thread

def start(self, begin=Thread.start):
    begun = self._started.set
    self._started.set = lambda: (time.sleep(0.5), begun())
    self._started.wait = lambda: os.kill(os.getpid(), signal.SIGTERM)
    begin(self)

Thread.start = start
from dysharp.cli.entry import main
main(["query", "select 1 as x", "--folder", "."])
"""
"""A signal arrives between the thread of a pool and its first act."""


def test_a_signal_while_processes_begin_ends_them(tmp_path: Path) -> None:
    """Python refuses to join a thread that has not begun; one question in a few hundred hung there, behind a traceback."""
    done = subprocess.run([sys.executable, "-c", BEGINS], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (143, "dysharp: ended by SIGTERM")


LEAVES = """
from dysharp.cli import entry

def main(*args, **options):
    try:
        raise entry._Ended(15)
    except entry._Ended:
        raise RuntimeError("another error on the way") from None

entry.cli.main = main
entry.main([])
"""


def test_python_ends_where_an_interruption_became_another_error() -> None:
    """The interruption that is kept by the error comes again when Python drops it, and no thread begins at that time."""
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: another error on the way")


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_question_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """DuckDB looks at no signal while it sorts one list."""
    (tmp_path / "my.toml").write_text(STUDY)
    run = [sys.executable, "-m", "dysharp"]
    subprocess.run([sys.executable, "-c", _FAKE], cwd=tmp_path, check=True)
    asked = subprocess.Popen([*run, "query", "select list_sort(range(100000000)) from points", "--folder", "f"], cwd=tmp_path, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not _seconds_of_children(asked.pid) > 0.5:
        assert time.monotonic() < until
        assert asked.poll() is None
        time.sleep(0.02)
    asked.send_signal(number)
    begin = time.monotonic()
    asked.communicate(timeout=60)
    assert asked.returncode == 128 + number
    assert time.monotonic() - begin < 5  # 0.5 s where no other work runs
    assert _children(asked.pid) == []


_FAKE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from dysharp.figures.studies.study import load_study, run_study
from dysharp.figures.studies.study_folder import StudyFolder
from tests.runs.fake_points import fake_row
run_study(load_study("my.toml"), StudyFolder(Path("f")), simulate=fake_row)
"""


def _children(parent: int) -> list[Path]:
    return [p for p in Path("/proc").glob("[0-9]*") if f"PPid:\t{parent}\n" in _text(p / "status")]


def _seconds_of_children(parent: int) -> float:
    """Processor time of the processes that `parent` began."""
    times = [_text(p / "stat").rpartition(")")[2].split() for p in _children(parent)]
    return sum((int(t[11]) + int(t[12])) / os.sysconf("SC_CLK_TCK") for t in times if t)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
