"""The critical path adds up, and blames what a constructed run is limited by."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dysharp.analysis import attribute
from dysharp.analysis.attribution import critical_path
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.systems import all_systems
from dysharp.testing.conformance.runs import _causes_add_up

HARDWARE = Hardware(
    rate=1_000_000, lat=100_000, ack=200_000, notify=200_000, responder=50_000, local=70_000, n_vcs=1, vc_bytes=0, n_links=1
)


@pytest.mark.parametrize("routing", ["uniform", "lognormal:0.8", "dropped", "one GPU"])
@pytest.mark.parametrize("system", all_systems())
def test_parts_sum_to_the_time(finished: Callable[..., Any], system: str, routing: str) -> None:
    assert list(_causes_add_up(finished(system, routing))) == []


def test_an_sm_that_takes_ops_in_turn_was_not_busy_before_the_first() -> None:
    """Three DELAYs in program order on one slot; only the first waits for the put, the others for the slot."""
    b = ProgramBuilder(HARDWARE, 2)
    put = b.template(Template("t", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store"))))
    _, row, _ = b.regions([1], np.ones(1, np.int64), 1024, 1)
    first = b.ops(put, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=1024, to=To([1], [1], [1], row + np.arange(1)))
    copy = b.template(Template("c", Kind.DELAY, "combine", "delay", tasks=1, duration=b.duration([0, 500_000])))
    delays = b.ops(copy, [1, 1, 1], issuer=b.issuer(1, Discipline.PROGRAM_ORDER, pool=b.pool(1, 1, "sm")), rows=1)
    b.edges(Tail.OP_DONE, [first], Head.OP_ISSUE, [delays])
    program = b.build()
    trace, _ = run_burst(program)
    causes, operators = critical_path(program, trace)
    assert (causes["sm"], operators["combine"]) == (1_500_000, 1_500_000)
    assert operators["dispatch"] == trace.time_ps - 1_500_000


@pytest.mark.parametrize("vc_bytes", [0, 4096])
def test_parts_sum_with_finite_and_infinite_buffers(finished: Callable[..., Any], vc_bytes: int) -> None:
    run = finished("deepep", "lognormal:0.8")
    program = replace(run.program, hardware=replace(run.program.hardware, vc_bytes=vc_bytes))
    trace, _ = run_burst(program)
    parts = attribute(program, trace)
    assert sum(parts.values()) == trace.time_ps


def build(add: Callable[[ProgramBuilder, int, list[int]], None], kind: Kind = Kind.PUT) -> Program:
    b = ProgramBuilder(HARDWARE, 3)
    template = b.template(Template("t", kind, "dispatch", "copy", framing=b.framing(Framing("store"))))
    add(b, template, [b.issuer(g, Discipline.PROGRAM_ORDER) for g in range(3)])
    return b.build()


def parts_of(program: Program) -> dict[str, int]:
    trace, _ = run_burst(program)
    parts = attribute(program, trace)
    assert sum(parts.values()) == trace.time_ps
    return {cause: ps for cause, ps in parts.items() if ps}


def puts(b: ProgramBuilder, template: int, issuers: list[int], sources: list[int], targets: list[int]) -> int:
    n = len(sources)
    _, row, _ = b.regions(targets, np.ones(n, np.int64), 1024, 1)
    to = To(np.ones(n, np.int32), targets, np.ones(n, np.int32), row + np.arange(n))
    return b.ops(template, sources, issuer=np.array(issuers)[sources], bytes=1024, to=to)


def test_one_put_is_its_serialisation_and_latency() -> None:
    parts = parts_of(build(lambda b, t, i: puts(b, t, i, [0], [1]) and None))
    wire = 1024 + 8 * 16  # eight packets of 128 B, a header flit each
    assert parts == {"link_up": wire * 1_000_000 // HARDWARE.rate, "latency": 2 * HARDWARE.lat + HARDWARE.ack}


def test_one_get_has_request_responder_and_response() -> None:
    def add(b: ProgramBuilder, t: int, issuers: list[int]) -> None:
        b.ops(t, [0], issuer=issuers[0], bytes=1024, to=To([1], [1]))

    parts = parts_of(build(add, Kind.GET))
    assert parts["latency"] == 4 * HARDWARE.lat + HARDWARE.responder
    assert set(parts) == {"latency", "link_up"}


def test_a_put_to_its_own_node_is_latency() -> None:
    assert parts_of(build(lambda b, t, i: puts(b, t, i, [0], [0]) and None)) == {"latency": HARDWARE.local}


def test_a_hot_receiver_is_the_down_link() -> None:
    parts = parts_of(build(lambda b, t, i: puts(b, t, i, [0] * 20 + [1] * 20, [2] * 40) and None))
    half = 20 * (1024 + 8 * 16) * 1_000_000 // HARDWARE.rate  # what the other sender put in between
    assert parts == {"link_up": half, "link_down": half, "latency": 2 * HARDWARE.lat + HARDWARE.ack}


def test_a_hot_sender_is_the_up_link() -> None:
    parts = parts_of(build(lambda b, t, i: puts(b, t, i, [0] * 40, [1, 2] * 20) and None))
    assert parts["link_up"] > 0.9 * (sum(parts.values()) - 2 * HARDWARE.lat - HARDWARE.ack)


@pytest.mark.parametrize(("capacity", "limit"), [(1, "window"), (1000, "link_up")])
def test_a_narrow_window_is_the_window(capacity: int, limit: str) -> None:
    def add(b: ProgramBuilder, t: int, issuers: list[int]) -> None:
        first = puts(b, t, issuers, [0] * 400, [1, 2] * 200)
        b.hold(b.semaphore(0, capacity), first + np.arange(400))

    parts = parts_of(build(add))
    assert parts[limit] == max(parts.values())
    if limit == "window":  # every put but the last waits out a round trip with idle links
        assert parts["window"] == pytest.approx(399 * (2 * HARDWARE.lat + HARDWARE.ack), rel=0.02)
    else:
        assert "window" not in parts


def test_tasks_beyond_the_slots_are_sm_and_a_delay_is_host() -> None:
    b = ProgramBuilder(HARDWARE, 1)
    gemm = b.template(Template("gemm", Kind.COMPUTE, "gemm1", tasks=3, duration=b.duration([0, 500])))
    delay = b.template(Template("launch", Kind.DELAY, "other", tasks=1, duration=b.duration([0, 70])))
    work = b.ops(gemm, [0, 0], issuer=b.issuer(0, Discipline.READY_FIFO, pool=b.pool(0, 2)), rows=1)
    wait = b.ops(delay, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER, pool=b.pool(0, 1, "host")), rows=1)
    b.edges(Tail.OP_DONE, wait, Head.OP_ISSUE, work + np.arange(2))
    assert parts_of(b.build()) == {"host": 70, "sm": 1500}


def test_an_empty_program_has_no_time() -> None:
    program = ProgramBuilder(HARDWARE, 1).build()
    trace, _ = run_burst(program)
    assert sum(attribute(program, trace).values()) == 0
