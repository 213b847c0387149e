"""Rules about broken ops: the verifier, the watchdog of a run, or a wrong tensor must notice a broken op."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base import Array, DysharpError, ProgramError, SimulationError
from dysharp.engine.burst.run import run_burst
from dysharp.functional.machine import Pass as EmulatedPass
from dysharp.functional.reference import dense_forward, recorded_reference
from dysharp.functional.rows import run_rows
from dysharp.program import Kind, Program, owners
from dysharp.program.names import member_owner, op_name
from dysharp.program.verify import verify
from dysharp.testing.conformance.case import CheckedPass, SystemCase, layer_case, run_case
from dysharp.testing.conformance.emulation import machine_of
from dysharp.testing.conformance.rule import Lines, NotRun, rule

SAMPLES = 10
"""Number of members that the rule breaks per pass."""
BROKEN_OPS = 20
"""Number of ops that the rule with tensors breaks."""


# ---- members: noticed without tensors --------------------------------------------------------------------


@rule("pass", over=range(SAMPLES))
def _broken_members_are_noticed(case: CheckedPass, seed: int) -> Lines:
    """The verifier or the watchdog of the run notices a deleted, doubled or redirected member or row."""
    program, rng = case.program, np.random.default_rng(seed)
    changes = [c for c in CHANGES if c is not redirect_member or program.n_nodes > 1]
    change = changes[seed % len(changes)]
    member = _sample_member(program, rng, needs_rows=change in (_delete_fill, _double_fill, _redirect_fill))
    broken = None if member is None else change(program, member)
    if member is None or broken is None:
        raise NotRun(f"the Program has no member that {change.__name__} can change")
    try:
        verify(broken)
        run_burst(broken)
    except (ProgramError, SimulationError):
        return
    op = member_owner(program, member)
    yield f"{change.__name__} of {op_name(program, op)}, member {member}: found nothing wrong, expected an error"


def _sample_member(program: Program, rng: np.random.Generator, needs_rows: bool) -> int | None:
    """A random member that is remote or has rows. The template is drawn first, so that rare templates count, too."""
    m = program.members
    owner = owners(m.ptr)
    has_rows = np.diff(m.fill_ptr) > 0
    candidates = np.flatnonzero(has_rows if needs_rows else has_rows | (m.node != program.ops.node[owner]))
    if len(candidates) == 0:
        return None
    template = program.ops.template[owner[candidates]]
    return int(rng.choice(candidates[template == rng.choice(np.unique(template))]))


def _with_members(program: Program, order: Array, node: Array | None = None) -> Program:
    """The Program with the members `order` (ascending indices, repeats allowed) and their rows."""
    m = program.members
    owner = owners(m.ptr)[order]
    fills = np.diff(m.fill_ptr)[order]
    ptr = np.append(0, np.cumsum(np.bincount(owner, minlength=program.n_ops)))
    rows = [m.fill_row[m.fill_ptr[i] : m.fill_ptr[i + 1]] for i in order]
    changed = replace(
        m, ptr=ptr.astype(np.int32), node=(m.node if node is None else node)[order], fill_ptr=np.append(0, np.cumsum(fills)).astype(np.int32),
        fill_row=np.concatenate(rows) if rows else m.fill_row[:0], ext_bytes=None if m.ext_bytes is None else m.ext_bytes[order],
    )  # fmt: skip
    return replace(program, members=changed)


def _with_fills(program: Program, member: int, rows: Array) -> Program:
    """The Program in which `member` fills or reads `rows`."""
    m = program.members
    first, last = int(m.fill_ptr[member]), int(m.fill_ptr[member + 1])
    fill_ptr = m.fill_ptr.copy()
    fill_ptr[member + 1 :] += np.int32(len(rows) - (last - first))
    fill_row = np.concatenate((m.fill_row[:first], rows, m.fill_row[last:])).astype(np.int32)
    return replace(program, members=replace(m, fill_ptr=fill_ptr, fill_row=fill_row))


def _rows_of(program: Program, member: int) -> Array:
    m = program.members
    return m.fill_row[m.fill_ptr[member] : m.fill_ptr[member + 1]]


def delete_member(program: Program, member: int) -> Program:
    """The Program without `member`."""
    return _with_members(program, np.delete(np.arange(program.n_members), member))


def _double_member(program: Program, member: int) -> Program:
    """The Program with `member` twice."""
    return _with_members(program, np.insert(np.arange(program.n_members), member, member))


def redirect_member(program: Program, member: int) -> Program:
    """The Program with `member` on the next node."""
    node = program.members.node.copy()
    node[member] = (node[member] + 1) % program.n_nodes
    return _with_members(program, np.arange(program.n_members), node)


def _delete_fill(program: Program, member: int) -> Program:
    """The Program without the first row of `member`."""
    return _with_fills(program, member, _rows_of(program, member)[1:])


def _double_fill(program: Program, member: int) -> Program:
    """The Program with the first row of `member` twice."""
    rows = _rows_of(program, member)
    return _with_fills(program, member, np.append(rows, rows[0]))


def _redirect_fill(program: Program, member: int) -> Program | None:
    """The Program in which the first row of `member` is the next row; None if there is no next row."""
    rows = _rows_of(program, member).copy()
    if program.n_rows < 2:
        return None
    rows[0] = (rows[0] + 1) % program.n_rows
    return _with_fills(program, member, rows)


CHANGES: tuple[Callable[[Program, int], Program | None], ...] = (
    delete_member, _double_member, redirect_member, _delete_fill, _double_fill, _redirect_fill,
)  # fmt: skip


# ---- ops: noticed with tensors ---------------------------------------------------------------------------


@rule("system")
def _broken_ops_are_noticed(case: SystemCase, samples: int = BROKEN_OPS) -> Lines:
    """The verifier, the watchdog, the record or a wrong tensor notices a deleted, doubled or redirected op."""
    machine = machine_of(case, "row")
    run_case(layer_case("int32", tokens=24), machine)
    done = machine.passes["forward"]
    expected = dense_forward(done.tensors).astype(np.int32)
    if _noticed(done.program, done, expected):
        yield "the unchanged Program: found an error or a wrong tensor, expected none"
    rng = np.random.default_rng(len(case.system.name))
    for _ in range(samples):
        text, program = _mutant(done.program, rng)
        if not _noticed(program, done, expected):
            yield f"{text}: found nothing wrong, expected an error or another tensor"


def _noticed(program: Program, done: EmulatedPass, expected: Array) -> bool:
    try:
        verify(program)
        outcome = run_rows(program, done.tensors, "random")
        recorded_reference(done.tensors, outcome.record)
    except DysharpError:
        return True
    return not np.array_equal(outcome.out, expected)


def _delete_compute(program: Program, op: int, rng: np.random.Generator) -> Program:
    """The op stays, but computes nothing."""
    nothing = replace(program.templates[program.ops.template[op]], name="deleted", kind=Kind.JOIN, fn="", tasks=0, duration=-1)
    template, issuer = program.ops.template.copy(), program.ops.issuer.copy()
    template[op], issuer[op] = len(program.templates), -1
    return replace(program, templates=(*program.templates, nothing), ops=replace(program.ops, template=template, issuer=issuer))


def _alike(program: Program, op: int) -> Any:
    """`[ops]` bool: ops with the function of `op`. A system in chunks has several templates of one function."""
    fn = np.array([t.fn for t in program.templates])
    return (fn == fn[program.ops.template[op]])[program.ops.template]


def _redirect_compute(program: Program, op: int, rng: np.random.Generator) -> Program:
    """The op computes another tile, so that tile is computed twice and its own tile never."""
    key = program.ops.key.copy()
    others = np.flatnonzero(_alike(program, op) & (program.ops.key != key[op]))
    key[op] = key[rng.choice(others)]
    return replace(program, ops=replace(program.ops, key=key))


def _redirect_token(program: Program, op: int, rng: np.random.Generator) -> Program:
    """The transfer sends another token of its GPU."""
    key = program.ops.key.copy()
    same = _alike(program, op) & (program.ops.node == program.ops.node[op]) & (key != key[op])
    key[op] = key[rng.choice(np.flatnonzero(same))]
    return replace(program, ops=replace(program.ops, key=key))


def _mutant(program: Program, rng: np.random.Generator) -> tuple[str, Program]:
    """(description, Program) with one op broken that moves or computes data."""
    kinds = program.kinds()
    fn = np.array([t.fn for t in program.templates])[program.ops.template]
    compute = np.flatnonzero(kinds == Kind.COMPUTE)
    rows = np.diff(program.members.fill_ptr[program.members.ptr])  # rows by op; an op without rows writes nothing
    moves = np.flatnonzero(np.isin(fn, ("copy", "sum", "row")) & (rows > 0))
    ways: list[Callable[[], tuple[str, Program]]] = []
    op = int(rng.choice(compute))
    ways += [lambda f=f: (f"{f.__name__} of op {op}", f(program, op, rng)) for f in (_delete_compute, _redirect_compute)]  # type: ignore[misc]
    moved = int(rng.choice(moves))
    if program.ops.key[moved] >= 0:
        ways.append(lambda: (f"_redirect_token of op {moved}", _redirect_token(program, moved, rng)))
    first, end = program.members.ptr[moved : moved + 2]
    fills = np.diff(program.members.fill_ptr)[first:end] > 0
    member = int(first + rng.choice(np.flatnonzero(fills)))
    changes = (delete_member, _double_member, redirect_member, _delete_fill)
    ways += [lambda f=f: (f"{f.__name__} of member {member} of op {moved}", f(program, member)) for f in changes]  # type: ignore[misc]
    return ways[int(rng.integers(len(ways)))]()
