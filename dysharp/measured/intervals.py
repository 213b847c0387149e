"""One interval for every prediction: factors between which nine of ten, or eight of ten, measurements of it lie, also where nobody chose on its rows.

The packaged table `residuals` has a line per measured number: ln(measured / predicted) of its time with the packaged constants, and with its GPU, its
model or its source left out of the fits that are automated (`python bench/out_of_sight.py --write`, which says which are). An interval is a factor
either way: a quantile of the absolute residuals of rows like the prediction, so the prediction is its middle.

| what was measured | rows |
|---|---|
| GPU measured in the family, with `MODELS` models or more | of the family on this GPU, each with its model left out |
| GPU never measured, or with fewer models | of the family, each with its GPU left out, and each with its source left out |
| this model never measured on this GPU, and fewer than `BOUND` others | all of these |
| family never measured, or the kernel's engine in it | of all families of the kind |

Of several kinds of rows the widest interval counts. Rows of near size weigh more. One group more (a GPU, or a model on one GPU) has the residuals of
the whole kind, of a served quantity those of it: conformal prediction gives the group that nobody saw the share of one. Time is the unit: factors of
a rate are their inverses.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dysharp.base import F64, AnyMapping, Bools, Ints, Rows, frozen
from dysharp.measured.data import read_table
from dysharp.measured.family import Family, Level, Parsed

AT = (0.8, 0.9)
"""Shares of rows that the two intervals of a prediction are meant to hold."""
WORDS = ("kind", "family", "gpu", "model", "source", "engine", "aside", "new")
GROUPS = ("gpu", "model", "source")
"""What is left out."""
NEW = "new"
"""Mark of rows that came after the constants."""
OFF = ("all", *GROUPS)
COLUMNS = (*WORDS, "us", *(f"off_{name}" for name in OFF))
DECADE = 0.5
"""Decades of size over which the weight of a row falls by e."""
FEWEST = 8
"""Fewer rows of a family on a GPU are as none, fewer of a family too."""
MODELS = 3
"""Fewer models do not show how far models of one family differ."""
BOUND = 9
"""Fewer groups have no ninth of ten: the next one may lie beyond all of them (conformal prediction)."""
SCOPES = {"layers": ("layers",), "kernels": ("kernels", "communication kernels"), "calls": ("calls", "between nodes"), "steps": ("steps",),
          "serving": ("serving",), "memory": ("memory",)}  # fmt: skip
"""What coverage was asked of -> kinds of rows."""
BARS: Mapping[str, tuple[float, float | None]] = {
    "kernels": (10, 28), "calls": (7, 26), "between nodes": (15, 50), "steps": (8, 20), "TPOT": (11, 35), "TTFT": (25, None),
    "communication kernels": (math.inf, None), "layers": (math.inf, None), "throughput": (math.inf, None), "memory": (math.inf, None),
}  # fmt: skip
"""What is judged -> bars of the median and the 90th percentile of errors out of sight, in percent; infinite: none was asked for."""
ASKED = {0.8: (75.0, 85.0), 0.9: (86.0, 94.0)}
"""Level -> least and greatest percent of rows out of sight inside."""


@frozen
class Asked:
    """What a prediction is of: words of `residuals`, and its time in us (memory: its size). 0: of any size. `model`: or the shape of a kernel;
    one that is not said is taken for one of those measured.

    `engine`: what ran a kernel; "" where nothing tells.
    """

    kind: str
    family: str
    gpu: str
    us: float
    model: str = ""
    engine: str = ""


@frozen
class Interval:
    """Factors of a predicted time. `typical`: median of the absolute errors of the rows like it, as a part. `near`: rows of its GPU are known."""

    low90: float
    low80: float
    high80: float
    high90: float
    typical: float
    near: bool
    n: int = 0
    """Rows like it."""

    def around(self, value: float, level: float = 0.9, *, rate: bool = False) -> tuple[float, float]:
        """Between which values measurements of a prediction lie."""
        low, high = (self.low90, self.high90) if level == 0.9 else (self.low80, self.high80)
        return (value / high, value / low) if rate else (value * low, value * high)

    def of(self, value: float, *, rate: bool = False) -> dict[str, list[float]]:
        """The columns of a row."""
        return {f"interval{100 * level:.0f}": list(self.around(value, level, rate=rate)) for level in ASKED}

    def wider(self, by: float) -> Interval:
        """Each end farther by this part of the prediction."""
        low90, low80, high80, high90 = self.low90 - by, self.low80 - by, self.high80 + by, self.high90 + by
        return replace(self, low90=max(0.0, low90), low80=max(0.0, low80), high80=high80, high90=high90, typical=self.typical + by)

    def within(self, other: Interval) -> Interval:
        """The least interval with both in it."""
        least = {name: min(getattr(self, name), getattr(other, name)) for name in ("low90", "low80")}
        most = {name: max(getattr(self, name), getattr(other, name)) for name in ("high80", "high90", "typical")}
        return replace(self, **least, **most)

    @property
    def words(self) -> str:
        """What stands behind "take" in a sentence."""
        return (
            f"{self.low90:.2f} to {self.high90:.2f} times the prediction (nine of ten), {self.low80:.2f} to {self.high80:.2f} (eight of ten); "
            f"median error {100 * self.typical:.1f} %"
        )

    @property
    def usual(self) -> float:
        """Percent of the measured value that nine of ten errors stay below, to either side."""
        return 100 * max(1 / max(self.low90, 0.01) - 1, 1 - 1 / self.high90)


def summed(parts: Sequence[tuple[float, Interval]]) -> Interval:
    """The interval of a sum of times: pairs of a part's share of the sum and its interval. Parts err independently."""

    def end(name: str, sign: int) -> float:
        return max(0.0, 1 + sign * math.sqrt(sum((share * (getattr(one, name) - 1)) ** 2 for share, one in parts)))

    typical = math.sqrt(sum((share * one.typical) ** 2 for share, one in parts))
    return Interval(end("low90", -1), end("low80", -1), end("high80", 1), end("high90", 1), typical, all(one.near for _, one in parts))


