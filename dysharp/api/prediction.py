"""One predicted layer of `advise` with its error bar, and the runs that one piece of advice shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dysharp.analysis import Row
from dysharp.analysis.load import memory_warning
from dysharp.analysis.surroundings import Surroundings
from dysharp.api.memory import check_memory
from dysharp.api.options import Value, options_of
from dysharp.api.point import run_point
from dysharp.api.request import Request
from dysharp.api.workload import Workload, make_workload
from dysharp.measured.trust import PredictionScope, trust_of
from dysharp.specs import Cluster, Model
from dysharp.systems import get_system
from dysharp.systems.building.formats import ROW_FORMATS, SIDES, WEIGHT_FORMATS, format_of

KNOB = "n_sm"
"""The option with the number of SMs of communication kernels."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """One system on one machine.

    row        the simulated Row
    formats    formats of transfers and weights, and SMs of communication: "Dispatch FP8, Combine BF16, 20 SMs"
    typical    median relative error, as a fraction of `time_us`; None without measurements
    wide       90th-percentile relative error, as a fraction of `time_us`; None without measurements
    families   measured families behind the two errors
    warnings   warnings of the Row, of its formats and of its memory
    tried      {number of SMs of communication: layer time in us}; empty where the number was given
    """

    row: Row
    formats: str
    typical: float | None
    wide: float | None
    families: tuple[str, ...]
    warnings: tuple[str, ...]
    tried: Mapping[int, float]

    @property
    def time_us(self) -> float:
        """Layer time in a CUDA graph."""
        return self.row.time_us

    @property
    def eager_us(self) -> float:
        """Layer time with the launches of the host."""
        return self.row.eager_us

    @property
    def around(self) -> Surroundings:
        """Surroundings of the Program; all zero where no GEMM runs."""
        return Surroundings(**self.row.surroundings_us)

    def parts_us(self) -> dict[str, float]:
        """The critical path by operator, and the surroundings; the sum is `time_us`."""
        path = self.row.path_us
        gemms = path["gemm1"] + path["gemm2"]
        return {"dispatch": path["dispatch"], "GEMMs": gemms, "combine": path["combine"], "other": path["other"], "around": self.around.device_us}

    def bar(self) -> tuple[float, float] | None:
        """(low, high) in us: nine of ten such predictions are within. None without measurements."""
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
            "warnings": list(self.warnings),
        }


class AdviceRuns:
    """The runs of one piece of advice: they share the request, its workloads and the count of runs for the progress.

    `memory_warning` holds for every run of the machine as it is; it is printed once, in the header.
    """

    def __init__(self, request: Request, n_expected: int) -> None:
        self.request, self._n_done, self._n_expected = request, 0, n_expected
        self._workloads: dict[tuple[int, str], Workload] = {}
        self.memory_warning = memory_warning(request.model, request.cluster, self.workload().routing)

    def workload(self, cluster: Cluster | None = None, placement: str | None = None) -> Workload:
        """The workload on another machine or with another placement, drawn once."""
        request = dataclasses.replace(self.request, cluster=cluster or self.request.cluster, placement=placement or self.request.placement)
        key = (request.cluster.n_gpus, request.placement)
        if key not in self._workloads:
            self._workloads[key] = make_workload(request)
        return dataclasses.replace(self._workloads[key], request=request)

    def run(self, name: str, given: Mapping[str, Value], workload: Workload | None = None) -> Predicted:
        """Predict the system `name` with the options `given`."""
        workload = workload or self.workload()
        request = workload.request
        system = get_system(name)
        options = options_of(system, given)
        check_memory(system, request, options)
        self._n_done += 1
        row = run_point(system, options, workload, self._n_done, max(self._n_done, self._n_expected))
        shares = {name: us / row.time_us for name, us in row.path_us.items()} | {"surroundings": 1 - row.simulated_us / row.time_us}
        asked = PredictionScope(system.name, request.model, request.cluster, request.tokens, request.direction, row.options)
        trust = trust_of(asked, shares)
        memory = () if self.memory_warning else memory_warning(request.model, request.cluster, workload.routing)
        warnings = (*row.warnings, *_numerics_warning(row, request.model), *memory)
        return Predicted(row, formats_of(row, request.model), trust.typical, trust.wide, trust.families, warnings, {})


def _numerics_warning(row: Row, model: Model) -> tuple[str, ...]:
    weights = _weights(row)
    return (f"weights in {weights} instead of the model's {model.gemm_dtype.upper()}: numerics change",) if weights else ()


def formats_of(row: Row, model: Model) -> str:
    """Formats of transfers and weights, and SMs of communication: "Dispatch FP8, Combine BF16, 20 SMs".

    Raises ConfigError for a value of `sides`, `dispatch`, `combine` or `weights` that `systems.building.formats` does not have.
    """
    own = {1: "FP8", 2: "BF16", 4: "FP32"}.get(model.element_bytes, f"{model.element_bytes} B per value")
    options, weights = row.options, _weights(row)
    parts = [format_of(f"{row.system}.sides", options["sides"], SIDES)] if "sides" in options else []
    for name in ("dispatch", "combine"):
        printed = format_of(f"{row.system}.{name}", options.get(name, "rows"), ROW_FORMATS).printed
        parts.append(f"{name.capitalize()} {printed or own}")
    parts += [f"weights {weights}"] if weights else []
    return ", ".join([*parts, *([f"{options[KNOB]} SMs"] if KNOB in options else [])])


def _weights(row: Row) -> str:
    """The printed format of the weights; "" = the type of the model's GEMMs."""
    return format_of(f"{row.system}.weights", row.options.get("weights", "model"), WEIGHT_FORMATS).printed
