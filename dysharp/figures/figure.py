"""A figure: the points to run, and the numbers to compare with the paper. A TOML names metrics and holds no code."""

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import field, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from dysharp.base import AnyMapping, AnyPath, ByName, ConfigError, Texts, check_word, frozen, parse_toml, read_text, show
from dysharp.figures.check import Check, check_of, unclaimed
from dysharp.figures.keys import Whole, known, typed, word
from dysharp.figures.metric import all_metrics
from dysharp.figures.origin import origin_of
from dysharp.runs.arguments import DEFAULT_CLUSTER
from dysharp.runs.point import DIRECTIONS, FIDELITIES, Point
from dysharp.specs.choices import Scalar, choices_overridden
from dysharp.specs.fields import Key

KINDS = ("bars", "lines", "parts")


@frozen
class Drawing:
    """One picture, as the table [drawing] of a TOML says: a value of each series at each place of the horizontal axis.

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
    systems: Texts = ()
    models: Texts = ()


def _drawing_of(table: Any, where: str) -> Drawing:
    """The table [drawing]. Raises ConfigError for unknown keys, kinds and metrics."""
    drawing = typed(Drawing, table, where)
    word(drawing.kind, KINDS, f"{where}.kind")
    word(drawing.metric, tuple(all_metrics()), f"{where}.metric")
    return drawing


KEYS = ("title", "source", "text", "paper", "points", "check", "variants", "drawing", "headline")
PAPERS = {
    "dysharp": "DySHARP (arXiv 2605.05607)",
    "moe-hub": "MoE-Hub (arXiv 2605.05888)",
    "cais": "CAIS (arXiv 2605.05628)",
    "": "Figures that no paper has",
}
"""{value of a figure's key `paper`: title of its page}."""
BEYOND = "beyond"  # file name of the page of figures without a paper
MAX_POINTS = 100_000
"""Points of one table: their tuples take a few hundred bytes each, their runs seconds."""
_PAIRS = BeforeValidator(lambda table: tuple(sorted(table.items())) if isinstance(table, dict) else table)


@frozen
class Variant:
    """The points of a figure at other values of free choices (`choices`: sorted pairs of name and value).

    `systems`, `fidelity`: only these points take the other values, because the choices change no other point; empty = all points.
    """

    choices: Annotated[tuple[tuple[str, Scalar], ...], _PAIRS, Key("a table of free choices with one value each")]
    systems: Texts = ()
    fidelity: str = ""

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.choices)


@frozen
class Figure:
    """A named set of points and checks.

    `variants`: the same points at other values of choices, for comparison. `paper`: the page that the figure belongs to
    (`PAPERS`). `drawing`: its picture, None = none. `headline`: checks that are the headline of the paper; its page shows those with variants.
    """

    name: str
    title: str
    source: str
    points: tuple[Point, ...]
    checks: tuple[Check, ...]
    text: str = ""
    models: Texts = field(default=())
    variants: tuple[Variant, ...] = ()
    paper: str = ""
    drawing: Drawing | None = None
    headline: Texts = ()


def list_figures() -> list[str]:
    """Names of the packaged figures."""
    return sorted(p.name.removesuffix(".toml") for p in files("dysharp.figures").joinpath("data").iterdir() if p.name.endswith(".toml"))


def load_figure(name_or_path: AnyPath) -> Figure:
    """A packaged figure, or a figure from a user's TOML file.

    Raises ConfigError with the file, the key and the nearest valid name.
    """
    name = os.fspath(name_or_path)
    if name.endswith(".toml"):
        return figure_of(Path(name).stem, parse_toml(read_text(Path(name)), name), name)
    check_word(name, list_figures(), f"figure {name!r}: unknown")
    text = files("dysharp.figures").joinpath("data", f"{name}.toml").read_text(encoding="utf-8")
    return figure_of(name, parse_toml(text, f"{name}.toml"), f"{name}.toml")


