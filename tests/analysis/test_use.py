"""Use of the links over time: all bytes of the up links but acknowledgements, in the parts of the run in which they leave."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.analysis.count import copied_members, remote_members, sums_that_passed
from dysharp.analysis.load import BINS, up_use
from dysharp.base.units import PS_PER_US
from dysharp.engine.burst.run import run_burst
from dysharp.program.builder import PULLS
from dysharp.program.csr import owners
from dysharp.specs import load_cluster
from dysharp.systems.collectives import get_collective
from dysharp.workload.sublayer import SubLayer


@pytest.mark.parametrize("name", ["cais", "tp-nvls", "t3"])
def test_parts_and_acknowledgements_are_the_bytes_of_the_run(name: str) -> None:
    work, system = SubLayer("small", 4, 2048, 512, 128, 512), get_collective(name)
    p = system.plan(work, load_cluster("paper-cais-h100").with_gpus(4), system.options())
    trace = run_burst(p)[0]
    use, whole = up_use(p, trace), p.hardware.rate * trace.time_ps / PS_PER_US * p.n_nodes
    owner = owners(p.members.ptr)
    stored = remote_members(p) & ~np.isin(p.kinds(), PULLS)[owner]
    if p.sessions is not None:
        stored &= copied_members(p, sums_that_passed(p, trace), trace)
    acks = p.wires.ack_up[p.ops.wire[owner[stored]]].sum()
    assert len(use) == BINS
    assert sum(use) / BINS * whole + acks == pytest.approx(trace.up_busy.sum(), rel=2e-4)
