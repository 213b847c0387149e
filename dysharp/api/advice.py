"""`advise`: which EP system to run on a machine, what limits it, and what would help."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.analysis import Row
from dysharp.analysis.load import Load, eplb_spec, load_of, memory_warning
from dysharp.analysis.surroundings import Surroundings
from dysharp.api.memory import check_memory
from dysharp.api.options import Value, option_choices, options_of, split_options
from dysharp.api.point import run_point
from dysharp.api.progress import Progress
from dysharp.api.workload import Request, Workload, header_of, make_request, make_workload
from dysharp.errors import ConfigError
from dysharp.measured.trust import PredictionScope, measured_range, trust_of, whole_layers
from dysharp.specs import Cluster, Model
from dysharp.systems import System, all_systems, get_system

DEFAULT_CLUSTER = "hw-dgx-h100"
KNOB = "n_sm"
WHAT_IFS = 8  # about as many, for the progress bar
TRIED = (4, 8, 12, 16, 20, 24, 32, 48, 64)
"""SMs of communication kernels that are tried, as far as the measured range goes."""
_PARTS = {"other": "launches, barriers and counts of communication", "around": "permutation, activation, casts and gaps"}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One system on one machine. Times in us.

    `time_us`: kernels and what surrounds them on the GPU (a CUDA graph); `eager_us`: with the launches of the host; `low_us` to `high_us`: nine of
    ten such predictions are within, None where nothing was measured; `typical`, `wide`: parts of `time_us` that half and nine tenths are off by;
    `formats`: of what is sent and multiplied, in words.
    """

    row: Row
    formats: str
    typical: float | None
    wide: float | None
    families: tuple[str, ...]
    tried: Mapping[int, float]

    @property
    def time_us(self) -> float:
        return self.row.time_us

    @property
    def eager_us(self) -> float:
        return self.row.eager_us

    @property
    def around(self) -> Surroundings:
        """What of the row surrounds its Program; nothing where no GEMM runs."""
        return Surroundings(**self.row.surroundings_us)

    def parts_us(self) -> dict[str, float]:
        """The critical path by operator and what surrounds the Program; the sum is `time_us`."""
        path = self.row.path_us
        gemms = path["gemm1"] + path["gemm2"]
        return {"dispatch": path["dispatch"], "GEMMs": gemms, "combine": path["combine"], "other": path["other"], "around": self.around.device_us}

    def bar(self) -> tuple[float, float] | None:
        """(low, high) in us."""
        return None if self.wide is None else (self.time_us * max(0.0, 1 - self.wide), self.time_us * (1 + self.wide))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        bar = self.bar()
        return {
            "system": self.row.system,
            "form": self.row.form,
            "options": dict(self.row.options),
            "formats": self.formats,
            "time_us": self.time_us,
            "low_us": bar[0] if bar else None,
            "high_us": bar[1] if bar else None,
            "eager_us": self.eager_us,
            "typical_error": self.typical,
            "p90_error": self.wide,
            "families": list(self.families),
            "simulated_us": self.row.simulated_us,
            "surroundings_us": self.around.to_dict(),
            "parts_us": self.parts_us(),
            "phases_us": self.row.phases_us,
            "exposed_comm_us": self.row.exposed_comm_us,
            "tokens_per_s": self.row.gpus * self.row.tokens_per_gpu / self.time_us * 1e6,
            "tried": {f"{KNOB}={n}": us for n, us in self.tried.items()},
            "warnings": list(self.row.warnings),
        }


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The best system, or another one, after one change. `speedup`: layer time before over after, at the same tokens per GPU."""

    change: str
    assumes: str
    predicted: Predicted
    speedup: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        row = self.predicted.row
        found = {"change": self.change, "assumes": self.assumes, "speedup": self.speedup, "cluster": row.cluster, "gpus": row.gpus}
        return found | self.predicted.to_dict()


@dataclass(frozen=True, slots=True)
class Advice:
    """What `dysharp advise` prints; `to_dict` is its `--json`."""

    ranking: tuple[Predicted, ...]
    not_ranked: Mapping[str, str]
    load: tuple[Load, ...]
    what_if: tuple[WhatIf, ...]
    header: tuple[str, ...]
    layers: Mapping[str, Any] | None
    """Errors of whole eager layers on this GPU, where some like this one were measured: what the sum of all parts was checked against."""

    @property
    def best(self) -> Predicted:
        """The first of the ranking."""
        return self.ranking[0]

    @property
    def sentence(self) -> str:
        """Where the time of the best goes, and what is possible at all."""
        best, row = self.best, self.best.row
        bar = best.bar()
        within = f" ({bar[0]:.0f} to {bar[1]:.0f})" if bar else ""
        parts = best.parts_us()
        shown = ", ".join(f"{_PARTS.get(name, name)} {us:.0f} us ({us / best.time_us:.0%})" for name, us in parts.items())
        bound = next((entry.predicted.time_us for entry in self.what_if if entry.predicted.row.system == "ideal"), None)
        free = "" if bound is None else f"; with communication for free the layer takes {bound:.0f} us"
        return (
            f"{row.system} takes {best.time_us:.0f} us{within}. Its critical path: {shown}. The busiest resource is {row.bound_resource} "
            f"({row.bound_us / row.simulated_us:.0%} of the simulated time){free}."
        )

    def ties(self) -> tuple[str, ...]:
        """The first system with an error bar and those whose bars overlap it: which of them is faster is not known. () without such."""
        bars = [(entry.row.system, bar) for entry in self.ranking if (bar := entry.bar()) is not None]
        found = tuple(name for name, bar in bars if bar[0] <= bars[0][1][1])
        return found if len(found) > 1 else ()

    def limits(self) -> dict[str, Any]:
        """Where the time of the best goes."""
        row = self.best.row
        names = ("system", "bound_us", "bound_resource", "bound_terms", "workload_bound_us", "attribution", "utilization", "exposed_comm_us")
        found = {name: getattr(row, name) for name in names}
        return found | {"surroundings_us": self.best.around.to_dict(), "load": [load.to_dict() for load in self.load], "sentence": self.sentence}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "ranking": [entry.to_dict() for entry in self.ranking],
            "limits": self.limits(),
            "what_if": [entry.to_dict() for entry in self.what_if],
            "ties": list(self.ties()),
            "not_ranked": dict(self.not_ranked),
            "layer_errors": None if self.layers is None else dict(self.layers),
            "header": list(self.header),
        }


def advise(
    model: str | os.PathLike[str] | Model,
    *,
    cluster: str | os.PathLike[str] | Cluster = DEFAULT_CLUSTER,
    systems: Sequence[str] | None = None,
    gpus: int | None = None,
    tokens: int | None = None,
    layer: int | None = None,
    routing: str | None = None,
    direction: str = "fwd",
    seed: int = 0,
    fidelity: str = "burst",
    options: Mapping[str, Value] | None = None,
    placement: str = "auto",
    progress: Progress | None = None,
) -> Advice:
    """Rank the EP systems that run on a machine today, in the formats they ship with, say what limits the best, and what changes would bring.

    Arguments as for `compare`; `cluster` is an hw machine; `systems` None: all that have a real form. Where `n_sm` is not given it is searched
    within the measured range. Raises ConfigError for wrong input, or when no system runs.
    """
    request = make_request(
        model=model,
        cluster=cluster,
        gpus=gpus,
        tokens=tokens,
        layer=layer,
        routing=routing,
        placement=placement,
        direction=direction,
        seed=seed,
        fidelity=fidelity,
    )
    if request.cluster.family != "hw":
        raise ConfigError(f'advise: cluster "{request.cluster.name}" is of the {request.cluster.family} family, expected an hw-* cluster')
    chosen, not_ranked = _candidates(systems, request)
    asked = split_options(options, chosen)
    given = {name: _shipped(system, request.model) | asked[name] for name, system in chosen.items()}
    for name in [name for name in chosen if name in not_ranked]:
        del chosen[name]
    desk = Desk(request, progress, sum(max(1, len(_values(system, request))) for system in chosen.values()) + WHAT_IFS)
    routed = desk.workload().routing  # what is wrong with the routing is wrong for every system
    ranking = []
    for name, system in chosen.items():
        try:
            ranking.append(_searched(desk, system, given[name]))
        except ConfigError as error:
            if systems is not None or asked[name]:
                raise
            not_ranked[name] = str(error)
    if not ranking:
        reasons = "; ".join(f"{name}: {why}" for name, why in not_ranked.items())
        raise ConfigError(f"advise: no system runs this on {request.cluster.name}: {reasons}")
    ranking.sort(key=lambda entry: entry.time_us)
    from dysharp.api.what_if import what_ifs

    load = tuple(load_of(r) for r in (routed, desk.workload(placement=eplb_spec(routed)).routing))
    top = ranking[0].row
    layers = whole_layers(PredictionScope(top.system, request.model, request.cluster, request.tokens, request.direction, top.options))
    return Advice(
        tuple(ranking),
        not_ranked,
        load,
        what_ifs(desk, ranking[0]),
        (*header_of(desk.workload()), *(f"warning: {text}" for text in desk.heavy)),
        None if layers is None else dataclasses.asdict(layers),
    )


def _candidates(systems: Sequence[str] | None, request: Request) -> tuple[dict[str, System], dict[str, str]]:
    """Systems to rank, and why the others are not; one that is asked for by name and has no kernels for this is in both."""
    if systems is not None:
        chosen = {name: get_system(name) for name in systems}
        for name, system in chosen.items():
            if not (system.today and system.has_real_form):
                raise ConfigError(f"advise: {name} {_why_not(system)}, expected systems with a real form")
        if not chosen:
            raise ConfigError("advise: found no system, expected at least one")
        return chosen, _unfit(chosen, request)
    found = all_systems()
    ranked = {name: s for name, s in found.items() if s.today and s.has_real_form}
    return ranked, {name: _why_not(s) for name, s in found.items() if name not in ranked and s.today} | _unfit(ranked, request)


def _unfit(systems: Mapping[str, System], request: Request) -> dict[str, str]:
    """Systems without released kernels for this model on this machine, and why."""
    found = {name: s.ships.why_not(request.model, request.cluster) for name, s in systems.items() if s.ships is not None}
    return {name: why for name, why in found.items() if why}


def _shipped(system: System, model: Model) -> dict[str, Value]:
    """The options with which a system is usually run for such a model."""
    return {} if system.ships is None else dict(system.ships.formats.get(model.gemm_dtype, {}))


def _why_not(system: System) -> str:
    return "has no real form: its software costs are not known" if system.today else "needs hardware that does not exist"


class Desk:
    """What all runs of one piece of advice share: the request, its workloads, the count of runs."""

    def __init__(self, request: Request, progress: Progress | None, expected: int) -> None:
        self.request, self.progress, self.done, self._expected = request, progress, 0, expected
        self._workloads: dict[tuple[Any, ...], Workload] = {}
        self.heavy = memory_warning(request.model, request.cluster, self.workload().routing)
        """Holds for every run of the machine as it is: told once."""

    def workload(self, cluster: Cluster | None = None, placement: str | None = None) -> Workload:
        """The workload on another machine or with another placement, drawn once."""
        request = dataclasses.replace(self.request, cluster=cluster or self.request.cluster, placement=placement or self.request.placement)
        key = (request.cluster.n_gpus, request.placement)
        if key not in self._workloads:
            self._workloads[key] = make_workload(request)
        return dataclasses.replace(self._workloads[key], request=request)

    def run(self, name: str, given: Mapping[str, Value], workload: Workload | None = None) -> Predicted:
        """One system with options on a workload."""
        system, w = get_system(name), workload or self.workload()
        options = options_of(system, given)
        check_memory(system, w.request)
        self.done += 1
        row = run_point(system, options, w, self.progress, self.done, max(self.done, self._expected))
        r = w.request
        heavy = () if self.heavy else memory_warning(r.model, r.cluster, w.routing)
        narrow = row.options.get("weights", "model")
        other = () if narrow == "model" else (f"weights in {WORDS[narrow]}, where the model's are {r.model.gemm_dtype.upper()}: other numerics",)
        row = dataclasses.replace(row, warnings=(*row.warnings, *other, *heavy))
        shares = {name: us / row.time_us for name, us in row.path_us.items()} | {"surroundings": 1 - row.simulated_us / row.time_us}
        trust = trust_of(PredictionScope(name, r.model, r.cluster, r.tokens, r.direction, row.options), shares)
        return Predicted(row, formats_of(row, r.model), trust.typical, trust.wide, trust.families, {})


WORDS: Mapping[str, str] = {
    "fp8": "FP8", "fp8-plain": "FP8 without scales", "mxfp8": "MXFP8", "nvfp4": "NVFP4", "fp4": "FP4", "one": "one-sided", "two": "two-sided"
}
"""Words of options as a reader knows them."""


def formats_of(row: Row, model: Model) -> str:
    """What is sent and multiplied, and on how many SMs: "Dispatch FP8, Combine BF16, 20 SMs"."""
    rows = {1: "FP8", 2: "BF16", 4: "FP32"}.get(model.element_bytes, f"{model.element_bytes} B a value")
    o = row.options
    parts = [WORDS[o["sides"]]] if "sides" in o else []
    parts += [f"{name.capitalize()} {WORDS.get(o.get(name, 'rows'), rows)}" for name in ("dispatch", "combine")]
    parts += [f"weights {WORDS[o['weights']]}"] if o.get("weights", "model") != "model" else []
    return ", ".join([*parts, *([f"{o[KNOB]} SMs"] if KNOB in o else [])])


def _searched(desk: Desk, system: System, given: Mapping[str, Value]) -> Predicted:
    """The best of the values of `n_sm` that were measured; what is given is kept."""
    values = () if KNOB in given else _values(system, desk.request)
    if not values:
        return desk.run(system.name, given)
    found = {n: desk.run(system.name, {**given, KNOB: n}) for n in values}
    best = min(found, key=lambda n: (found[n].time_us, n))
    return dataclasses.replace(found[best], tried={n: entry.time_us for n, entry in found.items()})


def _values(system: System, request: Request) -> tuple[int, ...]:
    """Values of `n_sm` to try: of its choice's range and of the measured one; none for a system without the option."""
    rule = option_choices(system).get(KNOB)
    if rule is None:
        return ()
    low, high = int(rule.low or 1), min(int(rule.high or max(TRIED)), request.cluster.n_sms)
    measured = measured_range(system.name, "sms", request.cluster.gpu)
    if measured is not None:
        low, high = max(low, int(measured[0])), min(high, int(measured[1]))
    return tuple(n for n in TRIED if low <= n <= high)