class Residuals:
    """The table as columns: `words` by name, `numbers` by name (sizes in us, residuals; NaN where no fit was made without the group)."""

    def __init__(self, words: AnyMapping, numbers: Mapping[str, F64]) -> None:
        self.words, self.numbers = dict(words), dict(numbers)
        self.off = {name: np.where(np.isnan(self.numbers[name]), self.numbers["all"], self.numbers[name]) for name in OFF}
        self.size = np.log10(np.maximum(self.numbers["us"], 1e-6))

    def __len__(self) -> int:
        return len(self.size)

    def where(self, mask: Any) -> Residuals:
        """The rows of a mask."""
        return Residuals({name: values[mask] for name, values in self.words.items()}, {name: values[mask] for name, values in self.numbers.items()})

    def of(self, **words: str) -> Residuals:
        """The rows with these words."""
        return self.where(functools.reduce(np.logical_and, (self.words[name] == value for name, value in words.items())))


def residuals_from(text: str) -> Residuals:
    """The table from CSV text."""
    header, *rows = csv.reader(io.StringIO(text))
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    numbers = {name: np.array([float(cell or "nan") for cell in columns[f"off_{name}"]]) for name in OFF}
    return Residuals({name: np.array(columns[name]) for name in WORDS}, numbers | {"us": np.array(columns["us"], np.float64)})


@functools.cache
def residuals() -> Residuals:
    """The packaged table, without the rows that are left out of the bars."""
    return residuals_from(read_table("residuals")).of(aside="")


@dataclass(frozen=True)
class _Like:
    """Rows like a prediction, what is left out of their residuals, and what their groups are. `kind`: the rows that stand for the unseen group."""

    rows: Residuals
    kind: Residuals
    left_out: str
    groups: str

    @functools.cached_property
    def _alike(self) -> tuple[int, F64, Ints]:
        """What all sizes share: number of groups, absolute residuals of rows and of the unseen group, and their order."""
        values = np.abs(np.concatenate([self.rows.off[self.left_out], self.kind.off["gpu"]]))
        return len(np.unique(self.rows.words[self.groups])), values, np.argsort(values, kind="stable")

    def factors(self, size: F64) -> F64:
        """`[size, AT]` logarithms of the factors of predictions of `size` (decades)."""
        groups, values, order = self._alike
        near = np.exp(-np.nan_to_num(np.abs(size[:, None] - self.rows.size[None, :])) / DECADE)
        near *= groups / np.maximum(near.sum(axis=1, keepdims=True), 1e-300)
        weights = np.concatenate([near, np.full((len(size), len(self.kind)), 1 / len(self.kind))], axis=1)[:, order]
        heaped = np.cumsum(weights, axis=1)
        return np.array([np.interp(AT, share, values[order]) for share in (heaped - weights / 2) / heaped[:, -1:]])