def in_direction(figure: Figure, direction: str) -> Figure:
    """The figure for the pass `direction`.

    Papers claim numbers of forward passes only, so other passes have no claims and no variants.
    """
    word(direction, DIRECTIONS, "direction")
    if direction == "fwd":
        return figure
    points = tuple(origin_of(p.system).in_direction(p, direction) for p in figure.points)
    title = f"{figure.title}; with --direction {direction}"
    return replace(figure, title=title, points=points, checks=tuple(map(unclaimed, figure.checks)), variants=(), headline=())


def figure_of(name: str, table: ByName, where: str) -> Figure:
    """The figure of a table of TOML. Raises ConfigError as `load_figure`."""
    known(table, KEYS, where)
    if table.get("points", []) == []:
        raise ConfigError(f"{where}: found no [points], expected systems and models to run (one table, or several: [[points]])")
    several = table["points"]
    sets = {f"{where}: points[{i}]": axes for i, axes in enumerate(several)} if isinstance(several, list) else {f"{where}: points": several}
    points: tuple[Point, ...] = ()
    for place, axes in sets.items():
        points += product_points(axes, place)
        if len(points) > MAX_POINTS:
            raise ConfigError(f"{where}: found more than {MAX_POINTS} points, expected at most {MAX_POINTS}")
    checks = tuple(check_of(c, points, f"{where}: check[{i}]") for i, c in enumerate(_list(table, "check", where)))
    models = tuple(dict.fromkeys(p.model for p in points))
    title, source, text = (str(table.get(key, "")) for key in ("title", "source", "text"))
    variants = tuple(_variant(v, points, f"{where}: variants[{i}]") for i, v in enumerate(_list(table, "variants", where)))
    if bool(variants) != any(check.variants for check in checks):
        raise ConfigError(f"{where}: found {len(variants)} variants, expected [[variants]] if a check has variants = true, else none")
    paper = str(table.get("paper", ""))
    word(paper, tuple(PAPERS), f"{where}: paper")
    drawing = _drawing_of(table["drawing"], f"{where}: drawing") if "drawing" in table else None
    headline = tuple(map(str, _list(table, "headline", where, "a list of names")))
    for claim in headline:
        word(claim, tuple(c.name for c in checks), f"{where}: headline")
    return Figure(name, title or name, source, points, checks, text, models, variants, paper, drawing, headline)


def _list(table: ByName, key: str, where: str, expected: str = "") -> list[Any]:
    """A list, or the tables [[key]]. Raises ConfigError for another value."""
    found = table.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{where}: {key}: found {show(found)}, expected {expected or f'tables [[{key}]]'}")
    return found


def _variant(table: ByName, points: tuple[Point, ...], where: str) -> Variant:
    variant = typed(Variant, table, where)
    word(variant.fidelity, ("", *FIDELITIES), f"{where}.fidelity")
    for name in variant.systems:
        word(name, tuple(dict.fromkeys(p.system for p in points)), f"{where}.systems")
    with choices_overridden(dict(variant.choices)):  # refuses unknown names and values out of range
        return variant


_ONE = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
_NUMBERS = Key("a whole number or a list of whole numbers")
_Values = dict[str, bool | int | float | str]
_Lists = dict[str, list[bool | int | float | str]]


@frozen
class _Axes:
    """One table of points: the product of all axes.

    Every axis but `fidelity` is one value or a list. Keys of `options` and `grid` are OPTION or SYSTEM.OPTION; keys of
    `grid` may also be cluster.KEY. `choices`: free choices with a list of values each.
    """

    systems: Annotated[Texts, _ONE, Key('a list of systems, such as ["deepep", "dysharp"]')]
    models: Annotated[Texts, _ONE, Key('a list of models, such as ["S-8"]')]
    cluster: Annotated[Texts, _ONE, Key('a cluster or a list of clusters, such as ["paper-nvl72", "paper-nvl72,link_GBps=900"]')] = (DEFAULT_CLUSTER,)
    gpus: Annotated[tuple[Whole | None, ...], _ONE, _NUMBERS] = (None,)
    tokens: Annotated[tuple[Whole | None, ...], _ONE, _NUMBERS] = (None,)
    routing: Annotated[Texts, _ONE, Key('a list of routing texts, such as ["uniform"]')] = ("",)
    seeds: Annotated[tuple[Whole, ...], _ONE, _NUMBERS] = (0,)
    direction: Annotated[Texts, _ONE, Key('one or a list of "fwd", "bwd", "both"')] = ("fwd",)
    fidelity: Annotated[str, Key('"burst" or "packet"')] = "burst"
    options: Annotated[_Values, Key("a table of options with one value each; lists of values go into grid")] = field(default_factory=dict)
    grid: Annotated[_Lists, Key("a table of options with a list of values each; single values go into options")] = field(default_factory=dict)
    choices: Annotated[dict[str, list[Scalar]], Key("a table of free choices with a list of values each")] = field(default_factory=dict)
    defaults: Annotated[bool, Key("true or false")] = False


