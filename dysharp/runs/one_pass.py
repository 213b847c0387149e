"""One pass of one layer: plan, verify, run on the engine, measure."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dysharp.analysis import HostCosts, Row, RunInputs, WallTimes, make_row, measure
from dysharp.analysis.count import sums_that_passed
from dysharp.analysis.phases import row_visits
from dysharp.analysis.surroundings import surroundings
from dysharp.base import I32, AnyMapping, ByName, OnProgress, Texts
from dysharp.measured.trust import PredictionScope, warnings_of
from dysharp.runs.arguments import DEFAULT_CLUSTER
from dysharp.runs.header import header_of, settings_of
from dysharp.runs.options import without_effect
from dysharp.runs.request import Workload
from dysharp.specs import Cluster, Model, choice_int, load_cluster
from dysharp.systems import System
from dysharp.systems.building import STORE

if TYPE_CHECKING:
    from dysharp.engine.burst.run import Timing
    from dysharp.program import Program, Trace

REPEATED = 1.05
"""Reads of memory per row from which a table is called too small."""
EARLY = 0.01
"""Share of the sums that leave the switch early from which they are worth a warning."""
WAITS = 0.1
"""Share of the critical path that waits for automatic windows from which it is worth a warning."""
TRACKED = 128
"""Rows of a tracked tile of every packaged cluster."""
ROOM = 2
"""Bytes that the buffers of a link hold over those on their way from which both levels agree within 7 %."""
UNSEEN = (("reduction_buffer_bytes", "reduction_buffer_KiB", "PULL_REDUCE"), ("multimemq_entries", "multimemq_entries", "MULTICAST PULL_REDUCE"),
          ("internal_speedup", "internal_speedup", "PUT GET MULTICAST PULL_REDUCE PUSH_REDUCE MERGED_LOAD"))  # fmt: skip
"""(field, key) of a cluster whose block the burst level does not have, and the kinds of ops that meet it."""
LATER = 1.02
"""Share of the time without repeated reads from which they are worth a warning."""
MOST_OPS = 100_000
"""Ops of the largest Program that runs a second time at burst level. A larger Program gets no warning at burst level: its run would take twice as
long."""
OnStage = Callable[..., None]
"""`on_stage(stage, done, total)`; `done` of `total` ops, 0 = unknown."""
Engine = Callable[["Program", OnProgress], tuple["Trace", "Timing", ByName]]
"""(Trace, wall times, statistics of its blocks) of a Program; called with a Program and `progress(done, total)`."""


def run_pass(
    system: System, options: Any, workload: Workload, direction: str, on_stage: OnStage, row_slot: I32 | None = None,
    engine: Engine | None = None,
) -> tuple[Row, I32]:  # fmt: skip
    """The Row of one pass and the region slot of each row. `engine`: None = the engine of the request's fidelity.

    A backward pass runs on the layout `row_slot` of its forward pass; None: the layout of a forward pass whose GPUs keep step.
    """
    begin = time.perf_counter()
    request = workload.request
    on_stage("plan")
    program = _planned(system, options, workload, direction, row_slot)
    plan_s = time.perf_counter() - begin
    on_stage("engine", 0, program.n_ops)
    importing = time.perf_counter()
    engine = engine or engine_of(request.fidelity, request.cluster, request.fabric)  # numba loads here and nowhere earlier
    from dysharp.engine.compiling import on_compile

    import_s = time.perf_counter() - importing
    with on_compile(lambda compiled: on_stage("compiling", compiled)):
        trace, timing, blocks = engine(program, lambda done, total: on_stage("engine", done, total))
    on_stage("analysis")
    analysing = time.perf_counter()
    served = system.served(workload.routing, options)
    inputs = RunInputs(
        system=system.name, model=request.model, cluster=request.cluster, work=served, layer=workload.routing.layer, direction=direction,
        fidelity=request.fidelity, seed=request.seed, options=dataclasses.asdict(options), free_links=system.moves.sent == "none", skew=request.skew,
    )  # fmt: skip
    passed = sums_that_passed(program, trace)
    measured = measure(inputs, program, trace, waiting=request.waiting, passed=passed)
    plain = request.cluster.family != "hw" or not inputs.options.get("compute", True)  # no kernels of real GPUs, or no GEMMs
    around = None if plain else surroundings(system.name, request.model, request.cluster, served, options=inputs.options, direction=direction)
    asked = PredictionScope(system.name, request.model, request.cluster, request.tokens, request.direction, inputs.options, workload.routing)
    end = time.perf_counter()
    compile_s = import_s + timing.compile_s
    wall = WallTimes(
        routing=workload.routing_s, plan=plan_s + timing.lower_s, engine=timing.engine_s, analysis=end - analysing,
        total=workload.routing_s + end - begin - compile_s,
    )  # fmt: skip
    costs = HostCosts(wall, compile_s, peak_rss_mb())
    kept = int((workload.routing.slot >= 0).sum())
    dropped = max(0, kept - program.declared.useful_rows)
    assumed = (f"{system.name} assumes {system.reach.assumes}",) if system.reach.assumes and request.cluster.domains > 1 else ()
    lost = (f"{system.name} computes {kept - dropped} of {kept} (token, expert) rows: it drops {100 * dropped / kept:.1f} %",) if dropped else ()
    warnings = (
        *assumed, *_no_kernel_warning(system, request.model, inputs), *warnings_of(asked), *without_effect(system, options, request.cluster), *lost,
        *_table_warning(inputs, program, trace, blocks), *_sums_warning(inputs, program, int(passed.sum())), *left_early(inputs, blocks),
        *_window_warning(inputs, measured.attribution), *_burst_warnings(inputs, request.model, program), *_tile_warning(inputs),
        *_planes_warning(dict(request.fabric)),
    )  # fmt: skip
    blocks = blocks if request.fidelity == "packet" else {}
    header = (*header_of(workload), *settings_of(system.name, inputs.form, inputs.options, request))
    row = make_row(measured, around, costs, blocks=blocks, dropped_rows=dropped, warnings=warnings, header=header)
    return row, trace.row_slot


def _no_kernel_warning(system: System, model: Model, inputs: RunInputs) -> Texts:
    """Says that the released software of a real form does not run this model or GPU; `advise` leaves such systems out."""
    why = system.ships.why_not(model, inputs.cluster) if system.ships is not None and inputs.form == "real" else ""
    return (f"{system.name}: {why}; the layer is simulated as if there were a kernel",) if why else ()


def _planned(system: System, options: Any, workload: Workload, direction: str, row_slot: I32 | None) -> Program:
    """The verified Program of one pass."""
    from dysharp.program.relayout import relayout
    from dysharp.program.skew import skewed
    from dysharp.program.verify import verify

    request = workload.request
    program = system.plan(request.model, request.cluster, workload.routing, direction, options)
    if row_slot is not None:
        program = relayout(program, row_slot)
    if request.skew is not None:
        program = skewed(program, request.skew)
    verify(program)
    return program


def _table_warning(inputs: RunInputs, program: Program, trace: Trace, blocks: AnyMapping) -> Texts:
    """A warning where the table of the hubs reads rows again. `blocks`: counts of the engine."""
    if not program.tables:
        return ()
    if inputs.fidelity == "packet":
        al = blocks["al_tlb"]
        rows = max(al["allocated"], al["rows_read"])  # new rows of a row table are never read, rows that are only pulled never allocated
        entries, reads = blocks["config"]["al_entries"], al["misses"]
    else:
        entries, rows, reads = program.tables[0].entries, blocks["rows"], blocks["reads"]
    return table_warning(inputs.system, program, entries=entries, rows=rows, reads=reads, time_ps=trace.time_ps, fidelity=inputs.fidelity)


def table_warning(system: str, program: Program, *, entries: int, rows: int, reads: int, time_ps: int, fidelity: str) -> Texts:
    """One line where rows left the table and were read again, else ().

    `entries`: of one hub. `rows`: rows that were asked for. `reads`: reads of memory. The same Program with a table for
    all rows runs at burst level, so the line can say how much longer the layer takes (at burst level only up to `MOST_OPS` ops).
    """
    if not program.tables or not rows or reads < REPEATED * rows or (fidelity == "burst" and program.n_ops > MOST_OPS):
        return ()
    from dysharp.engine.burst.run import run_burst

    whole = tuple(dataclasses.replace(table, entries=0) for table in program.tables)
    later = time_ps / run_burst(dataclasses.replace(program, tables=whole))[0].time_ps
    if later < LATER:
        return ()
    name = program.tables[0].name.replace("_", " ").upper()
    told = f"{name} of {entries} entries per GPU is too small: a row is read {reads / rows:.1f} times from memory, and the layer takes"
    more = "; an entry may be read again for each packet of a row; only --fidelity packet shows these reads" if fidelity == "burst" else ""
    return (f"{system}: {told} {later:.2f} times as long as with entries for all rows{more}",)


def _sums_warning(inputs: RunInputs, program: Program, passed: int) -> Texts:
    """A warning where sums of pushes, `passed` of them, found no place in the switch."""
    if program.sessions is None or not passed:
        return ()
    found = f"{passed} of {len(program.sessions.home)} sums found none of the {program.sessions.places} places of their home in the switch"
    return (f"{inputs.system}: {found}; the contributions to these sums passed one by one (option sum_places)",)


def _window_warning(inputs: RunInputs, attribution: Mapping[str, float]) -> Texts:
    """A warning where full windows that nobody set take `WAITS` of the critical path: the automatic ones end at the published tables."""
    unset = [name for name, value in inputs.options.items() if name.endswith("_window") and value == 0]
    share = attribution["window_us"] / sum(attribution.values())
    if not unset or share < WAITS:
        return ()
    found = f"{share:.0%} of the critical path waits for full windows, which follow from latencies and published tables"
    return (f"{inputs.system}: {found}; larger ones may be faster (--set {inputs.system}.{unset[0]}=N)",)


def _burst_warnings(inputs: RunInputs, model: Model, program: Program) -> Texts:
    """Warnings of what the burst level leaves out: blocks below their published size; buffers of a link below `ROOM` times the bytes on their way,
    for which copies and sums of the switch wait; single links, which a row of few packets does not fill."""
    from dysharp.program.tables import Kind

    if inputs.fidelity == "packet" or not inputs.cluster.n_switches:
        return ()
    m, kinds, published = program.hardware, {Kind(template.kind).name for template in program.templates}, load_cluster(DEFAULT_CLUSTER)
    way, room, packets = m.rate * m.lat / 1e6, m.n_vcs * m.vc_bytes, STORE.packets(model.row_bytes)
    small = [key for field, key, needs in UNSEEN if getattr(inputs.cluster, field) < getattr(published, field) and kinds & {*needs.split()}]
    found = [f"{key} has no effect at burst level, and here it is below the published size" for key in small]
    if kinds & {"MULTICAST", "PULL_REDUCE", "PUSH_REDUCE", "MERGED_LOAD"} and 0 < room < ROOM * way:
        held = f"the buffers of a link hold {room / way:.1f} times the bytes on their way (rate x latency), expected {ROOM} or more"
        found.append(f"{held}; copies and sums in the switch are too fast at burst level")
    if packets < m.n_links and program.n_nodes > 1 and not inputs.free_links:
        found.append(f"a row has {packets} packets for {m.n_links} links of a GPU; waits for the fullest link are missing at burst level")
    return tuple(f"{inputs.system}: {text} (--fidelity packet)" for text in found)


def _tile_warning(inputs: RunInputs) -> Texts:
    """A warning where the cluster tracks other tiles than packaged clusters and GEMMs have."""
    own, rows = inputs.cluster.tile_rows, choice_int("gemm.tile_rows")
    found = f"tile_rows={own} of the cluster has no effect on a time: tiles of GEMMs have {rows} rows (choice gemm.tile_rows)"
    return (found,) if own not in (TRACKED, rows) else ()


def _planes_warning(fabric: AnyMapping) -> Texts:
    """A warning where a number of planes is asked for that changes nothing."""
    found = f"fabric.n_planes={fabric.get('n_planes')} has no effect: packets choose links, and only stripe=hash chooses by plane"
    return (found,) if "n_planes" in fabric and fabric.get("stripe") != "hash" else ()


def left_early(inputs: RunInputs, blocks: AnyMapping) -> Texts:
    """A warning where a full table of the switch let go `EARLY` of the sums before their last part. The burst level has no table and shows none."""
    if inputs.fidelity != "packet" or blocks["reduction"]["evictions"] <= EARLY * blocks["reduction"]["sessions"]:
        return ()
    left, all_of, entries = blocks["reduction"]["evictions"], blocks["reduction"]["sessions"], blocks["config"]["reduction_entries"]
    found = f"{left} of {all_of} sums of packets left the {entries} entries of their port before their last part, which went on alone"
    return (f"{inputs.system}: {found}; --fidelity burst has no such table",)


def engine_of(fidelity: str, cluster: Cluster, fabric: tuple[tuple[str, Any], ...]) -> Engine:
    """The engine of `fidelity`. It gives (Trace, wall times, statistics of its blocks) of a Program. `fabric`: as in `Request`."""
    if fidelity == "packet":
        from dysharp.engine.packet.fabric import asked_fabric, with_table
        from dysharp.engine.packet.program import run_packet

        def packet(program: Program, progress: OnProgress) -> tuple[Trace, Timing, ByName]:
            config = with_table(program, asked_fabric(cluster, dict(fabric)))
            run = run_packet(program, config, progress)
            table = run.statistics["al_tlb"]
            table["rows"] = row_visits(program, run.trace, run.al_read) if table["lookups"] and not table["evictions"] else None
            ports = program.n_nodes * program.hardware.n_links
            return run.trace, run.timing, {"config": dataclasses.asdict(config), "ports": ports, **run.statistics}

        return packet
    from dysharp.engine.burst.run import run_burst_counted
    from dysharp.program import with_hardware
    from dysharp.program.constants import hardware_with

    def burst(program: Program, progress: OnProgress) -> tuple[Trace, Timing, ByName]:
        given = with_hardware(program, hardware_with(program.hardware, dict(fabric))) if fabric else program
        trace, timing, counted = run_burst_counted(given, progress)
        return trace, timing, dataclasses.asdict(counted)

    return burst


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB (1e6 bytes); 0 where the system does not tell."""
    with suppress(OSError):  # Linux: `getrusage` counts the memory of the process that started this one too
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
