"""How the picture of a figure is drawn: the table [drawing] of its TOML file."""

from dataclasses import dataclass
from typing import Any

from dysharp.figures.keys import known, typed, word
from dysharp.figures.metric import all_metrics

KINDS = ("bars", "lines", "parts")


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture: a value of each series at each place of the horizontal axis.

    | field | meaning |
    |---|---|
    | `kind` | bars; lines; parts: bars of exposed communication and the remaining time |
    | `metric`, `over` | as in a check; `parts` divides by the time of `over` |
    | `x` | the axis of the points: model, gpus, tokens, routing, system, or an option or free choice |
    | `series` | the axis that is told apart by colour, with the values of `x` |
    | `systems` | systems that are drawn, in this order; empty = all |
    | `models` | models that are drawn; empty = all |
    """

    kind: str
    metric: str
    x: str
    over: str = ""
    series: str = "system"
    systems: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def drawing_of(table: Any, where: str) -> Drawing:
    """The table [drawing]. Raises ConfigError for unknown keys, kinds and metrics."""
    known(table, Drawing.__slots__, where)
    drawing = typed(Drawing, table, where)
    word(drawing.kind, KINDS, f"{where}.kind")
    word(drawing.metric, tuple(all_metrics()), f"{where}.metric")
    return drawing
