"""FasterMoE's shadows: which experts get one, which rows they serve, their weights and gradients on the links."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster, layers

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.program.payload import moved_bytes
from dysharp.specs import load_cluster
from dysharp.systems import fastermoe, get_system
from dysharp.testing.conformance import conformance
from dysharp.testing.conformance.suite import RULES
from dysharp.workload import Routing, make_routing, rows_per_expert
from dysharp.workload.placement import with_shadows, worth_shadows
from dysharp.workload.routing import rows_per_slot

FASTERMOE = get_system("fastermoe")
ROUTING = make_routing("lognormal:1", TINY, 8, 24, seed=1)  # two experts per GPU
COST = 9  # rows: a few of the experts get a shadow
REAL_FORM = {"pure_communication_has_no_surroundings"}  # refused with shadows


def options(**given) -> fastermoe.Options:
    return fastermoe.Options(**{"shadow": COST, "group": 2, **given})


def run(direction: str, routing: Routing = ROUTING, **given) -> tuple[Program, Trace]:
    program = FASTERMOE.plan(TINY, cluster(8), routing, direction, options(**given))
    return program, run_burst(program)[0]


def ops(program: Program, name: str) -> np.ndarray:
    return np.flatnonzero(np.isin(program.ops.template, [i for i, t in enumerate(program.templates) if t.name == name]))


def released(rows: np.ndarray, hidden: int, bandwidth: float = 50e9 / 8, flops: float = 11.5e12, alpha: float = 2.0) -> list[int]:
    """The policy of the released code in seconds, with its default constants."""
    order = sorted(range(len(rows)), key=lambda e: (-rows[e], e))
    send, model, compute = hidden * 4 / bandwidth, 2 * alpha * hidden**2 * 4 / bandwidth, 4 * alpha * hidden**2 / flops
    best, copies, chosen = (3 * compute + 4 * send) * rows[order[0]], 0.0, []
    for expert, following in itertools.pairwise(order):
        copies += model
        new = (3 * compute + 4 * send) * rows[following] + copies
        if new >= best:
            break
        best, chosen = new, [*chosen, expert]
    return chosen


@pytest.mark.parametrize(("hidden", "cost"), [(2048, 767), (4096, 944), (7168, 1047)])
def test_the_rule_in_rows_is_that_of_the_released_code(hidden: int, cost: int) -> None:
    """At its default constants; loads with several hot experts."""
    rng = np.random.default_rng(hidden)
    sizes = set()
    for _ in range(200):
        rows = np.round(8192 * np.exp(rng.normal(0, 0.8, 64))).astype(np.int64)
        exact = 2 * 2 * hidden * hidden * 4 / (50e9 / 8) / (12 * 2 * hidden**2 / 11.5e12 + 16 * hidden / (50e9 / 8))
        assert round(exact) == cost
        assert worth_shadows(rows, exact).tolist() == released(rows, hidden)
        sizes.add(len(worth_shadows(rows, cost)))
    assert len(sizes) > 3
    assert worth_shadows(np.full(8, 100), 1).tolist() == []
    assert worth_shadows(np.array([5, 5, 0, 9]), 0.5).tolist() == [3], "no step down from 5 to 5"
    assert worth_shadows(np.array([9, 6, 3]), 1).tolist() == [0, 1], "one expert stays"


def test_a_shadow_serves_the_own_tokens_of_its_gpu() -> None:
    hot = np.sort(worth_shadows(rows_per_expert(ROUTING), COST))
    assert 1 < len(hot) < 8
    routing = with_shadows(ROUTING, hot)
    p = routing.placement
    assert (p.slots_per_gpu, p.shadows) == (2 + len(hot), len(hot))
    np.testing.assert_array_equal(p.slot_expert[routing.slot], routing.expert)
    source = np.arange(routing.n_tokens)[:, None] // routing.tokens_per_gpu
    copied = np.isin(routing.expert, hot)
    assert (routing.slot // p.slots_per_gpu == source)[copied].all()
    assert (routing.slot // p.slots_per_gpu == ROUTING.slot // 2)[~copied].all()
    first = rows_per_slot(routing).reshape(8, -1)[:, :2].ravel()
    assert (first[hot] == 0).all()
    assert p.note == f"16 experts, {len(hot)} of them also on every GPU for its own tokens"
    served = FASTERMOE.served(ROUTING, options())
    np.testing.assert_array_equal(FASTERMOE.served(served, options()).slot, served.slot)
    one_step = FASTERMOE.served(ROUTING, options(group=8))
    np.testing.assert_array_equal(FASTERMOE.served(one_step, options(group=8)).slot, one_step.slot)


def test_an_expert_with_several_places_is_refused() -> None:
    model = replace(TINY, n_experts=4)
    with pytest.raises(ConfigError, match=r"shadows: found 8 places of 4 experts on 8 GPUs, expected one place for each expert"):
        FASTERMOE.served(make_routing("lognormal:1", model, 8, 24), options())


def test_without_hot_experts_nothing_changes() -> None:
    program, trace = run("fwd", shadow=10**6)
    plain, same = run("fwd", shadow=0)
    assert trace.digest() == same.digest()
    assert moved_bytes(program) == moved_bytes(plain)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bytes_of_weights_and_gradients(direction: str) -> None:
    """Each of seven hops moves the weights of every shadow: FP8 there, FP32 gradients back. Rows of shadows use no link."""
    program, _ = run(direction)
    plain, _ = run(direction, shadow=0)
    shadows = FASTERMOE.served(ROUTING, options()).placement.shadows
    moved, without = moved_bytes(program), moved_bytes(plain)
    once = TINY.expert_weights * {"fwd": 1, "bwd": 4}[direction]
    extra = moved["up"]["other"] - without["up"].get("other", 0)
    assert once * 7 * shadows <= extra <= once * 7 * shadows + 7 * 8 * shadows, "trains are whole bytes"
    assert moved["up"]["dispatch"] < without["up"]["dispatch"]


def test_shadows_wait_for_their_weights_and_steps_do_not() -> None:
    """All hops of a broadcast come after the sends, in order; a GPU computes its shadows behind all of its steps."""
    program, trace = run("fwd")
    weights, gemm1, rows = ops(program, "weights.broadcast"), ops(program, "gemm1"), ops(program, "dispatch.row")
    held = FASTERMOE.served(ROUTING, options()).placement
    region = np.searchsorted(program.regions.tile_ptr, program.ops.key[gemm1], side="right") - 1
    of_shadow = region // held.parts % held.slots_per_gpu >= held.slots_per_gpu - held.shadows
    assert of_shadow.any()
    for gpu in range(8):
        mine = program.ops.node[gemm1] == gpu
        came = weights[program.members.node[program.members.ptr[weights]] == gpu]
        assert trace.issue[weights[program.ops.node[weights] == gpu]].min() >= trace.done[rows[program.ops.node[rows] == gpu]].max()
        if (mine & of_shadow).any() and len(came):
            assert trace.issue[gemm1[mine & of_shadow]].min() >= trace.done[came].min()
            assert trace.issue[gemm1[mine & of_shadow]].min() >= trace.done[gemm1[mine & ~of_shadow]].max(initial=0)


def test_gradients_of_shadows_are_summed_before_results_return() -> None:
    program, trace = run("bwd")
    sums, back = ops(program, "weights.reduce"), ops(program, "combine.row")
    held = FASTERMOE.served(ROUTING, options()).placement
    gradients = np.concatenate([ops(program, name) for name in ("gemm1_wgrad", "gemm2_wgrad")])
    region = np.searchsorted(program.regions.tile_ptr, program.ops.key[gradients], side="right") - 1
    number = region // held.parts % held.slots_per_gpu - (held.slots_per_gpu - held.shadows)
    far = back[program.members.node[program.members.ptr[back]] != program.ops.node[back]]
    for gpu in range(8):
        mine = sums[program.ops.node[sums] == gpu]
        first = gradients[(program.ops.node[gradients] == gpu) & (number == 0)]
        assert trace.issue[mine].min() >= trace.done[first].max(initial=0)
        returned = far[program.ops.node[far] == gpu]
        if len(returned):
            assert trace.issue[returned].min() >= trace.done[mine].max()


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"compute": False}, {"mediation": True}])
def test_layers_with_shadows_conform(given: dict[str, bool]) -> None:
    """Both passes, tensors, the oracle and the packet level; the layer has 3 to 5 shadows."""
    rules = [r.name for r in RULES if r.name not in REAL_FORM and not r.slow]
    report = conformance("fastermoe", *layers()["lognormal"], "both", {"shadow": 2, "group": 2, **given}, rules)
    assert report.failed == ()


def test_a_real_form_has_no_shadows() -> None:
    with pytest.raises(ConfigError, match=r"fastermoe.shadow: found 9 in real form, expected 0 \(no broadcast by NCCL is measured\)"):
        FASTERMOE.plan(TINY, load_cluster("hw-dgx-h100"), ROUTING, "fwd", options(form="real"))


@pytest.mark.slow
def test_both_levels_take_the_same_time() -> None:
    """On S-8 with 256 tokens: the packet level is within the bar of the suite with broadcasts on the links."""
    report = conformance("fastermoe", *layers()["lognormal"], "both", {"shadow": 2, "group": 2}, ["packet_time_agrees"])
    assert report.failed == ()
    assert report.ran["packet_time_agrees"] == 1
