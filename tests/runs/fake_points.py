"""Points that cost a chosen time. `python fake_points.py STUDY.toml FOLDER LOG SECONDS JOBS [SCHEDULER]` runs a study of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from dysharp.base.errors import OverShare
from dysharp.runs.point import Point


def fake_row(point: Point, part: float = 1.0) -> dict[str, Any]:
    """A Row as large as a real one, from the point alone."""
    _, _, link = point.cluster.partition("link_GBps=")
    time_us = 1e5 / float(link or 450) + dict(point.options).get("dispatch_window", 0) / 10
    waiting = {"dispatch": {part: [float(i) for i in range(32)] for part in ("span", "moving", "resource", "own", "peers")}}
    return {"system": point.system, "model": point.model, "gpus": 4, "time_us": time_us, "bound_us": 1, "waiting_us": waiting,
            "model_version": "5", "attribution": {"sm_us": time_us}, "utilization": {"up": 0.5}, "warnings": ()}  # fmt: skip


def logged_row(point: Point, part: float, log: str, seconds: float) -> dict[str, Any]:
    """As `fake_row` after `seconds`; writes the process and the point to `log` before."""
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {point.label}\n")
    time.sleep(seconds)
    return fake_row(point)


def large_row(point: Point, part: float, log: str) -> dict[str, Any]:
    """As `logged_row`; the points of "dysharp" are larger than their share of the memory while other points run."""
    if point.system == "dysharp" and part < 1.0:
        raise OverShare("too large for its share")
    return logged_row(point, part, log, 0.0)


def sized_row(point: Point, part: float, log: str, needs: tuple[float, ...]) -> dict[str, Any]:
    """Writes when the point begins and ends, and its part of the memory, of which it needs `needs[seed]`."""
    if part < needs[point.seed]:
        raise OverShare("too large for its share", needs[point.seed])
    for what in ("begin", "end"):
        with open(log, "a") as file:
            file.write(f"{what} {point.seed} {part}\n")
        time.sleep(0.2)
    return fake_row(point)


def broken_row(point: Point, part: float) -> dict[str, Any]:
    """As `fake_row`, but for seed 1."""
    if point.seed == 1:
        raise KeyError("a defect")
    return fake_row(point)


def deadly_row(point: Point, part: float, log: str) -> dict[str, Any]:
    """As `logged_row`; the points of "dysharp" end their process."""
    row = logged_row(point, part, log, 0.0)
    if point.system == "dysharp":
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def main() -> None:
    """Run a study."""
    from dysharp.figures.studies.study import load_study, run_study
    from dysharp.figures.studies.study_folder import StudyFolder

    file, folder, log, seconds, jobs, *scheduler = sys.argv[1:]
    simulate = partial(logged_row, log=log, seconds=float(seconds))
    outcome = run_study(load_study(file), StudyFolder(Path(folder)), int(jobs), None, *scheduler, simulate=simulate)
    sys.exit("; ".join(outcome.failed.values()) or 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from fake_points import main as run  # by its name, so that other processes find its functions

    run()
