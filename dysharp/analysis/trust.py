"""How far a prediction on a real machine can be trusted: the validated errors of what it is made of, and what lies outside the rows behind them.

The table is `specs/data/validated.toml`: errors per family and GPU, and the ranges of tokens, hidden sizes and GPUs of the rows. `summary.py`
makes it.
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


@dataclass(frozen=True, slots=True)
class Judged:
    """Errors of one family on one GPU, in percent of the measured value; `ranges` of what its rows cover, `by` what predicted them."""

    family: str
    gpu: str
    by: str
    n: int
    median: float
    p90: float
    bias: float
    ranges: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a prediction's range; names as in `Judged.ranges`."""

    system: str
    model: Model
    cluster: Cluster
    tokens: int
    direction: str = "fwd"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """Values that `ranges` may limit."""
        m, gpus = self.model, self.cluster.n_gpus
        found: dict[str, float] = {"tokens": self.tokens, "hidden": m.hidden, "gpus": gpus, "topk": m.topk, "experts": m.n_experts}
        found |= {"rows_per_expert": self.tokens * gpus * m.topk / m.n_experts, "bytes": self.tokens * m.topk * m.row_bytes}
        return {name: float(value) for name, value in found.items()} | ({"sms": float(self.options["n_sm"])} if "n_sm" in self.options else {})


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
    return Judged(family, gpu, entry["by"], entry["n"], entry["median"], entry["p90"], entry["bias"], ranges)


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
    return tuple(dict.fromkeys(found))


def _families(system: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*COMMUNICATION.get(system, ()), *(() if system in WHOLE else (GEMMS,)))))


def _machine_warnings(cluster: Cluster) -> list[str]:
    gpu = load_gpu(cluster.gpu)
    link, here = gpu.link_GBps, cluster.link_bytes_per_us / 1000
    found = []
    if max(link, here) / min(link, here) > DATASHEET:
        found.append(f"links of {here:g} GB/s are not those of {gpu.name} ({link:g} GB/s): no such machine was measured")
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
    for name, value in q.numbers.items():
        low, high = entry.ranges.get(name, (value, value))
        if not low <= value <= high:
            limits = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            found.append(f"{family}: {name} {value:g} is outside the measured range ({limits} on {q.cluster.gpu})")
    return found


def trust_of(q: Question, shares: Mapping[str, float]) -> Trust:
    """Error bars of a layer from those of its parts: `shares` of its critical path by operator (dispatch, gemm1, gemm2, combine, other; sum 1).

    The errors of the parts are added as if they always pointed the same way, which is cautious. What is neither transfer nor GEMM is
    judged as the larger of the two. Where whole layers were measured and are off by more, their errors count. A part whose errors on this GPU
    are not known leaves the layer without a bar.
    """
    warnings = warnings_of(q)
    if q.cluster.family != "hw" or not is_real_form(q) or q.system not in COMMUNICATION:
        return Trust((), None, None, warnings)
    dispatch, combine = COMMUNICATION[q.system]
    of = {} if q.system in WHOLE else {"dispatch": dispatch, "combine": combine, "gemm1": GEMMS, "gemm2": GEMMS}
    typical = wide = 0.0
    for name, share in shares.items():
        found = [_error(family, q.cluster.gpu) for family in ([of[name]] if name in of else _families(q.system))]
        errors = [error for error in found if error is not None]
        if len(errors) < len(found):
            return Trust(_families(q.system), None, None, warnings)
        typical += share * max(median for median, _ in errors) / 100
        wide += share * max(p90 for _, p90 in errors) / 100
    layers = judged().get((LAYERS, q.cluster.gpu))
    if layers is not None and layers.n >= FEWEST and q.system in OF_LAYERS:  # the sum of the parts is judged too
        typical, wide = max(typical, layers.median / 100), max(wide, layers.p90 / 100)
    return Trust(_families(q.system), typical, wide, warnings)


def _error(family: str, gpu: str) -> tuple[float, float] | None:
    """(median, p90) in percent; a GPU without rows has those of GPUs held out, None where no other GPU was measured."""
    table = judged()
    own = table.get((family, gpu))
    entry = own if own is not None and own.n >= FEWEST else table.get((family, OTHER))
    return None if entry is None else (entry.median, entry.p90)
