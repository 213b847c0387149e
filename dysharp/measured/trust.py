"""How far a prediction on a real machine can be trusted: the validated errors of its parts, and what was not measured.

The table is `specs/data/validated.toml`: errors per family and GPU, and the ranges of tokens, hidden sizes and GPUs of
the measurements, and their data types. `summary.py` makes it. Which family judges which part of a system's layer is
declared by the family (`family.judges_of`); a system that no family judges has no error bar.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dysharp.analysis.row import form_of
from dysharp.compute.operators import arch_of
from dysharp.measured.family import Family, Part, judges_of
from dysharp.specs import Cluster, Model
from dysharp.specs.catalog import DATA
from dysharp.specs.gpu import list_gpus, load_gpu
from dysharp.specs.reading import parse_toml, read_text
from dysharp.workload import Routing, rows_per_slot
from dysharp.workload.routing import max_over_mean

FILE = DATA / "validated.toml"
OTHER = "other"
"""Stands for a GPU: errors on a GPU that was left out of the fit. Only families measured on several GPUs have them."""
FEWEST = 8
"""Fewest measurements of a family on a GPU that count; with fewer the errors are those of a GPU that was held out."""
DATASHEET = 1.01  # a cluster that departs from its GPU's datasheet by more is another machine
EVEN, SPREAD = 1.05, 5.0
"""Routing counts as skewed where the busiest GPU has more than `EVEN` times the mean of expert rows, and more rows than
chance gives it: `SPREAD` standard deviations of a Poisson count."""


@dataclass(frozen=True, slots=True)
class FamilyErrors:
    """Errors of one family on one GPU, in percent of the measured value.

    `by` is what predicted; `ranges` and `dtypes` are those of the measurements.
    """

    family: str
    gpu: str
    by: str
    n: int
    median: float
    p90: float
    bias: float
    ranges: Mapping[str, tuple[float, float]]
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PredictionScope:
    """What is predicted, to be held against what was measured. Without a `routing` nothing is said about skew."""

    system: str
    model: Model
    cluster: Cluster
    tokens: int
    direction: str = "fwd"
    options: Mapping[str, Any] = field(default_factory=dict)
    routing: Routing | None = None

    @property
    def numbers(self) -> dict[str, float]:
        """Values that `FamilyErrors.ranges` may limit, by the same names."""
        m, gpus = self.model, self.cluster.n_gpus
        values: dict[str, float] = {
            "tokens": self.tokens,
            "hidden": m.hidden,
            "gpus": gpus,
            "topk": m.topk,
            "experts": m.n_experts,
            "rows_per_expert": self.tokens * gpus * m.topk / m.n_experts,
            "bytes": self.tokens * m.topk * m.row_bytes,
        }
        sms = {"sms": float(self.options["n_sm"])} if "n_sm" in self.options else {}
        return {name: float(value) for name, value in values.items()} | sms

    @property
    def is_real(self) -> bool:
        """Whether the system runs with its software costs here."""
        return form_of(self.cluster, self.options) == "real"

    def unmeasured_dtypes(self, family: Family, entry: FamilyErrors) -> list[str]:
        """Data types of the family's parts that it was not measured with; empty where its types are not known."""
        dtypes = family.dtypes_of(self.model, self.options) if entry.dtypes else ()
        return [dtype for dtype in dtypes if dtype not in entry.dtypes]


@dataclass(frozen=True, slots=True)
class Trust:
    """Relative errors of such predictions: the median (`typical`) and the 90th percentile (`wide`), as fractions.

    Both are None without measurements. `families` are those whose errors count.
    """

    families: tuple[str, ...]
    typical: float | None
    wide: float | None
    warnings: tuple[str, ...]


@functools.cache
def family_errors(path: Path = FILE) -> Mapping[tuple[str, str], FamilyErrors]:
    """The packaged table by (family, GPU); GPU "other" stands for one without measurements of its own."""
    table = parse_toml(read_text(path), path.name)
    return {(family, gpu): _entry(family, gpu, entry) for family, gpus in table.items() for gpu, entry in gpus.items()}


def _entry(family: str, gpu: str, entry: Mapping[str, Any]) -> FamilyErrors:
    ranges = {name: (float(low), float(high)) for name, (low, high) in entry["ranges"].items()}
    errors = (entry["by"], entry["n"], entry["median"], entry["p90"], entry["bias"])
    return FamilyErrors(family, gpu, *errors, ranges, tuple(entry.get("dtypes", ())))


