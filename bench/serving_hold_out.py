"""Constants of TPOT (`serving.*`) refitted without one model, GPU or engine: error of the rows left out over their error with all rows.

`python bench/serving_hold_out.py [ROWS [ROUNDS]]`: at most ROWS rows (default 6) of each model, hardware, engine, mode and precision, drawn with
a fixed seed. A fit is a descent over the five constants, two rounds of factors; with one round, of two factors. Prints a row per fold.
"""

import math
import random
import sys
from collections import defaultdict
from dataclasses import replace
from statistics import median

from dysharp.costs.machine import machine_of
from dysharp.measured.serving.predictions import TPOT, ServingCase, predict_setting
from dysharp.measured.serving.setting import ServeSetting, ServingRow, setting_of
from dysharp.serving.work import Replica
from dysharp.specs.fitted import fitted

NAMES = ("experts_stream", "gap_us", "step_us", "request_us", "launch_us")
FACTORS = (0.75, 1.33, 0.88, 1.15)
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
MOST = 0.5
Rows = list[tuple[ServingRow, ServeSetting]]


def sample(each: int) -> Rows:
    """Rows by group."""
    groups = defaultdict(list)
    for row in ServingRow.read():
        if ServingCase(row).scored and row.text("mode") == "agg" and row.numbers["tpot_ms"] and not row.text("hardware").startswith("8x"):
            groups[tuple(row.text(name) for name in ("model", "hardware", "engine", "precision"))].append(row)
    draw = random.Random(1)
    return [(row, setting_of(row)) for rows in groups.values() for row in draw.sample(rows, min(each, len(rows)))]


def errors(rows: Rows, values: dict[str, float]) -> list[float]:
    """Absolute errors of TPOT in percent."""
    found = []
    for row, setting in rows:
        cluster = replace(setting.replica.machine.cluster, constants=tuple(sorted((f"serving.{name}", value) for name, value in values.items())))
        replica: Replica = replace(setting.replica, machine=machine_of(cluster, "serving"))
        tpot, ttft = predict_setting(replace(setting, replica=replica))
        found.append(abs(ServingCase(row, tpot / 1e3, ttft / 1e3).error(TPOT) or 0.0))
    return found


def fit(rows: Rows) -> dict[str, float]:
    """Least mean of errors, each counted up to `MOST`."""
    values = {name: fitted()[f"serving.{name}"].value * 1.3 for name in NAMES}  # not the packaged values
    values["experts_stream"] = 0.7
    best = math.inf
    for _ in range(ROUNDS):
        for name in NAMES:
            limits, start = fitted()[f"serving.{name}"], values[name]
            for factor in (1.0, *FACTORS[: 2 * ROUNDS]):
                tried = values | {name: min(limits.high, max(limits.low, start * factor))}
                loss = sum(min(100 * MOST, error) for error in errors(rows, tried)) / len(rows)
                if loss < best:
                    best, values = loss, tried
    return values


def main() -> None:
    rows = sample(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
    everything = fit(rows)
    print(len(rows), "rows", {name: round(value, 3) for name, value in everything.items()}, flush=True)
    for column in ("engine", "hardware", "model"):
        for value in sorted({row.text(column) for row, _ in rows}):
            left = [pair for pair in rows if pair[0].text(column) == value]
            own = median(errors(left, everything))
            held = median(errors(left, fit([pair for pair in rows if pair[0].text(column) != value])))
            print(f"{column:9} {value:36} n {len(left):3} all rows {own:5.1f} %  left out {held:5.1f} %  ratio {held / own:.2f}", flush=True)


if __name__ == "__main__":
    main()
