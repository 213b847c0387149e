"""Error bars of a prediction on an hw cluster, and warnings about parts of the prediction without measurements.

The table `specs/data/validated.toml` holds errors per family and GPU, with the data types of the measurements and their
ranges of tokens, hidden sizes and GPUs. `summary.py` writes the table. A family declares which part of which system's
layer it judges (`family.judges_of`). A system without such a family has no error bar.
"""

import functools
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from dysharp.analysis.row import Row, form_of
from dysharp.base import Amounts, AnyMapping, Texts, frozen, read_toml
from dysharp.costs import arch_of
from dysharp.measured.family import GEMMS, Family, Part, all_families, get_family, judges_of, judges_outside_bars
from dysharp.measured.intervals import Asked, Interval, interval_of, kind_of, summed
from dysharp.measured.measurements import NICS_OF
from dysharp.specs import Cluster, Model, ScaleOut, list_gpus, load_cluster, load_gpu
from dysharp.specs.reading import DATA
from dysharp.workload import Routing, rows_per_slot
from dysharp.workload.routing import max_over_mean

FILE = DATA / "validated.toml"
OTHER = "other"
"""Name in the column GPU for errors on a GPU that was left out of the fit.

Only families measured on several GPUs have such errors.
"""
FEWEST = 8
"""A GPU with fewer measurements of a family takes the errors of the entry `OTHER`."""
DATASHEET = 1.01  # a cluster whose numbers differ from its GPU's datasheet by more than 1 % was not measured
MEASURED_NETWORK = ("domain_gpus", "nics_per_gpu", "nic_GBps", "latency_us", "message_us", "oversubscription", "slow_nics", "lost_nics")
"""Numbers of `ScaleOut` in which a machine must be like the measured nodes, else its transfers have no error bar."""
KERNELS_ALONE = ("mi300x", "mi308x")
"""GPUs of which the packaged table has communication kernels and no GEMMs."""
HELD_OUT = "error bars come from GPUs that were left out of the fit"
EVEN, SPREAD = 1.05, 5.0
"""Routing is skewed if the busiest GPU has more useful rows than `EVEN` + `SPREAD` / sqrt(mean) times the mean.

The second term is `SPREAD` standard deviations of a Poisson count: the excess that chance explains.
"""


@frozen
class _FamilyErrors:
    """Errors of one family on one GPU, in percent of the measured value.

    `by`: "program" or a closed form. `ranges`, `dtypes`: ranges and data types of the measurements.
    """

    family: str
    gpu: str
    by: str
    n: int
    median: float
    p90: float
    bias: float
    ranges: Mapping[str, tuple[float, float]]
    dtypes: Texts = ()


