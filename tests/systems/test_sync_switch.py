"""sync-switch and sync-dysharp: READY for every destination, rows that wait for it, and what is saved against barriers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.engine.burst.run import run_burst
from dysharp.functional.experts import IntegerExperts
from dysharp.functional.faults import Faults
from dysharp.functional.layer import Tensors
from dysharp.functional.numbers import number
from dysharp.functional.orders import make_pool
from dysharp.functional.queue_pairs import Messages
from dysharp.functional.rows import COMPLETIONS, DELIVERIES, RowMachine
from dysharp.oracle import run_oracle
from dysharp.program import Kind, Program
from dysharp.program.verify import verify
from dysharp.runs.options import options_by_system
from dysharp.specs import load_cluster
from dysharp.systems import get_system
from dysharp.workload import make_routing

GPUS, TOKENS = 4, 16
PLACES = {"sync-switch": cluster(GPUS), "sync-dysharp": cluster(GPUS), "real": load_cluster("hw-dgx-h200").with_gpus(GPUS)}
ROUTING = make_routing("lognormal:0.65", TINY, GPUS, TOKENS, seed=3)


def plan(place: str, direction: str = "fwd", system: str = "", **options: Any) -> Program:
    one = get_system(system or ("sync-switch" if place == "real" else place))
    program = one.plan(TINY, PLACES[place], ROUTING, direction, one.options(**options))
    verify(program)
    return program


def pushes(program: Program, operator: str) -> np.ndarray:
    """Ids of the ops that push rows of `operator` to another GPU."""
    of = [t.operator == operator and t.kind in (Kind.PUT, Kind.MULTICAST) for t in program.templates]
    first = program.members.node[np.minimum(program.members.ptr[:-1], program.n_members - 1)]
    several = np.diff(program.members.ptr) > 1
    return np.flatnonzero(np.array(of)[program.ops.template] & (several | (first != program.ops.node)))


@pytest.mark.parametrize(("place", "operators"), [("sync-switch", 2), ("real", 2), ("sync-dysharp", 1)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_row_waits_for_a_sum_of_its_generation(place: str, operators: int, direction: str) -> None:
    program = plan(place, direction)
    assert program.sessions is not None
    assert program.sessions.expected.tolist() == [GPUS - 1] * GPUS * operators
    for generation, operator in enumerate(("dispatch", "combine")[:operators]):
        assert set(program.ops.gate[pushes(program, operator)].tolist()) == {generation * GPUS}  # type: ignore[index]
    assert run_burst(program)[0].digest() == run_oracle(program).digest()


@pytest.mark.parametrize("place", ["sync-switch", "real", "sync-dysharp"])
def test_one_gpu_needs_no_ready(place: str) -> None:
    one = get_system("sync-switch" if place == "real" else place)
    program = one.plan(TINY, PLACES[place].with_gpus(1), make_routing("uniform", TINY, 1, 4), "fwd", one.options())
    verify(program)
    assert program.sessions is None


def test_barriers_go_and_a_flight_and_an_acknowledgement_with_them() -> None:
    """One row each way at most: the begin saves no more than the wait, the end a flight and an acknowledgement."""
    with_barriers, without = (run_burst(plan("real", system=system, compute=False))[0].time_ps for system in ("deepep-v2", "sync-switch"))
    layer = plan("real", compute=False).hardware
    assert 2 * (layer.lat + layer.ack) < with_barriers - without


def test_small_buffers_of_the_switch_hold_sources_back() -> None:
    """A late READY and buffers of one row: rows stay at their sources."""
    program = plan("real", compute=False)
    small = replace(program, hardware=replace(program.hardware, vc_bytes=1, n_vcs=1))
    rows = pushes(program, "dispatch")
    early, late = (run_burst(p)[0].start[rows] for p in (program, small))
    assert np.sort(late)[len(rows) // 2] > np.sort(early)[len(rows) // 2]


class Logged(RowMachine):
    """Counts rows of Dispatch that reach another GPU before any READY is in the switch."""

    early = 0
    ready = False

    def _deliver(self, member: int) -> None:
        op = self.owner[member]
        self.ready |= self.kind[op] == Kind.PUSH_REDUCE
        self.early += not self.ready and self.member_node[member] != self.node[op] and self.p.templates[self.template[op]].operator == "dispatch"
        super()._deliver(member)


@pytest.mark.parametrize("place", ["sync-switch", "sync-dysharp"])
def test_no_row_is_delivered_before_ready_and_without_gates_some_are(place: str) -> None:
    rng, experts = np.random.default_rng(0), IntegerExperts(TINY.n_experts, 8, 4)
    tokens = rng.integers(-3, 4, (ROUTING.n_tokens, experts.hidden)).astype(np.int32)
    tensors = Tensors(ROUTING, number("int32"), experts, tokens, np.where(ROUTING.slot >= 0, 1, 0))
    program = plan(place)

    def early(asked: Program) -> int:
        machines = [Logged(asked, tensors, make_pool("random", seed, None, DELIVERIES, COMPLETIONS), None, Messages(Faults())) for seed in range(5)]
        for machine in machines:
            machine.run(None)
        return sum(machine.early for machine in machines)

    assert early(program) == 0 < early(replace(program, ops=replace(program.ops, gate=None)))


def test_rows_are_those_of_deepep_v2_on_a_machine_of_today() -> None:
    """Its kernels are DeepEP V2's: what differs is the switch, not the format of rows."""
    h100 = load_cluster("hw-dgx-h100").with_gpus(GPUS)
    systems = {name: get_system(name) for name in ("deepep-v2", "sync-switch")}
    options = options_by_system(None, systems, replace(TINY, gemm_dtype="fp8", hidden=512), h100)
    assert options["sync-switch"] == options["deepep-v2"] == {"dispatch": "fp8"}
