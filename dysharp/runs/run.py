"""`run`, and one system on a shared workload: all passes, until its time is known, the fastest of several GEMM variants."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dysharp.analysis import Row, both_passes
from dysharp.base import PS_PER_US, AnyMapping, ByName, ConfigError, frozen
from dysharp.program import Program
from dysharp.runs.arguments import RequestArgs
from dysharp.runs.collective import collective_options, run_collective
from dysharp.runs.header import header_of
from dysharp.runs.known import NoEstimate, busiest_rows, may_stop, until_known
from dysharp.runs.memory import check_memory, gemm_variants
from dysharp.runs.one_pass import OnStage, run_pass
from dysharp.runs.options import options_by_system, options_of
from dysharp.runs.progress import telling
from dysharp.runs.request import Request, Workload, make_collective_request, make_request, make_workload, takes
from dysharp.specs import Cluster
from dysharp.systems import System, get_system
from dysharp.systems.collectives import get_collective
from dysharp.workload import Routing


@takes(RequestArgs)
def run(system: str, **request: Unpack[RequestArgs]) -> Row:
    """Simulate one MoE layer under one EP system, or one collective (`workload`) under one system of collectives, and measure it.

    The same arguments give the same Row but for wall times and memory.
    Raises TypeError for an unknown argument, ConfigError for wrong input, SimulationError for a deadlock.
    """
    if request["workload"] is not None:
        wanted = get_collective(system)
        asked = make_collective_request(request)
        return run_collective(wanted, asked, collective_options({system: wanted}, asked.options)[system])
    chosen = get_system(system)
    options, workload = prepare({chosen.name: chosen}, make_request(request))
    return run_point(chosen, options[chosen.name], workload)


def prepare(systems: Mapping[str, System], request: Request) -> tuple[ByName, Workload]:
    """The options of each system, and the workload of all. Options, fabric and memory are checked before anything is drawn.

    On an hw cluster a system has the formats of its released kernels, unless the request names other formats.
    """
    asked = options_by_system(request.options, systems, request.model, request.cluster)
    options = {name: options_of(system, asked[name]) for name, system in systems.items()}
    for name, system in systems.items():
        system.form_on(request.cluster, options[name])
        check_memory(system, request, options[name])
    tell = telling(request.progress, next(iter(systems), ""), 1, len(systems))
    tell("routing")
    workload = make_workload(request)
    if request.progress:
        tell("header", header=header_of(workload))
    return options, workload


def run_point(system: System, options: Any, workload: Workload, index: int = 1, count: int = 1) -> Row:
    """Simulate one system on a shared workload. The run is number `index` of `count` runs, for the progress.

    With `gemms=auto` on an hw cluster all GEMM variants run and the fastest Row is returned.
    """
    request = workload.request
    variants = gemm_variants(system, request, options)
    if variants[0] is not options:
        return min((run_point(system, variant, workload, index, count) for variant in variants), key=lambda row: row.time_us)
    on_stage = telling(request.progress, system.name, index, count)
    whole = dataclasses.replace(workload, request=dataclasses.replace(request, window=None, precision=None))
    try:
        if request.window or (request.precision and may_stop(request, system, options)):
            return until_known(workload, _Runs(system, options, on_stage))
    except NoEstimate:
        if request.precision is None:
            raise
    if request.precision:
        check_memory(system, whole.request, options)
    return _run_layer(system, options, whole, on_stage)


@frozen
class _Runs:
    """How a layer of one system is simulated (`known.Runs`)."""

    system: System
    options: Any
    on_stage: OnStage

    def layer(self, workload: Workload) -> Row:
        """One run."""
        return _run_layer(self.system, self.options, workload, self.on_stage)

    def experts(self, workload: Workload) -> Row | None:
        """One run at burst level, in one NVLink domain."""
        if (free := self.system.with_free_transfers()) is None:
            return None
        try:
            cluster = dataclasses.replace(workload.request.cluster, scale_out=None)
        except ConfigError:  # a mesh has no links to more GPUs
            return None
        request = dataclasses.replace(workload.request, cluster=cluster, fidelity="burst", fabric=(), waiting=False, progress=None)
        return _run_layer(free, self.options, dataclasses.replace(workload, request=request), lambda *_: None)

    def rows(self, routing: Routing, cluster: Cluster) -> int:
        """Of the busiest link."""
        return busiest_rows(self.system, routing, self.options, cluster.domain_gpus)


def _run_layer(system: System, options: Any, workload: Workload, on_stage: OnStage) -> Row:
    """One pass, or a forward pass and a backward pass on its row layout."""
    if workload.request.direction != "both":
        return run_pass(system, options, workload, workload.request.direction, on_stage)[0]
    forward, row_slot = run_pass(system, options, workload, "fwd", on_stage)
    return both_passes(forward, run_pass(system, options, workload, "bwd", on_stage, row_slot)[0])


@takes(RequestArgs)
def planned(name: str, directions: Sequence[str], chosen: AnyMapping | None = None, **request: Unpack[RequestArgs]) -> list[Program]:
    """The Programs of a system on one drawn workload, one for each of `directions` ("fwd", "bwd").

    `chosen`: the options of a Row of the system; None: those of the request. Raises ConfigError as `compare`.
    """
    asked, system = make_request(request), get_system(name)
    usual, workload = prepare({name: system}, asked)
    options = usual[name] if chosen is None else type(usual[name])(**chosen)
    return [system.plan(asked.model, asked.cluster, workload.routing, direction, options) for direction in directions]


def program_us(program: Program) -> float:
    """The time of a Program in microseconds. Raises ProgramError for one that breaks a rule."""
    from dysharp.engine.burst.run import run_burst
    from dysharp.program.verify import verify

    verify(program)
    return run_burst(program)[0].time_ps / PS_PER_US
