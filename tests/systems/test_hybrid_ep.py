"""Hybrid-EP's real form: which SM takes which token, what an SM has in flight, what surrounds the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import TINY

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted_values
from dysharp.systems import get_system
from dysharp.systems.hybrid_ep import CHUNK_TOKENS, IN_FLIGHT
from dysharp.workload import make_routing

CLUSTER = load_cluster("hw-dgx-b200").with_gpus(4)
WIDE = replace(TINY, hidden=4096)


def plan(tokens: int = 4 * CHUNK_TOKENS, direction: str = "fwd", **options: object) -> Program:
    hybrid = get_system("hybrid-ep")
    routing = make_routing("uniform", WIDE, 4, tokens)
    return hybrid.plan(WIDE, CLUSTER, routing, direction, hybrid.options(compute=False, **options))


def ops_of(program: Program, name: str) -> np.ndarray:
    mine = [i for i, t in enumerate(program.templates) if t.name == name]
    return np.flatnonzero(np.isin(program.ops.template, mine))


def kernel_us(program: Program) -> float:
    trace, _ = run_burst(program)
    return (trace.done[ops_of(program, "received")].max() - trace.done[ops_of(program, "dispatch.launch")].max()) / 1e6


def test_chunks_go_to_sms_in_turn() -> None:
    """Stores of one SM are those of its chunks, in token order; a GPU whose tokens are fewer chunks than SMs leaves SMs idle."""
    program = plan(tokens=4 * CHUNK_TOKENS, n_sm=3)
    puts, p = ops_of(program, "dispatch.put"), program
    name = np.array(p.issuers.name, object)
    stores = [op for op in ops_of(program, "dispatch.sm") if name[p.ops.issuer[op]] == "node[0].store"]
    issuers = np.unique(p.ops.issuer[stores])
    per_chunk = np.bincount(p.ops.key[puts[p.ops.node[puts] == 0]] // CHUNK_TOKENS, minlength=4)
    per_sm = np.bincount(np.searchsorted(issuers, p.ops.issuer[stores]))
    assert per_sm.tolist() == [per_chunk[0] + per_chunk[3], per_chunk[1], per_chunk[2]]
    idle = plan(tokens=4 * CHUNK_TOKENS, n_sm=16)
    assert len(np.unique(idle.ops.issuer[ops_of(idle, "dispatch.sm")])) == 4 * 2 * 4  # load and store of four SMs on four GPUs


def test_a_kernel_of_one_chunk_per_sm_takes_as_long_as_one_chunk() -> None:
    """SMs limit it here: two chunks for one SM take twice the work of one."""
    slow = {"sm.copy_GBps": 20.0}
    cluster = replace(CLUSTER, constants=tuple(slow.items()))
    hybrid = get_system("hybrid-ep")
    times = []
    for tokens, n_sm in ((CHUNK_TOKENS, 4), (4 * CHUNK_TOKENS, 4), (2 * CHUNK_TOKENS, 1)):
        routing = make_routing("uniform", WIDE, 4, tokens)
        times.append(kernel_us(hybrid.plan(WIDE, cluster, routing, "fwd", hybrid.options(compute=False, n_sm=n_sm))))
    one, four_on_four, two_on_one = (time - fitted_values()["blackwell.sync_us"] for time in times)
    assert four_on_four == pytest.approx(one, rel=0.01), "SMs side by side do not slow each other"
    assert two_on_one == pytest.approx(2 * one, rel=0.03), "only the first row's load and the last row's flight are not doubled"


@pytest.mark.parametrize("role", ["store", "read"])
def test_an_sm_never_has_more_rows_in_flight_than_it_holds(role: str) -> None:
    program = plan(tokens=8 * CHUNK_TOKENS, n_sm=2)
    trace, _ = run_burst(program)
    holds, names = program.holds, np.array(program.semaphores.name, object)
    most = 0
    for sem in [s for s in np.unique(holds.sem) if names[s].endswith(role)]:
        mine = holds.sem == sem
        events = sorted([(t, 1) for t in trace.issue[holds.acquire[mine]]] + [(t, -1) for t in trace.done[holds.release[mine]]])
        most = max(most, int(np.cumsum([step for _, step in events]).max()))
    assert 1 < most <= IN_FLIGHT[role]


def test_one_thread_of_an_sm_looks_at_every_gpu_for_each_token() -> None:
    program = plan(tokens=8 * CHUNK_TOKENS, n_sm=2)
    trace, _ = run_burst(program)
    for operator in ("dispatch", "combine"):
        looks = ops_of(program, f"{operator}.look")
        assert len(looks) == 4 * 8 * CHUNK_TOKENS
        one = looks[program.ops.issuer[looks] == program.ops.issuer[looks[0]]]
        took = np.diff(np.sort(trace.done[one]))
        assert took.min() >= round(4 * fitted_values()["hybrid.rank_us"] * 1e6)


def test_one_copy_per_gpu_each_way() -> None:
    program = plan()
    assert replace(program.declared, kernel_sms=0) == plan(form="paper").declared
    assert len(ops_of(program, "dispatch.put")) == len(ops_of(program, "combine.put"))


def test_maps_are_exchanged_forward_only() -> None:
    assert len(ops_of(plan(), "maps")) == len(ops_of(plan(), "scan")) == 4
    assert len(ops_of(plan(direction="bwd"), "maps")) == 0


def test_rows_are_permuted_or_copied_as_they_lie() -> None:
    """A copy out of the buffer moves each received copy once; a permutation writes a row for each of its experts."""
    permuted, copied = (run_burst(plan(permute=permute))[0].time_ps for permute in (True, False))
    assert copied < permuted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_sm": 0}, "hybrid-ep.n_sm: found 0, expected 1 to 148 SMs"),
        ({"n_sm": 149}, "hybrid-ep.n_sm: found 149"),
        ({"chunk": 0}, "hybrid-ep.chunk: found 0, expected at least 1 token"),
        ({"dispatch": "fp4"}, "hybrid-ep.dispatch: found 'fp4', expected rows or fp8"),
        ({"form": "unreal"}, "form: found 'unreal', expected one of auto, paper, real"),
    ],
)
def test_wrong_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan(**options)
