"""How far a prediction on a real machine can be trusted: the validated errors of what it is made of, and what lies outside the rows behind them.

The table is `specs/data/validated.toml`: errors per family and GPU, and the ranges of tokens, hidden sizes and GPUs of the rows, and their data
types. `summary.py` makes it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dysharp.analysis.row import form_of
from dysharp.compute.operators import arch_of
from dysharp.specs import Cluster, Model
from dysharp.specs.catalog import DATA
from dysharp.specs.gpu import list_gpus, load_gpu
from dysharp.specs.reading import parse_toml, read_text
from dysharp.workload import Routing, rows_per_slot
from dysharp.workload.routing import max_over_mean

FILE = DATA / "validated.toml"
COMMUNICATION: Mapping[str, tuple[str, str]] = {
    "deepep": ("deepep-dispatch", "deepep-combine"),
    "deepep-ll": ("deepep-ll", "deepep-ll"),
    "megatron-a2a": ("nccl", "nccl"),
    "megatron-ag": ("nccl", "nccl"),
    "trtllm-a2a": ("trtllm-a2a", "trtllm-a2a"),
    "megamoe": ("fused-layer", "fused-layer"),
}
"""Families whose rows judge Dispatch and Combine of a system's real form."""
GEMMS = "grouped-gemm"
LAYERS, OF_LAYERS = "layer", ("deepep", "megatron-a2a")
"""The family of whole layers, and the systems that its rows are of."""
WHOLE = ("megamoe",)
"""Systems whose family judges whole layers: its errors are the bar."""
OTHER = "other"
"""In the table: rows of a GPU while that GPU was held out of the fit; only of families with rows of several GPUs."""
FEWEST = 8
"""Rows that say something about a family on a GPU; with fewer the errors are those of a GPU that was held out."""
DATASHEET = 1.01  # a cluster that departs from its GPU's datasheet by more is another machine
SKEWED = ("fused-layer",)
"""Families with rows under skewed routing; all others were measured under uniform or balanced routing."""
EVEN, SPREAD = 1.05, 5.0
"""Routing counts as skewed where the busiest GPU has more than `EVEN` times the mean of expert rows, and more than chance gives it: `SPREAD`
standard deviations of a Poisson count."""
ROWS_AS = {2: "bf16", 1: "fp8-plain"}
"""Bytes of a model's element -> what Dispatch and Combine send of it as `rows`."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Errors of one family on one GPU, in percent of the measured value; `ranges` and `dtypes` of what its rows cover, `by` what predicted them.
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
class Question:
    """What is asked of a prediction's range; names as in `Judged.ranges`. Without a `routing` nothing is said about skew."""

    system: str
    model: Model
    cluster: Cluster
    tokens: int
    direction: str = "fwd"
    options: Mapping[str, Any] = field(default_factory=dict)
    routing: Routing | None = None

    @property
    def numbers(self) -> dict[str, float]:
        """Values that `ranges` may limit."""
        m, gpus = self.model, self.cluster.n_gpus
        found: dict[str, float] = {"tokens": self.tokens, "hidden": m.hidden, "gpus": gpus, "topk": m.topk, "experts": m.n_experts}
        found |= {"rows_per_expert": self.tokens * gpus * m.topk / m.n_experts, "bytes": self.tokens * m.topk * m.row_bytes}
        return {name: float(value) for name, value in found.items()} | ({"sms": float(self.options["n_sm"])} if "n_sm" in self.options else {})

    def dtypes(self, family: str) -> tuple[str, ...]:
        """Data types of the parts that `family` judges, named as in `Judged.dtypes`; empty for families that only count bytes."""
        if family in (GEMMS, LAYERS):
            return (self.model.gemm_dtype,)
        rows, weights = ROWS_AS.get(self.model.element_bytes, "fp32"), self.options.get("weights")
        sent = {verb: str(self.options.get(verb, "rows")) for verb in ("dispatch", "combine")}
        named = {verb: f"{verb} {rows if sent[verb] == 'rows' else sent[verb]}" for verb in sent}
        if family == "fused-layer":
            return named["dispatch"], f"weights {self.model.gemm_dtype if weights in (None, 'model') else weights}"
        return tuple(named[verb] for verb, own in zip(sent, COMMUNICATION[self.system], strict=True) if own == family != "nccl")


