"""Fabrics without a switch: bytes by link, tensors, who runs there, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dysharp
from dysharp.analysis import attribute, program_bound, traffic_bytes, wire_table
from dysharp.base.errors import ConfigError, ProgramError
from dysharp.functional.emulation import Shape, run_emulation
from dysharp.functional.machine import Machine
from dysharp.oracle import run_oracle
from dysharp.program import Program
from dysharp.program.nets import NIC, XGMI
from dysharp.program.verify import verify
from dysharp.specs import Cluster, load_cluster, load_model
from dysharp.specs.cluster import ScaleOut
from dysharp.systems import all_systems, get_system
from dysharp.workload import Routing, make_routing
from dysharp.workload.routing import needed_gpus
from tests.interpreters.mutants import difference
from tests.interpreters.plain import PlainEngine

SYSTEMS = sorted(name for name, system in all_systems().items() if system.reach.no_switch and not system.bound)
IN_SWITCH = sorted(name for name, system in all_systems().items() if system.reach.switch)
MODEL = replace(load_model("S-8"), name="small", n_experts=16, topk=4, hidden=256, expert_hidden=128)
FORMS = [(name, form) for name in SYSTEMS for form in get_system(name).reach.no_switch]


def mesh(gpus: int, nodes: int = 1) -> Cluster:
    """`nodes` nodes of `gpus` GPUs; a link for every pair of a node."""
    one = load_cluster("hw-mi300x")
    out = ScaleOut(gpus, 47.0, 8.0) if nodes > 1 else None
    return replace(one, name="mesh", n_gpus=nodes * gpus, max_gpus=nodes * gpus, scale_out=out)


def planned(name: str, cluster: Cluster, form: str = "auto", tokens: int = 8, direction: str = "fwd", **options: object) -> tuple[Program, Routing]:
    system = get_system(name)
    routing = make_routing("uniform", MODEL, cluster.n_gpus, tokens)
    options |= {"form": form} if system.has_real_form else {}
    return system.plan(MODEL, cluster, routing, direction, system.options(**options)), routing


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_bytes_engine_and_oracle(name, form, direction, nodes):
    if nodes > 1 and form not in get_system(name).reach.domains:
        pytest.skip("one node alone")
    program, _ = planned(name, mesh(4, nodes), form, tokens=4, direction=direction)
    verify(program)  # declared traffic is the closed form of the routing
    assert set(program.declared.traffic) == {*XGMI.sides} | ({*NIC.sides} if nodes > 1 else set())
    trace = run_oracle(program)
    assert difference(PlainEngine(), program, trace) is None
    counted = traffic_bytes(program, trace)
    for side, by_operator in program.declared.traffic.items():
        assert {name: counted[side][name] for name in by_operator} == by_operator, side
    assert not any((*counted["up"].values(), *counted["down"].values()))  # there is no NVLink
    table = wire_table(program)
    np.testing.assert_array_equal(table.up.sum(axis=1), trace.up_busy)
    np.testing.assert_array_equal(table.down.sum(axis=1), trace.down_busy)
    assert program_bound(program).us <= trace.time_ps / 1e6
    assert sum(attribute(program, trace).values()) == trace.time_ps


def test_every_link_carries_the_rows_of_its_pair():
    """Link (i, j): a row per token of i that needs j, and a result per token of j that needs i."""
    program, routing = planned("mori", mesh(4), "paper", tokens=32)
    n = routing.n_gpus
    needs = needed_gpus(routing).reshape(n, routing.tokens_per_gpu, n).sum(axis=1)
    out = wire_table(program).up.sum(axis=1).reshape(-1, n)
    gates = 16 * -(-4 * MODEL.topk // 16)  # gate weights behind a row
    for step, net in enumerate(program.nets, start=1):
        assert (net.name, net.step, net.ring) == (XGMI.name, step, n)
        for i in range(n):
            j = (i + step) % n
            assert out[step, i] == needs[i, j] * (MODEL.row_bytes + gates) + needs[j, i] * MODEL.row_bytes
            assert net.peer(np.array([i], np.int32)).tolist() == [j]
    assert wire_table(program).up[:n].sum() == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_layers(seed):
    """Skewed routing, dropped choices and odd numbers of GPUs: the engine gives the oracle's Trace."""
    rng = np.random.default_rng(seed)
    cluster = mesh(int(rng.choice((2, 3, 5, 8))), int(rng.choice((1, 2))))
    model = replace(MODEL, n_experts=2 * cluster.n_gpus, topk=2)
    routing = make_routing("lognormal:0.8", model, cluster.n_gpus, int(rng.integers(1, 9)), seed=seed)
    slot = np.where(rng.random(routing.slot.shape) < 0.1, -1, routing.slot)
    system = get_system("mori")
    options = system.options(form=str(rng.choice(("paper", "real"))), zero_copy=bool(rng.integers(2)))
    program = system.plan(model, cluster, replace(routing, slot=slot), str(rng.choice(("fwd", "bwd"))), options)
    verify(program)
    assert difference(PlainEngine(), program, run_oracle(program)) is None


