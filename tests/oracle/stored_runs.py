"""Regression values of the oracle on random Programs: its Trace by column, its counters, what is left at the end, and texts of deadlocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dysharp.base.errors import SimulationError
from dysharp.oracle import run as run_module
from dysharp.oracle.run import OracleRun
from dysharp.program.tables import Head, Program, Tail
from tests.interpreters.varied_programs import varied_programs
from tests.stored_values import Cases, Table, digest, parts_of

STORED = Table(__file__)
DEADLOCKS = ("random_bulk 4", "random_sums 3", "points, respond", "points, announced", "points, chains")


def run_values(program: Program) -> dict[str, Any]:
    """Counters and digests of one run."""
    run = OracleRun(program)
    run.play()
    trace, world, issuers, transfers = run.trace(), run.world, run.issuers, run.fabric.bulk
    left: dict[str, Any] = {
        "asked": sum(transfers.asked),
        "asking": sum(transfers.asking.values()),
        "under way": sum(b.under_way for b in transfers.of.values()),
    }
    left |= {"free": issuers.free, "held": issuers._held, "running": sum(issuers._tasks_running), "levels": world.semaphores.level}
    columns = {f.name: getattr(trace, f.name) for f in fields(trace)}
    return dict(sorted(world.counts.items())) | left | {n: digest(x) if isinstance(x, np.ndarray) else x for n, x in columns.items()}


def _more_edges(program: Program, *new: tuple[int, int, int, int]) -> Program:
    """`program` with more edges (kind of tail, tail, kind of head, head)."""
    e = program.edges
    columns = zip(("tail_kind", "tail", "head_kind", "head"), zip(*new, strict=True), strict=True)
    return replace(program, edges=replace(e, **{n: np.append(getattr(e, n), values).astype(np.int32) for n, values in columns}))


def stuck(program: Program) -> Iterator[tuple[str, Program]]:
    """Changes that keep a Program from its end."""
    last = program.n_ops - 1
    for op in (0, last // 3, last):
        yield f"op {op} waits for itself", _more_edges(program, (Tail.OP_DONE, op, Head.OP_ISSUE, op))
    half = program.n_ops // 2
    yield "a ring", _more_edges(program, (Tail.OP_DONE, half, Head.OP_ISSUE, half + 1), (Tail.OP_ISSUED, half + 1, Head.OP_ISSUE, half))
    if program.n_tiles:
        yield "tile", _more_edges(program, (Tail.OP_DONE, last, Head.TILE_NOTIFY, 0), (Tail.TILE_READY, 0, Head.OP_ISSUE, last))
    yield "no slots", replace(program, pools=replace(program.pools, slots=0 * program.pools.slots))
    yield "no room", replace(program, semaphores=replace(program.semaphores, capacity=0 * program.semaphores.capacity))
    if program.sessions is not None:
        yield "one more", replace(program, sessions=replace(program.sessions, expected=program.sessions.expected + 1))
    if program.ops.threshold is not None:
        joins = np.flatnonzero(program.ops.threshold >= 0)
        for which in (joins, joins[-1:]):
            more = program.ops.threshold.copy()
            more[which] += 7
            yield f"threshold of {len(which)}", replace(program, ops=replace(program.ops, threshold=more))
    respond = program.edges.head_kind == Head.MEMBER_RESPOND
    if respond.any():
        member = int(program.edges.head[respond.argmax()])
        owner = int(np.searchsorted(program.members.ptr, member, side="right")) - 1
        yield "response", _more_edges(program, (Tail.OP_DONE, owner, Head.MEMBER_RESPOND, member))


def _all_stuck(run: OracleRun) -> str:
    """The text with every op that is stuck."""
    with patch.object(run_module, "SHOWN", 1 << 20), pytest.raises(SimulationError) as error:
        run_module._raise_deadlock(run.world, run.dependencies, run.issuers, run.fabric, run.stores)
    return str(error.value)


def deadlock_texts(program: Program) -> dict[str, str]:
    """The first words of the oracle, and a digest of all of them, by change."""
    out = {}
    for change, changed in stuck(program):
        run = OracleRun(changed)
        try:
            run.play()
            out[change] = "ended"
        except SimulationError as error:
            out[change] = str(error).partition("; ")[0]
            out[f"{change}, all"] = digest(_all_stuck(run))
    return out


PROGRAMS = varied_programs()
CASES: Cases = {
    **{name: (lambda make=make: run_values(make())) for name, make in PROGRAMS.items()},  # type: ignore[misc]
    **{f"deadlock, {name}": (lambda name=name: deadlock_texts(PROGRAMS[name]())) for name in DEADLOCKS},  # type: ignore[misc]
}
KINDS = (*(f"random_{kind}" for kind in ("program", "bulk", "sums", "loads", "merge", "shares")), "crowded", "points")
PARTS = parts_of(CASES, *KINDS, "deadlock")
