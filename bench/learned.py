"""Measure a few rows, predict the others: bars of learned machines on rows in sight, `python bench/learned.py ROWS.csv... [--draws 20] [--seed 55]`.

Whole steps of another operator's clusters: a cell is a (model, machine). Four rows of a cell are chosen as `calibrate --next` chooses them, from
slopes alone; costs are learned from them, and the other rows of the cell are predicted. Beside it the median of random fours, the order of
dispatchers (pairs 5 % apart), and each EP degree predicted from the other.

Serving: three chosen rows of a (model, GPU, engine) predict its others, and three of a model the others of another model there. Kernels, EP calls:
30 drawn rows of a GPU predict 60 others, six of a library on a GPU the others. Constants are the packaged ones, whose fits have seen kernels.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from dysharp.api.learning import Votes
from dysharp.base.arrays import F64
from dysharp.measured.learned import COSTS, Change, Cost, Learned, kernels_of, learn, next_rows, slopes, solve, touched
from dysharp.measured.measurements import CLUSTERS, Measurement, measurements_from_csv
from dysharp.measured.serving.predictions import predict_row
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row, measured_s
from dysharp.specs import load_cluster
from dysharp.specs.gpu import list_gpus

CHOSEN = 4
Errors = list[tuple[TrainingRow, float]]


def logs(rows: Sequence[TrainingRow], change: Change) -> F64:
    """Logarithms of predicted seconds."""
    return np.log([estimate_row(row, change).step_us / 1e6 for row in rows])


def times(rows: Sequence[TrainingRow]) -> F64:
    """Measured seconds."""
    return np.array([measured_s(row) for row in rows], np.float64)


def errors(rows: Sequence[TrainingRow], learned: Learned | None) -> Errors:
    """Logarithms of predicted over measured."""
    change = learned.change if learned else lambda cluster: cluster
    return list(zip(rows, (logs(rows, change) - np.log(times(rows))).tolist(), strict=True))


def shown(found: Errors) -> str:
    """Median and 90th percentile of absolute errors, and pairs of dispatchers in order."""
    absolute = sorted(100 * abs(np.expm1(error)) for _, error in found)
    right = pairs = 0
    for i, (one, e) in enumerate(found):
        for other, f in found[:i]:
            same = all(one.degrees[k] == other.degrees[k] for k in ("ep", "mbs", "pp", "vpp"))
            if same and one.model == other.model and one.text("hardware") == other.text("hardware"):
                a, b = measured_s(one) or 0.0, measured_s(other) or 0.0
                if abs(a / b - 1) > 0.05:
                    pairs, right = pairs + 1, right + (np.log(a / b) * (np.log(a / b) + e - f) > 0)
    most = absolute[round(0.9 * (len(absolute) - 1))]
    return f"median {median(absolute):5.1f} %   90th {most:5.1f} %   {len(found):2} rows   pairs {right} of {pairs}"


CELL = 8
"""Rows of a serving cell that are read, drawn."""


class Tally:
    """Errors before and after, and how many lie inside their interval."""

    def __init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []
        self.inside = 0
        self.worse: list[str] = []

    def add(self, name: str, off: F64, left: F64, width: F64) -> None:
        """Rows of one cell: ln(measured / predicted) not learned, learned, and half of the 90 % interval."""
        self.before += np.abs(np.expm1(-off)).tolist()
        self.after += np.abs(np.expm1(-left)).tolist()
        self.inside += int((np.abs(left) <= width).sum())
        if np.median(np.abs(left)) > np.median(np.abs(off)) + 0.01:
            self.worse.append(name)

    def show(self, title: str, bars: str) -> None:
        """One line."""
        n = len(self.after)
        if not n:
            return
        said = [f"{100 * median(one):5.1f} / {100 * float(np.percentile(one, 90)):5.1f} %" for one in (self.before, self.after)]
        print(f"{title:38} {n:4} rows: {said[0]} before, {said[1]} after ({bars}); inside 90 %: {100 * self.inside / n:.0f} % (86 to 94)")
        if self.worse:
            print(f"    {len(self.worse)} worse than not learned: {', '.join(self.worse[:4])}")


def others_left(slope: F64, off: F64, costs: tuple[Cost, ...], picked: Sequence[int]) -> tuple[list[int], F64, F64]:
    """The other rows, what is left of `off` there after `picked`, and their widths. Linear in the logarithms."""
    done = solve(costs, slope[list(picked)], off[list(picked)])
    others = [i for i in range(len(off)) if i not in picked]
    return others, off[others] - slope[others] @ done.mean, done.width(slope[others])


def serving(rows: list[ServingRow], seed: int) -> None:
    """Bars of serving."""
    cells: dict[tuple[str, ...], list[ServingRow]] = {}
    for row in rows:
        if row.numbers["tpot_ms"]:
            cells.setdefault((row.text("hardware"), row.text("engine"), row.text("mode"), row.text("model")), []).append(row)
    found: dict[tuple[str, ...], tuple[F64, F64, tuple[Cost, ...]]] = {}
    within, across = Tally(), Tally()
    for key, every in cells.items():
        own = random.Random(f"{seed} {key}").sample(every, min(CELL, len(every)))
        own = [case.row for row in own if (case := predict_row(row)).scored and case.tpot_ms]
        if len(own) < 5:
            continue
        predict = lambda change, own=own: np.log([predict_row(row, change).tpot_ms for row in own])  # noqa: E731
        off = np.log([row.numbers["tpot_ms"] for row in own]) - predict(lambda cluster: cluster)
        costs = SERVED + kernels_of(setting_of(row).replica.own for row in own)
        slope = slopes(predict, costs, np.zeros(len(costs)))
        found[key] = slope, off, costs
        picked = next_rows(slope, slope, np.diag([cost.spread**-2.0 for cost in costs]), 3)
        others, left, width = others_left(slope, off, costs, picked)
        within.add(" ".join(key), off[others], left, width)
    for key, (slope, off, costs) in found.items():
        for other, (slope2, off2, costs2) in found.items():
            if key[:3] == other[:3] and key != other:
                picked = next_rows(slope, slope, np.diag([cost.spread**-2.0 for cost in costs]), 3)
                every = tuple(dict.fromkeys((*costs, *costs2)))
                wanted = columns(slope2, costs2, every)
                done = solve(every, columns(slope, costs, every)[picked], off[picked])
                across.add(f"{other[3]} from {key[3]}", off2, off2 - wanted @ done.mean, done.width(wanted))
    within.show("serving, three rows of a cell", "bars 6, 18")
    across.show("serving, three rows of another model", "bar: half of before")


def columns(slope: F64, costs: Sequence[Cost], every: Sequence[Cost]) -> F64:
    """`[rows, every]` slopes; 0 for costs that the rows do not have."""
    return np.stack([slope[:, costs.index(cost)] if cost in costs else np.zeros(len(slope)) for cost in every], axis=1)


SERVED = tuple(cost for cost in COSTS if cost.name.startswith(("serving", "hbm", "link")))


def kernels(rows: list[Measurement], seed: int) -> None:
    """Bars of kernels and of EP calls, linear in the logarithms."""
    thirty, six, seconds = Tally(), Tally(), 0.0
    for gpu in (name for name in list_gpus() if name in CLUSTERS):
        votes = Votes.of(rows, load_cluster(CLUSTERS[gpu]))
        if len(votes.kernels) < 90:
            continue
        votes = Votes(votes.base, [], random.Random(f"{seed} {gpu}").sample(votes.kernels, min(1000, len(votes.kernels))), [])
        start, costs = time.perf_counter(), votes.costs()
        off = np.log(votes.measured()) - votes.predict(lambda cluster: cluster)
        slope = slopes(votes.predict, costs, np.zeros(len(costs)))
        seconds = max(seconds, time.perf_counter() - start)
        other = [i for i, one in enumerate(votes.kernels) if not one.measurement.kind.startswith("ep_")][:90]
        if len(other) == 90:
            others, left, width = others_left(slope[other], off[other], costs, range(30))
            thirty.add(gpu, off[other][others], left, width)
        by: dict[str, list[int]] = {}
        for i, one in enumerate(votes.kernels):
            if one.measurement.kind.startswith("ep_"):
                by.setdefault(f"{one.measurement.system} {one.measurement.kind}", []).append(i)
        for name, own in by.items():
            if len(own) >= 12:
                others, left, width = others_left(slope[own], off[own], costs, range(6))
                six.add(f"{gpu} {name}", off[own][others], left, width)
    thirty.show("kernels, 30 rows of a GPU", "bars 5, 12")
    six.show("EP kernels, six rows of a library", "bars 6, 18")
    print(f"slopes of up to 1000 rows: {seconds:.1f} s (bar 10 for 200)")


def main() -> None:
    """Print the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=55)
    given = parser.parse_args()
    served: list[ServingRow] = []
    measured: list[Measurement] = []
    for path in given.data:
        text = path.read_text()
        if TrainingRow.columns.fit(text):
            steps(TrainingRow.from_csv(text, str(path)), given.draws, given.seed)
        elif ServingRow.columns.fit(text):
            served += ServingRow.from_csv(text, str(path))
        else:
            measured += measurements_from_csv(text, str(path))
    if served:
        serving(served, given.seed)
    if measured:
        kernels(measured, given.seed)


