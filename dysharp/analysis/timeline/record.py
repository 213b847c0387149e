"""`record`: one run of a Program with the log of its links and tables."""

import time

import numpy as np

from dysharp.analysis import program_bound
from dysharp.base import I64, PS_PER_US, ConfigError, OnProgress, SimulationError, frozen
from dysharp.engine.blocks.state import BurstState
from dysharp.engine.burst.lower import lower
from dysharp.engine.burst.run import TableReads, Timing, deadlock_text, table_reads, trace_of
from dysharp.program import Program, ProgramBuilder, Trace

SAMPLES = 1000
"""Samples of the hubs' tables in the time that the busiest resource needs."""
_FIRST_ROOM = 1 << 18


@frozen
class Log:
    """Logged events in the order of time. Columns `[n]` int64.

    | column | links | hubs |
    |---|---|---|
    | `at` | ps, grant | ps |
    | `until` | ps, the server is free again | 0 |
    | `what` | down: member that is sent, or -2 - op for a result | cached rows |
    | `count` | wire bytes of the train and of acknowledgements before it | rows read from memory so far |
    | `where` | port: network * nodes + node | table * nodes + node |
    """

    at: I64
    until: I64
    what: I64
    count: I64
    where: I64


@frozen
class Recording:
    """A finished run: its Trace, and the logs of its links and hub tables."""

    program: Program
    trace: Trace
    up: Log
    down: Log
    hubs: Log


def record(program: Program, progress: OnProgress | None = None) -> tuple[Recording, Timing, TableReads]:
    """Run `program` at burst level with logs, as `run_burst_counted`. Raises SimulationError on deadlock, ConfigError for bulk ops."""
    begin = time.perf_counter()
    bulk = program.bulk_ops()
    if len(bulk):
        trains = program.wires.trains[program.ops.wire[bulk[0]]]
        raise ConfigError(f"timeline: found op {bulk[0]} of {trains} trains, expected ops of one train (the log of a link cannot change)")
    from dysharp.analysis.timeline.recorder import run_logged
    from dysharp.engine.blocks import columns as col

    if not run_logged.signatures:
        _run(ProgramBuilder(program.hardware, 1).build(), None)
    compiled = time.perf_counter()
    state, logs = _run(program, progress)
    if state.clock.x[col.RUN_DONE] < program.n_ops:
        raise SimulationError(deadlock_text(program, state))
    recording = Recording(program, trace_of(program, state), *(Log(*log.T.copy()) for log in logs))
    return recording, Timing(compiled - begin, 0.0, time.perf_counter() - compiled), table_reads(program, state)


def _run(program: Program, progress: OnProgress | None) -> tuple[BurstState, list[I64]]:
    """The state at the end, and the logs of up links, down links and hubs."""
    from dysharp.analysis.timeline.recorder import SAMPLE_PS, run_logged
    from dysharp.engine.blocks import columns as col
    from dysharp.engine.burst.loop import run_start

    state = lower(program)
    run_start(state)
    nodes = state.links.nodes
    seen = np.zeros((2, len(nodes), 3), np.int64)
    counts = np.zeros(5, np.int64)
    counts[SAMPLE_PS] = max(1, int(program_bound(program).us * PS_PER_US) // SAMPLES)
    least = max(len(nodes), len(state.tables.hubs))
    logs = [np.zeros((_FIRST_ROOM + least, 5), np.int64) for _ in range(3)]
    while run_logged(state, seen[0], seen[1], *logs, counts):
        logs = [log if counts[i] + least <= len(log) else np.concatenate([log, np.zeros_like(log)]) for i, log in enumerate(logs)]  # twice as long
        if progress:
            progress(int(state.clock.x[col.RUN_DONE]), program.n_ops)
    return state, [log[: int(counts[i])] for i, log in enumerate(logs)]
