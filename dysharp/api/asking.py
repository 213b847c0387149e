"""Questions about costs: which measurement narrows an answer most, and in what two machines differ. An answer is a number of a machine."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dysharp.api.learning import Row, Votes, cluster_text
from dysharp.base import F64, ByName, ConfigError, Rows, Texts, parse_toml, read_text, read_toml
from dysharp.measured.learned import COSTS, NOISE, Cost, changed, kernels_of, learn, next_rows, slopes
from dysharp.measured.measurements import Measurement
from dysharp.specs import Cluster
from dysharp.specs.catalog import learned_spreads, learned_table, list_clusters, load_cluster
from dysharp.specs.fitted import KERNELS, constant_of, fitted

LEAST_GAIN = 0.99
"""A measurement that leaves a larger part of the uncertainty is not named."""
Answer = Callable[[str], tuple[float, Texts]]
"""The number that a question asks for, and the names of costs that its own served model may have, from the text of a cluster file."""


def _log_answer(answer: Answer, packaged: str, base: Cluster, costs: Sequence[Cost]) -> tuple[F64, float]:
    """`[1, costs]` slopes of the answer, and the answer."""
    found = dict[str, float]()

    def asked(change: Callable[[Cluster], Cluster]) -> F64:
        text = cluster_text(packaged, "asked", change(base))
        if text not in found:
            found[text], _ = answer(text)
        return np.log([found[text]])

    return slopes(asked, costs, np.zeros(len(costs))), next(iter(found.values()))


def next_measurements(answer: Answer, verb: str, base: Cluster, n: int, rows: Sequence[Row] = (), among: Sequence[Row] = ()) -> ByName:
    """`answer` and its `uncertainty` in percent as `base` and `rows` leave it, `costs` it depends on, and the `measurements`, best first: `name`,
    `minutes` (None: not known), `command`, and the uncertainty `after` it and all before it. `among`: rows that could be measured; else the
    packaged list and the question itself.
    """
    known, packaged = Votes.of(rows, base), base.name
    own = kernels_of(answer(cluster_text(packaged, "asked", base))[1])
    costs = list({cost.name: cost for cost in (*filter(lambda cost: cost.of(base), COSTS), *(known.costs() if known.ids else ()), *own)}.values())
    information = np.diag([cost.spread**-2.0 for cost in costs])
    if known.ids:
        done = learn(known.predict, known.measured(), costs)
        base, information = done.change(base), np.linalg.inv(done.covariance)
    wanted, value = _log_answer(answer, packaged, base, costs)
    listed = read_toml(Path(__file__).parents[1] / "measured" / "next.toml")
    votes = Votes.of(among or [_row(one) for one in listed["row"]], base, measured=False)
    if among and not votes.ids:
        raise ConfigError(f"--among: found no row that is predicted on {packaged}, expected one")
    told = [{"name": row} for row in votes.ids] if among else [next(one for one in listed["row"] if one["name"] == row) for row in votes.ids]
    slope = slopes(votes.predict, costs, np.zeros(len(costs)))
    if not among:
        slope, told = np.concatenate([slope, wanted]), [*told, listed["run"][verb]]
    left, measurements, before = information, Rows(), _percent(wanted, information)
    for place in next_rows(slope, wanted, information, n):
        left = left + np.outer(slope[place], slope[place]) / NOISE**2
        after = _percent(wanted, left)
        if after > LEAST_GAIN * before:  # the others tell nothing more
            break
        measurements.append({key: told[place].get(key) for key in ("name", "minutes", "command")} | {"after": after})
        before = after
    spreads = np.sqrt(np.diag(np.linalg.inv(information)))
    effects = sorted(zip(np.abs(wanted[0] * spreads).tolist(), costs, strict=True), key=lambda one: -one[0])
    named = [{"name": cost.name, "meaning": cost.meaning, "percent": 100 * part} for part, cost in effects if part > NOISE / 100]
    return {"answer": value, "uncertainty": _percent(wanted, information), "costs": named, "measurements": measurements}


def _percent(wanted: F64, information: F64) -> float:
    return 100 * float(np.sqrt((wanted @ np.linalg.inv(information) @ wanted.T)[0, 0]))


def _row(one: ByName) -> Measurement:
    unit = "GB/s" if one["kind"] == "hbm_bandwidth" else "us"
    return Measurement(one["name"], one["kind"], one["system"], "", one["config"], "latency", 1.0, unit, "")


def differences(first: str, second: str, answer: Answer | None = None) -> Rows:
    """Costs in which two cluster files differ: `name`, `meaning`, both values and how far each may be off in percent (None: not learned), the change
    in percent, and what it alone changes in the `answer`, in percent.
    """
    one, other = load_cluster(first), load_cluster(second)
    widths = [learned_spreads(learned_table(path)) for path in (first, second)]
    own = {cost.name for cost in COSTS}
    learned = [name for name, _ in (*one.constants, *other.constants) if name.startswith(KERNELS)]
    others = [*(name for name in fitted() if name not in own), *dict.fromkeys(learned)]
    costs = [*COSTS, *(Cost(name, 0.0, known.meaning) for name in others if (known := constant_of(name)))]
    base = first if first in list_clusters() else str(parse_toml(read_text(Path(first)), first).get("base", ""))
    before = answer(cluster_text(base, "asked", one))[0] if answer else None
    rows = []
    for cost in costs:
        a, b = cost.of(one), cost.of(other)
        if not a or not b or abs(b / a - 1) < 1e-9:
            continue
        effect = None
        if answer and before:
            effect = 100 * (answer(cluster_text(base, "asked", changed(one, [cost], np.log([b / a]))))[0] / before - 1)
        told = {"name": cost.name, "meaning": cost.meaning, "first": a, "second": b, "change": 100 * (b / a - 1), "effect": effect}
        rows.append(told | {key: width.get(cost.name) for key, width in zip(("first_percent", "second_percent"), widths, strict=True)})
    return rows
