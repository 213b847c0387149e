"""One predicted layer of `advise` with its error bar, and the runs that one piece of advice shares."""

import dataclasses
from collections.abc import Mapping, Sequence

from dysharp.analysis import Row
from dysharp.analysis.load import memory_warning
from dysharp.analysis.surroundings import Surroundings
from dysharp.base import Amounts, ByName, DysharpError, Texts, frozen, named, plain
from dysharp.measured.intervals import Interval
from dysharp.measured.trust import PredictionScope, eager_is_known, trust_of, warnings_of
from dysharp.runs import PRECISION, WHOLE_ROWS, Job, Phase, Request, Result, Step, Value, Workers, Workload, header_of, layer_rows, make_workload
from dysharp.runs.formats import KNOB, formats_of, weights_of
from dysharp.specs import Cluster, Model
from dysharp.systems import get_system
from dysharp.systems.building.experts import AROUND


@frozen
class Predicted:
    """One system on one machine.

    row        the simulated Row; of a large layer that of the leading tokens, whose `window` estimates the layer
    tokens     tokens per GPU of the layer
    formats    formats of transfers and weights, and SMs of communication: "Dispatch FP8, Combine BF16, 20 SMs"
    interval   factors of `time_us` between which measured layers lie; None without measurements
    families   measured families behind the two errors
    warnings   warnings of the Row, of its formats and of its memory
    has_eager  True: eager layers of the system were measured, so its launches are known
    tried      {number of SMs of communication: layer time in us}; empty where the number was given
    edge       "fewest" or "most": no measurement has fewer (more) SMs than the chosen number; ""
    """

    row: Row
    tokens: int
    formats: str
    interval: Interval | None
    families: Texts
    warnings: Texts
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
        return self.row.layer_us

    @property
    def eager_us(self) -> float | None:
        """Layer time with the launches of the host; None where no eager layer of the system was measured."""
        return self.time_us + self.around.host_us if self.has_eager else None

    @property
    def around(self) -> Surroundings:
        """Surroundings of the Program; all zero where no GEMM runs."""
        return Surroundings(**(self.row.window or {}).get("surroundings_us", self.row.surroundings_us))

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs."""
        return self.row.gpus * self.tokens / self.time_us * 1e6

    def parts_us(self) -> Amounts:
        """The critical path by operator, and the surroundings; the sum is `time_us`."""
        path = (self.row.window or {}).get("path_us", self.row.path_us)
        gemms = path["gemm1"] + path["gemm2"]
        kernels = {"dispatch": path["dispatch"], "GEMMs": gemms, "combine": path["combine"], "other": path["other"]}
        return kernels | {"around": max(0.0, self.time_us - sum(kernels.values()))}

    def one_kernel_us(self) -> Amounts | None:
        """Where one kernel is the whole layer: its GEMMs, its copies, and waits. None for other systems.

        GEMMs: busy time of the SMs or of the memory of the busiest GPU, the longer of both. Copies: busy time of the
        busiest link. Waits: the least time with neither, which is 0 where GEMMs and copies must overlap.
        Leading tokens give the shares of the layer.
        """
        if not get_system(self.system).is_one_kernel(self.row.options):
            return None
        whole = self.time_us / self.row.time_us
        gemms = whole * _gemm_busy_us(self.row)
        copies = whole * max(self.row.utilization["up_max"], self.row.utilization["down_max"]) * self.row.program_us
        return {"GEMMs": gemms, "copies": copies, "waits": max(0.0, self.time_us - gemms - copies)}

    def bar(self) -> tuple[float, float] | None:
        """(low, high) in us: nine of ten measured layers are within this range of their prediction. None without measurements."""
        return None if self.interval is None else self.interval.around(self.time_us)

    def __repr__(self) -> str:
        return f"<Predicted: {self.row.system} {self.time_us:.1f} us; to_dict() shows all>"

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        low, high = self.bar() or (None, None)
        found = named(self.row, "system", "form", "options") | named(self, "formats", "time_us") | {"low_us": low, "high_us": high}
        typical, wide = (None, None) if self.interval is None else (self.interval.typical, self.interval.usual / 100)
        found |= {"eager_us": self.eager_us, "typical_error": typical, "p90_error": wide, "families": list(self.families)}
        found |= {"tokens_simulated": self.row.tokens_per_gpu, "simulated_us": self.time_us - self.parts_us()["around"]}
        found |= {"surroundings_us": plain(self.around)} | named(self, "parts_us", "one_kernel_us") | named(self.row, "phases_us", "exposed_comm_us")
        found |= {"tokens_per_s": self.tokens_per_s, "tried": {f"{KNOB}={n}": us for n, us in self.tried.items()}}
        return found | named(self, "edge", "warnings")


def _until(job: Job, like: Row | None) -> Job:
    """The job, stopped where its layer is large; where `like` stopped, if that is given."""
    request, system = job.workload.request, get_system(job.system)
    if system.moves.sent == "none" or (not like.window if like else layer_rows(request, system) <= WHOLE_ROWS):
        return job
    return job.to(PRECISION, like.window["tokens"] if like else None)


def _gemm_busy_us(row: Row) -> float:
    """Time for which GEMMs keep the SMs or the memory of the busiest GPU busy, the longer of both."""
    sms = row.utilization["sm_max"] * row.program_us
    return max(sms, row.bound_us) if row.bound_resource.endswith(".memory") else sms


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
        """A run of the system `name` with the options `given`."""
        return Job(name, given, workload or self.workload())

    def rows(self, jobs: Sequence[Job]) -> list[Result]:
        """The Rows of each job."""
        return self._workers.rows(jobs, self.request.progress)

    def predict(self, jobs: Sequence[Job], like: Row | None = None) -> list[Predicted | DysharpError]:
        """The prediction of each job, or the error with which it is refused. A large layer stops when its time is known.

        `like`: each stops where this Row did, so that what both leave out is the same, or has all tokens.
        """
        results = self.rows([_until(job, like) for job in jobs])
        return [rows if isinstance(rows, DysharpError) else self._predicted(job, rows[0]) for job, rows in zip(jobs, results, strict=True)]

    def _predicted(self, job: Job, row: Row) -> Predicted:
        workload = job.workload
        request = workload.request
        shares = {name: us / row.time_us for name, us in row.path_us.items() if name != AROUND.name}
        shares["surroundings"] = 1 - row.simulated_us / row.time_us
        asked = PredictionScope(row.system, request.model, request.cluster, request.tokens, request.direction, row.options, workload.routing)
        trust, unsettled = trust_of(asked, shares, row.layer_us), row.window["apart"] if row.window else 0.0
        memory = () if self.memory_warning else memory_warning(request.model, request.cluster, workload.routing)
        few = dataclasses.replace(asked, tokens=row.tokens_per_gpu)
        own = [text for text in row.warnings if text not in warnings_of(few)]
        warnings = (*trust.warnings, *own, *_numerics_warning(row, request.model), *memory)
        return Predicted(
            row=row,
            tokens=request.tokens,
            formats=formats_of(row.system, row.options, request.model),
            interval=trust.interval and trust.interval.wider(unsettled),
            families=trust.families,
            warnings=tuple(dict.fromkeys(warnings)),
            has_eager=eager_is_known(row),
            tried={},
        )


def _numerics_warning(row: Row, model: Model) -> Texts:
    weights = weights_of(row.system, row.options)
    return (f"weights in {weights} instead of the model's {model.gemm_dtype.upper()}: numerics change",) if weights else ()
