"""Bytes that the ops of a Program move into rows and over links. The verifier compares them with declared bytes."""

from functools import cached_property

import numpy as np

from dysharp.base import Array, ProgramError, Tally
from dysharp.isa.framing import AS_IS
from dysharp.program.builder import PULLS, PUSHES, WIRED
from dysharp.program.csr import runs, spans
from dysharp.program.names import fail_where, op_name, row_name
from dysharp.program.schema import Nature
from dysharp.program.tables import Kind, Program


class Columns:
    """Columns that several checks need, computed once. Ops come in long runs of one template, which saves work."""

    def __init__(self, program: Program) -> None:
        self.p = program
        template = program.ops.template
        self.run_start, self.run_length = runs(template)
        self.run_template: Array = template[self.run_start]
        self.kinds: Array = self.by_template(np.array([t.kind for t in program.templates], np.int8))
        self._is_kind: dict[tuple[Kind, ...], Array] = {}
        self.per_op: Array = np.diff(program.members.ptr)
        self.op_fill_ptr: Array = program.members.fill_ptr[program.members.ptr]

    def by_template(self, values: Array) -> Array:
        """`[n_ops]` entry of `values` (by template) for every op."""
        return np.repeat(values[self.run_template], self.run_length)

    def sum_by_template(self, column: Array) -> Array:
        """`[n_templates]` int64 sums of an op column."""
        out = np.zeros(len(self.p.templates), np.int64)
        if self.p.n_ops:
            np.add.at(out, self.run_template, np.add.reduceat(column, self.run_start, dtype=np.int64))
        return out

    def is_kind(self, kinds: tuple[Kind, ...]) -> Array:
        """`[n_ops]` bool: whether the kind of the op is in `kinds`."""
        if kinds not in self._is_kind:
            self._is_kind[kinds] = self.by_template(np.array([t.kind in kinds for t in self.p.templates], bool))
        return self._is_kind[kinds]

    def name(self, op: int) -> str:
        return op_name(self.p, op)

    @cached_property
    def owner(self) -> Array:
        """`[n_members]` op of every member."""
        return np.repeat(np.arange(self.p.n_ops, dtype=np.int32), self.per_op)

    @cached_property
    def n_remote(self) -> Array:
        """`[n_ops]` number of members on other nodes."""
        m, node = self.p.members, self.p.ops.node
        if self.per_op.max(initial=0) <= 1:
            alone: Array = self.per_op.astype(np.int32)
            alone[alone > 0] = m.node != node[self.per_op > 0]
            return alone
        remote = m.node != np.repeat(node, self.per_op)
        total = np.zeros(self.p.n_members + 1, np.int32)
        np.cumsum(remote, out=total[1:])
        return np.asarray(np.diff(total[m.ptr]))

    @cached_property
    def leads(self) -> Array:
        """`[n_ops]` bool: False for all ops of a session but the first, because their sum is written once."""
        leads = np.ones(self.p.n_ops, bool)
        if self.p.sessions is not None and self.p.ops.session is not None:
            ops = np.flatnonzero((self.p.ops.session >= 0) & (self.n_remote > 0))
            session = self.p.ops.session[ops]
            order = np.argsort(session, kind="stable")
            size = np.bincount(session, minlength=len(self.p.sessions.home))
            leads[ops[order]] = spans(0, size) % self.p.sessions.expected[session[order]] == 0
        return leads


