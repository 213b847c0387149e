"""Measure a few rows, predict the others: bars of learned machines on rows in sight, `python bench/learned.py AWS.csv [--draws 20] [--seed 55]`.

AWS.csv: whole steps of another operator's clusters (columns of `validate --data`). A cell is a (model, machine). Four rows of a cell are chosen as
`calibrate --next` chooses them, from slopes alone; costs are learned from them, and the other rows of the cell are predicted. Beside it the median
of random fours, the order of dispatchers (pairs 5 % apart), and each EP degree predicted from the other.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from dysharp.base.arrays import F64
from dysharp.measured.learned import Change, Learned, learn, next_rows, slopes, touched
from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row, measured_s

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


def main() -> None:
    """Print the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=55)
    given = parser.parse_args()
    rows = TrainingRow.read(given.data)
    print(f"not learned                       {shown(errors(rows, None))}")
    cells: dict[tuple[str, str], list[TrainingRow]] = {}
    for row in rows:
        cells.setdefault((row.model, row.text("hardware")), []).append(row)
    chosen: Errors = []
    drawn: list[list[float]] = [[] for _ in range(given.draws)]
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
        for n in range(given.draws):
            fours = random.Random(f"{given.seed} {n}").sample(range(len(own)), CHOSEN)
            drawn[n] += [100 * abs(np.expm1(e)) for _, e in rest(fours)[0]]
        for degree in sorted({row.degree("ep") for row in own}):
            found, _ = rest([i for i, row in enumerate(own) if row.degree("ep") != degree])
            across += found
    print(f"four rows by --next, the others   {shown(chosen)}   (bars 12, 25 %, 80 % of pairs)")
    print(f"inside their 90 % interval        {inside} of {total}")
    print(f"four random rows, {given.draws} draws        median of medians {median(median(one) for one in drawn):.1f} %")
    print(f"one EP degree from the other      {shown(across)}   (bar 20 %)")


if __name__ == "__main__":
    main()
