"""Runs each point in a separate process and stores each finished point. A run that is killed repeats none of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from dysharp.errors import ConfigError, OverShare, SimulationError
from dysharp.experiments.closed import calculated_row
from dysharp.experiments.figure import CALCULATED, Point
from dysharp.experiments.store import Store, code_digest, point_dict
from dysharp.specs import load_cluster, load_model

Rows = dict[Point, dict[str, Any]]
Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`: points finished or failed, points requested, label of the last point."""


class InputsChanged(SimulationError):
    """A file that a point reads changed while the point ran. The Row may be of either content, so it is not stored."""


class SourcesChanged(SimulationError):
    """The code changed during the run. The run ends, because one table must not mix two versions of the code."""


def check_points(points: Iterable[Point]) -> None:
    """Raise ConfigError for the first point with an unknown system, option, model or cluster, before any point runs."""
    from dysharp.api.options import options_of, split_fabric
    from dysharp.systems import get_system

    for model in dict.fromkeys(p.model for p in points):
        load_model(model)
    for cluster, gpus in dict.fromkeys((p.cluster, p.gpus) for p in points):
        machine = load_cluster(cluster)
        _ = machine if gpus is None else machine.with_gpus(gpus)
    for system, options in dict.fromkeys((p.system, p.options) for p in points):
        if system not in CALCULATED:
            options_of(get_system(system), split_fabric(dict(options), "packet")[1])


@dataclass(slots=True)
class _Processes:
    """The running worker processes, so that an interrupted run can end them."""

    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def row_of(self, point: Point, sharers: int) -> dict[str, Any]:
        """The Row of one point, simulated in its part of the memory. `sharers`: processes that run at once.

        Raises OverShare where the point needs more than its part, SimulationError with the point's label and the last
        line that its process printed.
        """
        if point.system in CALCULATED:
            return calculated_row(point)
        command = [sys.executable, "-m", "dysharp.experiments.worker"]
        with self.lock:
            if self.ended:
                raise SimulationError(f"{point.label}: interrupted")
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            self.running.add(process)
        try:
            out, err = process.communicate(json.dumps({"point": point_dict(point), "jobs": sharers, "parent": os.getpid()}))
        finally:
            with self.lock:
                self.running.discard(process)
        if process.returncode != 0:
            raise SimulationError(f"{point.label}: {_why(process.returncode, err)}")
        answer = json.loads(out)
        if answer["code"] != code_digest():
            raise SourcesChanged("the sources of dysharp changed during the run, so its points cannot share a table; start the run again")
        if "over_share" in answer:
            raise OverShare(f"{point.label}: {answer['over_share']}")
        return dict(answer["row"])

    def end(self) -> None:
        with self.lock:
            self.ended = True
            for process in self.running:
                process.terminate()


def _why(returncode: int, err: str) -> str:
    lines = err.strip().splitlines()
    if returncode < 0:
        return f"the process was ended by {signal.Signals(-returncode).name}"
    return lines[-1] if lines else f"the process ended with code {returncode}"


def run_points(points: Iterable[Point], store: Store, jobs: int = 1, progress: Progress | None = None) -> tuple[Rows, dict[Point, str]]:
    """Rows of all points, as ({point: row}, {point: reason of its failure}). `jobs`: number of processes.

    A point that the store has is not run. A point that needs more than its part of the memory runs after the others,
    alone. A point that fails does not stop the run. Raises SourcesChanged when the package is edited during the run.
    SourcesChanged and KeyboardInterrupt end the running processes; finished points stay in the store.
    """
    code_digest()  # taken before the first point runs, so that it is the digest of the code that the point runs
    wanted = list(dict.fromkeys(points))
    rows = {p: row for p in wanted if (row := store.get(p)) is not None}
    failed: dict[Point, str] = {}
    todo = [p for p in wanted if p not in rows]
    if progress:
        progress(len(rows), len(wanted), todo[0].label if todo else "from the store")
    places, processes = {p: store.path(p) for p in todo}, _Processes()
    try:
        for sharers in dict.fromkeys((max(1, jobs), 1)):
            alone: list[Point] = []
            with closing(_finished(processes, todo, sharers)) as ended:
                for point, future in ended:
                    try:
                        row = future.result()
                        if store.path(point) != places[point]:
                            raise InputsChanged(f"{point.label}: a file of the point changed while it ran; start the run again")
                    except SourcesChanged:
                        raise
                    except OverShare:
                        alone.append(point)
                        continue
                    except (ConfigError, SimulationError, ValueError) as error:
                        failed[point] = str(error)
                    else:
                        store.put(point, row)
                        rows[point] = row
                    if progress:
                        progress(len(rows) + len(failed), len(wanted), point.label)
            todo = alone
    except KeyboardInterrupt as error:
        error.add_note(f"{len(rows)} of {len(wanted)} points are finished and kept in {store.folder}; the same command goes on from there")
        raise
    return {p: rows[p] for p in wanted if p in rows}, failed


def _finished(processes: _Processes, todo: Sequence[Point], sharers: int) -> Generator[tuple[Point, Future[dict[str, Any]]]]:
    """Points as they end, `sharers` at once. An error, or an end before the last point, ends the running processes."""
    with ThreadPoolExecutor(sharers) as pool:
        futures = {pool.submit(processes.row_of, p, sharers): p for p in todo}
        try:
            for future in as_completed(futures):
                yield futures[future], future
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise
