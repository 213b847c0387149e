"""Wires that layers, sends, gradients and copies to the host share."""

from dataclasses import replace
from itertools import pairwise

import pytest

from dysharp.costs.collectives import NET_STEPS_US, PROTOCOLS
from dysharp.costs.exchange import HUB, IN_SWITCH, Peers, Rows, exchange, least_us
from dysharp.costs.machine import Machine
from dysharp.model import Layout
from dysharp.model.layout import chunks_of
from dysharp.model.state import PLAIN, rank_parameters
from dysharp.planning.cost import Coster, machine_of
from dysharp.planning.offload import OFFLOADED
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.space import Task, default_space
from dysharp.specs import Cluster, load_cluster, load_whole
from dysharp.training.cost import PassCost
from dysharp.training.costs import _shard_wires, beside, beside_pass, late_sends, step_costs, with_rows
from dysharp.training.recipe import TrainingRecipe
from dysharp.training.wires import WireTimes, _nic_link, _on_nics, beyond, host_copy, host_rate, ring, rows, send, sharing

H100 = load_cluster("hw-dgx-h100-x4")
MODEL = load_whole("qwen3-30b")


def oversubscribed(factor: float) -> Cluster:
    assert H100.scale_out is not None
    return replace(H100, scale_out=replace(H100.scale_out, oversubscription=factor))


def coster(cluster: Cluster, gpus: int = 32) -> Coster:
    machine = machine_of(cluster)
    task = Task(MODEL, gpus, 2 * gpus, 1024, training_recipe=training_recipe_for(MODEL, machine))
    return Coster(task, machine, default_space(task, machine, {"tp": (1,), "pp": (1, 2), "ep": (8, 16), "micro_batch": (1,), "recompute": ((),)}))


def test_traffic_on_one_wire_adds_up_and_wires_run_side_by_side() -> None:
    assert beyond(10, WireTimes(near=4, far=9), WireTimes(far=3), WireTimes(near=5), WireTimes(near=4, far=1)) == [2, 0, 1]
    assert beyond(10, WireTimes(near=12), WireTimes(near=1)) == [1]  # what is in the pass already makes it no longer
    assert (2 * WireTimes(1, 2, 3) + WireTimes(1)).most == 6


def test_a_layer_with_rows_shards_and_copies_takes_the_sum_on_its_busiest_wire() -> None:
    """By hand: 47 GB/s of NICs on a PCIe link of 63 GB/s, two ranks apart in 16 over two domains of 8."""
    machine, layout = Machine(H100), Layout(ep=16, dp=16, fsdp=16)
    done = with_rows(machine, layout, PassCost(1000.0, 2000.0, forward_wire=900.0, backward_wire=900.0))
    shards = _shard_wires(MODEL, machine, layout, 0, False, PLAIN)
    assert done.forward_wires == WireTimes(far=900.0, host=900.0 * 47 / 63)
    over_nics = shards[0].far
    assert over_nics == pytest.approx(shards[0].host * 63 / 47)
    late = beside(MODEL, machine, layout, 0, done, offloaded=63e6)  # a copy of 1,000 us
    far, host = 900 + over_nics, (900 + over_nics) * 47 / 63 + 1000
    first = max(0.0, far - 1000)
    assert late.forward == pytest.approx(max(1000, far, host) - 1000)
    assert late.parts["host copies"] > 0
    assert late.parts["sharded weights"] >= first
    alone = beside(MODEL, machine, layout, 0, PassCost(1000.0, 2000.0), offloaded=63e6)
    assert late.forward > alone.forward


