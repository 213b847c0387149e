"""`Row`: one simulated point, exactly the fields of `dysharp run --json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dysharp.analysis.attribution import critical_path
from dysharp.analysis.bound import pool_busy_ps, program_bound, workload_bound_us
from dysharp.analysis.count import group_transfers, traffic_bytes, wire_table
from dysharp.analysis.phases import LastGpu, utilization
from dysharp.program.tables import Kind, Program
from dysharp.program.trace import Trace
from dysharp.specs import Cluster, Model
from dysharp.systems import is_real
from dysharp.units import ps_to_us
from dysharp.workload import Routing

MODEL_VERSION = "3"
"""Raised by every change that moves a simulated number; the changelog says which and why."""

SURROUNDINGS = "surroundings_us"
"""The cause in `Row.attribution` of what surrounds a Program on an hw cluster."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was asked for: the inputs of one run, as they appear in its Row."""

    system: str
    model: Model
    cluster: Cluster
    routing: Routing
    layer: int | None  # layer of a recording, or the draw of a distribution; None = the default draw
    direction: str  # "fwd" or "bwd"
    fidelity: str
    seed: int
    options: dict[str, Any]
    free_links: bool = False  # links cost nothing by declaration ("ideal")


@dataclass(frozen=True, slots=True)
class WallTimes:
    """Wall seconds of the steps; `plan` includes the verifier and lowering, `total` leaves `compile_s` out."""

    routing: float
    plan: float
    engine: float
    analysis: float
    total: float


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one workload. Times in microseconds, sizes in bytes, shares between 0 and 1.

    `phases_us`: {operator: {start, end, busy}} on the GPU that finishes last; phases overlap. `exposed_comm_us`: part of that GPU's
    time with a transfer in flight and no GEMM running. `traffic_bytes`: payload {up, down: {dispatch, combine, other}}, all GPUs.
    `wire_flits`: {up, down}, everything. `utilization`: {up, down, sm} mean over GPUs, {up_max, down_max, sm_max}. `bound_us`,
    `bound_terms`, `bound_resource`: see `analysis.bound`; `attribution`: {link_up_us, link_down_us, sm_us, latency_us, window_us,
    host_us}, and on hw clusters surroundings_us, sums to `time_us`; `path_us`: the critical path by operator (keys of `phases_us`), sums to
    `simulated_us`; `stalls`: {window_us, link_us, sm_us} on the GPU that finishes
    last. In a backward pass the gradients of a GEMM count as that GEMM. `direction` "both": see `analysis.both_passes`. `blocks`: what the
    blocks of the fabric counted at packet level (`engine.packet.statistics`; of "both": the forward pass), empty at burst level. `window`:
    where only the first tokens of each GPU were run (then `tokens_per_gpu`, and every other field is about those), what follows for the
    whole: {tokens, of_tokens, time_us, us_per_token, half_window_time_us} (`api.window`), else empty. `warnings`: what lies outside the
    validated range (`analysis.trust`), on hw clusters. `surroundings_us`, on hw clusters where GEMMs run: what a layer has besides its Program
    (`analysis.surroundings`), {permute_us, activation_us, cast_us, launch_us, contention_us, host_us}. `time_us` has all of them but the
    host, as in a CUDA graph, `eager_us` the host too; phases, exposed communication, traffic, utilization, bounds and stalls are of the
    Program, which takes `simulated_us`.
    """

    system: str
    form: str
    model: str
    cluster: str
    gpus: int
    tokens_per_gpu: int
    topk: int
    layer: int | None
    routing: str
    direction: str
    fidelity: str
    seed: int
    options: dict[str, Any]
    time_us: float
    phases_us: dict[str, dict[str, float]]
    exposed_comm_us: float
    traffic_bytes: dict[str, dict[str, int]]
    wire_flits: dict[str, int]
    utilization: dict[str, float]
    bound_us: float
    bound_resource: str
    bound_terms: dict[str, float]
    workload_bound_us: float
    attribution: dict[str, float]
    path_us: dict[str, float]
    stalls: dict[str, float]
    n_ops: int
    n_events: int
    wall_s: dict[str, float]
    compile_s: float
    peak_rss_mb: float
    digest: str
    model_version: str
    blocks: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    window: dict[str, Any] = field(default_factory=dict)
    surroundings_us: dict[str, float] = field(default_factory=dict)

    @property
    def layer_us(self) -> float:
        """Time of the whole layer: `time_us`, or what the window says."""
        return float(self.window["time_us"]) if self.window else self.time_us

    @property
    def simulated_us(self) -> float:
        """Time of the Program, without what surrounds it."""
        return self.time_us - self.attribution.get(SURROUNDINGS, 0.0)

    @property
    def eager_us(self) -> float:
        """`time_us` with the launches of the host, which an eager layer does not hide."""
        return self.time_us + self.surroundings_us.get("host_us", 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values for JSON, in the order of their declaration; those that have defaults where there are any.

        With `surroundings_us` come `simulated_us` and `eager_us`.
        """
        out = dataclasses.asdict(self)
        for name in ("blocks", "warnings", "window", "surroundings_us"):
            if not out[name]:
                del out[name]
        return out | ({"simulated_us": self.simulated_us, "eager_us": self.eager_us} if self.surroundings_us else {})


