"""Use of the links over time: all bytes of the up links, in the parts of the run in which they leave."""

from __future__ import annotations

import pytest

from dysharp.analysis.use import BINS, up_use
from dysharp.engine.burst.run import run_burst
from dysharp.specs import load_cluster
from dysharp.systems.collectives import get_collective
from dysharp.units import PS_PER_US
from dysharp.workload.sublayer import SubLayer


@pytest.mark.parametrize("name", ["cais", "tp-nvls", "t3"])
def test_parts_add_up_to_the_bytes_of_the_run(name: str) -> None:
    work, system = SubLayer("small", 4, 2048, 512, 128, 512), get_collective(name)
    program = system.plan(work, load_cluster("paper-cais-h100").with_gpus(4), system.options())
    trace = run_burst(program)[0]
    use, whole = up_use(program, trace), program.hardware.rate * trace.time_ps / PS_PER_US * program.n_nodes
    assert len(use) == BINS
    assert all(one <= 1.1 for one in use)
    assert sum(use) / BINS * whole == pytest.approx(sum(trace.up_busy.tolist()), rel=0.06)  # acknowledgements are not in the parts
