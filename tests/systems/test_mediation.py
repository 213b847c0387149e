"""Mediation delays Dispatch by its steps, and adds nothing where it is off."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY

from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.specs import load_cluster
from dysharp.specs.choices import choices_overridden
from dysharp.systems import get_system
from dysharp.workload import make_routing

CLUSTER = load_cluster("paper-dgx-h800").with_gpus(4)


def plan(name: str, **options: object) -> Program:
    system = get_system(name)
    return system.plan(TINY, CLUSTER, make_routing("uniform", TINY, 4, 16), "fwd", system.options(**options))


def first_row(program: Program) -> int:
    moves = np.array([t.operator == "dispatch" and t.fn == "copy" for t in program.templates])[program.ops.template]
    return int(run_burst(program)[0].issue[moves].min())


@pytest.mark.parametrize("name", ["comet", "comet-flux", "megatron-a2a", "tutel", "fastermoe", "ccfuser"])
def test_mediation_is_off_unless_asked_for(name: str) -> None:
    assert not any(t.name in ("mediation", "unpermute") for t in plan(name).templates)
    assert any(t.name == "mediation" for t in plan(name, mediation=True).templates)


def test_the_host_waits_for_the_counts() -> None:
    waits = {}
    for ns in (5000, 30000):
        with choices_overridden({"mediation.host_sync_ns": ns}):
            waits[ns] = first_row(plan("comet", mediation=True))
    assert waits[30000] - waits[5000] == 25_000_000


def test_a_permutation_takes_its_bytes() -> None:
    """Tutel with a fixed capacity waits for no count: its rows leave after the launch and the permutation."""
    program = plan("tutel", mediation=True, capacity=400)
    rows = 16 * TINY.topk
    moved = -(-2 * rows * TINY.row_bytes * 1_000_000 // 2_500_000)
    assert first_row(program) == 4_000_000 + moved


def test_an_all_gather_needs_no_counts() -> None:
    """COMET as released sends before the host knows the counts; its thread blocks wait for them."""
    plain, mediated = plan("comet-flux"), plan("comet-flux", mediation=True)
    assert first_row(plain) == first_row(mediated)
    first = {}
    for name, program in (("plain", plain), ("mediated", mediated)):
        gemm = np.array([t.operator == "gemm1" for t in program.templates])[program.ops.template]
        first[name] = int(run_burst(program)[0].start[gemm].min())
    assert first["mediated"] >= 15_000_000 > first["plain"]
