"""One predicted layer of `advise` with its error bar, and the runs that one piece of advice shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.analysis import Row
from dysharp.analysis.load import memory_warning
from dysharp.analysis.surroundings import Surroundings
from dysharp.errors import ConfigError, DysharpError
from dysharp.measured.family import judges_of
from dysharp.measured.trust import PredictionScope, trust_of, warnings_of
from dysharp.runs.formats import KNOB, formats_of, weights_of
from dysharp.runs.header import header_of
from dysharp.runs.job import Job, Result
from dysharp.runs.leading import LEADING_ROWS, WHOLE_ROWS, does_not_grow, extended, leading_sizes
from dysharp.runs.options import Value
from dysharp.runs.phase import Phase
from dysharp.runs.progress import Step
from dysharp.runs.request import Request
from dysharp.runs.together import Workers
from dysharp.runs.workload import Workload, make_workload
from dysharp.specs import Cluster, Model
from dysharp.systems import all_systems, get_system
from dysharp.systems.registry import FUSED_GEMMS


@dataclass(frozen=True, slots=True)
class Predicted:
    """One system on one machine.

    row        the simulated Row; of the leading tokens where `before` is not None
    before     the Row of half the leading tokens; None: `row` has all tokens
    growth     time of the GEMMs of all tokens over that of the leading tokens, where GEMMs run alone; None: they grow along the line
    tokens     tokens per GPU of the layer
    formats    formats of transfers and weights, and SMs of communication: "Dispatch FP8, Combine BF16, 20 SMs"
    typical    median relative error, as a fraction of `time_us`; None without measurements
    wide       90th-percentile relative error, as a fraction of `time_us`; None without measurements
    families   measured families behind the two errors
    warnings   warnings of the Row, of its formats and of its memory
    has_eager  True: eager layers of the system were measured, so its launches are known
    tried      {number of SMs of communication: layer time in us}; empty where the number was given
    edge       "fewest" or "most": no measurement has fewer (more) SMs than the chosen number; ""
    """

    row: Row
    before: Row | None
    growth: float | None
    tokens: int
    formats: str
    typical: float | None
    wide: float | None
    families: tuple[str, ...]
    warnings: tuple[str, ...]
    has_eager: bool
    tried: Mapping[int, float]
    edge: str = ""

    @property
    def system(self) -> str:
        """Name of the system."""
        return self.row.system

    @property
    def time_us(self) -> float:
        """Layer time in a CUDA graph."""
        return self._whole(lambda row: row.time_us - self._alone(row)) + self._gemms_us()

    @property
    def eager_us(self) -> float | None:
        """Layer time with the launches of the host; None where no eager layer of the system was measured."""
        return self.time_us + self.around.host_us if self.has_eager else None

    @property
    def around(self) -> Surroundings:
        """Surroundings of the Program; all zero where no GEMM runs."""
        names = self.row.surroundings_us
        return Surroundings(**{name: self._whole(lambda row, name=name: row.surroundings_us[name]) for name in names})  # type: ignore[misc]

    def parts_us(self) -> dict[str, float]:
        """The critical path by operator, and the surroundings; the sum is `time_us`."""
        path = {name: self._whole(lambda row, name=name: row.path_us[name]) for name in self.row.path_us}  # type: ignore[misc]
        gemms = path["gemm1"] + path["gemm2"] if self.growth is None else self._gemms_us()
        return {"dispatch": path["dispatch"], "GEMMs": gemms, "combine": path["combine"], "other": path["other"], "around": self.around.device_us}

    def one_kernel_us(self) -> dict[str, float] | None:
        """Where one kernel is the whole layer: its GEMMs, its copies, and waits. None for other systems.

        GEMMs: busy time of the SMs or of the memory of the busiest GPU, the longer of both. Copies: busy time of the
        busiest link. Waits: the least time with neither, which is 0 where GEMMs and copies must overlap.
        """
        if not get_system(self.system).is_one_kernel(self.row.options):
            return None
        gemms = self._whole(_gemm_busy_us)
        copies = self._whole(lambda row: max(row.utilization["up_max"], row.utilization["down_max"]) * row.simulated_us)
        return {"GEMMs": gemms, "copies": copies, "waits": max(0.0, self.time_us - gemms - copies)}

    def bar(self) -> tuple[float, float] | None:
        """(low, high) in us: nine of ten measured layers are within this range of their prediction. None without measurements."""
        return None if self.wide is None else (self.time_us * max(0.0, 1 - self.wide), self.time_us * (1 + self.wide))

    def __repr__(self) -> str:
        return f"<Predicted: {self.row.system} {self.time_us:.1f} us; to_dict() shows all>"

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
            "tokens_simulated": self.row.tokens_per_gpu,
            "simulated_us": self.time_us - self.around.device_us,
            "surroundings_us": self.around.to_dict(),
            "parts_us": self.parts_us(),
            "one_kernel_us": self.one_kernel_us(),
            "phases_us": self.row.phases_us,
            "exposed_comm_us": self.row.exposed_comm_us,
            "tokens_per_s": self.row.gpus * self.tokens / self.time_us * 1e6,
            "tried": {f"{KNOB}={n}": us for n, us in self.tried.items()},
            "edge": self.edge,
            "warnings": list(self.warnings),
        }

    def _alone(self, row: Row) -> float:
        """Time of GEMMs that run alone; 0 where they grow along the line."""
        return 0.0 if self.growth is None else gemms_us(row)

    def _gemms_us(self) -> float:
        return self._alone(self.row) * (self.growth or 0.0)

    def _whole(self, value: Callable[[Row], float]) -> float:
        """`value` for all tokens: each further token adds what the second half of the leading tokens added."""
        return value(self.row) if self.before is None else extended(self.before, self.row, self.tokens, value)


def eager_is_known(row: Row) -> bool:
    """Whether eager layers of the system were measured, so that its launches are known."""
    return row.form == "real" and bool(row.surroundings_us) and "sum" in judges_of(row.system)


def _gemm_busy_us(row: Row) -> float:
    """Time for which GEMMs keep the SMs or the memory of the busiest GPU busy, the longer of both."""
    sms = row.utilization["sm_max"] * row.simulated_us
    return max(sms, row.bound_us) if row.bound_resource.endswith(".memory") else sms


def gemms_us(row: Row) -> float:
    """Time of the GEMMs on the critical path."""
    return row.path_us["gemm1"] + row.path_us["gemm2"]


class AdviceRuns:
    """The runs of one piece of advice: they share the request, its workloads, the processes and the progress.

    `header`: lines that say what the numbers rest on, told to the progress before the first run. `memory_warning` holds for all runs on the unchanged
    machine, so the header prints it once.
    """

    def __init__(self, request: Request, workers: Workers, phase: Phase | None = None) -> None:
        self.request, self._workers = request, workers
        self._workloads: dict[tuple[int, str], Workload] = {}
        workload = self.workload()  # an error in the routing is an error for every system
        self.memory_warning = memory_warning(request.model, request.cluster, workload.routing)
        self.header = (*header_of(workload, phase=phase), *(f"warning: {text}" for text in self.memory_warning))
        if request.progress:
            request.progress(Step("", 1, 1, "header", header=self.header))

    def workload(self, cluster: Cluster | None = None, placement: str | None = None) -> Workload:
        """The workload on another machine or with another placement, drawn once. Recorded routing keeps its layer: one thing changes."""
        request = dataclasses.replace(self.request, cluster=cluster or self.request.cluster, placement=placement or self.request.placement)
        key = (request.cluster.n_gpus, request.placement)
        if key not in self._workloads:
            changed = key != (self.request.cluster.n_gpus, self.request.placement)
            layer = self.workload().routing.layer if changed else self.request.layer
            self._workloads[key] = make_workload(dataclasses.replace(request, layer=layer))
        return dataclasses.replace(self._workloads[key], request=request)

    def job(self, name: str, given: Mapping[str, Value], workload: Workload | None = None) -> Job:
        """A run of the system `name` with the options `given`: all tokens, or leading tokens of a large layer."""
        workload = workload or self.workload()
        return Job(name, given, workload, leading_sizes(get_system(name), workload.request, LEADING_ROWS, WHOLE_ROWS))

    def rows(self, jobs: Sequence[Job]) -> list[Result]:
        """The Rows of each job."""
        return self._workers.rows(jobs, self.request.progress)

    def predict(self, jobs: Sequence[Job]) -> list[Predicted | DysharpError]:
        """The prediction of each job, or the error with which it is refused."""
        done: list[Predicted | DysharpError] = []
        growth = self._growth(jobs)
        for job, rows in zip(jobs, self.rows(jobs), strict=True):
            if not isinstance(rows, DysharpError) and len(rows) > 1 and (operator := does_not_grow(*rows[-2:])):
                tokens = " and ".join(str(row.tokens_per_gpu) for row in rows[-2:])
                done.append(ConfigError(f"no estimate from few tokens: {operator} takes as long for {tokens} tokens; `dysharp run` has all"))
            else:
                done.append(rows if isinstance(rows, DysharpError) else self._predicted(job, rows, growth.get(_gemm_key(job))))
        return done

    def _growth(self, jobs: Sequence[Job]) -> dict[GemmKey, float]:
        """{GEMMs of a workload: their time for all tokens over their time for the leading tokens}, from the bound without transfers.

        Few tokens read the weights from memory, many are bound by tensor cores, so GEMMs do not grow along a line. A kernel that is the whole layer
        overlaps GEMMs and copies, so its GEMMs are left out.
        """
        bound = next(s for s in all_systems().values() if s.bound and s.costs.gemms)
        given = {"gemms": next(word for word in bound.costs.gemms if word != FUSED_GEMMS)}
        wanted = {_gemm_key(job): job for job in jobs if job.sizes and not get_system(job.system).is_one_kernel(job.given)}
        sizes: list[tuple[int, ...]] = [(key[-1],) for key in wanted] + [() for _ in wanted]
        twice = [*wanted.values(), *wanted.values()]
        rows = self.rows([Job(bound.name, given, job.workload, size) for job, size in zip(twice, sizes, strict=True)])
        few, all_tokens = rows[: len(wanted)], rows[len(wanted) :]
        both = zip(wanted, few, all_tokens, strict=True)
        return {key: gemms_us(b[0]) / gemms_us(a[0]) for key, a, b in both if not isinstance(a, DysharpError) and not isinstance(b, DysharpError)}

    def _predicted(self, job: Job, rows: tuple[Row, ...], growth: float | None) -> Predicted:
        workload, row = job.workload, rows[-1]
        request, before = workload.request, rows[-2] if len(rows) > 1 else None
        shares = {name: us / row.time_us for name, us in row.path_us.items()} | {"surroundings": 1 - row.simulated_us / row.time_us}
        asked = PredictionScope(row.system, request.model, request.cluster, request.tokens, request.direction, row.options, workload.routing)
        trust, unsettled = trust_of(asked, shares), _unsettled(rows, request.tokens, growth)
        memory = () if self.memory_warning else memory_warning(request.model, request.cluster, workload.routing)
        few = dataclasses.replace(asked, tokens=row.tokens_per_gpu)
        own = [text for text in row.warnings if text not in warnings_of(few)]
        warnings = (*trust.warnings, *own, *_numerics_warning(row, request.model), *memory)
        return Predicted(
            row=row,
            before=before,
            growth=growth,
            tokens=request.tokens,
            formats=formats_of(row.system, row.options, request.model),
            typical=None if trust.typical is None else trust.typical + unsettled,
            wide=None if trust.wide is None else trust.wide + unsettled,
            families=trust.families,
            warnings=tuple(dict.fromkeys(warnings)),
            has_eager=eager_is_known(row),
            tried={},
        )


GemmKey = tuple[str, int, int, int]
"""What decides about the GEMMs of a workload: placement, GPUs, rate of memory, leading tokens."""


def _gemm_key(job: Job) -> GemmKey:
    request = job.workload.request
    fused = get_system(job.system).is_one_kernel(job.given)
    return (request.placement, request.cluster.n_gpus, request.cluster.hbm_bytes_per_us, -1 if fused or not job.sizes else job.sizes[-1])


def _unsettled(rows: tuple[Row, ...], tokens: int, growth: float | None) -> float:
    """How far the estimates from all leading tokens and from half of them are apart, as a fraction; 0 where all tokens were simulated.

    GEMMs that run alone are not counted.
    """
    if len(rows) < 3:
        return 0.0
    early, late = (extended(a, b, tokens, lambda row: row.time_us - (0.0 if growth is None else gemms_us(row))) for a, b in (rows[-3:-1], rows[-2:]))
    return abs(early - late) / (late + (growth or 0.0) * gemms_us(rows[-1]))


def _numerics_warning(row: Row, model: Model) -> tuple[str, ...]:
    weights = weights_of(row.system, row.options)
    return (f"weights in {weights} instead of the model's {model.gemm_dtype.upper()}: numerics change",) if weights else ()
