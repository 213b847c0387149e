"""The conformance rules on two NVLink domains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dysharp.errors import ProgramError
from dysharp.oracle import run_oracle
from dysharp.program import Program
from dysharp.program.verify import verify
from dysharp.specs import load_cluster, load_model
from dysharp.specs.scale_out import ScaleOut
from dysharp.systems import all_systems, get_system
from dysharp.testing import conformance
from dysharp.testing.conformance import broken, runs
from dysharp.testing.conformance.report import Report
from dysharp.workload import make_routing

SYSTEMS = sorted(name for name, system in all_systems().items() if system.several_domains)
MODEL = replace(load_model("S-8"), name="small", n_experts=16, topk=4, hidden=256, expert_hidden=128)
CLUSTER = replace(load_cluster("paper-dgx-h100"), n_gpus=4, max_gpus=4, scale_out=ScaleOut(2, 47.0, 8.0))
QUICK = (
    "starts_at_a_glance", "time_above_bounds", "engine_equals_oracle", "packets_carry_the_same_bytes", "wire_bytes_are_explained",
    "payload_is_declared", "causes_add_up", "shares_lie_within_the_run", "buffers_follow_each_other", "tensor_of_the_layer", "useful_rows",
    "backward_mirrors_bytes", "only_operators_move_rows",
)  # fmt: skip


def judged(name: str, rules: tuple[str, ...] | None) -> Report:
    return conformance(name, model=MODEL, cluster=CLUSTER, routing=make_routing("uniform", MODEL, 4, 8), rules=rules)


@pytest.mark.parametrize("name", SYSTEMS)
def test_quick_rules(name):
    report = judged(name, QUICK)
    assert not report.failed, str(report)
    assert sum(report.ran.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_all_rules(name):
    report = judged(name, None)
    assert not report.failed, str(report)


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


def test_bytes_by_nic_that_nobody_declared_are_found():
    """A declared number of bytes by NIC that is wrong fails its rule."""
    system = get_system("deepep")
    program = system.plan(MODEL, CLUSTER, make_routing("uniform", MODEL, 4, 8), "fwd", system.options())
    traffic = {**program.declared.traffic, "nic out": {"dispatch": 1, "combine": 1}}
    wrong = replace(program, declared=replace(program.declared, traffic=traffic))
    case = SimpleNamespace(program=wrong, trace=run_oracle(program))
    lines = list(runs.payload_is_declared(case))
    assert any("payload nic out of dispatch: found" in line for line in lines)
    assert not list(runs.payload_is_declared(SimpleNamespace(program=program, trace=case.trace)))