@dataclass(frozen=True, slots=True)
class Trust:
    """`typical` and `wide`: parts of the time that half and nine tenths of such predictions are off by; None without measurements."""

    families: tuple[str, ...]
    typical: float | None
    wide: float | None
    warnings: tuple[str, ...]


@functools.cache
def judged(path: Path = FILE) -> Mapping[tuple[str, str], Judged]:
    """The packaged table by (family, GPU); GPU "other" stands for one without rows of its own."""
    table = parse_toml(read_text(path), path.name)
    return {(family, gpu): _judged(family, gpu, entry) for family, gpus in table.items() for gpu, entry in gpus.items()}


def _judged(family: str, gpu: str, entry: Mapping[str, Any]) -> Judged:
    ranges = {name: (float(low), float(high)) for name, (low, high) in entry["ranges"].items()}
    return Judged(family, gpu, entry["by"], entry["n"], entry["median"], entry["p90"], entry["bias"], ranges, tuple(entry.get("dtypes", ())))


def measured_range(system: str, name: str, gpu: str) -> tuple[float, float] | None:
    """The range of `name` in the rows behind a system's Dispatch on `gpu`, else on GPUs of the same architecture; None without rows."""
    family = COMMUNICATION.get(system, ("",))[0]
    arch = arch_of(load_gpu(gpu))
    near = [e for (found, other), e in judged().items() if found == family and other in list_gpus() and arch_of(load_gpu(other)) == arch]
    own = [e for e in near if e.gpu == gpu and e.n >= FEWEST]
    ranges = [e.ranges[name] for e in own or near if name in e.ranges]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def is_real_form(q: Question) -> bool:
    """Whether the system runs with its software costs here."""
    return form_of(q.cluster, q.options) == "real"


def warnings_of(q: Question) -> tuple[str, ...]:
    """What of the prediction lies outside what was measured; empty on paper clusters, whose header says that nothing there is measured."""
    if q.cluster.family != "hw":
        return ()
    if not is_real_form(q):
        return (f"{q.system}: paper form, no software cost is charged for its communication and no measurement stands behind it",)
    found = _machine_warnings(q.cluster)
    if q.direction != "fwd":
        found.append("backward passes were not measured")
    if q.system not in COMMUNICATION:
        return (*found, f"{q.system}: no measurement stands behind it")
    for family in _families(q.system):
        found += _range_warnings(q, family)
    found += _skew_warnings(q)
    if q.system in OF_LAYERS and whole_layers(q) is None:
        found.append(f"no whole layer like this one was measured{_beyond_layers(q)}: the sum of the parts is not checked")
    return tuple(dict.fromkeys(found))


def _families(system: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*COMMUNICATION.get(system, ()), *(() if system in WHOLE else (GEMMS,)))))


def departures(cluster: Cluster) -> str:
    """Where a cluster is not the packaged GPU it names, as "hbm_GBps 1000 (3350), ..." with the datasheet in brackets; empty where it is."""
    gpu = load_gpu(cluster.gpu)
    here = {
        "link_GBps": cluster.link_bytes_per_us / 1e3,
        "hbm_GBps": cluster.hbm_bytes_per_us / 1e3,
        "fp8_TFLOPS": cluster.fp8_flops_per_us / 1e6,
        "bf16_TFLOPS": cluster.bf16_flops_per_us / 1e6,
        "n_sms": float(cluster.n_sms),
    }
    both = {name: (value, float(getattr(gpu, name))) for name, value in here.items()}
    return ", ".join(f"{name} {a:g} ({b:g})" for name, (a, b) in both.items() if max(a, b) > DATASHEET * min(a, b))


def _machine_warnings(cluster: Cluster) -> list[str]:
    found = []
    if other := departures(cluster):
        found.append(f"{other} is not {cluster.gpu} (in brackets): no such machine was measured, error bars are those of a GPU that was held out")
    if cluster.constants:
        found.append(f"cluster {cluster.name} has constants of its own; the error bars are those of the packaged ones")
    return found


def _range_warnings(q: Question, family: str) -> list[str]:
    table = judged()
    entry = table.get((family, q.cluster.gpu))
    on = ", ".join(gpu for name, gpu in table if name == family and gpu != OTHER)
    bars = "error bars are those of a GPU that was held out" if (family, OTHER) in table else f"no bar: measured on {on or 'no GPU'} only"
    if entry is None:
        return [f"{family} was not measured on {q.cluster.gpu}: {bars}"]
    found = [f"{family}: only {entry.n} rows on {q.cluster.gpu}; {bars}"] if entry.n < FEWEST else []
    for name, value, limits in _outside(q, entry):
        found.append(f"{family}: {name} {value:g} is outside the measured range ({limits} on {q.cluster.gpu})")
    unknown = [dtype for dtype in q.dtypes(family) if dtype not in entry.dtypes] if entry.dtypes else []
    if unknown:
        found.append(f"{family}: {', '.join(unknown)} was not measured ({', '.join(entry.dtypes)} on {q.cluster.gpu})")
    return found


