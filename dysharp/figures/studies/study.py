"""A study: points from a TOML file, drawn in one of four ways, run here or elsewhere, and kept in a `StudyFolder`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from dysharp.base import AnyMapping, Cells, ConfigError, MissingExtra, Runner, check_word, here, in_processes, nearest, parse_toml, read_text, show
from dysharp.base.values import ByName, Texts, frozen
from dysharp.figures.figure import MAX_POINTS, figure_of, product_points
from dysharp.figures.keys import Whole, typed, word
from dysharp.figures.origin import row_of
from dysharp.figures.studies.study_folder import StudyFolder, record_of
from dysharp.runs import Point, Simulate, key_of, point_task, why
from dysharp.runs.on_dask import on_dask

OBJECTIVES = {"latin-hypercube": 0, "tpe": 1, "nsga2": 2}
"""{method: columns that it minimises}."""
Progress = Callable[[int, int, str], None]
GENERATION = 50
"""Points that NSGA-II draws at a time."""
Number = int | float
MOST = 1e15
"""Ends of ranges are smaller: whole numbers up to here are exact as floats."""


_OneOrMore = Annotated[Texts, BeforeValidator(lambda v: v if isinstance(v, list) else [v])]


@frozen
class Draw:
    """The table [draw]. `range`: {axis: [lowest, highest]}; whole numbers draw whole numbers. `log`: axes that are drawn by their logarithm.

    `minimize`: columns of `points`, one for "tpe", two for "nsga2"; -COLUMN maximises.
    """

    method: str
    n: Whole
    range: dict[str, list[Number]]
    log: _OneOrMore = ()
    minimize: _OneOrMore = ("time_us",)
    seed: Whole = 0


@frozen
class Study:
    """`points`: tables of points. `draw` None: their product is the grid."""

    name: str
    tables: tuple[ByName, ...]
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
class _StudyOutcome:
    """Counts of a run of a study. `failed`: {label of the point: why}. `values`: objectives of each point of a search, in the order of draws."""

    done: int = 0
    kept: int = 0
    failed: Cells = field(default_factory=dict)
    values: list[tuple[float, ...]] = field(default_factory=list)


def load_study(path: str) -> Study:
    """A study from a sweep file (`dysharp sweep`) with an optional table [draw]. Raises ConfigError."""
    table = parse_toml(read_text(Path(path)), path)
    draw = table.pop("draw", None)
    figure_of(Path(path).stem, table, path)  # names what is wrong with any other key
    points = table["points"]
    study = Study(Path(path).stem, tuple(points) if isinstance(points, list) else (points,), None if draw is None else _draw(draw, path))
    if study.draw is not None:
        study.at({name: ends[0] for name, ends in study.draw.range.items()})  # names what no point takes
    return study


def _draw(table: ByName, where: str) -> Draw:
    draw = typed(Draw, table, f"{where}: draw")
    check_word(draw.method, OBJECTIVES, f"{where}: draw.method: found {draw.method[:40]!r}")
    if not 1 <= draw.n <= MAX_POINTS or not draw.range:
        found = f"found n = {show(draw.n)} and {len(draw.range)} ranges"
        raise ConfigError(f"{where}: draw: {found}, expected at least one of each, and at most {MAX_POINTS} points")
    if draw.seed < 0:
        raise ConfigError(f"{where}: draw.seed: found {show(draw.seed)}, expected at least 0")
    for name in draw.log:
        word(name, tuple(draw.range), f"{where}: draw.log")
    for name, ends in draw.range.items():
        if len(ends) != 2 or not -MOST < ends[0] < ends[1] < MOST or (name in draw.log and ends[0] <= 0):
            raise ConfigError(f"{where}: draw.range.{name}: found {show(ends)}, expected [lowest, highest] below 1e15; above 0 with log")
    objectives = OBJECTIVES[draw.method]
    if len(draw.minimize) != objectives and (objectives or "minimize" in table):
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


def run_study(
    study: Study, folder: StudyFolder, jobs: int = 1, progress: Progress | None = None, scheduler: str = "", simulate: Simulate | None = None
) -> _StudyOutcome:
    """Run what is not finished. Finished points stay in `folder`, whatever ends the run.

    `scheduler`: address of a dask scheduler, whose workers then run the points. `simulate`: what makes a Row of a point; None = `row_of`.
    """
    outcome = _StudyOutcome()
    local: Runner[ByName] = here if jobs == 1 else lambda tasks: in_processes(tasks, jobs)
    try:
        with folder.writing(), on_dask(scheduler) if scheduler else nullcontext(local) as run:
            todo = _Todo(folder, run, simulate or row_of, outcome)
            if study.draw is None or study.draw.method == "latin-hypercube":
                draws = None if study.draw is None else latin_hypercube(study.draw)
                points = study.grid() if draws is None else tuple(dict.fromkeys(p for values in draws for p in study.at(values)))
                for _ in todo.finished(points, progress, len(points)):
                    pass
            else:
                _search(study, study.draw, todo, progress)
    except KeyboardInterrupt as error:
        error.add_note(f"{outcome.done + outcome.kept} points are finished and kept in {folder.folder}; the same command goes on from there")
        raise
    return outcome


@frozen
class _Todo:
    """Where points run, and where their Rows go."""

    folder: StudyFolder
    run: Runner[ByName]
    simulate: Simulate
    outcome: _StudyOutcome

    def finished(self, points: Iterable[Point], progress: Progress | None, total: int) -> Iterator[tuple[Point, ByName | Exception]]:
        """Run points and keep their Rows; yields (point, Row or why it failed) in the order in which they finish."""
        asked = [(key_of(point).digest, point) for point in points]
        todo = [(key, point) for key, point in asked if not self.folder.has(key)]
        self.outcome.kept += len(asked) - len(todo)
        with closing(self.run([point_task(key, point, self.simulate) for key, point in todo])) as ended:
            for i, result in ended:
                key, point = todo[i]
                if isinstance(result, Exception):
                    self.outcome.failed[point.label] = why(result)
                else:
                    self.folder.put(key, point, result)
                    self.outcome.done += 1
                if progress:
                    progress(self.outcome.kept + self.outcome.done + len(self.outcome.failed), total, point.label)
                yield point, result


def _search(study: Study, draw: Draw, todo: _Todo, progress: Progress | None) -> None:
    """Ask optuna for values, run the points, tell it the objectives. A point that is finished is read, so a killed search repeats nothing.

    NSGA-II draws a generation from the one before, so the points of a generation run side by side.
    """
    try:
        import optuna
    except ImportError:
        raise MissingExtra.needs(f'draw.method = "{draw.method}"', "studies") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed, together = draw.seed, GENERATION if draw.method == "nsga2" else 1
    sampler = optuna.samplers.TPESampler(seed=seed) if draw.method == "tpe" else optuna.samplers.NSGAIISampler(population_size=GENERATION, seed=seed)
    search = optuna.create_study(directions=["minimize"] * len(draw.minimize), sampler=sampler)
    rows = _stored(todo.folder)
    for first in range(0, draw.n, together):
        trials = [search.ask() for _ in range(min(together, draw.n - first))]
        points = [_one_point(study, {name: _suggest(trial, draw, name) for name in draw.range}) for trial in trials]
        keys = {point: key_of(point).digest for point in points}
        new = dict.fromkeys(point for point in points if keys[point] not in rows)
        todo.outcome.kept += len(points) - len(new)
        for point, result in todo.finished(new, progress, draw.n):
            rows[keys[point]] = {} if isinstance(result, Exception) else record_of(keys[point], point, result)
        for trial, point in zip(trials, points, strict=True):
            values = _objectives(draw, rows[keys[point]])
            search.tell(trial, values, None if values else optuna.trial.TrialState.FAIL)
            if values:
                todo.outcome.values.append(values)


def _one_point(study: Study, values: Mapping[str, Number]) -> Point:
    points = study.at(values)
    if len(points) != 1:
        raise ConfigError(f"{study.name}: found {len(points)} points for one draw, expected 1 with tpe and nsga2")
    return points[0]


def _objectives(draw: Draw, record: AnyMapping) -> tuple[float, ...] | None:
    """What the search minimises. None: the point failed."""
    if not record:
        return None
    values = []
    for text in draw.minimize:
        name, sign = text.removeprefix("-"), -1.0 if text.startswith("-") else 1.0
        if not isinstance(record.get(name), int | float):
            raise ConfigError(f"draw.minimize: found {name[:40]!r}{nearest(name, [k for k, v in record.items() if isinstance(v, int | float)])}")
        values.append(sign * record[name])
    return tuple(values)


def _suggest(trial: Any, draw: Draw, name: str) -> Number:
    low, high = draw.range[name]
    whole = isinstance(low, int) and isinstance(high, int)
    value: Number = (trial.suggest_int if whole else trial.suggest_float)(name, low, high, log=name in draw.log)
    return value


def _stored(folder: StudyFolder) -> dict[str, ByName]:
    """Finished records by key."""
    try:
        found = folder.connect().sql("select * exclude (row) from runs")
    except ConfigError:
        return {}
    return {record["key"]: record for record in (dict(zip(found.columns, values, strict=True)) for values in found.fetchall())}