def steps(rows: list[TrainingRow], draws: int, seed: int) -> None:
    """Bars of whole steps."""
    print(f"not learned                       {shown(errors(rows, None))}")
    cells: dict[tuple[str, str], list[TrainingRow]] = {}
    for row in rows:
        cells.setdefault((row.model, row.text("hardware")), []).append(row)
    chosen: Errors = []
    drawn: list[list[float]] = [[] for _ in range(draws)]
    across: Errors = []
    inside = total = 0
    for own in cells.values():
        predict = lambda change, own=own: logs(own, change)  # noqa: E731
        costs = touched(predict)
        slope, spread = slopes(predict, costs, np.zeros(len(costs))), np.array([cost.spread for cost in costs])

        def rest(picked: Sequence[int], own: list[TrainingRow] = own, costs: tuple = costs) -> tuple[Errors, Learned]:  # type: ignore[type-arg]
            some = [own[i] for i in picked]
            done = learn(lambda change: logs(some, change), times(some), costs)
            return errors([row for i, row in enumerate(own) if i not in picked], done), done

        picked = next_rows(slope, slope, np.diag(spread**-2.0), CHOSEN)
        found, done = rest(picked)
        chosen += found
        others = [i for i in range(len(own)) if i not in picked]
        inside, total = inside + int((np.abs([e for _, e in found]) <= done.width(slope[others])).sum()), total + len(found)
        print(f"{own[0].text('model')[:16]} {own[0].text('hardware')}: {', '.join(own[i].id for i in picked)}")
        for cost, mean, width in zip(costs, done.mean, done.spread, strict=True):
            print(f"    {cost.name:26} x {np.exp(mean):5.2f}   prior +-{100 * cost.spread:3.0f} %, now +-{100 * width:3.0f} %")
        for n in range(draws):
            fours = random.Random(f"{seed} {n}").sample(range(len(own)), CHOSEN)
            drawn[n] += [100 * abs(np.expm1(e)) for _, e in rest(fours)[0]]
        for degree in sorted({row.degree("ep") for row in own}):
            found, _ = rest([i for i, row in enumerate(own) if row.degree("ep") != degree])
            across += found
    print(f"four rows by --next, the others   {shown(chosen)}   (bars 12, 25 %, 80 % of pairs)")
    print(f"inside their 90 % interval        {inside} of {total}")
    print(f"four random rows, {draws} draws        median of medians {median(median(one) for one in drawn):.1f} %")
    print(f"one EP degree from the other      {shown(across)}   (bar 20 %)")


if __name__ == "__main__":
    main()