def test_a_hot_pair_waits_for_its_own_link():
    """All tokens of GPU 0 go to GPU 1: the time is that of one link. With a switch all links of the GPU would help."""
    cluster = mesh(4)
    routing = make_routing("uniform", MODEL, 4, 256)
    slot = routing.slot.copy()
    per_gpu = routing.placement.slots_per_gpu
    slot[:256] = per_gpu + np.arange(MODEL.topk)  # experts of GPU 1
    slot[256:] = slot[256:] % per_gpu + per_gpu * (np.arange(256, 4 * 256) // 256)[:, None]  # experts of the own GPU
    system = get_system("mori")
    program = system.plan(MODEL, cluster, replace(routing, slot=slot), "fwd", system.options(form="paper", compute=False))
    assert program_bound(program).resource in ("gpu[0].xgmi to gpu[1]", "gpu[1].xgmi to gpu[0]")
    link_us = 256 * MODEL.row_bytes / cluster.pair_bytes_per_us
    assert run_oracle(program).time_ps / 1e6 == pytest.approx(2 * link_us + 4 * 0.25, rel=0.05)  # and four hops


@pytest.mark.parametrize("block", ["integer", "gated"])
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_tensors_without_a_switch(name, block, nodes):
    if nodes > 1 and not get_system(name).reach.domains:
        pytest.skip("one node alone")
    options = {"form": "paper"} if "real" not in get_system(name).reach.no_switch else {}
    machine = Machine(system=name, gpus=4 * nodes, cluster=mesh(4, nodes), path="row", order="random", seed=3, options=options)
    assert run_emulation(machine, block, Shape(32, 32, 16, 4), tokens=6, dtype=None, backward=True, kinds=()).holds


@pytest.mark.parametrize("name", IN_SWITCH)
def test_systems_of_the_switch_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf'^{name} in paper form on cluster "mesh": found no switch .*{get_system(name).reach.switch}'):
        planned(name, mesh(4), "paper")


def test_other_systems_are_refused_by_name():
    assert {"dysharp", "nvls", "hub-sharp"} <= set(IN_SWITCH)
    with pytest.raises(ConfigError, match=r"^deepep in real form .* found no switch .* systems without a switch in real form: mori$"):
        planned("deepep", mesh(4), "real")
    with pytest.raises(ConfigError, match=r"^moe-hub in paper form .* found no switch"):
        planned("moe-hub", mesh(4), "paper")


def test_mori_runs_with_a_switch_too():
    program, _ = planned("mori", load_cluster("paper-dgx-h100").with_gpus(4), "paper")
    deepep, _ = planned("deepep", load_cluster("paper-dgx-h100").with_gpus(4), "paper")
    assert not program.nets
    assert run_oracle(program).time_ps == run_oracle(deepep).time_ps


def test_wrong_peers_and_pulls_are_refused():
    program, _ = planned("mori", mesh(4), "paper")
    turned = replace(program, nets=program.nets[::-1])
    with pytest.raises(ProgramError, match=r"found member . on the link to node ., expected that node"):
        verify(turned)
    by_nvlink = tuple(replace(t, net=0) for t in program.templates)
    with pytest.raises(ProgramError, match="by NVLink, expected one of domain"):
        verify(replace(program, templates=by_nvlink))
    with pytest.raises(ProgramError, match=r"found step 4 in rings of 4, expected a step of 1 .. ring - 1"):
        verify(replace(program, nets=(replace(program.nets[0], step=4), *program.nets[1:])))


def test_answers_name_the_links_of_pairs():
    """Layer time, bound, causes, utilization and traffic of a Row are those of the links; the header says that there is no switch."""
    row = dysharp.run("mori", model="deepseek-v3", cluster="hw-mi300x", tokens=64, routing="lognormal:0.65", options={"compute": False})
    assert row.traffic_bytes["up"]["dispatch"] == 0
    assert row.traffic_bytes["xgmi out"]["dispatch"] == row.traffic_bytes["xgmi in"]["dispatch"] > 0
    assert row.attribution["xgmi_out_us"] > 0
    assert 0 < row.utilization["xgmi out"] < row.utilization["xgmi out_max"] <= 1  # mean over links, busiest link
    assert row.workload_bound_us <= row.time_us
    assert any("no switch: every pair of GPUs has a link, 40.96 GB/s" in line for line in row.header)
    with pytest.raises(ConfigError, match='fidelity: found "packet" on cluster "hw-mi300x", which has no switch, expected "burst"'):
        dysharp.run("mori", model="deepseek-v3", cluster="hw-mi300x", tokens=8, fidelity="packet")


def test_compare_takes_the_systems_that_run_there():
    done = dysharp.compare(model="deepseek-v2-lite", cluster="hw-mi300x", gpus=4, tokens=16, forms="paper")
    assert {row.system for row in done.rows} == {*SYSTEMS, "ideal"}


def test_layouts():
    with pytest.raises(ConfigError, match="found 7 for 9 GPUs without a switch, expected 8"):
        replace(load_cluster("hw-mi300x"), n_gpus=9, max_gpus=9)
    assert load_cluster("hw-mi300x").pair_bytes_per_us == 40_960
    with pytest.raises(ConfigError, match=r"mori\.combine: found 'fp8-plain' with zero_copy, expected rows"):
        planned("mori", mesh(4), combine="fp8-plain", zero_copy=True)
