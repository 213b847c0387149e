"""The numbers of a figure's picture."""

import statistics

from dysharp.base import Amounts, ByName, Texts, frozen
from dysharp.figures.figure import Drawing, Figure
from dysharp.figures.metric import Rows, Seen, all_metrics
from dysharp.runs import Point


@frozen
class _Series:
    """`values[name][i]`: the value of a series at `places[i]`, None where no point was run.

    `published`: {series: geometric mean that the paper gives}; the last place is then the geometric mean of the others.
    `unit`: words of the vertical axis.
    """

    kind: str
    places: Texts
    values: dict[str, tuple[float | None, ...]]
    published: Amounts
    x: str
    unit: str


def series_of(figure: Figure, rows: Rows) -> _Series | None:
    """The numbers of the picture from `rows` of the figure's points; None if the figure has no picture or no rows.

    Points that share a place and a series (seeds, models) give their first value.
    """
    drawing = figure.drawing
    points = [] if drawing is None else [p for p in figure.points if p in rows and _drawn(p, drawing)]
    if drawing is None or not points:
        return None
    if drawing.systems:
        points.sort(key=lambda p: drawing.systems.index(p.system))
    places = tuple(dict.fromkeys(_axis(p, drawing.x) for p in sorted(points, key=figure.points.index)))
    found: dict[str, Amounts] = {}
    for point in points:
        for name, value in _parts(Seen(point, rows, drawing.over), drawing):
            found.setdefault(name, {}).setdefault(_axis(point, drawing.x), value)
    values = {name: tuple(at.get(place) for place in places) for name, at in found.items()}
    published = {name: value for name, value in _published(figure, drawing).items() if name in values}
    if published:
        values = {name: (*line, _mean(line)) for name, line in values.items()}
        places = (*places, "mean")
    return _Series(drawing.kind, places, values, published, drawing.x, _unit(drawing))


def _unit(drawing: Drawing) -> str:
    if drawing.kind == "parts":
        return f"time over that of {drawing.over}"
    return all_metrics()[drawing.metric].unit + (f" over {drawing.over}" if drawing.over else "")


def _mean(line: tuple[float | None, ...]) -> float | None:
    """Geometric mean; None unless every point was run."""
    numbers = [v for v in line if v is not None]
    return statistics.geometric_mean(numbers) if numbers and len(numbers) == len(line) else None


def _drawn(point: Point, drawing: Drawing) -> bool:
    return (not drawing.systems or point.system in drawing.systems) and (not drawing.models or point.model in drawing.models)


def _parts(seen: Seen, drawing: Drawing) -> list[tuple[str, float]]:
    """(series, value) of a point: one, or the two parts of its bar."""
    if drawing.kind != "parts":
        value = all_metrics()[drawing.metric].value(seen)
        return [] if value is None else [(_axis(seen.point, drawing.series), value)]
    speedup, share = all_metrics()["speedup"].value(seen), all_metrics()["comm_share"].value(seen)
    if speedup is None or share is None:
        return []
    return [("GEMMs, and communication behind them", (1 - share) / speedup), ("exposed communication", share / speedup)]


def _axis(point: Point, name: str) -> str:
    """The place of a point on the axis `name`, in words."""
    given: ByName = {**dict(point.options), **dict(point.choices)}
    value = given[name] if name in given else getattr(point, name, None)
    return "own" if value in (None, "") else str(value)


def _published(figure: Figure, drawing: Drawing) -> Amounts:
    """Published geometric means of the drawn speed-ups.

    The paper gives the speed-up of one system over each other one. Geometric means over one set divide: the mean of
    B over C is the mean of A over C divided by the mean of A over B.
    """
    given = {(c.system, c.over): c.paper for c in figure.checks if c.metric == drawing.metric == "speedup" and c.reduce == "geomean" and c.paper}
    means = {}
    for (system, over), value in given.items():
        if over == drawing.over:
            means[system] = value
        elif (system, drawing.over) in given:
            means[over] = given[system, drawing.over] / value
    return means
