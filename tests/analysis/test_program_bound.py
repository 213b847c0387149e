"""The bound of tiny Programs, by hand."""

from __future__ import annotations

import pytest

from dysharp.analysis.bound import program_bound
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To

LOCAL, LAT, TASK = 100, 1000, 500_000
HARDWARE = Hardware(rate=1_000_000, lat=LAT, ack=2000, notify=2000, responder=500, local=LOCAL, n_vcs=1, vc_bytes=0, n_links=1)


def program(told: bool) -> Program:
    """Op 0 computes on node 1. Op 1 brings a row from node 0; its notification releases op 0 if `told`."""
    b = ProgramBuilder(HARDWARE, 2, ("data",))
    gemm = b.template(Template("gemm", Kind.COMPUTE, "gemm1", tasks=1, duration=b.duration([0, TASK])))
    send = b.template(Template("send", Kind.MULTICAST, "dispatch", framing=b.framing(Framing("store"))))
    b.regions([1], [1], 256, 1, alloc=Alloc.FIRST_TOUCH, key=[0], name="expert")
    b.ops(gemm, [1], issuer=b.issuer(1, Discipline.READY_FIFO, pool=b.pool(1, 1), name="sm"), rows=1)
    b.ops(send, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER, name="send"), bytes=256, to=To([1], [1], [1], [0]))
    if told:
        b.notify([0], [0])
    return b.build()


@pytest.mark.parametrize("told", [True, False])
def test_a_gemm_that_a_notification_releases_begins_after_a_delivery(told: bool) -> None:
    """No delivery is faster than a local one, 100 ps. Op 0 counts as any other op."""
    bound = program_bound(program(told))
    assert bound.resource.startswith("gpu[1]")
    assert bound.us == pytest.approx((TASK + (LOCAL if told else 0)) / 1e6)
    assert bound.terms == pytest.approx({"compute": TASK / 1e6} | ({"head_latency": LOCAL / 1e6} if told else {}))
