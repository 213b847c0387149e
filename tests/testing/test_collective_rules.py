"""Every rule of collectives notices a fault that is made for it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.program import Program, Tail
from dysharp.program.builder import PUSHES
from dysharp.program.schema import LATE
from dysharp.program.tables import Holds, Point, Semaphores
from dysharp.specs import load_cluster
from dysharp.systems.collective_system import REGISTERED
from dysharp.systems.collectives import get_collective
from dysharp.testing.conformance import collectives, conformance
from dysharp.testing.conformance.collectives import _SmallCollective, cases_of
from dysharp.testing.conformance.suite import RULES
from dysharp.workload.collective import even
from dysharp.workload.sublayer import SubLayer

Change = Callable[[_SmallCollective, pytest.MonkeyPatch], None]


def with_program(case: _SmallCollective, program: Program) -> None:
    """Put another Program in place of the system's."""
    case.__dict__["program"] = program


def without_waits(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """No step waits for what arrives."""
    e = case.program.edges
    keep = e.tail_kind != Tail.TILE_READY
    with_program(case, replace(case.program, edges=type(e)(*(getattr(e, name)[keep] for name in e.__slots__))))


def of_half_the_bytes(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """The Program moves another collective."""
    with_program(case, case.system.plan(even("all-reduce", case.work.size // 2, 4), case.cluster, case.options))


def like_a_late_rank(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """The launch counts as a late rank's start."""
    templates = tuple(replace(t, fn=LATE) if t.name == "launch" else t for t in case.program.templates)
    with_program(case, replace(case.program, templates=templates))


def taken_last(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """The last op takes a semaphore that the first gives back."""
    held, done = np.zeros(1, np.int32), np.full(1, Point.OP_DONE, np.int32)
    holds = Holds(sem=held, amount=held + 1, acquire_kind=done, acquire=held + case.program.n_ops - 1, release_kind=done, release=held)
    turns = Semaphores(node=held, capacity=held + 9, name=("turn",), unit=("turns",))
    with_program(case, replace(case.program, holds=holds, semaphores=turns))


def sent_twice(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """A push sends what another push of its GPU sends to the same place."""
    p, m = case.program, case.program.members
    push = np.array([t.kind in PUSHES and bool(t.src) for t in p.templates])[p.ops.template]
    one = int(push.argmax())
    other = next(op for op in np.flatnonzero(push).tolist() if op > one and p.ops.node[op] == p.ops.node[one])
    columns = {name: getattr(p.ops, name).copy() for name in ("template", "key", "offset") if getattr(p.ops, name) is not None}
    for column in columns.values():
        column[other] = column[one]
    to, rows, (mine, its) = m.node.copy(), m.fill_row.copy(), (m.ptr[op : op + 2] for op in (one, other))
    to[slice(*its)], rows[slice(*m.fill_ptr[its])] = to[slice(*mine)], rows[slice(*m.fill_ptr[mine])]
    with_program(case, replace(p, ops=replace(p.ops, **columns), members=replace(m, node=to, fill_row=rows)))


FAULTS: dict[str, tuple[Change, str]] = {
    "semaphores_of_collectives_are_taken_first": (taken_last, "semaphore turn: found it given by op 0"),
    "arrivals_are_awaited": (without_waits, "found no op that waits for it"),
    "nothing_is_sent_twice": (sent_twice, "expected every chunk once"),
    "vectors_are_right": (without_waits, "found no chunk"),
    "bytes_are_moved": (of_half_the_bytes, "payload out of the busiest GPU: found"),
    "causes_are_named": (like_a_late_rank, f'templates: found the function "{LATE}"'),
    "interpreters_agree": (
        lambda case, patch: patch.setattr(collectives, "run_oracle", lambda p: SimpleNamespace(digest=lambda: "other")),
        "digest: found 2 different ones",
    ),
    "not_below_the_least_bytes": (lambda case, patch: patch.setattr(collectives, "collective_bound_us", lambda *_: 1e9), "time: found"),
    "levels_agree": (
        lambda case, patch: patch.setattr(collectives, "run_packet", lambda *_: SimpleNamespace(trace=SimpleNamespace(time_ps=1))),
        "time: found 1 ps at packet level",
    ),
    "lost_data_are_noticed": (
        lambda case, patch: patch.setattr(collectives, "emulate_collective", lambda *_, **__: SimpleNamespace(holds=True)),
        "found right vectors without its data",
    ),
}
"""Rule -> a change that breaks it, and a part of what it then says."""


def of_fewer_tokens(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """The Program is that of a smaller sub-layer."""
    assert isinstance(case.work, SubLayer)
    with_program(case, case.system.plan(replace(case.work, tokens=case.work.gpus), case.cluster, case.options))


def with_a_late_launch(case: _SmallCollective, patch: pytest.MonkeyPatch) -> None:
    """The first launch counts as a late rank's start."""
    templates = tuple(replace(t, fn=LATE) if t.name == "launch.gemm1" else t for t in case.program.templates)
    with_program(case, replace(case.program, templates=templates))


SUB_LAYER_FAULTS: dict[str, tuple[Change, str]] = {
    "bytes_are_moved": (of_fewer_tokens, "payload out of the busiest GPU: found"),
    "causes_are_named": (with_a_late_launch, f'templates: found the function "{LATE}"'),
    "lost_data_are_noticed": (
        lambda case, patch: patch.setattr(collectives, "emulate_sub_layer", lambda *_, **__: SimpleNamespace(holds=True)),
        "found right vectors without its data",
    ),
}


def test_every_rule_has_a_fault() -> None:
    assert FAULTS.keys() == {rule.name for rule in RULES if rule.scope == "collective"}


@pytest.mark.parametrize("name", FAULTS)
def test_the_rule_notices_its_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    ring, cluster = get_collective("nccl-ring"), load_cluster("hw-dgx-h100").with_gpus(4)
    case: Any = _SmallCollective(ring, even("all-reduce", 4096, 4), cluster, ring.options())
    assert list(rule.check(case)) == []
    change, text = FAULTS[name]
    change(case, monkeypatch)
    lines = list(rule.check(case))
    assert any(text in line for line in lines), lines


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("bytes_are_moved", lambda p: replace(p, hardware=replace(p.hardware, rate=2 * p.hardware.rate)), "hardware.rate: found 900000"),
        ("bytes_are_moved", lambda p: replace(p, wires=replace(p.wires, up=p.wires.up // 4)), "B, expected 0 B or more"),
    ],
)
def test_another_machine_and_lighter_wires_are_noticed(name: str, change: Callable[[Program], Program], text: str) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    ring, cluster = get_collective("nccl-ring"), load_cluster("hw-dgx-h100").with_gpus(4)
    case: Any = _SmallCollective(ring, even("all-reduce", 4096, 4), cluster, ring.options())
    with_program(case, change(case.program))
    assert any(text in line for line in rule.check(case))


def test_an_illegal_program_of_a_collective_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = get_collective("nccl-ring")

    def half(*asked: Any) -> Program:
        program = ring.build(*asked)
        return replace(program, ops=replace(program.ops, bytes=program.ops.bytes // 2))

    monkeypatch.setitem(REGISTERED, "nccl-ring", replace(ring, build=half))
    report = conformance("nccl-ring", rules=["bytes_are_moved"])
    assert any(found.rule == "legal" and "B filled, expected exactly" in found.text for found in report.failed)


@pytest.mark.parametrize("name", FAULTS)
def test_the_rule_notices_its_fault_in_a_sub_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    change, text = SUB_LAYER_FAULTS.get(name, FAULTS[name])
    case: Any = next(iter(cases_of(get_collective("sp-nvls"), get_collective("sp-nvls").options())))
    assert list(rule.check(case)) == []
    change(case, monkeypatch)
    lines = list(rule.check(case))
    assert any(text in line for line in lines), lines


def test_inputs_have_no_zeros() -> None:
    assert all(np.all(vector != 0) for vector in even("all-reduce", 4096, 4).inputs(0))
