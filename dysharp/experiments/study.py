"""A study: points from a TOML file, drawn in one of four ways, run in this process or in several, and kept in a `StudyFolder`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from dysharp.errors import ConfigError, DysharpError, MissingExtra, nearest
from dysharp.experiments.figure import Point, load_figure, product_points
from dysharp.experiments.keys import known, typed
from dysharp.experiments.study_folder import StudyFolder, key_of, record_of
from dysharp.experiments.worker import row_of
from dysharp.parent import end_with
from dysharp.specs.reading import parse_toml, read_text

METHODS = ("latin-hypercube", "tpe", "nsga2")
Progress = Callable[[int, int, str], None]
MOST_ATTEMPTS = 2
"""A point whose process ended this many times has failed."""
Number = int | float


@dataclass(frozen=True, slots=True)
class Draw:
    """The table [draw]. `range`: {axis: [lowest, highest]}; whole numbers draw whole numbers. `log`: axes that are drawn by their logarithm.

    `minimize`: columns of `points`, one for "tpe", two for "nsga2"; -COLUMN maximises.
    """

    method: str
    n: int
    range: dict[str, list[Number]]
    log: Annotated[tuple[str, ...], BeforeValidator(lambda v: v if isinstance(v, list) else [v])] = ()
    minimize: Annotated[tuple[str, ...], BeforeValidator(lambda v: v if isinstance(v, list) else [v])] = ("time_us",)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Study:
    """`points`: tables of points. `draw` None: their product is the grid."""

    name: str
    tables: tuple[dict[str, Any], ...]
    draw: Draw | None

    def grid(self) -> tuple[Point, ...]:
        """All points of the tables."""
        return tuple(dict.fromkeys(p for table in self.tables for p in product_points(table, f"{self.name}: points")))

    def at(self, values: Mapping[str, Number]) -> tuple[Point, ...]:
        """The points of the tables at drawn values of axes and options."""
        axes = {name: value for name, value in values.items() if name in ("gpus", "tokens", "seeds")}
        grid = {name: [value] for name, value in values.items() if name not in axes}
        tables = ({**table, **axes, "grid": {**table.get("grid", {}), **grid}} for table in self.tables)
        return tuple(p for table in tables for p in product_points(table, f"{self.name}: points"))


@dataclass(slots=True)
class Outcome:
    """Counts of a run of a study. `failed`: {label of the point: why}."""

    done: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def load_study(path: str) -> Study:
    """A study from a file like that of `dysharp sweep`, with an optional table [draw]. Raises ConfigError."""
    table = parse_toml(read_text(Path(path)), path)
    draw = table.pop("draw", None)
    if draw is None:
        load_figure(path)  # names what is wrong with any other key
    points = table.get("points")
    if points is None:
        raise ConfigError(f"{path}: found no [points], expected a table of points; `dysharp sweep --example` prints one")
    tables = tuple(points) if isinstance(points, list) else (points,)
    return Study(Path(path).stem, tables, None if draw is None else _draw(draw, path))


def _draw(table: dict[str, Any], where: str) -> Draw:
    known(table, set(Draw.__slots__), f"{where}: draw")
    draw = typed(Draw, table, f"{where}: draw")
    if draw.method not in METHODS:
        raise ConfigError(f"{where}: draw.method: found {draw.method[:40]!r}{nearest(draw.method, METHODS)}")
    if draw.n < 1 or not draw.range:
        raise ConfigError(f"{where}: draw: found n = {draw.n} and {len(draw.range)} ranges, expected at least one of each")
    for name, ends in draw.range.items():
        if len(ends) != 2 or not ends[0] < ends[1] or (name in draw.log and ends[0] <= 0):
            raise ConfigError(f"{where}: draw.range.{name}: found {ends}, expected [lowest, highest]; above 0 with log")
    objectives = {"tpe": 1, "nsga2": 2}.get(draw.method)
    if objectives is not None and len(draw.minimize) != objectives:
        raise ConfigError(f"{where}: draw.minimize: found {list(draw.minimize)}, expected {objectives} of the columns of points for {draw.method}")
    return draw


def latin_hypercube(draw: Draw) -> list[dict[str, Number]]:
    """`n` draws: each axis has one draw in each of `n` equal parts of its range."""
    rng = np.random.default_rng(draw.seed)
    columns = {name: (rng.permutation(draw.n) + rng.random(draw.n)) / draw.n for name in draw.range}
    return [{name: _at(draw, name, float(u[i])) for name, u in columns.items()} for i in range(draw.n)]


def _at(draw: Draw, name: str, u: float) -> Number:
    low, high = draw.range[name]
    whole = isinstance(low, int) and isinstance(high, int)
    if name in draw.log:
        scaled = float(float(low) * (float(high) / float(low)) ** u)
        return round(scaled) if whole else scaled
    value = min(high, int(low + (high - low + 1) * u)) if whole else low + (high - low) * u
    return int(value) if whole else float(value)


def run_study(study: Study, folder: StudyFolder, jobs: int = 1, progress: Progress | None = None) -> Outcome:
    """Run what is not finished. Finished points stay in `folder`, whatever ends the run."""
    outcome = Outcome()
    with folder.writing():
        if study.draw is None or study.draw.method == "latin-hypercube":
            draws = None if study.draw is None else latin_hypercube(study.draw)
            points = study.grid() if draws is None else tuple(dict.fromkeys(p for values in draws for p in study.at(values)))
            for _ in _finished(points, folder, jobs, outcome, progress, len(points)):
                pass
        else:
            _search(study, study.draw, folder, outcome, progress)
    return outcome


def _finished(
    points: Iterable[Point], folder: StudyFolder, jobs: int, outcome: Outcome, progress: Progress | None, total: int
) -> Iterator[tuple[Point, dict[str, Any] | str]]:
    """Run points and keep their Rows; yields (point, Row or why it failed) in the order in which they finish."""
    todo = []
    for point in points:
        key = key_of(point)
        if folder.has(key):
            outcome.kept += 1
        else:
            todo.append((key, point))
    for key, point, result in _here(todo) if jobs == 1 else _processes(todo, jobs):
        if isinstance(result, str):
            outcome.failed[point.label] = result
        else:
            folder.put(key, point, result)
            outcome.done += 1
        if progress:
            progress(outcome.kept + outcome.done + len(outcome.failed), total, point.label)
        yield point, result


Keyed = tuple[str, Point]
Ended = tuple[str, Point, dict[str, Any] | str]


def _here(todo: Iterable[Keyed]) -> Iterator[Ended]:
    for key, point in todo:
        yield key, point, _row_or_why(point)


def _row_or_why(point: Point, jobs: int = 1) -> dict[str, Any] | str:
    try:
        return row_of(point, jobs)
    except (DysharpError, ValueError, MemoryError) as error:
        return str(error) or type(error).__name__


def _processes(todo: list[Keyed], jobs: int) -> Iterator[Ended]:
    """As `_here`, in `jobs` processes. A process that ends takes its points with it; they run again, at most `MOST_ATTEMPTS` times."""
    left, attempts = list(reversed(todo)), dict.fromkeys((key for key, _ in todo), 0)
    while left:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)) as pool:
            running: dict[Future[dict[str, Any] | str], Keyed] = {}
            try:
                while left or running:
                    while left and len(running) < 2 * jobs:
                        key, point = left[-1]
                        running[pool.submit(_row_or_why, point, jobs)] = (key, point)
                        left.pop()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield (*running.pop(future), result)
            except BrokenProcessPool:
                for future, (key, point) in running.items():
                    if future.done() and future.exception() is None:
                        yield key, point, future.result()
                        continue
                    attempts[key] += 1
                    if attempts[key] < MOST_ATTEMPTS * 2 * jobs:
                        left.append((key, point))
                    else:
                        yield key, point, "its process ended each time"


def _search(study: Study, draw: Draw, folder: StudyFolder, outcome: Outcome, progress: Progress | None) -> None:
    """Ask optuna for values, run the point, tell it the objectives. A point that is finished is read, so a killed search repeats nothing."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra.needs(f'draw.method = "{draw.method}"', "studies") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=draw.seed) if draw.method == "tpe" else optuna.samplers.NSGAIISampler(seed=draw.seed)
    search = optuna.create_study(directions=["minimize"] * len(draw.minimize), sampler=sampler)
    rows = _stored(folder)
    for i in range(draw.n):
        trial = search.ask()
        values = {name: _suggest(trial, draw, name) for name in draw.range}
        points = study.at(values)
        if len(points) != 1:
            raise ConfigError(f"{study.name}: found {len(points)} points for one draw, expected 1 with {draw.method}")
        key = key_of(points[0])
        if key in rows:
            outcome.kept += 1
        else:
            for point, result in _finished(points, folder, 1, outcome, None, 1):
                rows[key] = {} if isinstance(result, str) else record_of(key, point, result)
        search.tell(trial, *_objectives(draw, rows[key]))
        if progress:
            progress(i + 1, draw.n, points[0].label)


def _objectives(draw: Draw, record: Mapping[str, Any]) -> tuple[Any, ...]:
    """(values, state) for optuna."""
    import optuna

    if not record:
        return None, optuna.trial.TrialState.FAIL
    values = []
    for text in draw.minimize:
        name, sign = text.removeprefix("-"), -1.0 if text.startswith("-") else 1.0
        if not isinstance(record.get(name), int | float):
            raise ConfigError(f"draw.minimize: found {name[:40]!r}{nearest(name, [k for k, v in record.items() if isinstance(v, int | float)])}")
        values.append(sign * record[name])
    return (values,)


def _suggest(trial: Any, draw: Draw, name: str) -> Number:
    low, high = draw.range[name]
    whole = isinstance(low, int) and isinstance(high, int)
    value: Number = (trial.suggest_int if whole else trial.suggest_float)(name, low, high, log=name in draw.log)
    return value


def _stored(folder: StudyFolder) -> dict[str, dict[str, Any]]:
    """Finished records by key."""
    try:
        found = folder.connect().sql("select * exclude (row) from points")
    except ConfigError:
        return {}
    return {record["key"]: record for record in (dict(zip(found.columns, values, strict=True)) for values in found.fetchall())}
