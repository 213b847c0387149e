"""`calibrate` from rows of which some are whole runs: named costs of a machine, what the rows say about each, and the file that holds them.

Kernels and collectives beside runs are rows like them, by their closed forms; constants that only they see are costs, too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from dysharp.base import F64, ByName, Cells, ConfigError, Rows, f64, frozen, show
from dysharp.costs import arch_of
from dysharp.measured.cluster_fit import rows_of
from dysharp.measured.family import Parsed
from dysharp.measured.intervals import Interval
from dysharp.measured.learned import COSTS, HOST, LEAST_EFFECT, NICS, NOISE, Change, Cost, Learned, kernels_of, learn, touched
from dysharp.measured.measurements import TABLES, Measurement, Unsupported
from dysharp.measured.predictions import ClosedForms, measured_values
from dysharp.measured.serving.predictions import predict_row
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.measured.training.setting import TrainingRow, machine_of
from dysharp.measured.training.step_time import estimate_row, measured_s
from dysharp.specs import Cluster
from dysharp.specs.catalog import NameOrPath, learned_spreads, learned_table
from dysharp.specs.fitted import constant_of, fitted

Row = TrainingRow | ServingRow | Measurement
KIND_OF: dict[str, type[TrainingRow | ServingRow]] = {"steps": TrainingRow, "serving": ServingRow}
"""Kind of rows, as intervals have them, -> its runs."""
WHOLE = ("decoder-block", "decode-step")
"""Families whose rows are votes: whole pieces of a model, which many costs share."""
MOST_ROWS = 1_000_000
DIGITS = 4
"""Of correlations in a cluster file. An eigenvalue of their matrix is off by what is rounded away, and not below 0 by more."""
MOVED = 2
"""Rows that are named for a cost: those that moved it most."""
SPREAD, SPREAD_OF_TIMES, SPREAD_OF_HOSTS = 0.1, 0.4, 1.5
"""Priors of constants that are no named cost: rates and parts, and times, as those of `COSTS`; times of a host's launch, of which two machines had a
fourth and a sixth of the packaged one (docs/notebook/2026-11-26-own-gpu-found.md)."""
FAR = 3.0
"""Standard deviations by which a row is off that contradicts the others."""


@frozen
class Learning:
    """What whole runs say about a machine.

    `costs`: `name`, `meaning`, `before`, `after`, percent of the `prior` and `now`, `rows` that moved it. `untouched`: costs that no row depends on.
    `rows`: `id`, `measured`, errors in percent `before` and `after`, and whether the row `contradicts` the others. `skipped`: id and reason.
    """

    path: str
    cluster: str
    costs: Rows
    untouched: list[str]
    rows: Rows
    skipped: list[Cells]
    posterior: ByName = field(default_factory=dict)
    """Of the file: `kinds` of rows, `rows`, `noise` and `freedom` (`Learned`), `correlation` of the costs in their order."""

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        return asdict(self)


def rows_in(text: str, where: str) -> list[Row] | None:
    """Rows of training or serving; None for a file of another kind."""
    kind = next((one for one in KIND_OF.values() if one.columns.fit(text)), None)
    return None if kind is None else list(kind.from_csv(text, where))


@dataclass(frozen=True)
class Votes:
    """Rows that are predicted on `base`, sorted by name: runs, then kernels and collectives by closed forms. `skipped`: id and reason."""

    base: Cluster
    runs: list[TrainingRow | ServingRow]
    kernels: list[Parsed]
    skipped: list[Cells]
    _kept: dict[Cluster, F64] = field(default_factory=dict, compare=False, repr=False)
    """Predictions of machines that were asked for before: slopes at one point are those of several questions."""

    @classmethod
    def of(cls, rows: Sequence[Row], base: Cluster, *, measured: bool = True) -> Votes:
        """Rows of one machine; `measured`: only rows with a measured time."""
        runs, skipped = [], list[Cells]()
        for row in (row for row in rows if not isinstance(row, Measurement)):
            if reason := _refusal(row, base) or ("" if _measured(row) or not measured else "no measured time"):
                skipped.append({"id": row.id, "reason": reason})
            else:
                runs.append(row)
        parsed, others = rows_of([row for row in rows if isinstance(row, Measurement)], base.gpu, WHOLE)
        skipped += [{"id": m.id, "reason": reason} for m, reason in others]
        kernels = [entry for entry in parsed if entry.family.closed_us is not None]
        return cls(base, sorted(runs, key=lambda row: row.id), sorted(kernels, key=lambda entry: entry.measurement.id), skipped)

    @property
    def ids(self) -> list[str]:
        """Names in order."""
        return [row.id for row in self.runs] + [entry.measurement.id for entry in self.kernels]

    @functools.cached_property
    def _forms(self) -> ClosedForms:
        return ClosedForms(self.kernels)

    def measured(self) -> F64:
        """`[rows]` s (steps), ms (tokens) or us (kernels)."""
        return f64(np.concatenate([[_measured(row) for row in self.runs], self._forms.times(measured_values(self.kernels))]))

    def predict(self, change: Change) -> F64:
        """`[rows]` logarithms of what `measured` predicts."""
        machine = change(self.base)
        if machine not in self._kept:
            times: F64 = np.concatenate([[_predicted(row, machine) for row in self.runs], self._forms.us(machine.fitted)])
            self._kept[machine] = f64(np.log(times))
        return self._kept[machine]

    def costs(self) -> tuple[Cost, ...]:
        """Costs that a row depends on, and constants that only kernels see."""
        named = {cost.name for cost in COSTS}
        times = {name: SPREAD_OF_HOSTS if name.endswith("host_call_us") else SPREAD_OF_TIMES for name, one in fitted().items() if one.unit == "us"}
        others = [Cost(name, times.get(name, SPREAD), one.meaning) for name, one in fitted().items() if name not in named]
        kernels = Votes(self.base, [], self.kernels, []).predict
        served = kernels_of(setting_of(row).replica.own for row in self.runs if isinstance(row, ServingRow))
        return touched(self.predict, [cost for cost in (*COSTS, *served) if cost.of(self.base)]) + (touched(kernels, others) if self.kernels else ())


def learning(rows: Sequence[Row], base: Cluster, path: str, name: str) -> tuple[Learning, Cluster]:
    """The answer and the machine. Raises `ConfigError` where no row is predicted on `base`."""
    votes = Votes.of(rows, base)
    if not votes.ids:
        why = votes.skipped[0]["reason"] if votes.skipped else "no rows"
        raise ConfigError(f"{name}: found no row that is predicted on {base.name} ({why}), expected one")
    measured, costs = votes.measured(), votes.costs()
    if not costs:
        raise ConfigError(f"{name}: found {len(measured)} rows that depend on no cost, expected rows of several kinds")
    done = learn(votes.predict, measured, costs)
    first = votes.predict(lambda cluster: cluster) - np.log(measured)
    machine = done.change(base)
    told = [_told(cost, done, k, (base, machine), votes.ids) for k, cost in enumerate(costs)]
    others = {"hopper", "blackwell"} - {arch_of(base.own_gpu)}
    untouched = [cost.name for cost in COSTS if cost not in costs and cost.of(base) and cost.name.partition(".")[0] not in others]
    far_off = np.abs(done.left) > FAR * min(done.noise, NOISE)  # rows that contradict raise the noise
    errors = zip(votes.ids, measured.tolist(), np.expm1(first).tolist(), np.expm1(-done.left).tolist(), far_off.tolist(), strict=True)
    judged = [{"id": row, "measured": m, "before": 100 * b, "after": 100 * a, "contradicts": far} for row, m, b, a, far in errors]
    return Learning(path, name, told, untouched, judged, votes.skipped, _posterior(done, votes)), machine


def _posterior(done: Learned, votes: Votes) -> ByName:
    kinds = [name for name, kind in KIND_OF.items() if any(isinstance(row, kind) for row in votes.runs)]
    together = (done.covariance / np.outer(done.spread, done.spread)).round(DIGITS).tolist()
    return {"kinds": kinds, "rows": len(votes.ids), "noise": round(done.noise, 4), "freedom": round(done.freedom, 2), "correlation": together}


def posterior_of(cluster: NameOrPath | Cluster, kind: str, also: Sequence[Cost] = ()) -> Learned | None:
    """What a cluster file knows of its costs if runs of `kind` (a key of `KIND_OF`) taught it; None for others. Raises `ConfigError`.

    `also`: costs of the question, which have their priors where no row says more.
    """
    learned = learned_table(cluster)
    table, widths = learned.get("posterior"), learned_spreads(learned)
    if not isinstance(table, dict) or not isinstance(kinds := table.get("kinds"), list) or kind not in kinds:
        return None
    where, n = f"{cluster}: learned.posterior", len(widths)
    try:
        together, noise, freedom, rows = np.array(table["correlation"], np.float64), *(float(table[name]) for name in ("noise", "freedom", "rows"))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{where}: found {', '.join(map(str, table))[:60]}, expected correlation, noise, freedom and rows, as numbers") from None
    if unknown := [name for name in widths if name not in {cost.name for cost in COSTS} and not constant_of(name)]:
        raise ConfigError(f"{cluster}: learned: found {show(unknown[0])}, expected a cost that calibrate writes")
    spread = np.array([*widths.values()]) / 100
    sizes = together.shape == (n, n) and (np.abs(together) <= 1).all() and (spread >= 0).all()
    if not sizes or not np.array_equal(together, together.T) or np.linalg.eigvalsh(together).min() < -n * 10.0**-DIGITS:
        raise ConfigError(f"{where}.correlation: found correlations that no costs can have, expected {n} x {n} numbers of -1 to 1")
    if not (0 < noise < 10 and 1 <= freedom < math.inf and 0 <= rows <= MOST_ROWS):
        raise ConfigError(f"{where}: found noise {noise:g}, freedom {freedom:g}, rows {rows:g}, expected 0 to 10, 1 or more, and 0 to {MOST_ROWS:,}")
    costs = tuple(Cost(name, width, "") for name, width in zip(widths, spread.tolist(), strict=True))
    more, covariance = tuple(cost for cost in also if cost.name not in widths), together * np.outer(spread, spread)
    covariance = np.block([[covariance, np.zeros((n, len(more)))], [np.zeros((len(more), n)), np.diag([cost.spread**2 for cost in more])]])
    return Learned((*costs, *more), np.zeros(n + len(more)), covariance, noise, np.zeros(round(rows)), np.zeros((n + len(more), 0)), freedom)


def learned_bar(own: Interval, cluster: object) -> str:
    """What rows of a machine say about its steps, in a sentence."""
    return f"The {own.n} rows of {cluster} say: steps take {own.words}."


def _told(cost: Cost, done: Learned, k: int, machines: tuple[Cluster, Cluster], ids: list[str]) -> ByName:
    gains = np.abs(done.gains[k])
    most = [i for i in np.argsort(-gains)[:MOVED] if gains[i] > LEAST_EFFECT * gains.sum()]
    width, (before, after) = float(done.spread[k]), map(cost.of, machines)
    return {
        "name": cost.name, "meaning": cost.meaning, "before": before, "after": after, "prior": 100 * cost.spread,
        "now": 100 * width, "rows": [ids[i] for i in most if width < 0.95 * cost.spread],
    }  # fmt: skip


def _refusal(row: TrainingRow | ServingRow, base: Cluster) -> str:
    try:
        if isinstance(row, TrainingRow):
            gpu, of = machine_of(row)
            if base.gpu != gpu:
                return f"of {gpu}"
            wide = not base.scale_out and row.degree("gpus") > base.n_gpus
            if of.cluster.name != base.name and (wide or of.cluster.name in TABLES["efa_clusters"].values()):
                return f"over a network that {base.name} does not have, expected --base {of.cluster.name}"
            estimate_row(row, lambda _: base)
        elif (gpu := setting_of(row).replica.machine.cluster.gpu) != base.gpu:
            return f"of {gpu}"
        elif (case := predict_row(row, lambda _: base)).tpot_ms is None:
            return case.note
        return ""
    except Unsupported as reason:
        return str(reason)


def _measured(row: TrainingRow | ServingRow) -> float:
    return (measured_s(row) if isinstance(row, TrainingRow) else row.numbers["tpot_ms"]) or 0.0


def _predicted(row: TrainingRow | ServingRow, machine: Cluster) -> float:
    if isinstance(row, TrainingRow):
        return estimate_row(row, lambda _: machine).step_us / 1e6
    return predict_row(row, lambda _: machine).tpot_ms or 0.0


def toml_of(learned: Learning, machine: Cluster, base: str, source: str) -> str:
    """The text of the cluster file: learned costs with their words, and how far each may be off, in percent."""
    text = f"{base}, learned from {len(learned.rows)} rows of {source}"
    known = {one["name"]: one for one in learned.costs}
    body = cluster_text(base, learned.cluster, machine, text, {name: _words(one) for name, one in known.items()})
    widths = [f'"{name}" = {one["now"]:.3g}' for name, one in known.items()]
    more = [f"{name} = {json.dumps(value)}" for name, value in learned.posterior.items()]
    return "\n".join([f"# {text}. Written by dysharp calibrate.", body, "[learned]", *widths, "", "[learned.posterior]", *more]) + "\n"


def cluster_text(base: str, name: str, machine: Cluster, source: str = "", words: Mapping[str, str] | None = None) -> str:
    """The text of a cluster file with the host, constants and NICs of `machine` on the packaged `base`. `words`: cost -> what its line says."""
    said = {key: f"  # {text}" for key, text in (words or {}).items()}
    digits = ".4g" if words else "r"
    host = f"{HOST} = {_number(machine.host_factor, digits)}{said.get(HOST, '')}"
    lines = [f'base = "{base}"', f'name = "{name}"', f'source = "{source or name}"', host]
    lines += ["", "[constants]", *(f'"{key}" = {_number(value, digits)}{said.get(key, "")}' for key, value in machine.constants)]
    if machine.scale_out:
        nics = {key: value for key, value in asdict(machine.scale_out).items() if value not in ((), [])}
        lines += ["", "[scale_out]", *(f"{key} = {_number(value, '.6g' if words else 'r')}{said.get(NICS + key, '')}" for key, value in nics.items())]
    return "\n".join(lines) + "\n"


def _number(value: float, digits: str) -> str:
    return repr(value) if digits == "r" else format(value, digits)


def _words(one: ByName) -> str:
    moved = f"; rows {', '.join(one['rows'])}" if one["rows"] else ""
    return f"before {one['before']:.4g} +-{one['prior']:.0f} %, now +-{one['now']:.0f} %{moved}"
