"""`calibrate` from whole runs, of training and of serving: named costs of a machine, what the rows say about each, and the file that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dysharp.base.arrays import F64
from dysharp.base.errors import ConfigError
from dysharp.measured.learned import COSTS, HOST, NICS, Change, Cost, Learned, learn, touched
from dysharp.measured.measurements import Unsupported
from dysharp.measured.serving.predictions import predict_row
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.measured.training.setting import TrainingRow, machine_of
from dysharp.measured.training.step_time import estimate_row, measured_s
from dysharp.specs import Cluster

KINDS: tuple[type[TrainingRow | ServingRow], ...] = (TrainingRow, ServingRow)
MOVED = 2
"""Rows that are named for a cost: those that moved it most."""
FAR = 3.0
"""Standard deviations by which a row is off that contradicts the others."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What whole runs say about a machine.

    `costs`: `name`, `meaning`, `before`, `after`, percent of the `prior` and `now`, `rows` that moved it. `untouched`: costs that no row depends on.
    `rows`: `id`, `measured`, errors in percent `before` and `after`, and whether the row `contradicts` the others. `skipped`: id and reason.
    """

    path: str
    cluster: str
    costs: list[dict[str, Any]]
    untouched: list[str]
    rows: list[dict[str, Any]]
    skipped: list[dict[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def rows_in(text: str, where: str) -> list[TrainingRow | ServingRow] | None:
    """Rows of training or serving; None for a file of another kind."""
    kind = next((one for one in KINDS if one.columns.fit(text)), None)
    return None if kind is None else list(kind.from_csv(text, where))


def learning(rows: Sequence[TrainingRow | ServingRow], base: Cluster, path: str, name: str) -> tuple[Learning, Cluster]:
    """The answer and the machine. Raises `ConfigError` where no row is predicted on `base`."""
    used, skipped = [], []
    for row in rows:
        if reason := _refusal(row, base):
            skipped.append({"id": row.id, "reason": reason})
        else:
            used.append(row)
    if not used:
        raise ConfigError(f"{name}: found no row that is predicted on {base.name} ({skipped[0]['reason'] if skipped else 'no rows'}), expected one")

    def predict(change: Change) -> F64:
        return np.log([_predicted(row, change(base)) for row in used])

    measured = np.array([_measured(row) for row in used], np.float64)
    costs = touched(predict, [cost for cost in COSTS if cost.of(base)])
    done = learn(predict, measured, costs)
    first = predict(lambda cluster: cluster) - np.log(measured)
    machine = done.change(base)
    told = [_told(cost, done, k, (base, machine), [row.id for row in used]) for k, cost in enumerate(costs)]
    untouched = [cost.name for cost in COSTS if cost not in costs]
    far_off = np.abs(done.left) > FAR * done.noise
    errors = zip(used, measured.tolist(), np.expm1(first).tolist(), np.expm1(-done.left).tolist(), far_off.tolist(), strict=True)
    judged = [{"id": row.id, "measured": m, "before": 100 * b, "after": 100 * a, "contradicts": far} for row, m, b, a, far in errors]
    return Learning(path, name, told, untouched, judged, skipped), machine


def _told(cost: Cost, done: Learned, k: int, machines: tuple[Cluster, Cluster], ids: list[str]) -> dict[str, Any]:
    most = np.argsort(-np.abs(done.gains[k]))[:MOVED]
    width, (before, after) = float(done.spread[k]), map(cost.of, machines)
    return {
        "name": cost.name, "meaning": cost.meaning, "before": before, "after": after, "prior": 100 * cost.spread,
        "now": 100 * width, "rows": [ids[i] for i in most if width < 0.95 * cost.spread],
    }  # fmt: skip


def _refusal(row: TrainingRow | ServingRow, base: Cluster) -> str:
    try:
        if isinstance(row, TrainingRow):
            gpu, _ = machine_of(row)
            if base.gpu != gpu:
                return f"of {gpu}"
            estimate_row(row, lambda _: base)
        elif (gpu := setting_of(row).replica.machine.cluster.gpu) != base.gpu:
            return f"of {gpu}"
        elif (case := predict_row(row, lambda _: base)).tpot_ms is None:
            return case.note
        return "" if _measured(row) else "no measured time"
    except Unsupported as reason:
        return str(reason)


def _measured(row: TrainingRow | ServingRow) -> float:
    return (measured_s(row) if isinstance(row, TrainingRow) else row.numbers["tpot_ms"]) or 0.0


def _predicted(row: TrainingRow | ServingRow, machine: Cluster) -> float:
    if isinstance(row, TrainingRow):
        return estimate_row(row, lambda _: machine).step_us / 1e6
    return predict_row(row, lambda _: machine).tpot_ms or 0.0


def toml_of(learned: Learning, machine: Cluster, base: str, source: str) -> str:
    """The text of the cluster file."""
    lines = [
        f"# {base} with costs learned from {len(learned.rows)} whole runs of {source}. Written by dysharp calibrate.",
        f'base = "{base}"', f'name = "{learned.cluster}"', f'source = "{base}, learned from {len(learned.rows)} runs of {source}"',
    ]  # fmt: skip
    known = {one["name"]: one for one in learned.costs}
    if HOST in known:
        lines.append(f"{HOST} = {known[HOST]['after']:.4g}  # {_words(known[HOST])}")
    constants = [one for one in learned.costs if one["name"] != HOST and not one["name"].startswith(NICS)]
    lines += ["", "[constants]", *(f'"{one["name"]}" = {one["after"]:.4g}  # {_words(one)}' for one in constants)]
    if machine.scale_out and any(name.startswith(NICS) for name in known):
        lines += ["", "[scale_out]"]
        for key, value in asdict(machine.scale_out).items():
            one = known.get(NICS + key)
            if value not in ((), []):
                lines.append(f"{key} = {value:.6g}" + (f"  # {_words(one)}" if one else ""))
    return "\n".join(lines) + "\n"


def _words(one: dict[str, Any]) -> str:
    moved = f"; rows {', '.join(one['rows'])}" if one["rows"] else ""
    return f"before {one['before']:.4g} +-{one['prior']:.0f} %, now +-{one['now']:.0f} %{moved}"