def _outside(q: Question, entry: Judged) -> list[tuple[str, float, str]]:
    """(name, value, measured range) of what is outside."""
    pairs = [(name, value, entry.ranges.get(name, (value, value))) for name, value in q.numbers.items()]
    return [(name, value, f"{a:g}" if a == b else f"{a:g} to {b:g}") for name, value, (a, b) in pairs if not a <= value <= b]


def _skew_warnings(q: Question) -> list[str]:
    """Where the busiest GPU has more rows than uniform routing gives it by chance."""
    if q.routing is None or all(family in SKEWED for family in COMMUNICATION[q.system]):
        return []
    rows = rows_per_slot(q.routing).reshape(q.routing.n_gpus, -1).sum(axis=1)
    busiest, mean = max_over_mean(rows), float(rows.mean())
    if mean == 0 or busiest <= EVEN + SPREAD / mean**0.5:
        return []
    return [f"skewed routing (the busiest GPU has {busiest:.2f} times the mean of rows): {', '.join(_families(q.system))} were measured without"]


def whole_layers(q: Question) -> Judged | None:
    """The errors of whole layers like this one: of the same system family and GPU, inside the ranges that were measured."""
    entry = judged().get((LAYERS, q.cluster.gpu))
    if entry is None or entry.n < FEWEST or q.system not in OF_LAYERS or not is_real_form(q) or departures(q.cluster):
        return None
    return None if _outside(q, entry) or (entry.dtypes and not set(q.dtypes(LAYERS)) <= set(entry.dtypes)) else entry


def _beyond_layers(q: Question) -> str:
    entry = judged().get((LAYERS, q.cluster.gpu))
    beyond = _outside(q, entry) if entry is not None else []
    return f" ({', '.join(f'{name} {value:g}, measured {limits}' for name, value, limits in beyond)} on {q.cluster.gpu})" if beyond else ""


def trust_of(q: Question, shares: Mapping[str, float]) -> Trust:
    """Error bars of a layer from those of its parts: `shares` of its critical path by operator (dispatch, gemm1, gemm2, combine, other; sum 1).

    The errors of the parts are added as if they always pointed the same way, which is cautious. What is neither transfer nor GEMM is
    judged as the larger of the two. Where whole layers were measured on that GPU and are off by more, their errors count, also outside their
    ranges. A part whose errors on this GPU are not known leaves the layer without a bar.
    """
    warnings = warnings_of(q)
    if q.cluster.family != "hw" or not is_real_form(q) or q.system not in COMMUNICATION:
        return Trust((), None, None, warnings)
    dispatch, combine = COMMUNICATION[q.system]
    of = {} if q.system in WHOLE else {"dispatch": dispatch, "combine": combine, "gemm1": GEMMS, "gemm2": GEMMS}
    typical = wide = 0.0
    gpu = OTHER if departures(q.cluster) else q.cluster.gpu
    for name, share in shares.items():
        known = [_error(family, gpu) for family in ([of[name]] if name in of else _families(q.system))]
        errors = [error for error in known if error is not None]
        if len(errors) < len(known):
            return Trust(_families(q.system), None, None, warnings)
        typical += share * max(median for median, _ in errors) / 100
        wide += share * max(p90 for _, p90 in errors) / 100
    layers = judged().get((LAYERS, gpu))
    if layers is not None and layers.n >= FEWEST and q.system in OF_LAYERS:  # the sum of the parts is judged too
        typical, wide = max(typical, layers.median / 100), max(wide, layers.p90 / 100)
    return Trust(_families(q.system), typical, wide, warnings)


def _error(family: str, gpu: str) -> tuple[float, float] | None:
    """(median, p90) in percent; a GPU without rows has those of GPUs held out, None where no other GPU was measured."""
    table = judged()
    own = table.get((family, gpu))
    entry = own if own is not None and own.n >= FEWEST else table.get((family, OTHER))
    return None if entry is None else (entry.median, entry.p90)
