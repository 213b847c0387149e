"""The conformance rules on two NVLink domains, and without a switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.oracle import run_oracle
from dysharp.program import Program
from dysharp.program.verify import verify
from dysharp.specs import load_cluster, load_model
from dysharp.specs.cluster import ScaleOut
from dysharp.systems import all_systems, get_system
from dysharp.testing import conformance
from dysharp.testing.conformance import broken, runs
from dysharp.testing.conformance.rule import Report
from dysharp.workload import make_routing

SYSTEMS = sorted(name for name, system in all_systems().items() if system.reach.domains)
MODEL = replace(load_model("S-8"), name="small", n_experts=16, topk=4, hidden=256, expert_hidden=128)
CLUSTER = replace(load_cluster("paper-dgx-h100"), n_gpus=4, max_gpus=4, scale_out=ScaleOut(2, 47.0, 8.0))
QUICK = (
    "starts_at_a_glance", "time_above_bounds", "engine_equals_oracle", "packets_carry_the_same_bytes", "wire_bytes_are_explained",
    "payload_is_declared", "causes_add_up", "shares_lie_within_the_run", "buffers_follow_each_other", "tensor_of_the_layer", "useful_rows",
    "backward_mirrors_bytes", "only_operators_move_rows",
)  # fmt: skip


def judged(name: str, rules: tuple[str, ...] | None) -> Report:
    return conformance(name, model=MODEL, cluster=CLUSTER, routing=make_routing("uniform", MODEL, 4, 8), rules=rules)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SYSTEMS)
def test_quick_rules(name):
    report = judged(name, QUICK)
    assert not report.failed, str(report)
    assert sum(report.ran.values()) > 20


@pytest.mark.sampled
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name == "tutel" else pytest.mark.slow) for name in SYSTEMS])
def test_all_rules(name):
    report = judged(name, None)
    assert not report.failed, str(report)


ONE, TWO = replace(load_cluster("hw-dgx-h100"), n_gpus=4), replace(load_cluster("hw-dgx-h100-x2"), n_gpus=4, max_gpus=4, scale_out=CLUSTER.scale_out)
REAL = {"deepep-v2": (ONE, TWO), "nccl-ep": (ONE, TWO), "uccl-ep": (ONE, TWO), "flashinfer": (ONE,)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", REAL)
def test_real_forms_of_libraries_conform(name):
    """Rules of a pass, the packets of the packet level and tensors among them, with the software costs of the library."""
    for cluster in REAL[name]:
        report = conformance(name, MODEL, cluster, make_routing("uniform", MODEL, 4, 8), "both", {"form": "real"}, QUICK)
        assert not report.failed, str(report)
        assert report.ran["engine_equals_oracle"] == report.ran["packets_carry_the_same_bytes"] == 2


def redirected_pulls() -> Iterator[Program]:
    """The Program of DySHARP with one member after the other of its pulls by NIC on the next GPU of the other domain or of its own."""
    system = get_system("dysharp")
    program = system.plan(MODEL, CLUSTER, make_routing("uniform", MODEL, 4, 2), "fwd", system.options())
    pulls = [i for i, t in enumerate(program.templates) if t.name == "combine.nic"]
    owner = np.repeat(np.arange(program.n_ops), np.diff(program.members.ptr))
    members = np.flatnonzero(np.isin(program.ops.template[owner], pulls))
    assert len(members) >= 8
    yield from (broken.redirect_member(program, int(member)) for member in members)


def test_a_redirected_pull_by_nic_is_noticed_without_tensors():
    for program in redirected_pulls():
        with pytest.raises(ProgramError, match=r'"relay\.partial"|twice'):
            verify(program)


MESHES = [(name, nodes) for nodes in (1, 2) for name, system in all_systems().items() if system.reach.no_switch and (nodes == 1 or name == "mori")]


def judged_without_switch(name: str, nodes: int, rules: tuple[str, ...] | None) -> Report:
    """`nodes` nodes of four GPUs with a link for every pair; MoRI in real form, all others in paper form."""
    out = ScaleOut(4, 47.0, 8.0) if nodes > 1 else None
    cluster = replace(load_cluster("hw-mi300x"), n_gpus=4 * nodes, max_gpus=4 * nodes, scale_out=out)
    system = get_system(name)
    form = {"form": "paper"} if system.has_real_form and "real" not in system.reach.no_switch else None
    return conformance(name, model=MODEL, cluster=cluster, routing=make_routing("uniform", MODEL, 4 * nodes, 8), options=form, rules=rules)


@pytest.mark.parametrize(("name", "nodes"), MESHES)
def test_quick_rules_without_a_switch(name, nodes):
    report = judged_without_switch(name, nodes, QUICK)
    assert not report.failed, str(report)
    assert sum(report.ran.values()) >= 20


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), MESHES)
def test_all_rules_without_a_switch(name, nodes):
    report = judged_without_switch(name, nodes, None)
    assert not report.failed, str(report)


def test_bytes_on_links_of_pairs_that_nobody_declared_are_found():
    """Links of pairs have equal names, so the rule adds them up; a wrong sum fails it, and so does NVLink where there is none."""
    system = get_system("mori")
    program = system.plan(MODEL, load_cluster("hw-mi300x").with_gpus(4), make_routing("uniform", MODEL, 4, 8), "fwd", system.options())
    trace = run_oracle(program)
    sides = program.declared.traffic
    more = {side: {name: n + 1 for name, n in by_operator.items()} for side, by_operator in sides.items()}
    for traffic, text in ((more, "payload xgmi out of dispatch: found"), (sides | {"up": {}, "down": {}}, "declared traffic: found sides")):
        wrong = replace(program, declared=replace(program.declared, traffic=traffic))
        assert any(text in line for line in runs._payload_is_declared(SimpleNamespace(program=wrong, trace=trace)))
    assert not list(runs._payload_is_declared(SimpleNamespace(program=program, trace=trace)))


def test_bytes_by_nic_that_nobody_declared_are_found():
    """A declared number of bytes by NIC that is wrong fails its rule."""
    system = get_system("deepep")
    program = system.plan(MODEL, CLUSTER, make_routing("uniform", MODEL, 4, 8), "fwd", system.options())
    traffic = {**program.declared.traffic, "nic out": {"dispatch": 1, "combine": 1}}
    wrong = replace(program, declared=replace(program.declared, traffic=traffic))
    case = SimpleNamespace(program=wrong, trace=run_oracle(program))
    lines = list(runs._payload_is_declared(case))
    assert any("payload nic out of dispatch: found" in line for line in lines)
    assert not list(runs._payload_is_declared(SimpleNamespace(program=program, trace=case.trace)))
