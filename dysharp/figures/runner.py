"""Runs points in processes and stores each finished point. A killed run repeats no stored point."""

from collections.abc import Callable, Iterable
from contextlib import closing

from dysharp.base import ByName, ConfigError, SimulationError, in_processes, sources_changed
from dysharp.figures.metric import Rows
from dysharp.figures.origin import origin_of
from dysharp.runs import Point, Store, is_workload, point_task, why
from dysharp.specs import load_cluster, load_model

Progress = Callable[[int, int, str, float], None]
"""`progress(done, total, what, share)`: points finished or failed, points requested, label of the last point, part of the work that is done."""
ROWS_OF_A_START = 300_000
"""What does not grow with a point's (token, expert) rows takes as long as this many of them."""


class _SourcesChanged(SimulationError):
    """The code changed during the run. The run ends, because one table must not mix two versions of the code."""


def check_points(points: Iterable[Point]) -> None:
    """Raise ConfigError for the first point with an unknown system, option, model or cluster, before any point runs."""
    for model in dict.fromkeys(p.model for p in points):
        if not is_workload(model):
            load_model(model)
    for cluster, gpus in dict.fromkeys((p.cluster, p.gpus) for p in points):
        machine = load_cluster(cluster)
        _ = machine if gpus is None else machine.with_gpus(gpus)
    for point in {(p.system, p.options): p for p in points}.values():
        origin_of(point.system).check(point)


def run_points(points: Iterable[Point], store: Store, jobs: int = 1, progress: Progress | None = None) -> tuple[Rows, dict[Point, str]]:
    """Rows of all points, as ({point: row}, {point: reason of its failure}). `jobs`: number of processes.

    A point that the store has is not run. A point that fails does not stop the run. Raises SourcesChanged when the package is edited during the run.
    SourcesChanged and KeyboardInterrupt end the running processes; finished points stay in the store.
    """
    wanted = list(dict.fromkeys(points))
    rows = {p: row for p in wanted if (row := store.get(p)) is not None}
    failed: dict[Point, str] = {}
    todo = [p for p in wanted if p not in rows]
    work = {p: ROWS_OF_A_START + _useful_rows(p) for p in wanted}
    left, whole = sum(work[p] for p in todo), max(1, sum(work.values()))
    if progress:
        progress(len(rows), len(wanted), todo[0].label if todo else "from the store", 1 - left / whole)
    if jobs > 1:
        todo.sort(key=lambda p: work[p], reverse=True)  # so that no large point is left for the end, when other processes have nothing to do
    tasks = [point_task(p.label, p, _row_of) for p in todo]
    try:
        with closing(in_processes(tasks, max(1, jobs))) as ended:
            for i, result in ended:
                point = todo[i]
                if sources_changed():
                    raise _SourcesChanged("the sources of dysharp changed during the run, so its points cannot share a table; start the run again")
                if isinstance(result, Exception):
                    failed[point] = f"{point.label}: {why(result)}"
                else:
                    store.put(point, result)
                    rows[point] = result
                left -= work[point]
                if progress:
                    progress(len(rows) + len(failed), len(wanted), point.label, 1 - left / whole)
    except KeyboardInterrupt as error:
        error.add_note(f"{len(rows)} of {len(wanted)} points are finished and kept in {store.folder}; the same command goes on from there")
        raise
    return {p: rows[p] for p in wanted if p in rows}, failed


def _row_of(point: Point, part: float) -> ByName:
    """The Row of a point, simulated or calculated, as plain values. `part`: the part of the memory that the run may take."""
    return origin_of(point.system).row(point, part)


def _useful_rows(point: Point) -> int:
    """(token, expert) rows of a point; 0 for one with an unknown model or cluster, which fails when it runs."""
    try:
        if is_workload(point.model):
            return 0
        model, cluster = load_model(point.model), load_cluster(point.cluster)
    except ConfigError:
        return 0
    return (point.gpus or cluster.n_gpus) * (point.tokens or model.tokens_per_gpu) * model.topk
