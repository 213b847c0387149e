"""Closed and full streams, signals, and what a command says while it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dysharp.cli import progress_bar as progress_module
from dysharp.cli.progress_bar import COMPILING, _in_words, _seconds_left, bar, progress_bar
from dysharp.runs.progress import Step

LIST = f"{sys.executable} -m dysharp list clusters"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("redirect", "code", "message"),
    [
        ("> /dev/full", 1, "dysharp: error: stdout: cannot be written: No space left on device\n"),
        (">&-", 2, "dysharp: error: stdout is closed, expected a stream for the result\n"),
        ("| head -1 > /dev/null; exit ${PIPESTATUS[0]}", (0, 1), ""),
    ],
)
def test_a_stream_that_cannot_be_written(redirect: str, code: int | tuple[int, ...], message: str) -> None:
    done = shell(f"{LIST} {redirect}")
    assert done.returncode in (code if isinstance(code, tuple) else (code,))
    assert done.stderr == message


@pytest.mark.slow
def test_a_result_comes_without_stderr_and_in_any_encoding() -> None:
    assert "hw-dgx-h100" in shell(f"{LIST} 2>&-").stdout
    done = shell(f"PYTHONIOENCODING=ascii {sys.executable} -m dysharp routing $'\\xc3\\xa9.npz'")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    child = "import os, time; from dysharp.base.processes import _end_with; _end_with(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.send_signal(signal.SIGKILL)
    started.wait()
    give_up = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < give_up, "the process has outlived its parent"
        time.sleep(0.05)


def test_lines_in_place_of_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 9.0, 11.0, 12.0, 40.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with progress_bar() as report:
        report(Step("deepep", 1, 2, "header", header=("model, GPUs", "routing \x1b[31m")))
        report(Step("deepep", 1, 2, "plan"))
        report(Step("deepep", 1, 2, "compiling"))
        report(Step("deepep", 1, 2, "compiling", 40))
        report(Step("deepep", 1, 2, "engine", 50, 100))
        report(Step("deepep", 1, 2, "engine", 55, 100))
        report(Step("dysharp", 2, 2, "engine", 60, 100))
    assert capsys.readouterr().err.splitlines() == [
        COMPILING,
        "9 s: 40 kernels are ready",
        "model, GPUs",
        "routing \\x1b[31m",
        "11 s: 50 of 100 ops, deepep (1 of 2) engine",
        "40 s: 60 of 100 ops, dysharp (2 of 2) engine, about 11 s left",
    ]


def test_the_time_left_counts_from_the_first_unit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of ten points compiles kernels for 40 s; each takes 1 s."""
    clock = iter([0.0, 0.0, 41.0, 42.0, 45.0, 51.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with bar("points") as update:
        for done in (0, 1, 2, 5, 8):
            update(done, 10, "x")
    assert capsys.readouterr().err.splitlines() == ["41 s: 1 of 10 points, x", "51 s: 8 of 10 points, x, about 3 s left"]


def test_the_time_left() -> None:
    assert _seconds_left(0.25, 30.0) == 90.0
    assert _seconds_left(0.25, 1.0) is _seconds_left(0.001, 30.0) is _seconds_left(1.0, 30.0) is None
    assert [_in_words(s) for s in (5, 300, 9000)] == ["5 s", "5 min", "2.5 h"]


def test_other_work_counts_its_time_from_its_own_beginning(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search, then the changes of a constant: 10 of 80 after 30 s, so 210 s more."""
    clock = iter([0.0, 0.0, 5.0, 10.0, 11.0, 41.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with bar("searched") as update:
        update(0, 9000, "1 candidates costed")
        update(4500, 9000, "200 candidates costed")
        update(8000, 9000, "300 candidates costed")
        update(0, 80, "with nccl.hop x 0.8")
        update(10, 80, "with sm.copy x 1.2")
    assert capsys.readouterr().err.splitlines() == [
        "10 s: 8000 of 9000 searched, 300 candidates costed, about 1 s left",
        "41 s: 10 of 80 searched, with sm.copy x 1.2, about 4 min left",
    ]


def test_a_terminal_draws_how_much_of_the_work_is_done() -> None:
    drawn: list[tuple[int, int, str]] = []
    progress_module._Reports("ops", lambda *args: drawn.append(args)).update(3, 10, "dysharp")
    assert drawn == [(3, 10, "dysharp")]
