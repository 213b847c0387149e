"""SMs of communication kernels are missing to the GEMMs beside them, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dysharp.analysis.contention import Overlap, made_up_ps, overlap_of, sm_contention_us
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.specs import Cluster, load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

CLUSTER: Cluster = load_cluster("hw-dgx-h100").with_gpus(4)
MODEL = replace(load_model("deepseek-v2-lite"), hidden=1024)


def finished(system: str, direction: str, **options: Any) -> tuple[Program, Trace]:
    chosen = get_system(system)
    program = chosen.plan(MODEL, CLUSTER, make_routing("uniform", MODEL, 4, 128), direction, chosen.options(**options))
    return program, run_burst(program)[0]


@pytest.mark.parametrize(
    ("shared", "kernels_end", "gemms_end", "n_sm", "late"),
    [
        (0, 900, 900, 20, 0),  # one after the other
        (1000, 900, 5000, 20, 200),  # 20 SMs for 1000 ps, made up by all 100 behind the kernel
        (1000, 900, 5000, 40, 400),  # twice the SMs
        (800, 1000, 800, 20, 200),  # 16000 SM ps on 80 SMs until the kernel's end
        (800, 900, 800, 20, 180),  # 8000 of them until its end, the other 8000 on all 100 behind it
        (800, 800, 500, 100, 1100),  # no SM is left: 300 ps until the kernel ends, then all of it
    ],
)
def test_missing_sms_are_made_up_for(shared: int, kernels_end: int, gemms_end: int, n_sm: int, late: int) -> None:
    assert made_up_ps(Overlap(shared, kernels_end, gemms_end), n_sm, 100) == late


@pytest.mark.parametrize("system", ["deepep", "hybrid-ep"])
def test_forward_kernels_run_one_after_the_other(system: str) -> None:
    program, trace = finished(system, "fwd", n_sm=8)
    assert [overlap_of(program, trace, gpu).shared_ps for gpu in range(4)] == [0] * 4
    assert sm_contention_us(program, trace, 8, CLUSTER.n_sms) == 0.0


@pytest.mark.parametrize("system", ["deepep", "hybrid-ep"])
def test_more_sms_for_combine_slow_weight_gradients(system: str) -> None:
    """Of one and the same run: the loss is in proportion to the SMs that are kept, as long as weight gradients end last."""
    program, trace = finished(system, "bwd", n_sm=8)
    n_sms = CLUSTER.n_sms
    last = max((overlap_of(program, trace, gpu) for gpu in range(4)), key=lambda overlap: overlap.gemms_end_ps)
    assert last.gemms_end_ps == trace.time_ps > last.kernels_end_ps
    assert last.shared_ps > 0
    few, many = (sm_contention_us(program, trace, n, n_sms) for n in (8, 32))
    assert few >= last.shared_ps * 8 / n_sms / 1e6
    assert many == pytest.approx(4 * few, rel=0.05)
    assert sm_contention_us(program, trace, 0, n_sms) == 0.0
