"""Runs a Program on the burst engine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dysharp.base.errors import SimulationError
from dysharp.base.values import frozen
from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.state import BurstState
from dysharp.engine.burst.lower import lower
from dysharp.engine.kernel import _is_compiled
from dysharp.program.tables import Kind, Program
from dysharp.program.trace import Trace

SLICE_EVENTS = 2_000_000  # between two looks at the keyboard and the progress bar


@frozen
class Timing:
    """Wall seconds of one run: `compile_s` (or loading from the cache), `lower_s`, `engine_s` (the loop only)."""

    compile_s: float
    lower_s: float
    engine_s: float


@frozen
class TableReads:
    """What the hubs looked up in their table. `rows`: rows that were asked for. `reads`: reads of memory, one or more for each row of a cache."""

    rows: int
    reads: int


def run_burst(program: Program, progress: Callable[[int, int], None] | None = None) -> tuple[Trace, Timing]:
    """Time `program`. `progress(done, total)` counts done ops. Raises SimulationError on deadlock, naming what waits."""
    return run_burst_counted(program, progress)[:2]


def run_burst_counted(program: Program, progress: Callable[[int, int], None] | None = None) -> tuple[Trace, Timing, TableReads]:
    """As `run_burst`, with the reads of the hubs' tables."""
    begin = time.perf_counter()
    from dysharp.engine.burst.loop import run_loop, run_start

    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    state = lower(program)
    x = state.clock.x
    lower_s = time.perf_counter() - begin
    if not _is_compiled(run_loop, SLICE_EVENTS, state):  # a Program with other points has kernels of its own
        begin = time.perf_counter()
        warm = lower(_empty(program))
        warm = warm._replace(ops=warm.ops._replace(points=state.ops.points))
        run_loop(0, warm)  # compiles longest; another process may compile the start meanwhile
        run_start(warm)
        compile_s += time.perf_counter() - begin
    begin = time.perf_counter()
    run_start(state)
    while run_loop(SLICE_EVENTS, state):
        if progress:
            progress(int(x[col.RUN_DONE]), program.n_ops)
    engine_s = time.perf_counter() - begin
    if progress:
        progress(int(x[col.RUN_DONE]), program.n_ops)
    if x[col.RUN_DONE] < program.n_ops:
        raise SimulationError(deadlock_text(program, state))
    return trace_of(program, state), Timing(compile_s, lower_s, engine_s), table_reads(program, state)


def table_reads(program: Program, state: BurstState) -> TableReads:
    """Counts of all hubs together; a row is asked for at one hub only."""
    if not program.tables:
        return TableReads(0, 0)
    asked = state.tables.asked[: program.n_rows, col.ASKED_KNOWN] > 0
    if program.row_table >= 0:
        asked |= state.tables.places[: program.n_rows, col.PLACE_STATE] != col.ROW_NEW
    return TableReads(int(asked.sum()), int(state.tables.hubs[:, col.HUB_MISSES].sum()))


def _empty(program: Program) -> Program:
    """A Program of the same types with nothing in it: compiles the kernels."""
    from dysharp.program.builder import ProgramBuilder

    return ProgramBuilder(program.hardware, 1).build()


def trace_of(program: Program, state: BurstState) -> Trace:
    """The Trace of a finished run."""
    ops, n = state.ops, program.n_ops
    return Trace(
        ready=ops.ot[:n, col.READY].copy(),
        issue=ops.ot[:n, col.ISSUE].copy(),
        start=ops.ot[:n, col.START].copy(),
        end=ops.ot[:n, col.END].copy(),
        done=ops.ot[:n, col.DONE].copy(),
        cause=ops.op[:n, col.CAUSE].copy(),
        member=state.members.mem_time[: program.n_members, col.MEMBER_TIME].copy(),
        row_slot=state.stores.rows[:, col.ROW_SLOT].copy(),
        tile_ready=state.stores.tile_times[:, col.TILE_READY].copy(),
        up_busy=state.links.nodes[:, col.UP + col.SERVER_WIRE].copy(),
        down_busy=state.links.nodes[:, col.DOWN + col.SERVER_WIRE].copy(),
        n_events=int(state.clock.x[col.RUN_EVENTS]),
    )


def deadlock_text(program: Program, state: BurstState) -> str:
    """One line: how many ops are stuck and what the first of each kind waits for."""
    ops, holds, n = state.ops, state.holds, program.n_ops
    stuck = np.flatnonzero((ops.ot[:n, col.DONE] < 0) & ((ops.op[:n, col.DEPS] < col.CANCELLED // 2) | (ops.ot[:n, col.READY] >= 0)))
    unready = stuck[ops.ot[stuck, col.READY] < 0]
    unissued = stuck[(ops.ot[stuck, col.READY] >= 0) & (ops.ot[stuck, col.ISSUE] < 0)]
    parts = [f"deadlock at {int(state.clock.x[col.RUN_NOW]) / 1e6:.3f} us: {len(stuck)} of {program.n_ops} ops are not done"]
    if len(unready):
        o = int(unready[0])
        name = program.templates[program.ops.template[o]].name
        parts.append(f"op {o} ({name}, node {program.ops.node[o]}) waits for {ops.op[o, col.DEPS]} dependencies")
    if len(unissued):
        o = int(unissued[0])
        name = program.templates[program.ops.template[o]].name
        sems = [program.semaphores.name[s] for s in holds.hold_sem[holds.hold_ptr[o] : holds.hold_ptr[o + 1]]]
        parts.append(f"op {o} ({name}) waits in {program.issuers.name[program.ops.issuer[o]]} for {sems or 'its turn'}")
    summing = stuck[(ops.ot[stuck, col.ISSUE] >= 0) & (program.kinds()[stuck] == Kind.PUSH_REDUCE)]
    if len(summing) and program.ops.session is not None:
        o = int(summing[0])
        parts.append(f"op {o} ({program.templates[program.ops.template[o]].name}) waits for the other contributions of sum {program.ops.session[o]}")
    return "; ".join(parts)