def test_more_traffic_on_a_wire_is_never_faster() -> None:
    machine, layout = Machine(H100), Layout(ep=16, dp=32, fsdp=32)
    for wire in (0.0, 300.0, 900.0):
        done = with_rows(machine, layout, PassCost(1000.0, 2000.0, forward_wire=wire, backward_wire=wire))
        ends = [sum(beside(MODEL, machine, layout, 0, done, offloaded=n).parts.values()) for n in (0, 1e6, 3e7, 6e7, 9e7)]
        assert all(a <= b for a, b in pairwise(ends))
    more = [
        beside(MODEL, machine, layout, 0, with_rows(machine, layout, PassCost(1000.0, 2000.0, forward_wire=w))).forward for w in (0, 500, 900, 1000)
    ]
    assert more == sorted(more)
    sends = [late_sends(PassCost(100.0, 100.0, forward_wires=WireTimes(far=90.0)), WireTimes(far=us)) for us in (5, 10, 20)]
    assert [one[0] for one in sends] == [0, 0, 10]


def test_nics_hang_on_the_link_to_the_host_but_on_superchips() -> None:
    h100, grace, paper = (Machine(load_cluster(name)) for name in ("hw-dgx-h100-x2", "hw-gb200-nvl72-x2", "paper-ascend-910b"))
    assert _nic_link(h100) == host_rate(h100) == 63e3
    assert _nic_link(grace) == _nic_link(paper) == float("inf")
    assert _on_nics(h100, 47e6).host == pytest.approx(47e6 / 63e3)
    assert _on_nics(grace, 50e6).host == 0 < host_copy(grace, 50e6).host
    b300 = Machine(replace(load_cluster("hw-dgx-h100-x2"), scale_out=replace(H100.scale_out, nic_GBps=100.0)))  # type: ignore[type-var]
    assert _nic_link(b300) == 126e3


def test_buckets_share_the_wires_of_rows() -> None:
    """EP over NICs holds them while gradients leave; EP inside a domain holds links, which the same ring needs less."""
    machine, training_recipe = Machine(H100), TrainingRecipe(dispatcher="deepep")
    layout = Layout(ep=16, dp=32, micro_batches=2)
    times = step_costs(MODEL, machine, layout, 4096, None, training_recipe=training_recipe)
    (reduce,), (gather,) = times.times.reduce, times.times.gather
    assert len(reduce) > 1
    assert reduce[0] > reduce[-1]  # nothing passes beside the last
    assert gather[0] < gather[-1]
    cost, alone = times.stages[0], 1e-6 * len(reduce) * reduce[-1]
    held, passed = cost.backward_wires.far, cost.backward + cost.weights
    parts = rank_parameters(MODEL, layout, chunks_of(MODEL, layout)[:1])
    own = ring(machine, 4 * parts.dense, 32, 1).far + ring(machine, 4 * parts.experts, 2, 16).far
    assert reduce[0] / reduce[-1] == pytest.approx(max(1, own / alone / (1 - held / passed)), rel=1e-3)
    assert [beside_pass(30.0, WireTimes(far=30), WireTimes(far=20, near=90), us) for us in (100, 80, 50, 40)] == [37.5, 40, 50, 50]
    late = step_costs(MODEL, machine, layout, 4096, None, training_recipe=replace(training_recipe, overlap_dp=False)).times
    assert len(late.reduce[0]) == 1
    assert late.reduce[0][0] == pytest.approx(len(reduce) * reduce[-1], rel=1e-6)