def check_rows(c: Columns) -> None:
    """Every row is filled with exactly its bytes. Tiled regions have the declared number of useful rows."""
    p, r = c.p, c.p.regions
    per_op = np.diff(c.op_fill_ptr)
    pushed = np.where(c.is_kind(PUSHES) & c.leads, p.ops.bytes, 0)
    filled = np.bincount(p.members.fill_row, weights=np.repeat(pushed, per_op), minlength=p.n_rows)
    expected = np.repeat(r.row_bytes, np.diff(r.row_ptr))
    fail_where(filled != expected, lambda i: f"{row_name(p, i)}: found {int(filled[i])} B filled, expected exactly {expected[i]} B")
    tiled = p.tiled_regions()
    if not (tiled.any() or p.declared.useful_rows):
        return
    useful = np.repeat(tiled, np.diff(r.row_ptr))
    if useful.sum() != p.declared.useful_rows:
        raise ProgramError(f"tiled regions: found {useful.sum()} rows, expected the declared {p.declared.useful_rows} useful rows")
    pulls = np.array([t.kind is Kind.PULL_REDUCE for t in p.templates], bool)
    if pulls.any():  # pushes name no rows to read: notifications release them
        reads = np.bincount(p.members.fill_row, weights=np.repeat(c.by_template(pulls), per_op), minlength=p.n_rows)
        by_push = (r.row_notify >= 0) & c.is_kind(PUSHES)[r.row_notify]
        wanted = np.where(by_push, 0, reads[useful].any())
        fail_where(useful & (reads != wanted), lambda i: f"{row_name(p, i)}: found {int(reads[i])} reads by pulls, expected exactly {int(wanted[i])}")


def moved_bytes(program: Program) -> dict[str, Tally]:
    """Payload bytes on links by direction ("up", "down") and operator, for a legal Program.

    | op | up | down |
    |---|---|---|
    | push | once if any member is remote | once per remote member |
    | pull | one response per remote member | one result if any member is remote |

    Payload that a session merges in the switch travels once behind the switch. A transfer in another network NAME than
    NVLink counts as "NAME out" and "NAME in".
    """
    return _moved(Columns(program))


def _moved(c: Columns) -> dict[str, Tally]:
    program = c.p
    once = np.where(c.n_remote > 0, program.ops.bytes, 0)
    each = np.where(c.leads, program.ops.bytes, 0) * c.n_remote.astype(np.int64)
    near, far = c.sum_by_template(once), c.sum_by_template(each)
    for i, t in enumerate(program.templates):
        framing = program.framings[t.framing] if t.kind in PULLS else None
        if framing is not None and {framing.answer, framing.total} != {AS_IS}:
            mine = program.ops.template == i
            answers, sums = (framing.cast_bytes(program.ops.bytes[mine].astype(np.int64), cast) for cast in (framing.answer, framing.total))
            near[i], far[i] = sums[c.n_remote[mine] > 0].sum(), (answers * c.n_remote[mine]).sum()
    sides = sides_of(program)
    out: dict[str, Tally] = {side: {} for pair in sides for side in pair}
    for i, t in enumerate(program.templates):
        if t.kind in WIRED:
            for side, moved in zip(sides[t.net], (far, near) if t.kind in PULLS else (near, far), strict=True):
                out[side][t.operator] = out[side].get(t.operator, 0) + int(moved[i])
    return out


def sides_of(program: Program) -> list[tuple[str, str]]:
    """The names of both link directions of every network, NVLink first. Links between pairs have equal names."""
    return [("up", "down"), *((f"{net.name} out", f"{net.name} in") for net in program.nets)]


def link_name(program: Program, net: int, node: int, side: int) -> str:
    """The name of one link of `node` in network `net`, out (`side` 0) or in (1): "gpu[3].nic out", "gpu[3].xgmi to gpu[5]"."""
    other = program.nets[net - 1] if net else None
    if other is None or not other.step:
        return f"gpu[{node}].{sides_of(program)[net][side]}"
    if side:  # the same link, seen from its receiver
        first = node - node % other.ring
        node = first + (node - first - other.step) % other.ring
    return f"gpu[{node}].{other.name} to gpu[{int(other.peer(np.int32(node)))}]"  # type: ignore[arg-type]


def check_traffic(c: Columns) -> None:
    """The ops move the declared payload bytes, except for host operators and Programs that declare no traffic."""
    declared, exempt = c.p.declared.traffic, c.p.with_nature(Nature.HOST)
    if not declared:
        return
    for side, by_operator in _moved(c).items():
        expected = declared.get(side, {})
        for operator in sorted({*by_operator, *expected} - {*exempt}):
            moved, promised = by_operator.get(operator, 0), expected.get(operator, 0)
            if moved != promised:
                raise ProgramError(f"traffic {side} of {operator}: found {moved} B in the ops, expected the declared {promised} B")