def _unseen(kind: Residuals, family: str) -> Residuals:
    """The rows that stand for the group that nobody saw: a TPOT's are no TTFT's."""
    quantity, several, _ = family.partition(", ")
    own = kind.where(np.char.startswith(kind.words["family"], f"{quantity}, ")) if several and quantity in BARS else kind
    return own if len(own) >= FEWEST else kind


def _models(family: Residuals, gpu: str) -> Any:
    """Models with rows on a GPU; none where they are as none."""
    own = family.of(gpu=gpu)
    models = np.unique(own.words["model"])
    return models[:0] if len(own) < FEWEST or len(models) < MODELS else models


def _like(kind: Residuals, family: Residuals, gpu: str, model: str, engine: str) -> tuple[_Like, ...]:
    """First the nearest rows."""
    every = (_Like(kind, kind, "gpu", "family"),)
    if len(family) < FEWEST:
        return every
    other = every if engine and engine not in family.words["engine"] else ()
    models = _models(family, gpu)
    near = (_Like(family.of(gpu=gpu), kind, "model", "model"),) if len(models) else ()
    if near and (len(models) >= BOUND or model in models or not model):
        return (*near, *other)
    sources = (_Like(family, kind, "source", "source"),) if len(np.unique(family.words["source"])) > 1 else ()
    return (*near, _Like(family, kind, "gpu", "gpu"), *sources, *other)


def _widest(likes: Sequence[_Like], size: F64) -> F64:
    widest: F64 = np.max([one.factors(size) for one in likes], axis=0)
    return widest


def kind_of(family: Family) -> str:
    """The kind of a measured family."""
    if family.between:
        return "between nodes"
    if family.level is Level.CALL or family.name.startswith("mori"):
        return "calls"
    return {Level.LAYER: "layers", Level.GPU: "kernels"}.get(family.level, "communication kernels")


def engine_of(entry: Parsed) -> str:
    """The engine of a measured kernel, without its version; "" for other kinds."""
    return re.split(r"[ +]", entry.measurement.system)[0] if kind_of(entry.family) == "kernels" else ""


def asked_of(entry: Parsed, us: float) -> Asked:
    """A prediction of `us` for a measured case."""
    return Asked(kind_of(entry.family), entry.family.name, entry.case.gpu, us, entry.case.shape, engine_of(entry))


@functools.cache
def _packaged_like(kind: str, family: str, gpu: str, model: str, engine: str) -> tuple[_Like, ...]:
    """The packaged rows like a prediction, once for predictions of all sizes."""
    rows = residuals().of(kind=kind)
    return _like(_unseen(rows, family), rows.of(family=family), gpu, model, engine)


@functools.cache
def interval_of(point: Asked) -> Interval:
    """The interval of a prediction."""
    likes = _packaged_like(point.kind, point.family, point.gpu, point.model, point.engine)
    by80, by90 = np.exp(_widest(likes, np.array([math.log10(point.us) if point.us else math.nan]))[0]).tolist()
    typical = max(float(np.median(np.abs(np.expm1(one.rows.off[one.left_out])))) for one in likes)
    return Interval(1 / by90, 1 / by80, by80, by90, typical, likes[0].groups == "model", len(likes[0].rows))


@frozen
class _HeldOutIntervals:
    """Of every row of a table, built without its group: `wide`, `[rows, AT]` logarithms, and `factor`, that of the constant factor of its family."""

    wide: F64
    factor: F64

    @property
    def judged(self) -> Bools:
        """`[rows]`: whether rows like it are left."""
        return np.isfinite(self.factor)


