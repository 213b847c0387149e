"""Points in processes of their own, and what is left of a run that was killed, interrupted or given a bad point."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.analysis import MODEL_VERSION
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.base.processes import Queue, in_processes
from dysharp.cli.app import cli
from dysharp.figures import Point, Store, check_points, load_figure, run_points
from dysharp.runs.point_runs import point_task, why
from tests.runs.fake_points import broken_row, deadly_row, logged_row, sized_row

TINY = """
title = "tiny"
source = "a test"
[points]
systems = ["dysharp", "deepep"]
models = ["S-8"]
gpus = 4
tokens = 64
routing = ["uniform"]
seeds = [0, 1, 2]
[[check]]
name = "faster"
metric = "speedup"
system = "dysharp"
over = "deepep"
at_least = 0.1
"""
# Enough points that a signal after the first one comes before the last, on a busy machine too.
LONG = TINY.replace("[0, 1, 2]", str(list(range(20))))
# A shell's background jobs, and what they start, ignore SIGINT.
HEARS = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); runpy.run_module('dysharp', run_name='__main__')"
GOOD = Point("ideal", "S-8", "paper-gh200-nvl32", "uniform", gpus=4, tokens=16)


def tiny_file(tmp_path: Path, text: str = TINY) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


def started(path: Path, store: Store, *command_line: str) -> "subprocess.Popen[str]":
    """A run of the figure, or of another command, with its first point finished."""
    command = [sys.executable, "-c", HEARS, *(command_line or ("reproduce",)), str(path), "--store", str(store.folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    give_up = time.monotonic() + 120
    while not list(store.folder.glob("*.json")):
        assert time.monotonic() < give_up, "no point was finished"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_a_killed_run_leaves_a_readable_store_and_repeats_nothing(tmp_path: Path) -> None:
    path, store = tiny_file(tmp_path, LONG), Store(tmp_path / "store")
    process = started(path, store)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    figure = load_figure(path)
    finished = {p: store.path(p).stat().st_mtime_ns for p in figure.points if store.get(p) is not None}
    assert 1 <= len(finished) < len(figure.points)
    assert len(list(store)) == len(finished)
    rows, failed = run_points(figure.points, store, jobs=2)
    assert not failed
    assert list(rows) == list(figure.points)
    assert all(store.path(p).stat().st_mtime_ns == when for p, when in finished.items())


@pytest.mark.slow
def test_an_interrupted_run_exits_with_130_and_keeps_its_points(tmp_path: Path) -> None:
    path, store = tiny_file(tmp_path, LONG), Store(tmp_path / "store")
    process = started(path, store)
    process.send_signal(signal.SIGINT)  # to the run alone: it has to end its processes itself
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert list(store)
    assert re.search(r"dysharp: interrupted; \d+ of 40 points are finished and kept in .*store; the same command goes on from there", err)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processes of Linux")
def test_sigterm_ends_a_sweep_with_its_workers_and_keeps_its_points(tmp_path: Path) -> None:
    path, store = tiny_file(tmp_path, LONG[: LONG.index("[[check]]")]), Store(tmp_path / "store")
    process = started(path, store, "sweep", "-j", "2")
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)  # to the sweep alone
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM
    assert re.search(r"dysharp: ended by SIGTERM; \d+ of 40 points are finished and kept in .*store; the same command goes on from there", err)
    assert workers
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
    finished = list(store)
    assert 1 <= len(finished) < 40
    assert all(record["row"]["time_us"] > 0 for record in finished)


def children(parent: int) -> list[int]:
    """Processes that run points for a process; waits for the first one."""
    give_up, found = time.monotonic() + 60, list[int]()
    while not found and time.monotonic() < give_up:
        found = [pid for pid, other in parents() if other == parent and b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def parents() -> Iterator[tuple[int, int]]:
    """(process, its parent) of all processes."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])


def test_a_failing_point_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    bad = replace(GOOD, model="S-9")
    rows, failed = run_points([bad, GOOD], Store(tmp_path))
    assert list(rows) == [GOOD]
    assert "ideal S-9 uniform 4 GPUs 16 tokens per GPU" in failed[bad]
    assert "did you mean" in failed[bad]


