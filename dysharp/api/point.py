"""`run`: one system on one workload."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dysharp.analysis import Point, Row, WallTimes, both_passes, make_row
from dysharp.analysis.contention import sm_contention_us
from dysharp.analysis.residence import row_visits
from dysharp.analysis.surroundings import surrounded, surroundings
from dysharp.api.memory import check_memory
from dysharp.api.options import Value, options_of, split_fabric, split_options
from dysharp.api.progress import Progress, Step
from dysharp.api.window import run_window
from dysharp.api.workload import DEFAULT_CLUSTER, DEFAULT_MODEL, Request, Workload, make_request, make_workload
from dysharp.measured.trust import PredictionScope, warnings_of
from dysharp.specs import Cluster, Model
from dysharp.systems import System, get_system
from dysharp.systems.ideal import GEMMS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dysharp.engine.burst.run import Timing
    from dysharp.program import Program, Trace


def run(
    system: str,
    *,
    model: str | os.PathLike[str] | Model = DEFAULT_MODEL,
    cluster: str | os.PathLike[str] | Cluster = DEFAULT_CLUSTER,
    gpus: int | None = None,
    tokens: int | None = None,
    layer: int | None = None,
    routing: str | None = None,
    direction: str = "fwd",
    seed: int = 0,
    fidelity: str = "burst",
    window: int | None = None,
    options: Mapping[str, Value] | None = None,
    placement: str = "auto",
    progress: Progress | None = None,
) -> Row:
    """Simulate one MoE layer under one EP system and measure it.

    `direction`: "fwd", "bwd" (alone, on the layout that an evenly running forward leaves), or "both" (backward on the layout that this
    forward left; the Row adds the two up).

    `model`, `cluster`: a packaged name, a file (TOML, Hugging Face `config.json`) or a loaded spec; `gpus`: GPUs in use (default: all
    of the cluster); `tokens`: per GPU (default: the model's own); `layer`: of a recording (default: the one of median imbalance);
    `routing`: a routing string (default: the model's own, see `workload`); `placement`: contiguous, auto, eplb or a file.
    `options`: {option: value} of the system; with `fidelity` "packet" also {"fabric.name": value} of the fabric's blocks
    (`engine.packet.fabric.FabricConfig`), and `window`: run only the first so many tokens of each GPU; `Row.window` then says what follows
    for all of them. The same arguments give the same Row but for wall times and memory.
    Raises ConfigError for wrong input, SimulationError for a deadlock.
    """
    chosen = get_system(system)
    fabric, rest = split_fabric(options, fidelity)
    values = options_of(chosen, split_options(rest, {chosen.name: chosen})[chosen.name])
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
        window=window,
        fabric=fabric,
    )
    check_memory(chosen, request)
    if progress:
        progress(Step(chosen.name, 1, 1, "routing"))
    return run_point(chosen, values, make_workload(request), progress)


def run_point(system: System, options: Any, w: Workload, progress: Progress | None, index: int = 1, count: int = 1) -> Row:
    """Plan, verify, run and measure one system on a shared workload, or a window of it; "both" passes one after the other, backward on
    forward's layout. GEMMs that may be a library's or a fused kernel's (option `gemms`) are on a real machine whichever takes less.
    """
    if w.request.cluster.family == "hw" and getattr(options, "gemms", "") == "auto":
        tried = [dataclasses.replace(options, gemms=word) for word in GEMMS]
        return min((run_point(system, each, w, progress, index, count) for each in tried), key=lambda row: row.time_us)

    def tell(stage: str, done: int = 0, total: int = 0) -> None:
        if progress:
            progress(Step(system.name, index, count, stage, done, total))

    if w.request.window is None:
        return _run_layer(system, options, w, tell)
    return run_window(w, lambda part: _run_layer(system, options, part, tell))


def _run_layer(system: System, options: Any, w: Workload, tell: Callable[..., None]) -> Row:
    if w.request.direction != "both":
        return _run_pass(system, options, w, w.request.direction, tell)[0]
    forward, row_slot = _run_pass(system, options, w, "fwd", tell)
    return both_passes(forward, _run_pass(system, options, w, "bwd", tell, row_slot)[0])


def _run_pass(
    system: System, options: Any, w: Workload, direction: str, tell: Callable[..., None], row_slot: NDArray[np.int32] | None = None
) -> tuple[Row, NDArray[np.int32]]:
    """One pass, a backward one on the layout `row_slot` (None: that of an evenly running forward). Returns the slots of its rows too."""
    begin = time.perf_counter()
    request = w.request
    tell("plan")
    from dysharp.program.relayout import relayout
    from dysharp.program.verify import verify

    program = system.plan(request.model, request.cluster, w.routing, direction, options)
    if row_slot is not None:
        program = relayout(program, row_slot)
    verify(program)
    plan_s = time.perf_counter() - begin
    tell("engine", 0, program.n_ops)
    importing = time.perf_counter()
    engine = _engine(request)  # numba loads here and nowhere earlier
    import_s = time.perf_counter() - importing
    trace, timing, blocks = engine(program, lambda done, total: tell("engine", done, total))
    tell("analysis")
    analysing = time.perf_counter()
    point = Point(
        system=system.name,
        model=request.model,
        cluster=request.cluster,
        routing=w.routing,
        layer=w.layer,
        direction=direction,
        fidelity=request.fidelity,
        seed=request.seed,
        options=dataclasses.asdict(options),
        free_links=system.traffic == "none",
    )
    row = _whole_layer(make_row(point, program, trace), w, program, trace)
    end = time.perf_counter()
    compile_s = import_s + timing.compile_s
    wall = WallTimes(
        routing=w.routing_s,
        plan=plan_s + timing.lower_s,
        engine=timing.engine_s,
        analysis=end - analysing,
        total=w.routing_s + end - begin - compile_s,
    )
    row = dataclasses.replace(row, wall_s=dataclasses.asdict(wall), compile_s=compile_s, peak_rss_mb=peak_rss_mb(), blocks=blocks)
    asked = PredictionScope(
        system.name, request.model, request.cluster, request.tokens, request.direction, dataclasses.asdict(options), w.routing
    )
    row = dataclasses.replace(row, warnings=warnings_of(asked))
    return row, trace.row_slot


def _whole_layer(row: Row, w: Workload, program: Program, trace: Trace) -> Row:
    """On a real machine the layer around the Program: without its GEMMs (`compute` = False) there is none."""
    model, cluster, options = w.request.model, w.request.cluster, row.options
    if cluster.family != "hw" or not options.get("compute", True):
        return row
    found = surroundings(row.system, model, cluster, w.routing, options=options, direction=row.direction)
    if row.form == "real":
        kept = int(options.get("n_sm", 0))
        found = dataclasses.replace(found, contention_us=sm_contention_us(program, trace, kept, cluster.n_sms))
    return surrounded(row, found)


def _engine(request: Request) -> Callable[[Program, Callable[[int, int], None]], tuple[Trace, Timing, dict[str, Any]]]:
    """The engine of the fidelity asked for: (Trace, wall times, statistics of its blocks) of a Program."""
    if request.fidelity == "packet":
        from dysharp.engine.packet.fabric import fabric_of
        from dysharp.engine.packet.program import run_packet

        def packet(program: Program, progress: Callable[[int, int], None]) -> tuple[Trace, Timing, dict[str, Any]]:
            config = dataclasses.replace(fabric_of(request.cluster), **dict(request.fabric))
            run = run_packet(program, config, progress)
            table = run.statistics["al_tlb"]
            table["rows"] = row_visits(program, run.trace, run.al_read) if table["lookups"] and not table["evictions"] else None
            return run.trace, run.timing, {"config": dataclasses.asdict(config), "ports": program.n_nodes * program.machine.n_links, **run.statistics}

        return packet
    from dysharp.engine.burst.run import run_burst

    return lambda program, progress: (*run_burst(program, progress), {})


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB (1e6 bytes); 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