def product_points(table: ByName, where: str) -> tuple[Point, ...]:
    axes = typed(_Axes, table, where)
    _check_product(axes, where)
    cells, chosen = _cells(axes.grid), _cells(axes.choices)
    if axes.defaults:
        cells.append(())  # beside the grid: the point with default options
    for cell in chosen:
        with choices_overridden(dict(cell)):  # refuses unknown names and values out of range
            pass
    for direction in axes.direction:
        word(direction, DIRECTIONS, f"{where}.direction")
    word(axes.fidelity, FIDELITIES, f"{where}.fidelity")
    settings = [{**axes.options, **dict(cell)} for cell in cells]
    for name in dict.fromkeys(name for setting in settings for name in setting):
        word(name.rpartition(".")[0], ("", "cluster", "fabric", *axes.systems), f"{where}: option {name!r}")
    sizes = itertools.product(axes.models, axes.cluster, axes.gpus, axes.tokens)
    points = (
        Point(
            system, model, _variant_of(cluster, setting), routing, seed, gpus, tokens, _own(system, setting), tuple(sorted(choices)),
            direction=direction, fidelity=axes.fidelity,
        )
        for (model, cluster, gpus, tokens), routing, seed, direction, system, setting, choices in itertools.product(
            sizes, axes.routing, axes.seeds, axes.direction, axes.systems, settings, chosen
        )
    )  # fmt: skip
    return tuple(dict.fromkeys(points))  # an option of one system makes no second point of another


def _cells(axes: Mapping[str, list[Any]]) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of one value per name."""
    return list(itertools.product(*([(name, v) for v in values] for name, values in axes.items())))


def _variant_of(cluster: str, setting: AnyMapping) -> str:
    """The cluster with the keys `cluster.KEY` of a setting, as `load_cluster` reads it."""
    return ",".join([cluster, *(f"{name.removeprefix('cluster.')}={value}" for name, value in setting.items() if name.startswith("cluster."))])


def _own(system: str, setting: AnyMapping) -> tuple[tuple[str, Any], ...]:
    """The options of a system in a setting: sorted pairs of name and value. SYSTEM.OPTION counts before OPTION, which is of all systems."""
    of_all = {name: value for name, value in setting.items() if name.rpartition(".")[0] in ("", "fabric")}
    own = {name.removeprefix(f"{system}."): value for name, value in setting.items() if name.startswith(f"{system}.")}
    return tuple(sorted((of_all | own).items()))


def _check_product(axes: _Axes, where: str) -> None:
    """Raise ConfigError for no points and too many, before the first is made, and for a negative seed."""
    lists = {name: getattr(axes, name) for name in ("systems", "models", "cluster", "gpus", "tokens", "routing", "seeds", "direction")}
    more = {f"{key}.{name}": values for key in ("grid", "choices") for name, values in getattr(axes, key).items()}
    for name, values in (lists | more).items():
        if not values:
            raise ConfigError(f"{where}.{name}: found an empty list, expected at least one value")
    if min(axes.seeds) < 0:
        raise ConfigError(f"{where}.seeds: found {min(axes.seeds)}, expected at least 0")
    n = math.prod(map(len, [*lists.values(), *axes.choices.values()])) * (math.prod(map(len, axes.grid.values())) + axes.defaults)
    if n > MAX_POINTS:
        raise ConfigError(f"{where}: found {n} points, expected at most {MAX_POINTS}: the product of all lists")
