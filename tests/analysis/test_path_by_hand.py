"""Critical paths, waits and bounds of tiny Programs, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dysharp.analysis import attribute
from dysharp.analysis.bound import program_bound
from dysharp.analysis.phases import LastGpu
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To
from dysharp.program.nets import nets_of
from dysharp.specs import load_cluster

HARDWARE = Hardware(rate=1_000_000, lat=100_000, ack=200_000, notify=200_000, responder=50_000, local=70_000, n_vcs=1, vc_bytes=0, n_links=1)
ROUND_TRIP = 2 * HARDWARE.lat + HARDWARE.ack
NIC = nets_of(load_cluster("hw-dgx-h100-x2"))[0]
ROW, WIRE = 1024, 1024 + 8 * 16  # bytes; on the wire eight packets of 128 B with a header flit each


def puts(b: ProgramBuilder, n: int, net: int = 0) -> int:
    """`n` rows from node 0 to node 1. Returns the first op."""
    template = b.template(Template(f"put{net}", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store")), net=net))
    _, row, _ = b.regions([1], [n], ROW, n, alloc=Alloc.PREFIX)
    to = To([1] * n, [1] * n, [1] * n, row + np.arange(n))
    return b.ops(template, [0] * n, issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=ROW, to=to)


def parts_of(program: Program) -> dict[str, int]:
    trace, _ = run_burst(program)
    return {cause: ps for cause, ps in attribute(program, trace).items() if ps}


def behind_a_window() -> ProgramBuilder:
    """Two puts, one at a time."""
    b = ProgramBuilder(HARDWARE, 2)
    b.hold(b.semaphore(0, 1), puts(b, 2) + np.arange(2))
    return b


def test_a_step_of_software_that_waits_for_a_window_exposes_the_round_trip() -> None:
    """A DELAY on an SM in program order, behind another one, needs the semaphore that a put holds until its acknowledgement."""
    b = ProgramBuilder(HARDWARE, 2)
    put = puts(b, 1)
    delay = b.template(Template("d", Kind.DELAY, "combine", "delay", tasks=1, duration=b.duration([0, 5000])))
    after = b.ops(delay, [0, 0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER, pool=b.pool(0, 1, "sm")), rows=1)
    b.hold(b.semaphore(0, 1), [put, after + 1])
    assert parts_of(b.build()) == {"link_up": WIRE, "window": ROUND_TRIP, "sm": 5000}


def test_the_wait_for_a_window_lasts_until_the_acknowledgement() -> None:
    program = behind_a_window().build()
    trace, _ = run_burst(program)
    assert LastGpu(program, trace).stalls_us()["window_us"] == pytest.approx((WIRE + ROUND_TRIP) / 1e6)
    free = replace(program, holds=replace(program.holds, **{name: column[:0] for name, column in vars_of(program.holds).items()}))
    assert LastGpu(free, run_burst(free)[0]).stalls_us()["window_us"] == 0


def vars_of(table: Any) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.__dataclass_fields__}


@pytest.mark.parametrize("n", [1, 10])
def test_rows_by_nic_wait_for_the_nic(n: int) -> None:
    """All of the time is that of the NIC's own rate and flight, although a row went by NVLink before."""
    b = ProgramBuilder(HARDWARE, 4, nets=(NIC,), domain_nodes=2)
    puts(b, 3)
    template = b.template(Template("far", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store")), net=1))
    _, row, _ = b.regions([2], [n], ROW, n, alloc=Alloc.PREFIX)
    b.ops(template, [0] * n, issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=ROW, to=To([1] * n, [2] * n, [1] * n, row + np.arange(n)))
    program = b.build()
    trace, _ = run_burst(program)
    took = -(-WIRE * 1_000_000 // NIC.rate)
    parts = parts_of(program)
    assert sum(parts.values()) == trace.time_ps
    assert parts["nic_out"] == pytest.approx(n * took, rel=0.01)


def test_a_window_that_keeps_the_nic_busy_costs_nothing() -> None:
    """Two rows of 1 MB under way: while the way back of one takes 8 us, the NIC sends the other for 24 us."""
    n, size = 6, 1 << 20
    b = ProgramBuilder(HARDWARE, 4, nets=(NIC,), domain_nodes=2)
    template = b.template(Template("far", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store")), net=1))
    _, row, _ = b.regions([2], [n], size, n, alloc=Alloc.PREFIX)
    to = To([1] * n, [2] * n, [1] * n, row + np.arange(n))
    first = b.ops(template, [0] * n, issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=size, to=to)
    b.hold(b.semaphore(0, 2), first + np.arange(n))
    parts = parts_of(b.build())
    assert set(parts) == {"nic_out", "nic_latency"}
    assert parts["nic_out"] == pytest.approx(n * size / 128 * 144 * 1e6 / NIC.rate, rel=0.01)


def test_a_link_out_needs_nothing_to_begin() -> None:
    """The link out of the only sender is the bound: its bytes, and the hop of the last one."""
    b = ProgramBuilder(HARDWARE, 3)
    template = b.template(Template("t", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store"))))
    _, row, _ = b.regions([1, 2], [200, 200], ROW, 200)
    ones, to = np.ones(400, np.int32), np.repeat([1, 2], 200)
    b.ops(template, 0 * ones, issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=ROW, to=To(ones, to, ones, row + np.arange(400)))
    bound = program_bound(b.build())
    assert bound.resource == "gpu[0].up"
    assert bound.terms == {"payload": 400 * ROW / 1e6, "headers": 400 * (WIRE - ROW) / 1e6, "tail_latency": HARDWARE.lat / 1e6}