def held_out(table: Residuals, by: str) -> _HeldOutIntervals:
    """`by`: "gpu", "model", "source" or "family"; "new": rows that came after the constants, from the rows before them."""
    done = _HeldOutIntervals(np.full((len(table), len(AT)), np.nan), np.full(len(table), np.nan))
    kinds, families, gpus, models, engines, labels = (table.words[name] for name in ("kind", "family", "gpu", "model", "engine", by))
    column = by if by in GROUPS else "all"
    for kind_name in np.unique(kinds):
        in_kind = kinds == kind_name
        for label in np.unique(labels[in_kind]) if by != NEW else (NEW,):
            left, rest = in_kind & (labels == label), in_kind & (labels != label)
            kind = table.where(rest)
            for name in np.unique(families[left]):
                family = kind.of(family=name)
                if len(kind) < FEWEST or (len(family) < FEWEST and by != "family"):
                    continue
                own = left & (families == name)
                done.factor[own] = np.quantile(np.abs((family if len(family) else kind).off[column]), 0.9)
                engines_left = set(family.words["engine"].tolist())
                for gpu in np.unique(gpus[own]):
                    there, models_left = np.flatnonzero(own & (gpus == gpu)), set(_models(family, gpu).tolist())
                    known = np.array([(m in models_left) + 2 * (e in engines_left) for m, e in zip(models[there], engines[there], strict=True)])
                    for seen in np.unique(known):
                        mine = there[known == seen]
                        model, engine = (str(words[mine[0]]) for words in (models, engines))
                        done.wide[mine] = _widest(_like(_unseen(kind, str(name)), family, gpu, model, engine), table.size[mine])
    return done


def coverage(table: Residuals, names: Sequence[str] = (*GROUPS, "family", NEW)) -> Rows:
    """Of each scope and each thing left out: `n` rows, percent of them inside the intervals, and the median of high / low of the 90 % interval.

    `factor_inside`, `factor_width`: the same of a constant factor per family, the one that holds 90 % of its rows outside the group.
    """
    done = []
    for by in names:
        held = held_out(table, by)
        off = table.off[by if by in GROUPS else "all"]
        for scope, kinds in SCOPES.items():
            mine = held.judged & np.isin(table.words["kind"], kinds)
            if not mine.any():
                continue
            wide, real, factor = held.wide[mine], np.abs(off[mine]), held.factor[mine]
            shares = (100 * (real[:, None] <= wide).mean(axis=0)).tolist()
            widths = [float(np.exp(np.median(2 * width))) for width in (wide[:, 1], factor)]
            done.append(
                {"scope": scope, "left_out": by, "n": int(mine.sum()), "inside80": shares[0], "inside90": shares[1], "width90": widths[0],
                 "factor_inside": float(100 * np.mean(real <= factor)), "factor_width": widths[1]}
            )  # fmt: skip
    return done


def errors(table: Residuals) -> Rows:
    """Of each line of `BARS`: `n` rows, median and 90th percentile of absolute errors in percent; `seen_*`: with all rows in the fits.

    Out of sight a row has each of its groups left out in turn and counts once. A new row, and one that no fit was made without, is as it is.
    """
    done = []
    for name, (median, p90) in BARS.items():
        rows = table.where((table.words["kind"] == name) | np.char.startswith(table.words["family"], f"{name}, ") | (table.words["family"] == name))
        if not len(rows):
            continue
        held = np.stack([np.where(rows.words["new"] == "", rows.numbers[by], np.nan) for by in GROUPS], axis=1)
        alone = np.isnan(held).all(axis=1)
        held[alone, 0] = rows.numbers["all"][alone]
        valid = ~np.isnan(held)
        weights = (valid / valid.sum(axis=1, keepdims=True))[valid]
        out, seen = _percentiles(held[valid], weights), _percentiles(rows.numbers["all"], np.ones(len(rows)))
        entry = {"what": name, "n": len(rows), "median_ape": out[0], "p90_ape": out[1], "seen_median_ape": seen[0], "seen_p90_ape": seen[1]}
        asked = {"bar": None if math.isinf(median) else median, "bar_p90": p90}
        done.append(entry | asked | {"holds": None if math.isinf(median) else out[0] <= median and (p90 is None or out[1] <= p90)})
    return done


def _percentiles(off: F64, weights: F64) -> tuple[float, float]:
    sizes = 100 * np.abs(np.expm1(-off))
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    half, most = (float(sizes[order][min(int(np.searchsorted(share, part)), len(order) - 1)]) for part in (0.5, 0.9))
    return half, most
