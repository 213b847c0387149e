"""A study that is killed, what a point of it costs, and two processes against one: `python bench/study.py [--points 10000]`.

| part | what runs | target |
|---|---|---|
| kill | `dysharp study -j 2` of small layers; workers and driver are killed with -9 | no finished point lost or run twice |
| overhead | POINTS that take no time, in one process: key, journal, Parquet parts | below 5 ms a point |
| waiting | 600 points that sleep 20 ms, in 1, 2 and 4 processes; also on a busy machine | 1.8 times the rate of one with two |
| processes | points a second of `-j 1` and `-j 2`, after the first hundred | 2 processes at least 1.8 times 1 |

Run it alone on the machine. 10,000 points take about five minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from dysharp.figures.studies.study import load_study, run_study
from dysharp.figures.studies.study_folder import JOURNAL, StudyFolder
from dysharp.runs.point import Point

STUDY = """
[points]
systems = ["deepep", "dysharp"]
models = ["S-8"]
gpus = 4
tokens = 16
routing = "uniform"
[points.grid]
"cluster.link_GBps" = {links}
"""
ROW: dict[str, Any] = {"gpus": 4, "time_us": 1.0, "waiting_us": {"dispatch": {name: [0.5] * 32 for name in ("span", "moving", "own", "peers")}}}
SETTLED = 100
"""Points after which the rate is measured: both processes have begun."""


def study_file(folder: Path, points: int) -> Path:
    """A study of at least `points` points: two systems on links of many rates."""
    file = folder / f"study-{points}.toml"
    file.write_text(STUDY.format(links=[200 + i / 8 for i in range((points + 1) // 2)]))
    return file


def started(file: Path, folder: Path, jobs: int) -> subprocess.Popen[bytes]:
    """`dysharp study` of `file`, running."""
    command = [sys.executable, "-m", "dysharp", "study", str(file), "--folder", str(folder), "-j", str(jobs)]
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def records(folder: Path) -> dict[str, float]:
    """{key: time of the end} of every stored record. Raises AssertionError for a point that was run twice."""
    found = StudyFolder(folder).connect().sql("select key, finished from points").fetchall()
    parts = [key for part in folder.glob("part-*.parquet") for (key,) in duckdb.sql(f"select key from read_parquet('{part}')").fetchall()]
    assert len(parts) == len(set(parts)), "a point is in two parts"
    return dict(found)


def workers(driver: int) -> list[int]:
    """Processes that run points for `driver`."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"PPid:\t{driver}\n" in (process / "status").read_text() and "spawn_main" in (process / "cmdline").read_text():
                found.append(int(process.name))
    return found


def n_finished(folder: Path) -> int:
    """Points in parts and in the journal."""
    parts = [duckdb.sql(f"select count(*) from read_parquet('{part}')").fetchall()[0][0] for part in folder.glob("part-*.parquet")]
    journal = folder / JOURNAL
    return sum(parts) + (journal.read_text().count("\n") if journal.is_file() else 0)


def kill(folder: Path, points: int, seed: int) -> str:
    """Run a study to its end in spite of kills; one line about it."""
    rng, file, where = random.Random(seed), study_file(folder, points), folder / "killed"
    n, begin, kills = len(load_study(str(file)).grid()), time.monotonic(), {"driver": 0, "worker": 0}
    driver = started(file, where, 2)
    kept: dict[str, float] = {}
    for at in sorted(rng.sample(range(n // 20, n - n // 20), 6)):
        while driver.poll() is None and n_finished(where) < at:
            time.sleep(0.5)
        assert driver.poll() is None, "the study ended before it was killed"
        if kills["worker"] > 2 * kills["driver"]:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
            kills["driver"] += 1
            kept |= records(where)
            driver = started(file, where, 2)
        elif running := workers(driver.pid):
            os.kill(rng.choice(running), signal.SIGKILL)
            kills["worker"] += 1
    assert driver.wait() == 0
    end = records(where)
    lost = sum(end.get(key) != finished for key, finished in kept.items())
    return (
        f"kill: {len(end)} of {n} points in {time.monotonic() - begin:.0f} s with {kills['worker']} workers and {kills['driver']} drivers killed; "
        f"{len(kept)} were finished at the kill of a driver, {lost} of them lost or run again"
    )


def overhead(folder: Path, points: int) -> str:
    """Time of a point that takes no time."""
    study = load_study(str(study_file(folder, points)))
    begin, cpu = time.monotonic(), time.process_time()
    outcome = run_study(study, StudyFolder(folder / "nothing"), simulate=lambda point, jobs: ROW | {"system": point.system})
    wall, cpu = time.monotonic() - begin, time.process_time() - cpu
    return f"overhead: {1e3 * wall / outcome.done:.2f} ms a point, {1e3 * cpu / outcome.done:.2f} ms of one core ({outcome.done} points)"


def sleeping(point: Point, jobs: int = 1) -> dict[str, Any]:
    """A Row after 20 ms without work."""
    time.sleep(0.02)
    return ROW | {"system": point.system}


def waiting(folder: Path, points: int) -> str:
    """Rates of processes whose points sleep."""
    study, rates = load_study(str(study_file(folder, points))), {}
    for jobs in (1, 2, 4):
        where = folder / f"waiting-{jobs}"
        run_study(study, StudyFolder(where), jobs, simulate=sleeping)
        rates[jobs] = rate(where)
    return "waiting: " + ", ".join(f"{found:.1f} points a second in {jobs}, {found / rates[1]:.2f} times one" for jobs, found in rates.items())


def rate(folder: Path) -> float:
    """Points a second after the first `SETTLED`."""
    ends = sorted(records(folder).values())
    return (len(ends) - SETTLED) / (ends[-1] - ends[SETTLED])


def processes(folder: Path, points: int, pairs: int = 3) -> str:
    """Points a second of one process and of two, in turn."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for jobs, found in rates.items():
            where = folder / f"jobs-{jobs}-{pair}"
            assert started(study_file(folder, points), where, jobs).wait() == 0
            found.append(rate(where))
    ratios = sorted(two / one for one, two in zip(rates[1], rates[2], strict=True))
    best = {jobs: max(found) for jobs, found in rates.items()}
    pairs_text = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"processes: {best[1]:.1f} points a second in one, {best[2]:.1f} in two; ratios of {pairs} pairs {pairs_text}"


def main() -> None:
    """Print one line per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="draws when what is killed")
    parser.add_argument("--only", choices=("kill", "overhead", "waiting", "processes"))
    arguments = parser.parse_args()
    parts = {
        "overhead": lambda folder: overhead(folder, arguments.points),
        "waiting": lambda folder: waiting(folder, 600),
        "processes": lambda folder: processes(folder, min(arguments.points, 600)),
        "kill": lambda folder: kill(folder, arguments.points, arguments.seed),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts.items():
            if arguments.only in (None, name):
                print(part(Path(folder)), flush=True)


if __name__ == "__main__":
    main()
