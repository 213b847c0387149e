"""Ops that are deleted, doubled or redirected are noticed: by the verifier, the watchdog, the record, or a wrong tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dysharp.errors import DysharpError
from dysharp.functional.machine import Machine, Pass
from dysharp.functional.reference import dense_forward, recorded_reference
from dysharp.functional.rows import run_rows
from dysharp.program import Kind, Program
from dysharp.program.verify import verify
from dysharp.systems import all_systems
from dysharp.testing.conformance import delete_fill, delete_member, double_member, redirect_member
from tests.functional.layers import layer_case, run_case

SYSTEMS = sorted(all_systems())
MEMBERS = (delete_member, double_member, redirect_member, delete_fill)


def _passed(system: str) -> Pass:
    machine = Machine(system, 4, path="row")
    run_case(layer_case("int32", tokens=24), machine)
    return machine.passes["forward"]


def _noticed(program: Program, done: Pass, expected: np.ndarray) -> bool:
    try:
        verify(program)
        outcome = run_rows(program, done.tensors, "random")
        recorded_reference(done.tensors, outcome.record)
    except DysharpError:
        return True
    return not np.array_equal(outcome.out, expected)


def _delete_compute(program: Program, op: int, rng: np.random.Generator) -> Program:
    """The op stays as an event and does nothing."""
    nothing = replace(program.templates[program.ops.template[op]], name="deleted", kind=Kind.JOIN, fn="", tasks=0, duration=-1)
    template, issuer = program.ops.template.copy(), program.ops.issuer.copy()
    template[op], issuer[op] = len(program.templates), -1
    return replace(program, templates=(*program.templates, nothing), ops=replace(program.ops, template=template, issuer=issuer))


def _redirect_compute(program: Program, op: int, rng: np.random.Generator) -> Program:
    """The op works on another tile: that one is computed twice, its own never."""
    key = program.ops.key.copy()
    others = np.flatnonzero((program.ops.template == program.ops.template[op]) & (program.ops.key != key[op]))
    key[op] = key[rng.choice(others)]
    return replace(program, ops=replace(program.ops, key=key))


def _redirect_token(program: Program, op: int, rng: np.random.Generator) -> Program:
    """A transfer takes another token of its GPU."""
    key = program.ops.key.copy()
    same = (program.ops.template == program.ops.template[op]) & (program.ops.node == program.ops.node[op]) & (key != key[op])
    key[op] = key[rng.choice(np.flatnonzero(same))]
    return replace(program, ops=replace(program.ops, key=key))


def _mutant(program: Program, rng: np.random.Generator) -> tuple[str, Program]:
    """One way to break an op that moves or computes data."""
    kinds = program.kinds()
    fn = np.array([t.fn for t in program.templates])[program.ops.template]
    compute = np.flatnonzero(kinds == Kind.COMPUTE)
    rows = np.diff(program.members.fill_ptr[program.members.ptr])  # by op; one without rows writes nothing anywhere
    moves = np.flatnonzero(np.isin(fn, ("copy", "sum", "row")) & (rows > 0))
    ways: list[Callable[[], tuple[str, Program]]] = []
    op = int(rng.choice(compute))
    ways += [lambda f=f: (f"{f.__name__} of op {op}", f(program, op, rng)) for f in (_delete_compute, _redirect_compute)]
    moved = int(rng.choice(moves))
    if program.ops.key[moved] >= 0:
        ways.append(lambda: (f"_redirect_token of op {moved}", _redirect_token(program, moved, rng)))
    first, end = program.members.ptr[moved : moved + 2]
    fills = np.diff(program.members.fill_ptr)[first:end] > 0
    member = int(first + rng.choice(np.flatnonzero(fills)))
    ways += [lambda f=f: (f"{f.__name__} of member {member} of op {moved}", f(program, member)) for f in MEMBERS]
    return ways[int(rng.integers(len(ways)))]()


def _check(system: str, samples: int) -> None:
    done = _passed(system)
    expected = dense_forward(done.tensors).astype(np.int32)
    assert not _noticed(done.program, done, expected)
    rng = np.random.default_rng(len(system))
    missed = [text for text, program in (_mutant(done.program, rng) for _ in range(samples)) if not _noticed(program, done, expected)]
    assert not missed


@pytest.mark.parametrize("system", SYSTEMS)
def test_twenty_broken_ops(system):
    _check(system, 20)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_two_hundred_broken_ops(system):
    _check(system, 200)
