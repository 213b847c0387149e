"""Runs a Program on the burst engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dysharp.engine.burst.lower import Lowered, lower
from dysharp.errors import SimulationError
from dysharp.program.tables import Program
from dysharp.program.trace import Trace
from dysharp.uarch import columns as col

SLICE_EVENTS = 2_000_000  # between two looks at the keyboard and the progress bar


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall seconds of one run: `compile_s` (or loading from the cache), `lower_s`, `engine_s` (the loop only)."""

    compile_s: float
    lower_s: float
    engine_s: float


def run_burst(program: Program, progress: Callable[[int, int], None] | None = None) -> tuple[Trace, Timing]:
    """Time `program`. `progress(done, total)` counts done ops. Raises SimulationError on deadlock, naming what waits."""
    begin = time.perf_counter()
    from dysharp.engine.burst.loop import run_loop, run_start

    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    a = lower(program)
    lower_s = time.perf_counter() - begin
    if not run_loop.signatures:
        begin = time.perf_counter()
        warm = lower(_empty(program))
        run_start(warm.op, warm.ot, warm.templates, warm.issuers, warm.heap_keys, warm.heap_ids, warm.dirty_issuers, warm.x)
        run_loop(0, *warm)
        compile_s += time.perf_counter() - begin
    begin = time.perf_counter()
    run_start(a.op, a.ot, a.templates, a.issuers, a.heap_keys, a.heap_ids, a.dirty_issuers, a.x)
    while run_loop(SLICE_EVENTS, *a):
        if progress:
            progress(int(a.x[col.X_DONE]), program.n_ops)
    engine_s = time.perf_counter() - begin
    if progress:
        progress(int(a.x[col.X_DONE]), program.n_ops)
    if a.x[col.X_DONE] < program.n_ops:
        raise SimulationError(deadlock_text(program, a))
    return trace_of(program, a), Timing(compile_s, lower_s, engine_s)


def _empty(program: Program) -> Program:
    """A Program of the same types with nothing in it: compiles the kernels."""
    from dysharp.program.builder import ProgramBuilder

    return ProgramBuilder(program.machine, 1).build()


def trace_of(program: Program, a: Lowered) -> Trace:
    """The Trace of a finished run."""
    return Trace(
        ready=a.ot[:-1, col.READY].copy(),
        issue=a.ot[:-1, col.ISSUE].copy(),
        start=a.ot[:-1, col.START].copy(),
        end=a.ot[:-1, col.END].copy(),
        done=a.ot[:-1, col.DONE].copy(),
        cause=a.op[:-1, col.CAUSE].copy(),
        member=a.mem_time[:-1, col.B_TIME].copy(),
        row_slot=a.rows[:, col.R_SLOT].copy(),
        tile_ready=a.tile_times[:, col.TT_READY].copy(),
        up_busy=a.nodes[:, col.UP + col.S_WIRE].copy(),
        down_busy=a.nodes[:, col.DOWN + col.S_WIRE].copy(),
        n_events=int(a.x[col.X_EVENTS]),
    )


def deadlock_text(program: Program, a: Lowered) -> str:
    """One line: how many ops are stuck and what the first of each kind waits for."""
    stuck = np.flatnonzero(a.ot[:-1, col.DONE] < 0)
    unready = stuck[a.ot[stuck, col.READY] < 0]
    unissued = stuck[(a.ot[stuck, col.READY] >= 0) & (a.ot[stuck, col.ISSUE] < 0)]
    parts = [f"deadlock at {int(a.x[col.X_NOW]) / 1e6:.3f} us: {len(stuck)} of {program.n_ops} ops are not done"]
    if len(unready):
        o = int(unready[0])
        name = program.templates[program.ops.template[o]].name
        parts.append(f"op {o} ({name}, node {program.ops.node[o]}) waits for {a.op[o, col.DEPS]} dependencies")
    if len(unissued):
        o = int(unissued[0])
        name = program.templates[program.ops.template[o]].name
        sems = [program.semaphores.name[s] for s in a.hold_sem[a.hold_ptr[o] : a.hold_ptr[o + 1]]]
        parts.append(f"op {o} ({name}) waits in {program.issuers.name[program.ops.issuer[o]]} for {sems or 'its turn'}")
    return "; ".join(parts)
