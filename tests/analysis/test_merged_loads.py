"""Bytes of loads that merge in the switch: counted from the Trace, and in closed form (CAIS, traffic of an all-gather)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dysharp.analysis.count import group_transfers, loads_that_went_on, traffic_bytes, wire_table
from dysharp.base.errors import ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.program import Declared, Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.payload import moved_bytes
from dysharp.program.verify import verify

HARDWARE = Hardware(rate=450_000_000, lat=250_000, ack=500_000, notify=500_000, responder=100_000, local=1000, n_vcs=8, vc_bytes=16384, n_links=4)
ROW, ROWS = 2048, 12  # bytes of a row, rows of every GPU


def all_gather(gpus: int, *, merged: bool = True, places: int = 0, timeout_ps: int = 0, late_ps: int = 0) -> Program:
    """Every GPU loads the rows of all others, in the order of the rows, the last one from `late_ps` on. `merged`: equal loads merge."""
    b = ProgramBuilder(HARDWARE, gpus, ("request", "answer"))
    kind = Kind.MERGED_LOAD if merged else Kind.GET
    load = b.template(Template("load", kind, "dispatch", response_cls=1, framing=b.framing(Framing("store"))))
    home = np.repeat(np.arange(gpus), ROWS)
    address = b.loads(home, np.full(len(home), gpus - 1), places, timeout_ps) if merged else 0
    late = b.template(Template("late", Kind.DELAY, "other", tasks=1, duration=b.duration([0, late_ps]))) if late_ps else -1
    for gpu in range(gpus):
        far = np.flatnonzero(home != gpu)
        issuer = b.issuer(gpu, Discipline.PROGRAM_ORDER)
        session = address + far if merged else -1
        to = To(np.ones(len(far), int), home[far])
        first = b.ops(load, np.full(len(far), gpu), issuer=issuer, bytes=ROW, key=far, to=to, session=session)
        if late_ps and gpu == gpus - 1:
            start = b.ops(late, gpu, issuer=b.issuer(gpu, Discipline.PROGRAM_ORDER, pool=b.pool(gpu, 1)))
            b.edges(Tail.OP_DONE, start, Head.OP_ISSUE, first)
    size = gpus * ROWS * ROW
    traffic = {"up": {"dispatch": size if merged else (gpus - 1) * size}, "down": {"dispatch": (gpus - 1) * size}}
    return b.build(Declared(0, traffic))


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_traffic_of_an_all_gather(gpus: int) -> None:
    """Of S gathered bytes a GPU sends S / N where loads merge, (N - 1) S / N where they do not; it receives (N - 1) S / N."""
    size = gpus * ROWS * ROW
    for merged, up in ((True, size // gpus), (False, (gpus - 1) * size // gpus)):
        program = all_gather(gpus, merged=merged)
        verify(program)
        trace = run_burst(program)[0]
        counted = traffic_bytes(program, trace)
        assert counted["up"]["dispatch"] == gpus * up == moved_bytes(program)["up"]["dispatch"]
        assert counted["down"]["dispatch"] == (gpus - 1) * size
        table = wire_table(program, group_transfers(program, trace=trace))
        assert table.up[:, 0].tolist() == [up] * gpus
        assert (table.up.sum(axis=1) == trace.up_busy).all()
        assert (table.down.sum(axis=1) == trace.down_busy).all()
    assert loads_that_went_on(all_gather(gpus), None).sum() == gpus * ROWS


LATE_PS = 2_000_000  # within this time a GPU loads all rows, so the entries of a home wait for all of its rows


SIZES = [(0, 0, True), (ROWS, 0, True), (ROWS, 3_000_000, True), (2, 0, False), (0, 500_000, False)]


@pytest.mark.parametrize(("places", "timeout_ps", "all_merge"), SIZES)
def test_what_does_not_merge_goes_up_again(places: int, timeout_ps: int, all_merge: bool) -> None:
    """Entries have to outlast the drift of the GPUs, in number and in time."""
    program = all_gather(4, places=places, timeout_ps=timeout_ps, late_ps=LATE_PS)
    trace = run_burst(program)[0]
    went_on = 3 * 4 * ROWS - int((~loads_that_went_on(program, trace)).sum())
    assert (went_on == 4 * ROWS) == all_merge
    assert went_on <= 3 * 4 * ROWS
    assert traffic_bytes(program, trace)["up"]["dispatch"] == went_on * ROW
    table = wire_table(program, group_transfers(program, trace=trace))
    assert (table.up.sum(axis=1) == trace.up_busy).all()
    assert (table.down.sum(axis=1) == trace.down_busy).all()


def test_the_verifier_tells_loads_from_sums() -> None:
    program = all_gather(2)
    pushed = replace(program.templates[0], kind=Kind.PUSH_REDUCE, name="push")
    both = replace(program, templates=(*program.templates, pushed), ops=replace(program.ops, template=np.arange(program.n_ops, dtype=np.int32) % 2))
    assert program.sessions is not None
    one = replace(both, ops=replace(both.ops, session=np.zeros(both.n_ops, np.int32)), members=replace(both.members, node=both.members.node * 0))
    one = replace(one, sessions=replace(program.sessions, expected=np.full(2 * ROWS, ROWS // 2, np.int32)))
    with pytest.raises(ProgramError, match=r"session 0: found 6 contributions and 12 loads, expected ops of one kind"):
        verify(one)
    with pytest.raises(ProgramError, match=r"sessions: found timeout_ps -1, expected 0 or more"):
        verify(replace(program, sessions=replace(program.sessions, timeout_ps=-1)))
