"""Every registered system passes the conformance suite on every small layer, and the suite can fail."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from layers import layers

from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, startable
from dysharp.systems import all_systems
from dysharp.systems.registry import _REGISTRY
from dysharp.testing import conformance as suite
from dysharp.testing.conformance import busy_floor_ps, conformance

LAYERS = layers()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("system", all_systems())
def test_system_conforms(system, layer, direction):
    assert conformance(system, *LAYERS[layer], direction) == []


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("system", all_systems())
def test_the_verifier_takes_the_short_way(system, direction):
    """Layers of millions of ops pass the test on kinds of op; the peel behind it agrees."""
    model, cluster, routing = LAYERS["lognormal"]
    known = all_systems()[system]
    program = known.plan(model, cluster, routing, direction, known.options())
    assert startable.starts_by_kind(program)
    peel = startable._Peel(program)
    peel.run()
    assert peel.reached.all()
    assert not peel.too_early.any()


def forgetful(program: Program) -> Program:
    """GEMM-2 computes one row less of its first tile."""
    gemm2 = next(i for i, t in enumerate(program.templates) if t.operator == "gemm2")
    rows = program.ops.rows.copy()
    rows[int((program.ops.template == gemm2).argmax())] -= 1
    return replace(program, ops=replace(program.ops, rows=rows))


def silent_about_bytes(program: Program) -> Program:
    """Sends half rows and declares nothing."""
    put = next(i for i, t in enumerate(program.templates) if t.operator == "combine")
    of_put = program.ops.template == put
    bytes_ = np.where(of_put, program.ops.bytes // 2, program.ops.bytes)
    row_bytes = program.regions.row_bytes.copy()
    row_bytes[[name == "partial" for name in program.regions.name]] //= 2
    return replace(
        program,
        ops=replace(program.ops, bytes=bytes_, wire=_own_wire(program, of_put)),
        wires=_with_copy(program, int(program.ops.wire[of_put][0])),
        regions=replace(program.regions, row_bytes=row_bytes),
        declared=replace(program.declared, traffic={}),
    )


def stowaway(program: Program) -> Program:
    """Dispatch calls itself control and declares nothing."""
    templates = tuple(replace(t, operator="other") if t.operator == "dispatch" else t for t in program.templates)
    return replace(program, templates=templates, declared=replace(program.declared, traffic={}))


def under_another_name(program: Program) -> Program:
    """Dispatch counts as an operator nobody looks at."""
    templates = tuple(replace(t, operator="gemm1") if t.operator == "dispatch" else t for t in program.templates)
    return replace(program, templates=templates, declared=replace(program.declared, traffic={}))


def twice(program: Program) -> Program:
    """GEMM-2 computes its second tile twice and its first one never; the rows on each GPU are as many as before."""
    gemm2 = next(i for i, t in enumerate(program.templates) if t.operator == "gemm2")
    key = program.ops.key.copy()
    first = int((program.ops.template == gemm2).argmax())
    key[first] = key[first + 1]
    return replace(program, ops=replace(program.ops, key=key))


def _with_copy(program, row):
    w = program.wires
    return type(w)(*(np.append(getattr(w, c), getattr(w, c)[row]) for c in w.__slots__))


def _own_wire(program, ops):
    return np.where(ops, np.int32(len(program.wires.up)), program.ops.wire)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (forgetful, r"deepep: gemm2 on GPU 0: found \d+ rows computed, expected \d+"),
        (silent_about_bytes, r"deepep: traffic up of combine at GPU 0: found \d+ B, expected \d+ B"),
        (stowaway, r'deepep: template dispatch.put: found fn "copy" moved as operator "other", expected "control"'),
        (under_another_name, r"deepep: traffic up of gemm1: found \d+ B, expected none \(dispatch, combine and other move bytes\)"),
        (twice, r"deepep: gemm2: found tiles left out, repeated or moved, expected each once on its GPU with its rows"),
    ],
)
def test_a_cheating_system_fails(change, text, monkeypatch):
    system = all_systems()["deepep"]
    plan = system.plan
    cheat = replace(system, plan=lambda *a: change(plan(*a)))
    monkeypatch.setitem(_REGISTRY, "deepep", cheat)
    assert any(re.match(text, line) for line in conformance("deepep", *LAYERS["uniform"]))


def test_an_illegal_program_is_one_line(monkeypatch):
    system = all_systems()["nvls"]
    plan = system.plan
    cheat = replace(system, plan=lambda *a: suite.delete_member(plan(*a), 3))
    monkeypatch.setitem(_REGISTRY, "nvls", cheat)
    failed = conformance("nvls", *LAYERS["uniform"])
    assert len(failed) == 1
    assert failed[0].startswith("nvls: ")


def test_floor_is_the_busiest_link():
    model, cluster, routing = LAYERS["uniform"]
    system = all_systems()["nvls"]
    program = system.plan(model, cluster, routing, "fwd", system.options())
    fast = replace(program, machine=replace(program.machine, rate=10**9))
    assert busy_floor_ps(program) > busy_floor_ps(fast) > 0
    assert run_burst(program)[0].time_ps > busy_floor_ps(program)
