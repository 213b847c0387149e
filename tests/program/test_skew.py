"""`skewed`: hand-timed Programs with late and slow nodes; which ops wait for the DELAY; refusals."""

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.skew import Skew, skewed

HARDWARE = Hardware(rate=1_000_000, lat=1000, ack=0, notify=0, responder=0, local=0, n_vcs=1, vc_bytes=0, n_links=1)


def builder() -> ProgramBuilder:
    return ProgramBuilder(HARDWARE, 2)


def compute_after_put(kind: Kind = Kind.PUT, src: str = "x") -> Program:
    """Node 0 sends 2 ops of 1600 B to node 1 (GET: reads them); a COMPUTE of 5000 ps on each node, on node 1 after the first transfer."""
    b = builder()
    move = b.template(Template("move", kind, "dispatch", "copy", framing=b.framing(Framing("store")), src=src, dst="expert.x"))
    issuer = b.issuer(0, Discipline.PROGRAM_ORDER, name="copy")
    put = b.ops(move, [0, 0], issuer=issuer, bytes=1600, key=[0, 1], to=To(1, [1, 1]))
    gemm = b.template(Template("gemm1", Kind.COMPUTE, "gemm1", "gemm1", tasks=1, duration=b.duration([0, 5000], [0, 0])))
    sms = [b.issuer(node, Discipline.READY_FIFO, pool=b.pool(node, 1), name="sm") for node in (0, 1)]
    first = b.ops(gemm, [0, 1], issuer=sms)
    b.edges(Tail.OP_DONE, put, Head.OP_ISSUE, first + 1)
    return b.build()


def waits(program: Program) -> list[tuple[int, int]]:
    """(node of the DELAY, op) of every edge from a DELAY."""
    e = program.edges
    names = [program.templates[t].name for t in program.ops.template]
    return [(int(program.ops.node[t]), int(h)) for t, h in zip(e.tail, e.head, strict=True) if names[t] == "start"]


def test_nothing_given_is_the_same_program() -> None:
    program = compute_after_put()
    assert skewed(program, Skew((0, 0), (1.0, 1.0))) is program


def test_a_late_node_shifts_its_ops() -> None:
    program = compute_after_put()
    even, late = run_oracle(program), skewed(program, Skew((7000, 0), (1.0, 1.0)))
    trace = run_oracle(late)
    np.testing.assert_array_equal(trace.issue[:4] - even.issue[:4], 7000)  # node 1 waits for node 0
    assert trace.time_ps == even.time_ps + 7000
    assert waits(late) == [(0, 0), (0, 2)]  # the second PUT goes behind the first


def test_a_late_receiver_gets_its_rows_before_it_starts() -> None:
    program = compute_after_put()
    even, trace = run_oracle(program), run_oracle(skewed(program, Skew((0, 90_000), (1.0, 1.0))))
    np.testing.assert_array_equal(trace.member, even.member)
    assert trace.start[3] == 90_000


@pytest.mark.parametrize(("src", "expected"), [("x", [(1, 3), (1, 0), (1, 1)]), ("expert.y", [(1, 3)])])
def test_a_pull_of_tokens_waits_for_the_node_that_holds_them(src: str, expected: list[tuple[int, int]]) -> None:
    assert waits(skewed(compute_after_put(Kind.GET, src), Skew((0, 9000), (1.0, 1.0)))) == expected


def test_a_slow_node_takes_its_factor() -> None:
    program = compute_after_put()
    slow = skewed(program, Skew((0, 0), (1.0, 1.2)))
    even, trace = run_oracle(program), run_oracle(slow)
    took, was = trace.done - trace.start, even.done - even.start
    assert took[3] == 6000
    np.testing.assert_array_equal(took[:3], was[:3])
    assert [t.name for t in slow.templates] == ["move", "gemm1", "gemm1"]


def test_factors_round_up_and_scale_bytes() -> None:
    b = builder()
    gemm = b.template(Template("gemm1", Kind.COMPUTE, "gemm1", "gemm1", tasks=1, duration=b.duration([0, 3], [0, 7])))
    b.ops(gemm, [0, 1], issuer=[b.issuer(n, Discipline.READY_FIFO, pool=b.pool(n, 1)) for n in (0, 1)])
    slow = skewed(b.build(), Skew((0, 0), (1.5, 1.0)))
    assert slow.durations.tolist() == [[0, 3], [0, 5]]
    assert slow.task_bytes.tolist() == [[0, 7], [0, 11]]


@pytest.mark.parametrize(
    ("skew", "message"),
    [
        (Skew((0,), (1.0, 1.0)), "skew: found 1 start times and 2 factors, expected 2 of each"),
        (Skew((0, -1), (1.0, 1.0)), "skew: found a negative start time or a factor of 0 or less"),
        (Skew((0, 0), (1.0, 0.0)), "skew: found a negative start time or a factor of 0 or less"),
    ],
)
def test_wrong_values_are_refused(skew: Skew, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        skewed(compute_after_put(), skew)
