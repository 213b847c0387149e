"""Moving and waiting of each operator on each rank: hand-timed Programs, and sums on every system."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dysharp.analysis.phases import merged
from dysharp.analysis.waiting import PARTS, _waiting_ps
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Discipline, Hardware, Head, Kind, ProgramBuilder, Tail, Template, To
from dysharp.program.skew import Skew, skewed
from dysharp.systems import all_systems

HARDWARE = Hardware(rate=1_000_000, lat=1000, ack=0, notify=0, responder=0, local=0, n_vcs=1, vc_bytes=0, n_links=1)


def parts(found: dict[str, dict[str, Any]], operator: str, rank: int) -> dict[str, int]:
    return {part: int(column[rank]) for part, column in found[operator].items()}


def test_four_parts_of_a_hand_timed_program() -> None:
    """Rank 0, one SM slot: GEMM-2 [0, 3), GEMM-1 [3, 5), idle until rank 1 is done at 9, GEMM-1 [9, 11), GEMM-2 [11, 14), GEMM-1 [14, 15) ns."""
    b = ProgramBuilder(HARDWARE, 2)
    one, two = (
        b.template(Template(name, Kind.COMPUTE, name, "", tasks=1, duration=b.duration([0, *ps]))) for name, ps in
        (("gemm1", (1000, 2000, 3000, 9000)), ("gemm2", (3000,)))
    )  # fmt: skip
    sm = [b.issuer(rank, Discipline.READY_FIFO, pool=b.pool(rank, 1)) for rank in (0, 1)]
    first = b.ops(two, [0], issuer=sm[0])
    second = b.ops(one, [0], issuer=sm[0], rows=2, prio=1)
    other = b.ops(one, [1], issuer=sm[1], rows=4)
    third = b.ops(one, [0], issuer=sm[0], rows=2)
    fourth = b.ops(two, [0], issuer=sm[0])
    fifth = b.ops(one, [0], issuer=sm[0])
    b.edges(Tail.OP_DONE, [other, third, fourth], Head.OP_ISSUE, [third, fourth, fifth])
    program = b.build()
    trace = run_oracle(program)
    assert (trace.start[[first, second, third, fourth, fifth]] == [0, 3000, 9000, 11000, 14000]).all()
    found = _waiting_ps(program, trace)
    assert parts(found, "gemm1", 0) == {"span": 15000, "moving": 5000, "resource": 3000, "own": 3000, "peers": 4000}
    assert parts(found, "gemm1", 1) == {"span": 9000, "moving": 9000, "resource": 0, "own": 0, "peers": 0}
    # GEMM-2: [0, 3), hidden behind GEMM-1 [3, 5) and [9, 11), idle [5, 9), [11, 14).
    assert parts(found, "gemm2", 0) == {"span": 14000, "moving": 6000, "resource": 0, "own": 4000, "peers": 4000}
    assert set(found) == {"gemm1", "gemm2"}


def test_a_receiver_waits_for_a_late_sender() -> None:
    b = ProgramBuilder(HARDWARE, 2)
    move = b.template(Template("put", Kind.PUT, "dispatch", "copy", framing=b.framing(Framing("store"))))
    puts = b.ops(move, [0, 1], issuer=[b.issuer(rank, Discipline.PROGRAM_ORDER) for rank in (0, 1)], bytes=1600, to=To(1, [1, 0]))
    program = skewed(b.build(), Skew((0, 50_000), (1.0, 1.0)))
    trace = run_oracle(program)
    found = _waiting_ps(program, trace)
    own, arrives = int(trace.done[puts]), int(trace.member[1])
    assert parts(found, "dispatch", 0) == {
        "span": arrives, "moving": own + arrives - 50_000, "resource": 0, "own": 0, "peers": 50_000 - own
    }  # fmt: skip
    # The late rank begins at its start; the row that came before does not count.
    moved = int(trace.done[1]) - 50_000
    assert parts(found, "dispatch", 1) == {"span": moved, "moving": moved, "resource": 0, "own": 0, "peers": 0}


def test_an_op_behind_a_waiting_op_does_not_wait_for_a_resource() -> None:
    """In program order the second op is ready at 0, but its turn comes when the first one is ready at 9 ns."""
    b = ProgramBuilder(HARDWARE, 2)
    slow = b.template(Template("gemm1", Kind.COMPUTE, "gemm1", "", tasks=1, duration=b.duration([0, 9000])))
    move = b.template(Template("put", Kind.PUT, "combine", "copy", framing=b.framing(Framing("store"))))
    peer = b.ops(slow, [1], issuer=b.issuer(1, Discipline.READY_FIFO, pool=b.pool(1, 1)))
    puts = b.ops(move, [0, 0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=160, to=To(1, [1, 1]))
    b.edges(Tail.OP_DONE, peer, Head.OP_ISSUE, puts)
    program = b.build()
    trace = run_oracle(program)
    assert trace.ready[puts + 1] == 0
    assert _waiting_ps(program, trace)["combine"]["resource"][0] <= trace.start[puts + 1] - 9000


@pytest.mark.parametrize("name", all_systems())
@pytest.mark.parametrize("routing", ["lognormal:0.65", "one GPU"])
def test_parts_sum_to_the_span(name: str, routing: str, finished: Callable[..., Any]) -> None:
    done = finished(name, routing)
    found = _waiting_ps(done.program, done.trace)
    assert found
    for columns in found.values():
        np.testing.assert_array_equal(sum(columns[part] for part in PARTS), columns["span"])
        assert all((column >= 0).all() for column in columns.values())
        assert columns["span"].max() <= done.trace.time_ps


@pytest.mark.parametrize("seed", range(20))
def test_a_union_covers_what_its_intervals_cover(seed: int) -> None:
    """Against a list of single picoseconds; touching intervals join, intervals may be empty."""
    draw = np.random.default_rng(seed)
    start = draw.integers(0, 60, int(draw.integers(1, 30)))
    end = start + draw.integers(0, 6, len(start))
    covered = {ps for low, high in zip(start, end, strict=True) for ps in range(low, high)}
    low, high = merged(start, end)
    assert {ps for a, b in zip(low, high, strict=True) for ps in range(a, b)} == covered
    assert (low[1:] > high[:-1]).all()
    assert (high >= low).all()