def test_an_oversubscribed_spine_slows_what_leaves_its_rail() -> None:
    even, slow = (Machine(oversubscribed(factor)) for factor in (1.0, 4.0))
    assert send(slow, 1e6, Layout(pp=4, dp=8, ep=8)) == send(even, 1e6, Layout(pp=4, dp=8, ep=8))
    assert ring(slow, 1e6, 32, 1) == ring(even, 1e6, 32, 1)
    assert _on_nics(slow, 47e3, 12).far == 4 * _on_nics(even, 47e3, 12).far  # 12 ranks away: another place in the next domain
    layout, layer = Layout(ep=32, dp=32), MODEL.layer
    assert layer is not None
    sent, peers = Rows(4096, 2.0 * layer.hidden, 2.0 * layer.hidden), Peers(32)
    for system, passes in (("flat", True), ("dedup", False), ("deepep", False)):
        times = [exchange(one, layer, peers, sent, system).dispatch for one in (even, slow)]
        assert (times[1] > times[0]) == passes
    for system in (IN_SWITCH, HUB):
        assert least_us(even, layer, peers, sent, system, 0.0) == least_us(slow, layer, peers, sent, system, 0.0)
    begun = machine_of(H100).hop + 2e-6 * H100.link_latency_ps
    flat = [exchange(one, layer, peers, sent, "flat").dispatch - begun for one in (even, slow)]
    assert flat[1] == pytest.approx(4 * 7 / 8 * flat[0])
    assert rows(even, layout, 10.0).far == 10.0


@pytest.mark.parametrize("system", ["flat", "deepep"])
def test_a_plan_on_an_oversubscribed_spine(system: str) -> None:
    steps = []
    for factor in (1.0, 4.0):
        one = coster(oversubscribed(factor))
        steps.append(one.cost_of(one.space.candidate(0) | {"ep": 16, "system": system}).step_us)
    assert (steps[1] > 1.05 * steps[0]) if system == "flat" else steps[1] == steps[0]


def test_offload_sharded_weights_and_rows_of_a_plan_take_more_together() -> None:
    """Each alone may hide behind a pass; on one PCIe link they do not."""
    one = coster(H100)
    values = one.space.candidate(0) | {"ep": 16, "system": "deepep"}
    ways = [
        {"weights": weights, "offload": offload} for weights, offload in (("sharded", ()), ("sharded", tuple(OFFLOADED)), ("whole", tuple(OFFLOADED)))
    ]
    shards, both, offload = (one.pieces(values | way).costs["t"] for way in ways)
    assert both.backward > max(shards.backward, offload.backward)
    assert both.forward_wires.host == pytest.approx(shards.forward_wires.host + offload.forward_wires.host - offload_rows(one, offload))


def offload_rows(one: Coster, cost: PassCost) -> float:
    """Rows of experts are in both."""
    return cost.forward_wires.far * one.machine.nic / _nic_link(one.machine)


@pytest.mark.parametrize(("pp", "weights"), [(1, "sharded"), (2, "whole"), (2, "sharded")])
def test_a_plan_and_a_step_state_wires_alike(pp: int, weights: str) -> None:
    """Stages of EP over NICs, with shards or sends on them; a step has no hot ranks."""
    one = coster(H100)
    one.task = replace(one.task, imbalance=1.0)
    planned = one.cost_of(one.space.candidate(0) | {"ep": 16, "pp": pp, "system": "deepep", "weights": weights})
    training_recipe = replace(one.task.training_recipe, dispatcher="deepep")
    stages = step_costs(MODEL, one.machine, planned.layout, one.task.sequence, None, training_recipe=training_recipe).stages
    for own, (forward, backward, grads) in zip(stages, one.chunks_us(planned), strict=True):
        assert own.forward == pytest.approx(forward, rel=0.005)
        assert own.backward + own.weights == pytest.approx(backward + grads, rel=0.005)


def test_a_ring_over_many_domains_has_the_steps_of_nccls_tuner() -> None:
    """Weights that 2,048 ranks share take longer than those that 64 share, though each rank sends the same bytes."""
    machine = Machine(load_cluster("hw-dgx-h100-x8"))
    inside, few, many = (sharing(machine, 1e8, size, 1) for size in (8, 64, 2048))
    assert inside == ring(machine, 1e8, 8, 1)
    assert few.far == pytest.approx(many.far, rel=0.02)
    assert few.most < many.most
    steps = {protocol: hop.hop_us * (2048 - 256) + net * 255 for protocol, hop, net in zip("ABC", PROTOCOLS, NET_STEPS_US, strict=True)}
    assert many.stream - many.far > 0.9 * min(steps.values())
