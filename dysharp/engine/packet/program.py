"""Runs a Program packet by packet: `run_packet`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.engine.burst.run import Timing, deadlock_text
from dysharp.engine.burst.run import trace_of as op_trace
from dysharp.engine.packet.deadlock import cycle_text
from dysharp.engine.packet.fabric import FabricConfig, build, grow
from dysharp.engine.packet.statistics import check_drained, statistics_of
from dysharp.errors import SimulationError
from dysharp.program.tables import Program
from dysharp.program.trace import Trace
from dysharp.uarch import columns as col
from dysharp.uarch.packet import columns as f
from dysharp.uarch.packet.state import Fabric
from dysharp.uarch.state import BurstState

SLICE_EVENTS = 4_000_000
LOG_STEPS = 1 << 20  # most steps of a table that are logged


@dataclass(frozen=True, slots=True)
class PacketRun:
    """What a run at packet level gives: the same Trace as at burst level, and what its blocks counted.

    `al_read` `[n_rows]` int64 ps: when an AL TLB last read the row's entry from memory, -1 = never. A table that evicts nothing reads
    each row once, at its first packet. `port_log` `[n, 4]`: kind (LOG_*), session, count and outcome of each step of the listened port's table.
    """

    trace: Trace
    timing: Timing
    statistics: dict[str, Any]
    al_read: NDArray[np.int64]
    port_log: NDArray[np.int64]


def run_packet(
    program: Program, config: FabricConfig | None = None, progress: Callable[[int, int], None] | None = None, *, listen: int = -1
) -> PacketRun:
    """Time `program` packet by packet; `listen`: a switch port (link) whose reduction table is logged.

    Raises SimulationError on deadlock, and if a flit or a credit is missing at the end.
    """
    begin = time.perf_counter()
    from dysharp.engine.burst.loop import run_start
    from dysharp.engine.packet.loop import run_events

    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    state, fabric = build(program, config or FabricConfig())
    if listen >= 0:
        log = np.zeros((LOG_STEPS + 1, 4), np.int64)
        log[0, 1] = listen
        fabric = fabric._replace(units=fabric.units._replace(log=log))
    x = state.clock.x
    lower_s = time.perf_counter() - begin
    if not getattr(run_events, "signatures", True):
        begin = time.perf_counter()
        run_events(0, state, fabric)
        compile_s += time.perf_counter() - begin
    begin = time.perf_counter()
    run_start(state)
    while run_events(SLICE_EVENTS, state, fabric):
        if x[f.RUN_STATUS] == f.GROW:
            fabric = grow(fabric, 2 * len(fabric.packets.packet))
        if progress:
            progress(int(x[col.RUN_DONE]), program.n_ops)
    engine_s = time.perf_counter() - begin
    if x[col.RUN_DONE] < program.n_ops:
        raise SimulationError(f"{deadlock_text(program, state)}{cycle_text(program, fabric)}")
    check_drained(program, state, fabric)
    trace, timing = trace_of(program, state, fabric), Timing(compile_s, lower_s, engine_s)
    return PacketRun(trace, timing, statistics_of(program, state, fabric), al_read(program, fabric), _log(fabric))


def _log(fabric: Fabric) -> NDArray[np.int64]:
    """The steps of the table that was listened to."""
    log = fabric.units.log
    return log[1 : log[0, 0] + 1] if len(log) else log


def al_read(p: Program, fabric: Fabric) -> NDArray[np.int64]:
    """When each row's entry was last read from memory; -1 = never."""
    if not fabric.agenda.c[f.C_AL]:
        return np.full(p.n_rows, -1, np.int64)
    due = fabric.hubs.reads[: p.n_rows, f.READ_DUE]
    return np.where(due > 0, due - fabric.agenda.c[f.C_AL_MISS], -1)


def trace_of(p: Program, state: BurstState, fabric: Fabric) -> Trace:
    """What the op level recorded; bytes on NVLink are the bytes of the packets that crossed its links."""
    m, shape = p.hardware, (p.n_nodes, p.hardware.n_links)
    up = fabric.lanes.link[:, f.LINK_FLITS].reshape(shape).sum(axis=1) * m.flit
    down = fabric.outputs.output[: len(fabric.lanes.link), f.OUTPUT_FLITS].reshape(shape).sum(axis=1) * m.flit
    trace = op_trace(p, state)
    return replace(trace, up_busy=np.append(up, trace.up_busy[p.n_nodes :]), down_busy=np.append(down, trace.down_busy[p.n_nodes :]))
