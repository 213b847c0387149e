"""One collective under one system: plan, verify, run on the engine, measure."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from dysharp.analysis import HostCosts, Row, RunInputs, WallTimes, make_row, measure
from dysharp.analysis.load import up_use
from dysharp.analysis.merging import merging_of
from dysharp.base import ByName, Texts
from dysharp.measured.trust import no_rows
from dysharp.program import Program
from dysharp.program.verify import verify
from dysharp.runs.header import domain_lines
from dysharp.runs.one_pass import Engine, engine_of, left_early, peak_rss_mb
from dysharp.runs.options import Value, options_of, split_options
from dysharp.runs.progress import telling
from dysharp.runs.request import CollectiveRequest
from dysharp.systems.collective_system import CollectiveSystem
from dysharp.systems.collectives import all_collectives, all_tensor_parallel
from dysharp.systems.registry import is_real
from dysharp.workload import SubLayer


def collective_options(systems: Mapping[str, CollectiveSystem], given: Mapping[str, Value]) -> ByName:
    """The Options of each system. Raises ConfigError as `options.split_options` and `options.options_of`."""
    asked = split_options(given, systems)
    return {name: options_of(system, asked[name]) for name, system in systems.items()}


def running(request: CollectiveRequest) -> dict[str, CollectiveSystem]:
    """The systems that run the request's collective on its cluster."""
    return {name: system for name, system in (all_collectives() | all_tensor_parallel()).items() if not system.why_not(request.work, request.cluster)}


def planned(system: CollectiveSystem, request: CollectiveRequest, options: Any) -> Program:
    """The verified Program. Raises ConfigError where the system does not run the collective."""
    program = system.plan(request.work, request.cluster, options)
    verify(program)
    return program


def run_collective(
    system: CollectiveSystem, request: CollectiveRequest, options: Any, *, index: int = 1, count: int = 1, engine: Engine | None = None
) -> Row:
    """The Row of one run, number `index` of `count` for the progress. `engine`: None = the engine of the request's fidelity."""
    on_stage = telling(request.progress, system.name, index, count)
    begin = time.perf_counter()
    on_stage("plan")
    program = planned(system, request, options)
    plan_s = time.perf_counter() - begin
    importing = time.perf_counter()
    engine = engine or engine_of(request.fidelity, request.cluster, request.fabric)
    import_s = time.perf_counter() - importing
    trace, timing, blocks = engine(program, lambda done, total: on_stage("engine", done, total))
    on_stage("analysis")
    analysing = time.perf_counter()
    inputs = RunInputs(
        system=system.name, model=None, cluster=request.cluster, work=request.work, layer=None, direction="fwd", fidelity=request.fidelity,
        seed=request.seed,
        options=dataclasses.asdict(options) | {"form": "real" if is_real(getattr(options, "form", "auto"), request.cluster) else "paper"},
    )  # fmt: skip
    measured = measure(inputs, program, trace)
    end = time.perf_counter()
    compile_s = import_s + timing.compile_s
    wall = WallTimes(0.0, plan_s + timing.lower_s, timing.engine_s, end - analysing, end - begin - compile_s)
    ports = max(1, request.cluster.n_switches)
    merging = merging_of(program, trace, ports) if isinstance(request.work, SubLayer) else {}
    said = (*(f"{system.name}: {text}" for text in system.says(request.work, request.cluster, options)),)
    unjudged = () if system.build.__module__.startswith("dysharp.") else (f"{system.name}: no measurement checks its predictions",)
    warned = (f"warning: {text}" for text in (*unjudged, *left_early(inputs, blocks)))
    header = (*_header_of_collective(request), *said, *warned, *(_levels_part(system.name, merging) if request.fidelity == "burst" else ()))
    blocks = (blocks if request.fidelity == "packet" else {}) | ({"merging": merging} if merging else {})
    if isinstance(request.work, SubLayer):
        blocks |= {"links": {"up_use": up_use(program, trace)}}
    return make_row(measured, None, HostCosts(wall, compile_s, peak_rss_mb()), blocks=blocks, header=header)


def _levels_part(name: str, merging: ByName) -> Texts:
    """What a run at burst level says where most loads did not merge: replies wait for no channel there, and queue for one at packet level."""
    alone, loads = merging.get("loads_on", 0), merging.get("loads", 0)
    told = f"warning: {name}: {alone} of {loads} loads did not merge; --fidelity packet, where replies queue for channels, is up to 10 % longer"
    return (told,) * bool(2 * alone > loads)


def _header_of_collective(request: CollectiveRequest) -> Texts:
    """What was asked, the machine, and what is not measured."""
    cluster, unmeasured = request.cluster, no_rows(request.cluster)
    basis = unmeasured.partition(":")[0] if unmeasured else "calibrated to measurements"
    charged = "software costs are" if cluster.gpu else "launches at different times are"
    lines = [
        f"{request.work.description}; {cluster.n_gpus} GPUs",
        f"cluster {cluster.name} ({cluster.family} family: {basis if cluster.gpu else 'assumptions of a paper'}, {charged} charged)",
        *domain_lines(cluster),
    ]
    return (*lines, f"warning: {unmeasured}") if unmeasured else tuple(lines)