@frozen
class PredictionScope:
    """A prediction, to be compared with the measured ranges. Without a `routing` the skew is not compared."""

    system: str
    model: Model
    cluster: Cluster
    tokens: int
    direction: str = "fwd"
    options: AnyMapping = field(default_factory=dict)
    routing: Routing | None = None

    @property
    def numbers(self) -> Amounts:
        """Numbers of the prediction, under the names that `_FamilyErrors.ranges` uses."""
        m, gpus = self.model, self.cluster.n_gpus
        values: Amounts = {
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
    def domains(self) -> int:
        """NVLink domains of the machine."""
        return self.cluster.domains

    @property
    def is_real(self) -> bool:
        """Whether the system runs in its real form."""
        return form_of(self.cluster, self.options) == "real"

    def unmeasured_dtypes(self, family: Family, entry: _FamilyErrors) -> list[str]:
        """Data types of the prediction without a measurement of the family. Empty if the family's types are unknown."""
        dtypes = family.dtypes_of(self.model, self.options) if entry.dtypes else ()
        return [dtype for dtype in dtypes if dtype not in entry.dtypes]


@frozen
class _Trust:
    """The interval of a prediction; None without measurements. `families`: families whose intervals were used."""

    families: Texts
    interval: Interval | None
    warnings: Texts


@functools.cache
def family_errors(path: Path = FILE) -> Mapping[tuple[str, str], _FamilyErrors]:
    """The packaged table by (family, GPU). GPU "other": a GPU without measurements."""
    table = read_toml(path)
    return {(family, gpu): _entry(family, gpu, entry) for family, gpus in table.items() for gpu, entry in gpus.items()}


def _entry(family: str, gpu: str, entry: AnyMapping) -> _FamilyErrors:
    ranges = {name: (float(low), float(high)) for name, (low, high) in entry["ranges"].items()}
    errors = (entry["by"], entry["n"], entry["median"], entry["p90"], entry["bias"])
    return _FamilyErrors(family, gpu, *errors, ranges, tuple(entry.get("dtypes", ())))


def _part_judges(system: str, domains: int = 1) -> dict[Part, Family]:
    """Part of the layer -> the family whose errors make its error bar. Empty if a part has no family.

    A system that is one kernel has the single part "layer". All other systems have "dispatch", "combine", "gemm1" and
    "gemm2".
    """
    judges = judges_of(system, domains)
    if "layer" in judges:
        return {"layer": judges["layer"]}
    parts: tuple[Part, ...] = ("dispatch", "combine", *GEMMS)
    return {part: judges[part] for part in parts} if set(parts) <= set(judges) else {}


def measured_range(system: str, name: str, gpu: str, domains: int = 1) -> tuple[float, float] | None:
    """The measured range of `name` for a system's Dispatch on `gpu` over `domains` NVLink domains; None without measurements.

    `name`: a key of `_FamilyErrors.ranges`. A GPU with too few measurements takes the range of all GPUs of its
    architecture.
    """
    judges = judges_of(system, domains)
    family = judges.get("dispatch") or judges.get("layer")
    arch = arch_of(load_gpu(gpu))
    alike = [other for other in list_gpus() if arch_of(load_gpu(other)) == arch]
    entries = [e for e in family_errors().values() if family is not None and e.family == family.name and e.gpu in alike]
    own = [e for e in entries if e.gpu == gpu and e.n >= FEWEST]
    ranges = [e.ranges[name] for e in own or entries if name in e.ranges]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def warnings_of(scope: PredictionScope) -> Texts:
    """Warnings about parts of the prediction without measurements.

    Empty on paper clusters, which cannot be measured.
    """
    if scope.cluster.family != "hw":
        return ()
    if not scope.is_real:
        uncharged = "the paper form charges no software cost for communication"
        return (f"{scope.system}: {uncharged}, and no measurement checks its predictions",)
    warnings = _machine_warnings(scope.cluster)
    if scope.direction != "fwd":
        warnings.append("no measurement checks predictions of backward passes")
    judges = _part_judges(scope.system, scope.domains)
    if not judges:
        return (*warnings, f"{scope.system}: {_not_judged(scope)}")
    for family in judges.values():
        warnings += _range_warnings(scope, family)
    warnings += _skew_warnings(scope)
    if scope.domains > 1:
        warnings.append(f"{scope.system}: measurements check the parts of this layer but not their sum; no whole layer over domains was measured")
    elif _layers(scope)[0] is not None and whole_layers(scope) is None:
        measured = _measured_layers(scope)
        warnings.append(f"{scope.system}: measurements check the parts of this layer but not their sum{measured}")
    return tuple(dict.fromkeys(warnings))


def _not_judged(scope: PredictionScope) -> str:
    """Why a system has no error bar: what of its layer no family in the bars judges."""
    for family in judges_outside_bars(scope.system, scope.domains):
        entries = {gpu: entry for (name, gpu), entry in family_errors().items() if name == family.name}
        parts = " and ".join(part.capitalize() if part in ("dispatch", "combine") else part for part in family.parts)
        where = f"dysharp validate, {family.name}"
        if entry := entries.get(scope.cluster.gpu):
            return f"measurements check its {parts} alone ({where}: median error {entry.median:.3g} % on {entry.gpu}), not the whole layer"
        if entries:
            return f"not measured on {scope.cluster.gpu}; its {parts} were measured on {', '.join(entries)} ({where}), a whole layer on no GPU"
    what = "layer"
    if scope.domains > 1:
        what = "Dispatch and Combine between NVLink domains"
    elif len(lacking := [verb for verb in ("dispatch", "combine") if verb not in judges_of(scope.system)]) == 1:
        what = lacking[0].capitalize()
    return f"no measurement checks predictions of its {what}"


def departures(cluster: Cluster) -> str:
    """Numbers of a cluster that differ from its packaged GPU, as "hbm_GBps 1000 (datasheet 3350), ...".

    Empty if all numbers agree.
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
    return ", ".join(f"{name} {a:g} (datasheet {b:g})" for name, (a, b) in both.items() if max(a, b) > DATASHEET * min(a, b))


def _net_departures(cluster: Cluster) -> str:
    """As `scale_out_departures`, "" for a machine of one domain."""
    return scale_out_departures(cluster.scale_out) if cluster.domains > 1 else ""


def scale_out_departures(out: ScaleOut | None) -> str:
    """Numbers of a network between domains that differ from the measured nodes (`internode.machine`), "" if all agree or without one."""
    measured = load_cluster(NICS_OF).scale_out
    if out is None or measured is None:
        return ""
    both = {name: (getattr(out, name), getattr(measured, name)) for name in MEASURED_NETWORK}
    return ", ".join(f"{name} {_shown(a)} (measured {_shown(b)})" for name, (a, b) in both.items() if a != b)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else "set" if value else "none"


def no_rows(cluster: Cluster) -> str:
    """A line about a real machine of which no measurement is known, or only of some parts; "" for other machines.

    The parts are GEMMs, or kernels between the NVLink domains of the machine.
    """
    if cluster.family != "hw":
        return ""
    rates = "published rates" if "sustained" in str(load_gpu(cluster.gpu).constants) else "datasheet"
    if cluster.gpu in KERNELS_ALONE:
        return f"no GEMM rows: GEMMs of {cluster.gpu} from its {rates} and constants of {arch_of(cluster.own_gpu)} GPUs"
    if any(gpu == cluster.gpu for _, gpu in family_errors()):
        return _none_between(cluster) if cluster.domains > 1 else ""
    other = "other " if cluster.own_gpu.arch == arch_of(cluster.own_gpu) else ""
    return f"no rows: no measurement of {cluster.gpu} was used; its {rates}, and constants of {other}{arch_of(cluster.own_gpu)} GPUs"


def _none_between(cluster: Cluster) -> str:
    """A line where no kernel between NVLink domains was measured on the GPU of `cluster`."""
    between = [name for name, entry in all_families().items() if entry.between == "bars"]
    table = family_errors()
    measured = dict.fromkeys(gpu for (family, gpu), entry in table.items() if family in between and entry.n >= FEWEST)
    if cluster.gpu in measured:
        return ""
    rows = sum(entry.n for (family, gpu), entry in table.items() if family in between and gpu == cluster.gpu)
    here = f"{cluster.gpu} has {rows} rows, at least {FEWEST} count" if rows else f"not on {cluster.gpu}"
    return f"no rows between NVLink domains: kernels between domains were measured on {', '.join(measured)}; {here}"


def _machine_warnings(cluster: Cluster) -> list[str]:
    warnings = [line] if (line := no_rows(cluster)) else []
    if other := departures(cluster):
        warnings.append(f"cluster {cluster.name} differs from {cluster.gpu} in {other}: not measured; {HELD_OUT}")
    if other := _net_departures(cluster):
        warnings.append(f"between domains, cluster {cluster.name} differs from the measured nodes in {other}: no error bar")
    if cluster.constants:
        warnings.append(f"cluster {cluster.name} sets its own constants; the error bars were validated with the packaged constants")
    return warnings


def _range_warnings(scope: PredictionScope, family: Family) -> list[str]:
    table, name, gpu = family_errors(), family.name, scope.cluster.gpu
    entry = table.get((name, gpu))
    measured_on = ", ".join(other for known, other in table if known == name and other != OTHER)
    only = f", because only {measured_on} was measured" if measured_on else ""
    if entry is None:
        return [f"{name} was not measured on {gpu}; {HELD_OUT if (name, OTHER) in table else f'no error bar{only}'}"]
    bars = HELD_OUT if (name, OTHER) in table else "no error bar"
    warnings = [f"{name} has too few measurements on {gpu} ({entry.n}, at least {FEWEST} count); {bars}"] if entry.n < FEWEST else []
    for number, value, limits in _outside(scope, entry):
        warnings.append(f"{name}: {number} {value:g} is outside the measured range ({limits} on {gpu})")
    if unmeasured := scope.unmeasured_dtypes(family, entry):
        warnings.append(f"{name}: {', '.join(unmeasured)} was not measured on {gpu}, only {', '.join(entry.dtypes)}")
    return warnings


def _outside(scope: PredictionScope, entry: _FamilyErrors) -> list[tuple[str, float, str]]:
    """(name, value, measured range) of each number outside its measured range."""
    pairs = [(name, value, entry.ranges.get(name, (value, value))) for name, value in scope.numbers.items()]
    return [(name, value, f"{low:g}" if low == high else f"{low:g} to {high:g}") for name, value, (low, high) in pairs if not low <= value <= high]


def _skew_warnings(scope: PredictionScope) -> list[str]:
    """A warning if the busiest GPU has more useful rows than uniform routing gives it by chance."""
    judges = _part_judges(scope.system, scope.domains)
    transfers = [family for part, family in judges.items() if part in ("dispatch", "combine", "layer")]
    if scope.routing is None or all(family.skewed for family in transfers):
        return []
    rows = rows_per_slot(scope.routing).reshape(scope.routing.n_gpus, -1).sum(axis=1)
    busiest, mean = max_over_mean(rows), float(rows.mean())
    if mean == 0 or busiest <= EVEN + SPREAD / mean**0.5:
        return []
    skew = f"skewed routing: the busiest GPU has {busiest:.2f} times the mean of rows"
    return [f"{skew}, but measurements had even routing"]


def whole_layers(scope: PredictionScope) -> _FamilyErrors | None:
    """The errors of whole layers of this system on this GPU, if the prediction is inside the measured ranges."""
    family, entry = _layers(scope)
    if family is None or entry is None or entry.n < FEWEST or not scope.is_real or departures(scope.cluster):
        return None
    return None if _outside(scope, entry) or scope.unmeasured_dtypes(family, entry) else entry


def _layers(scope: PredictionScope) -> tuple[Family | None, _FamilyErrors | None]:
    """The family that checks the sum of a system's parts, and its errors on this GPU."""
    family = judges_of(scope.system, scope.domains).get("sum")
    return family, None if family is None else family_errors().get((family.name, scope.cluster.gpu))


def _measured_layers(scope: PredictionScope) -> str:
    """The numbers of measured whole layers from which this prediction differs, as the end of a warning."""
    _, entry = _layers(scope)
    beyond = _outside(scope, entry) if entry is not None else []
    limits = ", ".join(f"{name} {limits} (here {value:g})" for name, value, limits in beyond)
    return f"; whole layers were measured on {scope.cluster.gpu} at {limits}" if beyond else ""


def trust_of(scope: PredictionScope, shares: Mapping[str, float], us: float = 0.0) -> _Trust:
    """The error bar of a layer of `us`, from the intervals of its parts (`measured.intervals`).

    `shares`: shares of the critical path by operator (dispatch, gemm1, gemm2, combine, other); the sum is 1.

    - Parts of one family err together, different families independently: their distances from the middle add as squares.
    - A share that is neither transfer nor GEMM has the widest interval of all parts.
    - Where whole layers of the system were measured, the interval is at least theirs.
    - A part whose family was measured nowhere leaves the layer without an error bar; so does a network between domains unlike the measured one.
    """
    warnings, judges = warnings_of(scope), _part_judges(scope.system, scope.domains)
    if scope.cluster.family != "hw" or not scope.is_real or not judges:
        return _Trust((), None, warnings)
    names, gpu = tuple(dict.fromkeys(family.name for family in judges.values())), OTHER if departures(scope.cluster) else scope.cluster.gpu
    if _net_departures(scope.cluster) or not all(_is_known(name, gpu) for name in names):
        return _Trust(names, None, warnings)
    parts = dict.fromkeys(names, 0.0)
    rest = 0.0
    for part, share in shares.items():
        if part in judges:
            parts[judges[part].name] += share
        else:
            rest += share
    known = {name: interval_of(Asked(kind_of(get_family(name)), name, gpu, us * share)) for name, share in parts.items()}
    widest = max(known.values(), key=lambda one: one.high90 / one.low90)
    whole = summed([*((parts[name], one) for name, one in known.items()), (rest, widest)])
    checks, _ = _layers(scope)
    if checks is not None:
        whole = whole.within(interval_of(Asked("layers", checks.name, gpu, us)))
    return _Trust(names, whole, warnings)


def _is_known(family: str, gpu: str) -> bool:
    """Whether a family was measured on a GPU, or on several others."""
    own = family_errors().get((family, gpu))
    return (own is not None and own.n >= FEWEST) or (family, OTHER) in family_errors()


def eager_is_known(row: Row) -> bool:
    """Whether eager layers of the system were measured, so that its launches are known."""
    return row.form == "real" and bool(row.surroundings_us) and "sum" in judges_of(row.system)