@pytest.mark.slow
def test_a_truncated_part_is_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows, _ = run_points([GOOD], store)
    whole = store.path(GOOD).read_text()
    store.path(GOOD).write_text(whole[: len(whole) // 2])
    assert store.get(GOOD) is None
    again, _ = run_points([GOOD], store)
    assert again[GOOD]["digest"] == rows[GOOD]["digest"]
    assert store.get(GOOD) == again[GOOD]


@pytest.mark.slow
def test_points_of_two_versions_of_the_code_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dysharp.runs.point_runs.code_digest", lambda: "another")  # in this process alone
    monkeypatch.setattr("dysharp.figures.runner.sources_changed", lambda: True)
    with pytest.raises(SimulationError, match=r"the sources of dysharp changed during the run"):
        run_points([GOOD], Store(tmp_path))
    assert not list(Store(tmp_path))


@pytest.mark.slow
def test_choices_are_part_of_a_point_and_reach_the_run(tmp_path: Path) -> None:
    plain = replace(GOOD, system="dysharp")
    slow = replace(plain, choices=(("machine.responder_ns", 1000),))
    store = Store(tmp_path)
    assert store.path(plain) != store.path(slow)
    rows, failed = run_points([plain, slow], store)
    assert not failed
    assert rows[slow]["time_us"] > rows[plain]["time_us"]


def test_a_file_with_other_content_is_another_point(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('base = "S-8"\nname = "mine"\n')
    two.write_text('base = "S-8"\nname = "mine"\ntopk = 4\n')
    store = Store(tmp_path)
    first = store.path(replace(GOOD, model=str(one)))
    two.replace(one)
    assert store.path(replace(GOOD, model=str(one))) != first


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"system": "dysharpp"}, 'did you mean "dysharp"'),
        ({"model": "S-9"}, "S-9"),
        ({"cluster": "paper-gh200"}, "did you mean"),
        ({"options": (("windo", 3),)}, "option ideal.windo: unknown"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_runs(change: dict[str, object], text: str) -> None:
    check_points([GOOD])
    with pytest.raises(ConfigError) as caught:
        check_points([replace(GOOD, **change)])  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_a_store_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"expected a folder to write to"):
        Store(tmp_path / "file" / "store").open()


@pytest.mark.slow
def test_command_prints_json_and_exits_with_the_verdict(tmp_path: Path) -> None:
    path = tiny_file(tmp_path, TINY.replace("seeds = [0, 1, 2]", "seeds = [0]"))
    arguments = ["reproduce", str(path), "--json", "--store", str(tmp_path / "s"), "--report", str(tmp_path / "r.md")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    (figure,) = json.loads(done.stdout)
    assert figure["figure"] == "tiny"
    assert figure["verdict"] == "holds"
    assert set(figure["rows"][0]) >= {"point", "metric", "paper", "ours", "bound", "verdict"}
    page = (tmp_path / "r.md").read_text()
    assert "## tiny" in page
    assert f"model version {MODEL_VERSION}" in page
    assert CliRunner().invoke(cli, [*arguments[:-1], str(tmp_path / "r.html")]).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert "<title>Reproduction of tiny" in page
    assert "tiny: 1 with a bound: 1 inside (when the bound was set, or the number first seen, is not said)" in page
    path.write_text(TINY.replace("seeds = [0, 1, 2]", "seeds = [0]").replace("at_least = 0.1", "at_least = 100.0"))
    done = CliRunner().invoke(cli, arguments[:2] + arguments[3:])
    assert done.exit_code == 0, "a user's machine may give other numbers"
    assert "tiny: 1 with a bound: 1 did not come out; faster: does not hold" in done.stdout
    assert CliRunner().invoke(cli, [*arguments, "--check"]).exit_code == 1


@pytest.mark.slow
def test_sweep_counts_its_points(tmp_path: Path) -> None:
    path = tiny_file(tmp_path, TINY[: TINY.index("[[check]]")].replace("seeds = [0, 1, 2]", "seeds = [0, 0]"))
    arguments = ["sweep", str(path), "--json", "--store", str(tmp_path / "s"), "--out", str(tmp_path / "rows.jsonl")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "n_points": 2, "n_done": 2, "n_failed": 0, "store": str(tmp_path / "s"), "model_version": MODEL_VERSION,
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["point"]["system"] for line in lines] == ["dysharp", "deepep"]
    assert all(line["row"]["time_us"] > 0 for line in lines)


def test_sweep_needs_a_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["sweep", "fig15"])
    assert isinstance(done.exception, ConfigError)
    assert "expected a .toml file" in str(done.exception)


@pytest.mark.slow
def test_a_point_of_another_pass_is_another_row(tmp_path: Path) -> None:
    points = [replace(GOOD, system="deepep", direction=d) for d in ("fwd", "bwd", "both")]
    rows, failed = run_points(points, Store(tmp_path))
    assert not failed
    assert [rows[p]["direction"] for p in points] == ["fwd", "bwd", "both"]
    times = [rows[p]["time_us"] for p in points]
    assert times[0] < times[1] < times[2]


def with_memory(folder: Path, usable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that begin from now on have `usable` bytes of memory."""
    (folder / "sitecustomize.py").write_text(f"import dysharp.runs.memory as memory\nmemory.usable_bytes = lambda: {usable}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(__file__).parents[2])]))


@pytest.mark.slow
def test_a_point_above_its_share_of_the_memory_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of a point is 0.16 GiB or more: it fits into 300 MB, but not into half of it."""
    with_memory(tmp_path, 300_000_000, monkeypatch)
    rows, failed = run_points([GOOD, replace(GOOD, seed=1)], Store(tmp_path / "s"), jobs=2)
    assert (len(rows), failed) == (2, {})
    with_memory(tmp_path, 100_000_000, monkeypatch)
    rows, failed = run_points([replace(GOOD, seed=2)], Store(tmp_path / "s"), jobs=2)
    assert "this computer has 0.1 GiB; take fewer tokens, bytes or GPUs" in next(iter(failed.values()))


@pytest.mark.slow
def test_a_point_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    points = [replace(GOOD, system=system, seed=seed) for system in ("dysharp", "ideal") for seed in range(2)]
    tasks = [point_task(p.label, p, partial(deadly_row, log=str(log))) for p in points]
    found = {points[i]: result if isinstance(result, dict) else why(result) for i, result in in_processes(tasks, 2)}
    assert all(found[p] == "its process ended each time, as it does where memory runs out; take fewer tokens, bytes or GPUs" for p in points[:2])
    assert all(found[p]["system"] == "ideal" for p in points[2:])


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [2, 3])
def test_running_points_never_take_more_than_the_memory(tmp_path: Path, jobs: int) -> None:
    """Points of seeds 0 to 7 need 0.06 to 0.95 of it, so that none fits beside seed 3."""
    log, needs = tmp_path / "log", (0.1, 0.7, 0.2, 0.95, 0.06, 0.3, 0.6, 0.1)
    points = [replace(GOOD, seed=seed) for seed in range(len(needs))]
    tasks = [point_task(p.label, p, partial(sized_row, log=str(log), needs=needs)) for p in points]
    assert {i for i, _ in in_processes(tasks, jobs)} == set(range(len(points)))
    running, alone = dict[int, float](), True
    for what, seed, part in (line.split() for line in log.read_text().splitlines()):
        if what == "begin":
            running[int(seed)] = float(part)
            assert sum(running.values()) <= 1.0 + 1e-6
            assert float(part) >= needs[int(seed)]
            alone &= 3 not in running or len(running) == 1
        else:
            del running[int(seed)]
    assert alone, "the point of seed 3 leaves nothing to others"


def test_a_large_point_runs_beside_small_ones() -> None:
    point = {0.1: 0, 0.2: 1, 0.7: 2, 0.97: 3}
    queue = Queue(2, [point[0.2], point[0.1], point[0.7]])
    assert queue.take([]) == (point[0.7], 0.5)
    queue.put_back(point[0.7], 0.7)
    queue.put_back(point[0.97], 0.97)
    assert queue.take([0.5]) == (point[0.1], pytest.approx(0.3)), "so that the large point fits beside this one"
    assert queue.take([0.3]) == (point[0.7], 0.7)
    assert queue.take([0.7]) == (point[0.2], pytest.approx(0.3))
    assert queue.take([0.3]) is None
    assert queue.take([]) == (point[0.97], 0.97)
    assert not queue


@pytest.mark.slow
def test_a_point_whose_pool_broke_while_the_caller_was_busy_is_run(tmp_path: Path) -> None:
    """A process dies between two points: the next point cannot be submitted, and must not be lost."""
    log = tmp_path / "log"
    points = [replace(GOOD, seed=seed) for seed in range(5)]
    tasks = [point_task(p.label, p, partial(logged_row, log=str(log), seconds=0.5)) for p in points]
    found = []
    for i, result in in_processes(tasks, 2):
        found.append(points[i])
        assert isinstance(result, dict)
        if len(found) == 1:
            os.kill(int(log.read_text().splitlines()[-1].split()[0]), signal.SIGKILL)
            time.sleep(0.7)  # the pool sees it
    assert sorted(p.seed for p in found) == [0, 1, 2, 3, 4]


def test_a_defect_of_one_point_does_not_stop_the_others(tmp_path: Path) -> None:
    points = [replace(GOOD, seed=seed) for seed in range(3)]
    tasks = [point_task(p.label, p, broken_row) for p in points]
    found = {points[i].seed: result for i, result in in_processes(tasks, 2)}
    assert isinstance(found[1], KeyError)
    assert why(found[1]) == "KeyError: 'a defect'"
    assert isinstance(found[0], dict)
    assert isinstance(found[2], dict)


@pytest.mark.slow
def test_a_script_without_a_guard_may_run_points(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from dysharp.figures import Point, Store, run_points\n"
        "rows, failed = run_points([Point('ideal', 'S-8', 'paper-gh200-nvl32', 'uniform', gpus=4, tokens=16)], Store(Path('kept')))\n"
        "print(len(rows), failed)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "1 {}\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resets the peak as Linux does")
def test_the_memory_of_a_point_is_its_own(tmp_path: Path) -> None:
    """One process runs both points, the large one first; the process that starts it is larger than either."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "import numpy\n"
        "from dysharp.figures import Point, Store, run_points\n"
        "if __name__ == '__main__':\n"
        "    held = numpy.ones(200_000_000)\n"  # 1.6 GB
        "    points = [Point('deepep', 'S-8', 'paper-gh200-nvl32', 'uniform', gpus=32, tokens=tokens) for tokens in (4096, 64)]\n"
        "    rows, failed = run_points(points, Store(Path('kept')), jobs=1)\n"
        "    print(*(rows[point]['peak_rss_mb'] for point in points))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    large, small = map(float, done.stdout.split())
    assert 0 < small < 0.8 * large
    assert large < 1600