def part_judges(system: str) -> dict[Part, Family]:
    """Which family's errors make the bar of which part of a layer; empty where a part has none.

    The parts are "layer" alone for a system that is one kernel, else "dispatch", "combine", "gemm1" and "gemm2".
    """
    judges = judges_of(system)
    if "layer" in judges:
        return {"layer": judges["layer"]}
    parts: tuple[Part, ...] = ("dispatch", "combine", "gemm1", "gemm2")
    return {part: judges[part] for part in parts} if set(parts) <= set(judges) else {}


def measured_range(system: str, name: str, gpu: str) -> tuple[float, float] | None:
    """The range of `name` behind a system's Dispatch on `gpu`, else on GPUs of the same architecture; None without one.

    `name` is one of `FamilyErrors.ranges`.
    """
    judges = judges_of(system)
    family = judges.get("dispatch") or judges.get("layer")
    arch = arch_of(load_gpu(gpu))
    alike = [other for other in list_gpus() if arch_of(load_gpu(other)) == arch]
    entries = [e for e in family_errors().values() if family is not None and e.family == family.name and e.gpu in alike]
    own = [e for e in entries if e.gpu == gpu and e.n >= FEWEST]
    ranges = [e.ranges[name] for e in own or entries if name in e.ranges]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def warnings_of(scope: PredictionScope) -> tuple[str, ...]:
    """What of the prediction was not measured; empty on paper clusters, where nothing was measured at all."""
    if scope.cluster.family != "hw":
        return ()
    if not scope.is_real:
        uncharged = "paper form, no software cost is charged for its communication"
        return (f"{scope.system}: {uncharged} and no measurement stands behind it",)
    warnings = _machine_warnings(scope.cluster)
    if scope.direction != "fwd":
        warnings.append("backward passes were not measured")
    judges = part_judges(scope.system)
    if not judges:
        return (*warnings, f"{scope.system}: no measurement stands behind {_not_judged(scope.system)}")
    for family in judges.values():
        warnings += _range_warnings(scope, family)
    warnings += _skew_warnings(scope)
    if "sum" in judges_of(scope.system) and whole_layers(scope) is None:
        beyond = _beyond_layers(scope)
        warnings.append(f"no whole layer like this one was measured{beyond}: the sum of the parts is not checked")
    return tuple(dict.fromkeys(warnings))


def _not_judged(system: str) -> str:
    """ "it", or the one direction that no family judges."""
    judges = judges_of(system)
    lacking = [verb for verb in ("dispatch", "combine") if verb not in judges]
    return f"its {lacking[0].capitalize()}" if len(lacking) == 1 else "it"


def _family_names(system: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(family.name for family in part_judges(system).values()))


def departures(cluster: Cluster) -> str:
    """Where a cluster is not the packaged GPU it names, as "hbm_GBps 1000 (3350), ..." with the datasheet in brackets.

    Empty where it is that GPU.
    """
    gpu = load_gpu(cluster.gpu)
    values = {
        "link_GBps": cluster.link_bytes_per_us / 1e3,
        "hbm_GBps": cluster.hbm_bytes_per_us / 1e3,
        "fp8_TFLOPS": cluster.fp8_flops_per_us / 1e6,
        "bf16_TFLOPS": cluster.bf16_flops_per_us / 1e6,
        "n_sms": float(cluster.n_sms),
    }
    both = {name: (value, float(getattr(gpu, name))) for name, value in values.items()}
    return ", ".join(f"{name} {a:g} ({b:g})" for name, (a, b) in both.items() if max(a, b) > DATASHEET * min(a, b))


def _machine_warnings(cluster: Cluster) -> list[str]:
    warnings = []
    if other := departures(cluster):
        bars = "error bars are those of a GPU that was held out"
        warnings.append(f"{other} is not {cluster.gpu} (in brackets): no such machine was measured, {bars}")
    if cluster.constants:
        warnings.append(f"cluster {cluster.name} has constants of its own; the error bars are those of the packaged ones")
    return warnings


def _range_warnings(scope: PredictionScope, family: Family) -> list[str]:
    table, name, gpu = family_errors(), family.name, scope.cluster.gpu
    entry = table.get((name, gpu))
    measured_on = ", ".join(other for known, other in table if known == name and other != OTHER)
    held_out = "error bars are those of a GPU that was held out"
    bars = held_out if (name, OTHER) in table else f"no bar: measured on {measured_on or 'no GPU'} only"
    if entry is None:
        return [f"{name} was not measured on {gpu}: {bars}"]
    warnings = [f"{name}: only {entry.n} rows on {gpu}; {bars}"] if entry.n < FEWEST else []
    for number, value, limits in _outside(scope, entry):
        warnings.append(f"{name}: {number} {value:g} is outside the measured range ({limits} on {gpu})")
    if unmeasured := scope.unmeasured_dtypes(family, entry):
        warnings.append(f"{name}: {', '.join(unmeasured)} was not measured ({', '.join(entry.dtypes)} on {gpu})")
    return warnings