def form_of(cluster: Cluster, options: Mapping[str, Any]) -> str:
    """"real" or "paper": what the option `form` says, by the family of the cluster where it is "auto"; without the option "paper"."""
    return "real" if is_real(str(options.get("form", "paper")), cluster) else "paper"


def make_row(point: Point, program: Program, trace: Trace) -> Row:
    """Measure a finished run. What the caller alone knows (wall times, memory) is zero: add it with `dataclasses.replace`."""
    # Hashing a large Trace takes as long as all the rest and leaves the interpreter free meanwhile.
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(trace.digest)
        row = _measure(point, program, trace)
    return dataclasses.replace(row, digest=digest.result())


def _measure(point: Point, program: Program, trace: Trace) -> Row:
    groups = group_transfers(program)
    wires = wire_table(program, groups)
    bound = program_bound(program, wires)
    last = LastGpu(program, trace)
    causes, operators = critical_path(program, trace)
    return Row(
        system=point.system,
        form=form_of(point.cluster, point.options),
        model=point.model.name,
        cluster=point.cluster.name,
        gpus=point.routing.n_gpus,
        tokens_per_gpu=point.routing.tokens_per_gpu,
        topk=point.model.topk,
        layer=point.layer,
        routing=point.routing.description,
        direction=point.direction,
        fidelity=point.fidelity,
        seed=point.seed,
        options=point.options,
        time_us=ps_to_us(trace.time_ps),
        phases_us=last.phases_us(),
        exposed_comm_us=ps_to_us(last.exposed_ps()),
        traffic_bytes=traffic_bytes(program, trace, groups),
        wire_flits=wires.flits(program.machine.flit),
        utilization=utilization(program, trace, pool_busy_ps(program)),
        bound_us=bound.us,
        bound_resource=bound.resource,
        bound_terms=bound.terms,
        workload_bound_us=workload_bound_us(
            point.model,
            point.cluster,
            point.routing,
            direction=point.direction,
            free_links=point.free_links,
            free_gemms=not any(t.kind is Kind.COMPUTE for t in program.templates),
        ),
        attribution={f"{cause}_us": ps_to_us(ps) for cause, ps in causes.items()},
        path_us={name: ps_to_us(ps) for name, ps in operators.items()},
        stalls=last.stalls_us(),
        n_ops=program.n_ops,
        n_events=trace.n_events,
        wall_s=dataclasses.asdict(WallTimes(0.0, 0.0, 0.0, 0.0, 0.0)),
        compile_s=0.0,
        peak_rss_mb=0.0,
        digest="",
        model_version=MODEL_VERSION,
    )