def _outside(scope: PredictionScope, entry: FamilyErrors) -> list[tuple[str, float, str]]:
    """(name, value, measured range) of what is outside."""
    pairs = [(name, value, entry.ranges.get(name, (value, value))) for name, value in scope.numbers.items()]
    return [
        (name, value, f"{low:g}" if low == high else f"{low:g} to {high:g}")
        for name, value, (low, high) in pairs
        if not low <= value <= high
    ]


def _skew_warnings(scope: PredictionScope) -> list[str]:
    """Where the busiest GPU has more rows than uniform routing gives it by chance."""
    judges = part_judges(scope.system)
    transfers = [family for part, family in judges.items() if part in ("dispatch", "combine", "layer")]
    if scope.routing is None or all(family.skewed for family in transfers):
        return []
    rows = rows_per_slot(scope.routing).reshape(scope.routing.n_gpus, -1).sum(axis=1)
    busiest, mean = max_over_mean(rows), float(rows.mean())
    if mean == 0 or busiest <= EVEN + SPREAD / mean**0.5:
        return []
    skew = f"the busiest GPU has {busiest:.2f} times the mean of rows"
    return [f"skewed routing ({skew}): {', '.join(_family_names(scope.system))} were measured without"]


def whole_layers(scope: PredictionScope) -> FamilyErrors | None:
    """The errors of whole layers like this one: of the same system and GPU, inside the measured ranges."""
    family, entry = _layers(scope)
    if family is None or entry is None or entry.n < FEWEST or not scope.is_real or departures(scope.cluster):
        return None
    return None if _outside(scope, entry) or scope.unmeasured_dtypes(family, entry) else entry


def _layers(scope: PredictionScope) -> tuple[Family | None, FamilyErrors | None]:
    """The family that checks the sum of a system's parts, and its errors on this GPU."""
    family = judges_of(scope.system).get("sum")
    return family, None if family is None else family_errors().get((family.name, scope.cluster.gpu))


def _beyond_layers(scope: PredictionScope) -> str:
    _, entry = _layers(scope)
    beyond = _outside(scope, entry) if entry is not None else []
    shown = ", ".join(f"{name} {value:g}, measured {limits}" for name, value, limits in beyond)
    return f" ({shown} on {scope.cluster.gpu})" if beyond else ""


def trust_of(scope: PredictionScope, shares: Mapping[str, float]) -> Trust:
    """Error bars of a layer from those of its parts.

    `shares`: of its critical path by operator (dispatch, gemm1, gemm2, combine, other; the sum is 1).

    - The errors of the parts are added as if they always pointed the same way, which is cautious.
    - A share that is neither transfer nor GEMM has the largest error of the parts.
    - Where whole layers were measured on that GPU and are off by more, their errors count, also outside their ranges.
    - A part whose errors on this GPU are not known leaves the layer without a bar.
    """
    warnings, judges = warnings_of(scope), part_judges(scope.system)
    if scope.cluster.family != "hw" or not scope.is_real or not judges:
        return Trust((), None, None, warnings)
    names = _family_names(scope.system)
    own: dict[str, str] = {part: family.name for part, family in judges.items()}
    typical = wide = 0.0
    gpu = OTHER if departures(scope.cluster) else scope.cluster.gpu
    for part, share in shares.items():
        errors = [_error(name, gpu) for name in ([own[part]] if part in own else names)]
        known = [error for error in errors if error is not None]
        if len(known) < len(errors):
            return Trust(names, None, None, warnings)
        typical += share * max(median for median, _ in known) / 100
        wide += share * max(p90 for _, p90 in known) / 100
    checks = judges_of(scope.system).get("sum")
    layers = None if checks is None else family_errors().get((checks.name, gpu))
    if layers is not None and layers.n >= FEWEST:
        typical, wide = max(typical, layers.median / 100), max(wide, layers.p90 / 100)
    return Trust(names, typical, wide, warnings)


def _error(family: str, gpu: str) -> tuple[float, float] | None:
    """(median, p90) in percent. A GPU without measurements has the errors of GPUs held out; None where there are none."""
    table = family_errors()
    own = table.get((family, gpu))
    entry = own if own is not None and own.n >= FEWEST else table.get((family, OTHER))
    return None if entry is None else (entry.median, entry.p90)
